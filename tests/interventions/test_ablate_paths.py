"""Ablation as chosen readers see it: the path that copying needs, and agreement with a slow version in three passes."""

import pytest
import torch
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache

import interp
from interp.models.convert import _make_bridge, prepare, private_copy
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (4, 9), generator=torch.Generator().manual_seed(0))
HEADS = [(0, 1), (1, 0), (1, 2)]


def make_hugging_face(family):
    return make_tiny(family, **({"n_layer": 3} if family == "gpt2" else {"num_hidden_layers": 3}))


@pytest.fixture(
    scope="module", params=["gpt2", "llama", "gpt_neox", "qwen3", "gpt2 bridge", "llama bridge", "qwen3 bridge"]
)
def model(request):
    family, _, bridge = request.param.partition(" ")
    hf = make_hugging_face(family)
    if bridge:
        return _make_bridge(prepare(private_copy(hf)), name="tiny", reason="wanted here")
    return interp.load(hf, device="cpu")


def build_attention_only():
    return interp.build(n_layers=2, d_model=24, n_heads=3, d_vocab=97, n_ctx=16, attn_only=True, seed=2)


def record(model, name, tokens=TOKENS):
    kept = []
    with interp.add_hooks(model, [(name, lambda activation, hook: kept.append(activation.clone()))]):
        model(tokens)
    return kept[-1]


@torch.no_grad()
def ablate_slowly(model, into, *, heads=HEADS, at=slice(None)):
    """Zero ablation, receiver by receiver in ascending order, each with passes of its own."""
    written, final = [], None
    for receiver in into:
        layer = model.cfg.n_layers if receiver == "logits" else receiver[0]
        place = (
            f"blocks.{layer}.hook_resid_pre" if layer < model.cfg.n_layers else f"blocks.{layer - 1}.hook_resid_post"
        )
        with interp.add_hooks(model, written):
            change = 0
            for sender, head in heads:
                if sender < layer:
                    z = record(model, f"blocks.{sender}.attn.hook_z")[:, :, head]
                    moved = torch.zeros_like(z)
                    moved[:, at] = -z[:, at]
                    change = change + moved @ model.blocks[sender].attn.W_O[head]

        def add(stream, hook, change=change):
            return stream + change

        if receiver == "logits":
            final = (place, add)
            continue
        name = f"blocks.{layer}.attn.hook_{receiver[2]}"
        with interp.add_hooks(model, [*written, (place, add)]):
            read = record(model, name)

        def write(activation, hook, read=read, head=receiver[1]):
            activation = activation.clone()
            activation[:, :, head] = read[:, :, head]
            return activation

        written.append((name, write))
    with interp.add_hooks(model, written + ([final] if final else [])):
        return model(TOKENS)


INTO = {
    "a query": [(2, 1, "q")],
    "keys and values": [(1, 0, "k"), (1, 1, "v"), (2, 1, "v")],
    "the logits": ["logits"],
    "all kinds": [(1, 3, "q"), (2, 0, "k"), (2, 0, "q"), "logits"],
}


@pytest.mark.parametrize("into", INTO.values(), ids=INTO)
@torch.no_grad()
def test_equals_the_slow_version(model, into):
    with interp.ablate_heads(model, HEADS, into=into):
        ablated = model(TOKENS)
    torch.testing.assert_close(ablated, ablate_slowly(model, into), atol=1e-5, rtol=0)
    assert (ablated - model(TOKENS)).abs().max() > 1e-3
    assert all(not point._forward_hooks for point in model.hook_dict.values())
    assert all(not block._forward_pre_hooks and not block._forward_hooks for block in model.blocks)


