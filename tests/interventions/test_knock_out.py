import numpy as np
import pytest
import torch
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache

import interp
from interp.interventions.select import find_tokens
from interp.models.convert import _make_bridge, prepare
from tasks.task import Batch
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (3, 14), generator=torch.Generator().manual_seed(1))
SHORT = TOKENS[:, :10] % 11


@pytest.fixture(scope="module", params=[0, 1], ids=["hooked", "bridge"])
def either(both, request):
    return both[request.param]


@pytest.fixture(scope="module")
def small():
    """Attention only, without norms, so that a few lines of numpy are its whole forward pass."""
    return interp.build(
        n_layers=2, d_model=12, n_heads=3, d_vocab=11, n_ctx=10, attn_only=True, normalization_type=None, seed=1
    )


@torch.no_grad()
def run(model, tokens=TOKENS, **options):
    return model(tokens, **options)


def patterns(model, layer=0, tokens=TOKENS):
    """[batch head query key], as the layer uses them."""
    seen = []
    with interp.add_hooks(model, [(f"blocks.{layer}.attn.hook_pattern", lambda pattern, hook: seen.append(pattern))]):
        run(model, tokens)
    return seen[0]


def forward_slowly(model, tokens, is_cut, mode):
    """Plain loops in float64; `is_cut(layer, head, row, query, key)`."""
    weights = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}
    logits = []
    for row, ids in enumerate(tokens.tolist()):
        residual = weights["embed.W_E"][ids] + weights["pos_embed.W_pos"][: len(ids)]
        for layer in range(model.cfg.n_layers):
            of = {name: weights[f"blocks.{layer}.attn.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")}
            bias = {name: weights[f"blocks.{layer}.attn.{name}"] for name in ("b_Q", "b_K", "b_V", "b_O")}
            written = np.zeros_like(residual) + bias["b_O"]
            for head in range(model.cfg.n_heads):
                q = residual @ of["W_Q"][head] + bias["b_Q"][head]
                k = residual @ of["W_K"][head] + bias["b_K"][head]
                v = residual @ of["W_V"][head] + bias["b_V"][head]
                for query in range(len(ids)):
                    cut = [is_cut(layer, head, row, query, key) for key in range(query + 1)]
                    exp = np.array([np.exp(q[query] @ k[key] / model.cfg.attn_scale) for key in range(query + 1)])
                    if mode == "mask":
                        exp[cut] = 0
                    weight = exp / exp.sum()
                    if mode == "bos":
                        weight[0] += weight[cut].sum()
                    if mode != "mask":
                        weight[cut] = 0
                    written[query] += sum(weight[key] * v[key] for key in range(query + 1)) @ of["W_O"][head]
            residual = residual + written
        logits.append(residual @ weights["unembed.W_U"] + weights["unembed.b_U"])
    return np.stack(logits)


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_equals_plain_loops(small, mode):
    """Positions that differ from row to row, in chosen heads of two layers."""
    queries, keys = torch.tensor([[5, 9], [4, 8], [9, 7]]), torch.tensor([[2], [3], [6]])
    heads = [(0, 1), (1, 0), (1, 2)]
    with interp.knock_out_attention(small, queries=queries, keys=keys, mode=mode, heads=heads):
        logits = run(small, SHORT)

    def is_cut(layer, head, row, query, key):
        return (layer, head) in heads and query in queries[row] and key in keys[row]

    np.testing.assert_allclose(logits.numpy(), forward_slowly(small, SHORT, is_cut, mode), atol=1e-5)
    assert np.abs(logits.numpy() - forward_slowly(small, SHORT, lambda *edge: False, mode)).max() > 1e-3


@pytest.mark.parametrize("from_whom", ["everyone", "last"])
def test_masked_tokens_equal_plain_loops(small, from_whom):
    hidden = SHORT.eq(SHORT[:, 4:5])  # another set of positions in each row

    def is_cut(layer, head, row, query, key):
        return layer == 1 and hidden[row, key] and query > key and (from_whom == "everyone" or query == 9)

    with interp.mask_tokens(small, hidden, from_whom=from_whom, layers=[1]):
        logits = run(small, SHORT)
    np.testing.assert_allclose(logits.numpy(), forward_slowly(small, SHORT, is_cut, "mask"), atol=1e-5)


