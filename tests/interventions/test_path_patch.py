"""Path patching equals the three-pass textbook form, names the path that carries an answer, and says what is wrong."""

import numpy as np
import pytest
import torch

import interp
from interp.interventions import path_engine
from interp.interventions.path_patch import patch_paths
from interp.models.convert import _make_bridge, prepare, private_copy
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

N, LENGTH = 3, 7
ANSWER, WRONG = [5, 11, 2], 7
METRIC = interp.logit_difference(ANSWER, WRONG)


def random_tokens(seed):
    return torch.randint(97, (N, LENGTH), generator=torch.Generator().manual_seed(seed))


CLEAN, CORRUPTED = random_tokens(0), random_tokens(1)
CORRUPTED[:, 0] = CLEAN[:, 0]  # a shared beginning, as prompts have
CORRUPTED[1, 1] = CLEAN[1, 1]


def make_model(kind):
    if kind == "attention_only":
        return interp.build(n_layers=3, d_model=24, n_heads=3, d_vocab=97, n_ctx=16, attn_only=True, seed=2)
    layers = {"n_layer": 3} if kind == "gpt2" else {"num_hidden_layers": 3}
    return interp.load(make_tiny(kind, **layers), device="cpu")


@pytest.fixture(scope="module", params=["gpt2", "llama", "gpt_neox", "qwen3", "attention_only"])
def model(request):
    """Layer norm, RMS norm with grouped queries and rotary positions, attention beside the MLP, norms of queries."""
    return make_model(request.param)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both_classes(request):
    layers = {"n_layer": 3} if request.param == "gpt2" else {"num_hidden_layers": 3}
    hf = make_tiny(request.param, **layers)
    bridge = _make_bridge(prepare(private_copy(hf)), name="tiny", reason="wanted here")
    return interp.load(hf, device="cpu"), bridge


def cache_both(model, base, source):
    return model.run_with_cache(base)[1], model.run_with_cache(source)[1]


def in_three_passes(model, base, caches, *, senders, receivers, mlps, at=slice(None)):
    """Logits, by hooks alone: freeze everything but the senders, record the receivers, run again."""
    has_mlp = not model.cfg.attn_only
    ours, theirs = caches

    def freeze_z(layer):
        def freeze(z, hook):
            name = f"blocks.{layer}.attn.hook_z"
            frozen = ours[name].clone()
            for place in (place for sender, place in senders if sender == layer and place != "mlp"):
                frozen[:, at, place] = theirs[name][:, at, place]
            return frozen

        return f"blocks.{layer}.attn.hook_z", freeze

    def write_mlp(layer):
        def write(out, hook):
            name = f"blocks.{layer}.hook_mlp_out"
            written = (ours[name] if mlps == "frozen" else out).clone()
            if (layer, "mlp") in senders:
                written[:, at] = theirs[name][:, at]
            return written

        return f"blocks.{layer}.hook_mlp_out", write

    kept = {}

    def keep(name):
        return name, lambda activation, hook: kept.update({name: activation.clone()})

    def receive(name):
        def write(activation, hook):
            activation = activation.clone()
            for head in (head for layer, head, kind in receivers if name == f"blocks.{layer}.attn.hook_{kind}"):
                activation[:, :, head] = kept[name][:, :, head]
            return activation

        return name, write

    layers = range(model.cfg.n_layers)
    hooks = [freeze_z(layer) for layer in layers] + [write_mlp(layer) for layer in layers if has_mlp]
    if receivers == "logits":
        return model.run_with_hooks(base, fwd_hooks=hooks)
    names = {f"blocks.{layer}.attn.hook_{kind}" for layer, _, kind in receivers}
    model.run_with_hooks(base, fwd_hooks=hooks + [keep(name) for name in names])
    return model.run_with_hooks(base, fwd_hooks=[receive(name) for name in names])


RECEIVERS = {
    "queries": [(2, 0, "q"), (2, 1, "q")],
    "several layers": [(1, 0, "k"), (2, 1, "v"), (2, 2, "q"), (1, 1, "q")],
    "logits": "logits",
}
WIDE = {name: RECEIVERS[name] for name in ("several layers", "logits")}