@torch.no_grad()
def test_only_at_positions(model):
    into = [(1, 0, "k"), (2, 0, "q"), "logits"]
    with interp.ablate_heads(model, HEADS, into=into, positions=[2, 5]):
        ablated = model(TOKENS)
    torch.testing.assert_close(ablated, ablate_slowly(model, into, at=[2, 5]), atol=1e-5, rtol=0)
    torch.testing.assert_close(ablated[:, :2], model(TOKENS)[:, :2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
@torch.no_grad()
def test_all_readers_together_are_an_ablation(mode):
    model = build_attention_only()
    everyone = [(1, head, kind) for head in range(3) for kind in "qkv"]
    heads = [(0, 0), (0, 2)]
    with interp.ablate_heads(model, heads, mode=mode, seed=4):
        ablated = model(TOKENS)
    with interp.ablate_heads(model, heads, mode=mode, seed=4, into=[*everyone, "logits"]):
        torch.testing.assert_close(model(TOKENS), ablated, atol=1e-5, rtol=0)
    with interp.ablate_heads(model, heads, mode=mode, seed=4, into=everyone):
        assert (model(TOKENS) - ablated).abs().max() > 1e-3


def test_only_the_keys_of_the_copying_head_need_the_previous_token():
    model = build_copying_machine()
    segment = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:8]
    tokens = torch.cat([segment, segment])[None]
    for head, kind in [(0, "q"), (0, "k"), (0, "v"), (1, "k")]:
        with interp.ablate_heads(model, [(0, 0)], into=[(1, head, kind)]):
            copied = model(tokens)[0, 8:-1].argmax(-1) == segment[1:]
        assert bool(copied.all()) == ((head, kind) != (0, "k"))
    with interp.ablate_heads(model, [(0, 0)], into="logits"):
        assert (model(tokens)[0, 8:-1].argmax(-1) == segment[1:]).all()


def test_everybody_else_reads_the_real_output(model):
    whole = record(model, "blocks.1.attn.hook_v"), record(model, "blocks.0.attn.hook_z")
    with interp.ablate_heads(model, [(0, 1)], into=[(1, 1, "k")]):
        assert torch.equal(record(model, "blocks.1.attn.hook_v"), whole[0])
        assert torch.equal(record(model, "blocks.0.attn.hook_z"), whole[1])
        keys = record(model, "blocks.1.attn.hook_k")
    moved = (keys - record(model, "blocks.1.attn.hook_k")).abs().amax(dim=(0, 1, 3)) > 1e-4
    assert moved.nonzero()[:, 0].tolist() == [1]


@torch.no_grad()
def test_nested_blocks_add_up(model):
    into = [(2, 0, "q"), (2, 1, "k")]
    with interp.ablate_heads(model, HEADS, into=into):
        together = model(TOKENS)
    with interp.ablate_heads(model, HEADS[:1], into=into), interp.ablate_heads(model, HEADS[1:], into=into):
        torch.testing.assert_close(model(TOKENS), together, atol=1e-5, rtol=0)


def test_hooks_are_as_before_also_after_an_error():
    model = interp.load(make_hugging_face("gpt2"), device="cpu")
    whole = model(TOKENS)

    def fail(activation, hook):
        raise KeyError

    with (
        interp.ablate_heads(model, HEADS, into=[(2, 0, "q")]),
        interp.add_hooks(model, [("blocks.2.attn.hook_z", fail)]),
        pytest.raises(KeyError),
    ):
        model(TOKENS)
    assert all(not point._forward_hooks for point in model.hook_dict.values())
    assert all(not block._forward_pre_hooks and not block._forward_hooks for block in model.blocks)
    assert torch.equal(model(TOKENS), whole)


def test_a_pass_that_begins_later_is_refused():
    model = build_attention_only()
    stream = record(model, "blocks.1.hook_resid_pre")
    with interp.ablate_heads(model, [(0, 1)], into=[(1, 0, "q")]):
        model(TOKENS)
        with pytest.raises(interp.InputError, match="The pass began after layer 0, in which heads are ablated"):
            model(stream, start_at_layer=1)


@torch.no_grad()
def test_with_cached_keys_and_values():
    """Later tokens read the keys and values that the receivers had, and only new positions are ablated again."""
    model = interp.load(make_hugging_face("llama"), device="cpu")
    with interp.ablate_heads(model, HEADS, into=[(1, 0, "k"), (2, 1, "v"), (2, 0, "q"), "logits"]):
        whole = model(TOKENS)
        cache = TransformerLensKeyValueCache.init_cache(model.cfg, "cpu", len(TOKENS))
        parts = [
            model(part, past_kv_cache=cache, attention_mask=torch.ones_like(part))
            for part in (TOKENS[:, :6], TOKENS[:, 6:])
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_norms_after_the_heads_are_refused(family):
    model = interp.load(make_tiny(family), device="cpu")
    with (
        pytest.raises(interp.InputError, match="normalised after its heads are summed"),
        interp.ablate_heads(model, [(0, 1)], into=[(1, 0, "q")]),
    ):
        pass


MISTAKES = [
    (
        [(0, 1)],
        [(0, 0, "q")],
        "A sender in layer 0 isn't read by any of the receivers, the last of which is in layer 0",
    ),
    ([(1, 1)], [(1, 0, "q"), (0, 0, "k")], "A sender in layer 1 isn't read"),
    ([(0, 1)], [(1, 0, "z")], r"\(1, 0, 'z'\) is no receiver"),
    (
        [(0, 1)],
        [(1, 3, "q")],
        r"The receiver \(1, 3, 'q'\) doesn't exist: this model has layers 0 to 1 with heads 0 to 2",
    ),
    ([(0, 3)], [(1, 0, "q")], "Head 0.3 doesn't exist"),
    ([(0, 1)], [], r"The receivers \[\] are none"),
    ([(0, 1)], "mlp", "'mlp' is no receiver"),
]


@pytest.mark.parametrize(("heads", "into", "message"), MISTAKES, ids=[message[:30] for *_, message in MISTAKES])
def test_mistakes(heads, into, message):
    model = build_attention_only()
    with (
        as_without_type_checks(),
        pytest.raises(interp.InputError, match=message),
        interp.ablate_heads(model, heads, into=into),
    ):
        pass