def test_masking_one_key_in_all_layers(either):
    """Earlier positions don't change at all; later ones as if its weight were shared out among the other keys."""

    def renormalise(pattern, hook):
        rest = pattern.clone()
        rest[:, :, 5:, 4] = 0
        return rest / rest.sum(-1, keepdim=True)

    whole = run(either)
    with interp.mask_tokens(either, [4]):
        masked = run(either)
    with interp.add_hooks(either, [(f"blocks.{layer}.attn.hook_pattern", renormalise) for layer in range(2)]):
        reference = run(either)
    assert torch.equal(masked[:, :5], whole[:, :5])
    torch.testing.assert_close(masked, reference, atol=5e-6, rtol=0)
    assert (masked[:, 5:] - whole[:, 5:]).abs().max() > 0.5


def test_hiding_the_first_token_leaves_it_to_itself(either):
    with interp.mask_tokens(either, [0]):
        pattern = patterns(either)
    assert (pattern[:, :, 1:, 0] == 0).all()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(3, 6, 14))


def test_is_not_the_padding_mask(both):
    hooked, _ = both
    padding = torch.ones_like(TOKENS)
    padding[:, 4] = 0
    with interp.mask_tokens(hooked, [4]):
        masked = run(hooked)
    assert (masked[:, 5:] - run(hooked, attention_mask=padding)[:, 5:]).abs().max() > 0.5


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_both_classes_agree(both, mode):
    choice = {"queries": [6, 9, 13], "keys": [2, 5], "heads": [0, 4], "layers": [1], "mode": mode}
    logits = []
    for model in both:
        with interp.knock_out_attention(model, **choice):
            logits.append(run(model))
    torch.testing.assert_close(*logits, atol=2e-5, rtol=0)
    assert (logits[0] - run(both[0])).abs().max() > 0.05


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_what_the_rows_sum_to(either, mode):
    whole = patterns(either)
    removed = whole[:, 1, 6:, [2, 3]].sum(-1)
    with interp.knock_out_attention(either, queries=range(6, 14), keys=[2, 3], heads=[(0, 1)], mode=mode):
        cut = patterns(either)
    assert (cut[:, 1, 6:, [2, 3]] == 0).all()
    expected = torch.ones_like(whole[..., 0])
    if mode == "zero":
        expected[:, 1, 6:] -= removed
    torch.testing.assert_close(cut.sum(-1), expected, atol=1e-6, rtol=0)
    others = [0, 2, 3, 4, 5]
    assert torch.equal(cut[:, others], whole[:, others])
    assert torch.equal(cut[:, 1, :6], whole[:, 1, :6])
    kept = whole[:, 1, 6:].clone()
    kept[..., [2, 3]] = 0
    if mode == "mask":
        kept /= 1 - removed[..., None]
    if mode == "bos":
        kept[..., 0] += removed
    torch.testing.assert_close(cut[:, 1, 6:], kept, atol=1e-6, rtol=0)


def test_where_score_edits_do_nothing_the_pattern_is_renormalised(both, monkeypatch):
    _, bridge = both
    with interp.mask_tokens(bridge, [2, 4]):
        by_score = run(bridge)
    monkeypatch.setattr(bridge, "_acting_hooks", frozenset({"attn.hook_pattern"}))
    with interp.mask_tokens(bridge, [2, 4]):
        by_pattern = run(bridge)
    torch.testing.assert_close(by_score, by_pattern, atol=5e-6, rtol=0)
    assert not torch.equal(by_score, by_pattern)
    with (
        interp.knock_out_attention(bridge, queries=[1], keys=[0, 1], mode="mask"),
        pytest.raises(interp.InputError, match="would leave query 1 of sequence 0 without any key in head 0"),
    ):
        run(bridge)


def test_a_model_in_which_neither_acts_is_refused():
    bridge = _make_bridge(prepare(make_tiny("gpt_neo")), name="tiny neo", reason="wanted here")
    with (
        pytest.raises(
            interp.InputError, match=r"'attn.hook_pattern' has no effect in this TransformerBridge of tiny neo"
        ),
        interp.mask_tokens(bridge, [4]),
    ):
        pass


def test_with_a_key_value_cache_positions_count_from_the_start(small):
    cache = TransformerLensKeyValueCache.init_cache(small.cfg, "cpu", 3)
    with interp.mask_tokens(small, [3]):
        whole = run(small, SHORT)
        first = run(small, SHORT[:, :8], past_kv_cache=cache, attention_mask=torch.ones_like(SHORT[:, :8]))
        rest = run(small, SHORT[:, 8:], past_kv_cache=cache, attention_mask=torch.ones_like(SHORT[:, 8:]))
    torch.testing.assert_close(torch.cat([first, rest], dim=1), whole, atol=1e-6, rtol=0)
    assert not torch.allclose(whole[:, 9], run(small, SHORT)[:, 9], atol=1e-4)