@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
@pytest.mark.parametrize("receivers", RECEIVERS.values(), ids=RECEIVERS)
@torch.no_grad()
def test_equals_three_passes_for_each_head(model, receivers, mlps):
    result = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=receivers, mlps=mlps)
    assert result.engine == "suffix"
    assert result.senders == tuple(
        (layer, head) for layer in range(3 if receivers == "logits" else 2) for head in range(model.cfg.n_heads)
    )
    caches = cache_both(model, CORRUPTED, CLEAN)
    for column, sender in list(enumerate(result.senders))[::3]:
        logits = in_three_passes(model, CORRUPTED, caches, senders=[sender], receivers=receivers, mlps=mlps)
        np.testing.assert_allclose(result.values[:, column], METRIC(logits[:, -1]).numpy(), atol=1e-5, rtol=0)
    assert np.abs(result.effects).max() > 1e-3


@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
@pytest.mark.parametrize("receivers", WIDE.values(), ids=WIDE)
@torch.no_grad()
def test_sets_mlps_and_positions(model, receivers, mlps):
    """Noising, with each example scored at its own position."""
    entries = [[(0, 1), (1, 0)], (0, 0), [(0, 0), (0, 2), (1, 1)]]
    if not model.cfg.attn_only:
        entries += [(0, "mlp"), [(1, "mlp"), (0, 1), (1, 2)]]
    scored, at = [3, 6, 4], [1, 2, 4]
    result = patch_paths(
        model, CLEAN, CORRUPTED, METRIC, receivers=receivers, senders=entries, mlps=mlps, direction="noise",
        positions=at, scored=scored, batch_size=2,
    )  # fmt: skip
    rows = torch.arange(N)
    caches = cache_both(model, CLEAN, CORRUPTED)
    for column, entry in enumerate(entries):
        senders = entry if isinstance(entry, list) else [entry]
        logits = in_three_passes(model, CLEAN, caches, senders=senders, receivers=receivers, mlps=mlps, at=at)
        np.testing.assert_allclose(result.values[:, column], METRIC(logits[rows, scored]).numpy(), atol=1e-5, rtol=0)
    assert np.abs(result.effects).max() > 1e-4


@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
@pytest.mark.parametrize("receivers", WIDE.values(), ids=WIDE)
@torch.no_grad()
def test_a_bridge_gives_the_same(both_classes, receivers, mlps):
    entries = [(0, 1), [(1, 2), (0, "mlp")], (1, "mlp")]
    ours, theirs = (
        patch_paths(
            one, CLEAN, CORRUPTED, METRIC, receivers=receivers, senders=entries, mlps=mlps, scored=[6, 3, 6],
            positions=torch.tensor([[1, 2, 6], [0, 1, 3], [2, 3, 4]]),
        )
        for one in both_classes
    )  # fmt: skip
    assert (ours.engine, theirs.engine) == ("suffix", "whole")
    np.testing.assert_allclose(theirs.values, ours.values, atol=1e-5, rtol=0)
    assert np.abs(ours.effects).max() > 1e-4
    assert all(not point._forward_hooks for one in both_classes for point in one.hook_dict.values())


@torch.no_grad()
def test_a_bridge_equals_three_passes(both_classes):
    bridge = both_classes[1]
    receivers = RECEIVERS["several layers"]
    result = patch_paths(bridge, CLEAN, CORRUPTED, METRIC, receivers=receivers, senders=[(0, 1), (1, "mlp")])
    caches = cache_both(bridge, CORRUPTED, CLEAN)
    for column, sender in enumerate(result.senders):
        logits = in_three_passes(bridge, CORRUPTED, caches, senders=[sender], receivers=receivers, mlps="recomputed")
        np.testing.assert_allclose(result.values[:, column], METRIC(logits[:, -1]).numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
@torch.no_grad()
def test_norms_after_the_sublayers_run_whole(family):
    model = interp.load(make_tiny(family), device="cpu")
    receivers = [(1, 0, "k"), (1, 2, "q")]
    result = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=receivers, senders=[(0, 1), (0, "mlp")])
    assert result.engine == "whole"
    caches = cache_both(model, CORRUPTED, CLEAN)
    for column, sender in enumerate(result.senders):
        logits = in_three_passes(model, CORRUPTED, caches, senders=[sender], receivers=receivers, mlps="recomputed")
        np.testing.assert_allclose(result.values[:, column], METRIC(logits[:, -1]).numpy(), atol=1e-5, rtol=0)


def test_without_mlps_both_kinds_of_path_are_the_same():
    model = make_model("attention_only")
    one, other = (
        patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers="logits", mlps=mlps) for mlps in ("recomputed", "frozen")
    )
    np.testing.assert_allclose(one.values, other.values, atol=1e-6)


def test_the_last_layer_has_only_the_path_to_the_logits():
    """So patching it is patching the head's output."""
    model = make_model("llama")
    last = [(2, head) for head in range(6)]
    paths = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers="logits", senders=last)
    heads = interp.patch(model, CLEAN, CORRUPTED, METRIC, site="z", positions="all", layers=[2])
    np.testing.assert_allclose(paths.values, heads.values[:, 0], atol=1e-5)


@pytest.fixture(scope="module")
def copying():
    """Segments read twice; in the corrupted run the token that the last one repeats is another, so nothing is found."""
    generator = torch.Generator().manual_seed(0)
    segments = torch.stack([torch.randperm(29, generator=generator)[:6] for _ in range(8)])
    clean = torch.cat([segments, segments[:, :3]], dim=1)  # position 8 reads segment[2]; the answer is segment[3], at 3
    corrupted = clean.clone()
    corrupted[:, 2] = 29
    return clean, corrupted, interp.answer_log_probability(clean[:, 3])


def test_exactly_one_path_carries_the_answer(copying):
    clean, corrupted, metric = copying
    model = build_copying_machine()
    senders = [(0, 0), (0, 1)]
    for head in (0, 1):
        for kind in ("q", "k", "v"):
            result = patch_paths(model, clean, corrupted, metric, receivers=[(1, head, kind)])
            assert result.senders == tuple(senders)
            expected = [1.0, 0.0] if (head, kind) == (0, "k") else [0.0, 0.0]
            np.testing.assert_allclose(result.recovery, expected, atol=1e-3)
    result = patch_paths(model, clean, corrupted, metric, receivers="logits", senders=senders)
    np.testing.assert_allclose(result.recovery, 0, atol=1e-3)
    result = patch_paths(model, clean, corrupted, metric, receivers=[(1, 0, "k")], direction="noise", positions=[3])
    assert result.recovery[0] < 0.01  # the key is needed
    assert result.recovery[1] == pytest.approx(1)
    result = patch_paths(model, clean, corrupted, metric, receivers=[(1, 0, "k")], positions=[2])
    np.testing.assert_allclose(result.recovery, 0, atol=1e-3)


def test_what_the_runs_share_is_not_run(copying):
    clean, corrupted, metric = copying
    result = patch_paths(build_copying_machine(), clean, corrupted, metric, receivers=[(1, 0, "k")])
    assert result.n_runs == len(clean)  # the other head writes nothing, in both runs


def test_statistics_table_and_pictures():
    model = make_model("gpt2")
    result = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=[(2, 0, "q")], seed=3)
    frame = result.to_frame()
    layer, head = result.top(1)[0]
    row = frame[frame["sender"] == f"{layer}.{head}"].iloc[0]
    assert abs(row["effect"]) == frame["effect"].abs().max()
    assert row["recovery"] == pytest.approx((row["value"] - row["corrupted"]) / (row["clean"] - row["corrupted"]))
    assert row["recovery_low"] <= row["recovery"] <= row["recovery_high"]
    assert row["low"] <= row["value"] <= row["high"]
    assert 0 < row["p_value"] <= 1
    assert f"{len(result.senders)} senders into 2.0 q, denoise, MLPs recomputed; logit difference" in repr(result)
    assert f"strongest {layer}.{head}: recovery {row['recovery']:.2f}" in repr(result)
    assert f"{layer}.{head} ({row['recovery']:.2f})" in result.figure().alt
    assert "through paths into 2.0 q" in result._repr_html_()


def test_a_set_has_no_cell_in_the_map():
    result = patch_paths(
        make_model("gpt2"), CLEAN, CORRUPTED, METRIC, receivers="logits", senders=[[(0, 1), (0, "mlp")]]
    )
    assert result.top(1) == [((0, 1), (0, "mlp"))]
    assert result.to_frame()["sender"].tolist() == ["0.1 + 0.mlp"]
    with pytest.raises(interp.InputError, match="a sender is an MLP or a set"):
        result.figure()
    assert result._repr_html_().startswith("<code>PathPatchResult(")


def test_no_recovery_without_a_difference():
    result = patch_paths(make_model("gpt2"), CLEAN, CLEAN, METRIC, receivers="logits")
    assert result.n_runs == 0
    with pytest.raises(interp.InputError, match="have the same mean logit difference"):
        result.figure()