def test_rows_of_padding_are_no_undefined_queries(both):
    hooked, _ = both
    padding = torch.ones_like(TOKENS)
    padding[0, :3] = 0
    with interp.mask_tokens(hooked, [2]):
        logits = run(hooked, attention_mask=padding)
    assert logits.isfinite().all()


def test_roles_name_positions_that_move(small):
    roles = {"anchor": torch.tensor([[1, 2], [4, 3], [6, 2]]), "last": torch.tensor([[8], [9], [7]])}
    batch = make_batch(roles)
    with interp.knock_out_attention(small, queries="last", keys=["anchor"], mode="mask", batch=batch):
        named = run(small, SHORT)
    with interp.knock_out_attention(small, queries=roles["last"], keys=roles["anchor"], mode="mask"):
        assert torch.equal(run(small, SHORT), named)
    with interp.mask_tokens(small, "anchor", from_whom="last", batch=batch):
        assert torch.equal(run(small, SHORT), named)
    with interp.mask_tokens(small, roles["anchor"], from_whom="last"):  # the end of the input instead
        assert not torch.equal(run(small, SHORT), named)


def make_batch(roles):
    marked = torch.ones_like(SHORT, dtype=torch.bool)
    return Batch(tokens=SHORT, targets=SHORT, trained=marked, scored=marked, roles=roles)


@pytest.fixture
def machine():
    return build_copying_machine(d_vocab=12, n_ctx=24)


COPIED = torch.arange(12).repeat(2, 2)
"""Positions 12 to 22 repeat what came 12 before; position 15 must look at key 4 to know that 4 comes next."""


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_only_the_edge_that_carries_the_answer_matters(machine, mode):
    first = 1 if mode == "bos" else 0

    def find_keys(layer, head, query):
        """The keys without which the query of that head spoils the answer; each is cut in a row of its own."""
        keys = torch.arange(first, query + 1)[:, None]
        with interp.knock_out_attention(machine, queries=[query], keys=keys, heads=[(layer, head)], mode=mode):
            wrong = run(machine, COPIED[:1].expand(len(keys), -1))[:, 15].argmax(-1) != 4
        return keys[wrong].flatten().tolist()

    assert find_keys(1, 0, 15) == [4]
    assert find_keys(0, 0, 4) == [3]  # key 4 learns there what came before it
    assert find_keys(1, 1, 15) == find_keys(0, 0, 15) == find_keys(0, 1, 4) == find_keys(1, 0, 14) == []


def test_each_row_has_its_own_edge(machine):
    queries = torch.tensor([[15], [18]])
    with interp.knock_out_attention(machine, queries=queries, keys=queries - 11, layers=[1], heads=[0], mode="zero"):
        right = run(machine, COPIED)[:, 12:23].argmax(-1) == COPIED[:, 13:]
    assert [(~row).nonzero().flatten().tolist() for row in right] == [[3], [6]]


def count_hooks(model):
    return sum(len(point._forward_hooks) for point in model.hook_dict.values())


def test_undone_also_when_nested_and_after_an_exception(either):
    before, hooks = run(either), count_hooks(either)
    with interp.mask_tokens(either, [3]):
        once = run(either)
        with interp.knock_out_attention(either, queries=[9], keys=[1], mode="bos"):
            assert not torch.equal(run(either), once)
        assert torch.equal(run(either), once)
        with pytest.raises(KeyError), interp.knock_out_attention(either, queries=[9], keys=[1], mode="bos"):
            raise KeyError
        assert torch.equal(run(either), once)
    with interp.mask_tokens(either, [20]), pytest.raises(interp.InputError, match="Position 20 in tokens"):
        run(either)
    assert count_hooks(either) == hooks
    assert torch.equal(run(either), before)


def test_the_users_own_hooks_survive(machine):
    seen = []
    machine.add_hook("blocks.1.attn.hook_attn_scores", lambda scores, hook: seen.append("mine"))
    with interp.mask_tokens(machine, [3]):
        run(machine, COPIED)
    run(machine, COPIED)
    assert seen == ["mine", "mine"]
    assert count_hooks(machine) == 1