def test_hooks_of_the_caller_act_and_stay():
    model = make_model("gpt2")
    short = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=RECEIVERS["several layers"])
    with interp.add_hooks(model, [("hook_embed", lambda embed, hook: None)]):
        whole = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=RECEIVERS["several layers"])
    assert whole.engine == "whole"
    np.testing.assert_allclose(whole.values, short.values, atol=1e-5)
    with interp.ablate_heads(model, [(0, 1)]):
        result = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=[(1, 0, "k")])
    assert not result.effects[:, 1].any()  # the removed head is 0 in both runs
    assert np.abs(result.effects[:, [0, 2]]).min() > 0
    assert all(not point._forward_hooks for point in model.hook_dict.values())


def test_running_out_of_memory_halves_the_batch(monkeypatch):
    model = make_model("llama")
    expected = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=[(2, 0, "q")])
    run = path_engine.SuffixPaths.run

    def fail_on_many(self, jobs):
        if len(jobs) > 4:
            raise torch.OutOfMemoryError
        return run(self, jobs)

    monkeypatch.setattr(path_engine.SuffixPaths, "run", fail_on_many)
    result = patch_paths(model, CLEAN, CORRUPTED, METRIC, receivers=[(2, 0, "q")])
    np.testing.assert_allclose(result.values, expected.values, atol=1e-5)
    assert any("out of memory" in note for note in result.notes)


MISTAKES = [
    (
        {"receivers": [(3, 0, "q")]},
        r"The receiver \(3, 0, 'q'\) doesn't exist: this model has layers 0 to 2 with heads 0",
    ),
    ({"receivers": [(2, 2, "k")]}, r"The receiver \(2, 2, 'k'\) doesn't exist: .* with key-value heads 0 to 1"),
    ({"receivers": [(2, 0, "z")]}, r"\(2, 0, 'z'\) is no receiver; give \(layer, head, 'q'\)"),
    ({"receivers": "logit"}, "'logit' is no receiver"),
    ({"receivers": []}, r"The receivers \[\] are none or name one twice"),
    ({"receivers": [(2, 0, "q"), (2, 0, "q")]}, "none or name one twice"),
    ({"receivers": [(2, 0, "q"), "logits"]}, "The receivers name heads and the logits"),
    ({"receivers": [(0, 0, "q")]}, "The receivers are in layer 0, before which no head writes"),
    ({"senders": [(2, 1)]}, "A sender in layer 2 isn't read by any of the receivers, the last of which is in layer 2"),
    ({"senders": [(0, 6)]}, r"The sender \(0, 6\) doesn't exist: this model has layers 0 to 2 with heads 0 to 5"),
    ({"senders": [(0, "attn")]}, r"The sender \(0, 'attn'\) doesn't exist"),
    ({"senders": [(3, "mlp")]}, r"The sender \(3, 'mlp'\) doesn't exist: this model has layers 0 to 2"),
    ({"senders": []}, r"senders=\[\] names none"),
    ({"senders": [[]]}, r"The set of senders \[\] is empty"),
    ({"senders": [[(0, 1), (0, 1)]]}, "names one twice"),
    ({"senders": "all"}, "senders='all' isn't known; use 'each' or a list"),
    ({"mlps": "ignored"}, "mlps='ignored' isn't known; use one of recomputed, frozen"),
    ({"direction": "clean"}, "direction='clean' isn't known"),
    ({"positions": [7]}, "Position 7 in positions doesn't exist"),
    ({"batch_size": 0}, "batch_size=0 runs nothing"),
    ({"corrupted": CORRUPTED[:, :5]}, r"clean tokens have shape \(3, 7\) and the corrupted ones \(3, 5\)"),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes(changed, message):
    given = {"clean": CLEAN, "corrupted": CORRUPTED, "receivers": [(2, 0, "q")], **changed}
    with as_without_type_checks(), pytest.raises(interp.InputError, match=message):
        patch_paths(make_model("llama"), given.pop("clean"), given.pop("corrupted"), METRIC, **given)


def test_a_model_without_mlps_has_none_that_sends():
    with pytest.raises(interp.InputError, match=r"The sender \(0, 'mlp'\) doesn't exist: this model has no MLP"):
        patch_paths(make_model("attention_only"), CLEAN, CORRUPTED, METRIC, receivers="logits", senders=[(0, "mlp")])