def test_positions_are_given_as_token_ids(small):
    tokens = torch.randint(2, 50, (3, 10), generator=torch.Generator().manual_seed(5)) % small.cfg.d_vocab
    comma, stop = int(tokens[0, 2]), int(tokens[1, 4])
    expected = (tokens == comma) | (tokens == stop)
    found = find_tokens(tokens, [comma, stop])
    assert torch.equal(found, expected)
    with interp.knock_out_attention(small, queries=[9], keys=found, mode="zero"):
        by_id = small(tokens)
    with interp.knock_out_attention(small, queries=[9], keys=expected, mode="zero"):
        assert torch.equal(by_id, small(tokens))
    roles = {"comma": find_tokens(tokens, comma)}
    batch = Batch(tokens=tokens, targets=tokens, trained=tokens > -1, scored=tokens > -1, roles=roles)
    with interp.mask_tokens(small, "comma", batch=batch), torch.no_grad():
        by_role = small(tokens)
    with interp.mask_tokens(small, tokens == comma), torch.no_grad():
        assert torch.equal(by_role, small(tokens))
    with pytest.raises(
        interp.InputError, match=r"The token ids \[99\] stand nowhere in these 3 sequences; give ids that"
    ):
        find_tokens(tokens, [comma, 99])
    with pytest.raises(interp.InputError, match=r"The token ids \[\] stand nowhere"):
        find_tokens(tokens, [])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"heads": [(2, 0)]}, "Head 2.0 doesn't exist: this model has layers 0 to 1 with heads 0 to 2"),
        ({"heads": [3]}, "Head 0.3 doesn't exist"),
        ({"layers": [2]}, "Layer 2 doesn't exist: this model has layers 0 to 1"),
        ({"layers": []}, r"layers=\[\] chooses no layer"),
        ({"heads": []}, r"heads=\[\] chooses no head"),
        ({"heads": [(0, 1)], "layers": [0]}, r"heads=\[\(0, 1\)\] names layers itself"),
        ({"keys": [-1]}, "Position -1 in keys doesn't exist: positions count from 0"),
        ({"keys": "anchor"}, "keys='anchor' names roles of a batch; give that batch as `batch=`"),
        ({"queries": [True, False]}, r"queries=\[True, False\] are no positions; give integers"),
        ({"mode": "cut"}, "mode='cut' isn't known; use one of mask, zero, bos"),
        ({"keys": torch.tensor([1, 2])}, r"keys is a tensor of shape \[2\] and torch.int64; give a list of positions"),
        ({"keys": torch.ones(3, 10)}, r"keys is a tensor of shape \[3, 10\] and torch.float32"),
        (
            {"keys": torch.ones(3, 10, dtype=torch.uint8)},
            "torch.uint8; give a list of positions that the batch shares, int",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_at_once(small, choice, message):
    choice = {"queries": [5], "keys": [2], "mode": "mask", **choice}
    with (
        as_without_type_checks(),
        pytest.raises(interp.InputError, match=message),
        interp.knock_out_attention(small, **choice),
    ):
        pass


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"keys": [10]}, "Position 10 in keys doesn't exist: the input has positions 0 to 9"),
        ({"keys": torch.tensor([[1], [2]])}, "keys are given for 2 sequences, but the batch that runs has 3"),
        ({"keys": torch.ones(3, 9, dtype=torch.bool)}, "The mask for keys has 9 positions, but the input has 10"),
        ({"keys": [6, 7]}, "no chosen key comes before a chosen query"),
        ({"keys": []}, "There is no attention to cut"),
        ({"queries": range(10), "keys": [0]}, "would leave query 0 of sequence 0 without any key in head 0"),
        ({"keys": range(6)}, "would leave query 5 of sequence 0 without any key in head 0"),
        ({"keys": [0, 2], "mode": "bos"}, "mode='bos' moves the weight to the first token, which is itself among"),
    ],
)
def test_what_does_not_fit_the_batch_that_runs_is_refused(small, choice, message):
    choice = {"queries": [5], "keys": [2], "mode": "mask", **choice}
    with interp.knock_out_attention(small, **choice), pytest.raises(interp.InputError, match=message):
        run(small, SHORT)


def test_an_unknown_role_is_refused(small):
    batch = make_batch({"anchor": torch.tensor([[1], [4], [6]]), "noise": torch.tensor([[2], [3], [5]])})
    with (
        pytest.raises(interp.InputError, match="The batch has no role 'key'; its roles: anchor, noise"),
        interp.mask_tokens(small, ["anchor", "key"], batch=batch),
    ):
        pass


def test_unknown_viewers_are_refused(small):
    with (
        as_without_type_checks(),
        pytest.raises(interp.InputError, match="from_whom='first' isn't known; use one of everyone, last"),
        interp.mask_tokens(small, [2], from_whom="first"),
    ):
        pass


@pytest.mark.parametrize("family", ["gpt_neo", "mistral_window"])
def test_a_query_that_loses_its_whole_window_is_refused(family):
    model = interp.load(make_tiny(family), device="cpu")
    with (
        interp.knock_out_attention(model, queries=[12], keys=range(5, 13), mode="mask"),
        pytest.raises(interp.InputError, match="would leave query 12 of sequence 0 without any key in head 0"),
    ):
        run(model)
