"""Patching equals one patch per forward pass, names the head and position that carry an answer, and says what is wrong."""

import numpy as np
import pytest
import torch
from transformer_lens import patching

import interp
from interp.interventions import patch_engine
from interp.interventions.patch_sites import HOOKS
from interp.models.convert import _make_bridge, prepare, private_copy
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

N, LENGTH = 3, 7
STREAM = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
HEADS = ("z", "result", "q", "k", "v", "pattern")
ANSWER, WRONG = [5, 11, 2], 7


def random_tokens(seed, n=N, length=LENGTH, d_vocab=97):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(seed))


CLEAN, CORRUPTED = random_tokens(0), random_tokens(1)


@pytest.fixture(scope="module", params=["gpt2", "llama", "gpt_neox", "qwen3", "mistral_window", "attention_only"])
def model(request):
    if request.param == "attention_only":
        return interp.build(n_layers=3, d_model=24, n_heads=3, d_vocab=97, n_ctx=16, attn_only=True, seed=2)
    narrow = {"sliding_window": 3} if request.param == "mistral_window" else {}
    model = interp.load(make_tiny(request.param, **narrow), device="cpu")
    assert model.provenance.model_class == "HookedTransformer"
    return model


def skip_where_absent(model, site):
    cfg = model.cfg
    if (cfg.attn_only and site in ("resid_mid", "mlp_out")) or (cfg.parallel_attn_mlp and site == "resid_mid"):
        pytest.skip("this model doesn't have the site")


def patch_one_at_a_time(model, base, source, site, *, position=None, head=None, layer, scored):
    """Logits of one example of one whole run with one patch."""
    name = f"blocks.{layer}.{HOOKS[site]}"
    _, cache = model.run_with_cache(source)

    def write(activation, hook):
        there = activation.transpose(1, 2) if site == "pattern" else activation
        here = cache[name].transpose(1, 2) if site == "pattern" else cache[name]
        where = (slice(None), slice(None) if position is None else position, *([] if head is None else [head]))
        there[where] = here[where]
        return activation

    logits = model.run_with_hooks(base, fwd_hooks=[(name, write)])
    return logits[torch.arange(len(base)), scored]


def theirs(model, site, positions, *, clean=CLEAN, corrupted=CORRUPTED):
    """transformer_lens.patching on the same inputs, with the mean over examples of the same metric."""
    metric = interp.logit_difference(ANSWER, WRONG)
    if site in STREAM:
        sweep = {name: getattr(patching, f"get_act_patch_{name}", None) for name in STREAM}[site]
        axes = ("layer", "pos")
        setter = patching.layer_pos_patch_setter
    else:
        kind = {"z": "out", "result": "out"}.get(site, site)
        sweep = getattr(patching, f"get_act_patch_attn_head_{kind}_{'all_pos' if positions == 'all' else 'by_pos'}")
    with torch.no_grad():
        _, cache = model.run_with_cache(clean)
        arguments = (model, corrupted, cache, lambda logits: metric(logits[:, -1]).mean())
        if sweep is None:  # TransformerLens has no function for resid_post, only the loop below the others
            found = patching.generic_activation_patch(
                *arguments, patch_setter=setter, activation_name=site, index_axis_names=axes
            )
        else:
            found = sweep(*arguments)
    by_position = found.ndim == 3 and site != "pattern"
    return (found.transpose(1, 2) if by_position else found).numpy()  # [layer, head, position]


@pytest.mark.parametrize("site", STREAM)
def test_equals_transformer_lens_by_layer_and_position(model, site):
    skip_where_absent(model, site)
    result = interp.patch(model, CLEAN, CORRUPTED, interp.logit_difference(ANSWER, WRONG), site=site)
    assert result.engine == "suffix"
    assert result.axes == ("layer", "position")
    np.testing.assert_allclose(result.mean, theirs(model, site, "each"), atol=1e-5, rtol=0)
    assert np.abs(result.effects).max() > 1e-3


@pytest.mark.parametrize("positions", ["all", "each"])
@pytest.mark.parametrize("site", HEADS)
def test_equals_transformer_lens_by_layer_and_head(model, site, positions):
    metric = interp.logit_difference(ANSWER, WRONG)
    result = interp.patch(model, CLEAN, CORRUPTED, metric, site=site, positions=positions)
    assert result.engine == "suffix"
    np.testing.assert_allclose(result.mean, theirs(model, site, positions), atol=1e-5, rtol=0)
    assert np.abs(result.effects).max() > 1e-4


@pytest.mark.parametrize("site", ["resid_pre", "attn_out", "z", "q", "k", "v", "pattern"])
def test_each_example_at_its_own_scored_position(model, site):
    scored, positions = [2, 6, 4], [1, 4]
    metric = interp.answer_log_probability(ANSWER)
    result = interp.patch(
        model, CLEAN, CORRUPTED, metric, site=site, direction="noise", positions=positions, scored=scored
    )
    heads = result.heads or (None,)
    for layer in range(model.cfg.n_layers):
        for h, head in enumerate(heads):
            for p, position in enumerate(positions):
                with torch.no_grad():
                    logits = patch_one_at_a_time(
                        model, CLEAN, CORRUPTED, site, position=position, head=head, layer=layer, scored=scored
                    )
                found = result.values[:, layer, h, p] if head is not None else result.values[:, layer, p]
                np.testing.assert_allclose(found, metric(logits).numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("site", STREAM)
def test_all_positions_of_a_layer_together(model, site):
    skip_where_absent(model, site)
    metric = interp.kl_to_clean()
    result = interp.patch(model, CLEAN, CORRUPTED, metric, site=site, positions="all")
    assert result.axes == ("layer",)
    with torch.no_grad():
        clean = model(CLEAN)[:, -1]
        for layer in range(model.cfg.n_layers):
            logits = patch_one_at_a_time(model, CORRUPTED, CLEAN, site, layer=layer, scored=-1)
            np.testing.assert_allclose(result.values[:, layer], metric(logits, clean).numpy(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(result.clean, 0, atol=1e-6)


@pytest.mark.parametrize("site", ["resid_pre", "mlp_out", "z", "k", "pattern"])
def test_whole_runs_give_the_same(model, site):
    """A hook of the caller's own, which must act, rules the shortcuts out."""
    skip_where_absent(model, site)
    metric = interp.logit_difference(ANSWER, WRONG)
    short = interp.patch(model, CLEAN, CORRUPTED, metric, site=site, batch_size=2)
    with interp.add_hooks(model, [("hook_embed", lambda embed, hook: None)]):
        whole = interp.patch(model, CLEAN, CORRUPTED, metric, site=site)
    assert (short.engine, whole.engine) == ("suffix", "whole")
    np.testing.assert_allclose(short.values, whole.values, atol=1e-5, rtol=0)


def test_the_callers_hooks_act():
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=97, n_ctx=16, attn_only=True)
    metric = interp.logit_difference(ANSWER, WRONG)
    with interp.ablate_heads(model, [(0, 1), (1, 0), (1, 1)]):
        result = interp.patch(model, CLEAN, CORRUPTED, metric, site="z", positions="all", layers=[0])
        with torch.no_grad():
            ablated = metric(model(CORRUPTED)[:, -1])
    np.testing.assert_allclose(result.corrupted, ablated, atol=1e-6)
    assert (np.abs(result.effects).max(axis=0)[0] > 1e-4).tolist() == [
        True,
        False,
    ]  # the removed head is 0 in both runs


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("site", ["resid_pre", "resid_mid", "attn_out", "mlp_out", "z", "q", "k", "v", "pattern"])
def test_a_bridge_gives_the_same(family, site, both_classes):
    hooked, bridge = both_classes[family]
    metric = interp.logit_difference(ANSWER, WRONG)
    ours, theirs = (
        interp.patch(one, CLEAN, CORRUPTED, metric, site=site, scored=[6, 3, 6]) for one in (hooked, bridge)
    )
    assert (ours.engine, theirs.engine) == ("suffix", "whole")
    assert ours.query_heads == theirs.query_heads
    np.testing.assert_allclose(theirs.values, ours.values, atol=1e-5, rtol=0)
    assert all(not point._forward_hooks for one in (hooked, bridge) for point in one.hook_dict.values())


def test_a_bridge_has_no_middle_where_attention_and_mlp_run_side_by_side():
    bridge = _make_bridge(prepare(private_copy(make_tiny("gpt_neox"))), name="tiny", reason="wanted here")
    with pytest.raises(interp.InputError, match="runs attention and MLP side by side"):
        interp.patch(bridge, CLEAN, CORRUPTED, interp.kl_to_clean(), site="resid_mid")


@pytest.fixture(scope="module")
def both_classes():
    hugging_face = {family: make_tiny(family) for family in ("gpt2", "llama")}
    return {
        family: (
            interp.load(hf, device="cpu"),
            _make_bridge(prepare(private_copy(hf)), name="tiny", reason="wanted here"),
        )
        for family, hf in hugging_face.items()
    }


def test_shared_keys_and_values_have_an_axis_of_their_own(both_classes):
    model = both_classes["llama"][0]
    result = interp.patch(model, CLEAN, CORRUPTED, interp.kl_to_clean(), site="k", positions="all", heads=[1])
    assert result.values.shape == (N, 2, 1)
    assert result.query_heads == ((3, 4, 5),)
    assert set(result.to_frame()["query_heads"]) == {"3,4,5"}


@pytest.fixture(scope="module")
def copying():
    """Segments read twice; the corrupted run reads another token after the first copy of the last token."""
    generator = torch.Generator().manual_seed(0)
    segments = torch.stack([torch.randperm(30, generator=generator)[:6] for _ in range(8)])
    clean = torch.cat([segments, segments[:, :3]], dim=1)  # position 8 reads segment[2]; the answer is segment[3], at 3
    corrupted = clean.clone()
    others = torch.stack([torch.tensor([t for t in range(30) if t not in s][:1]) for s in segments.tolist()])
    corrupted[:, 3] = others[:, 0]
    return clean, corrupted, interp.logit_difference(clean[:, 3], corrupted[:, 3])


def test_exactly_one_head_and_position_carry_the_answer(copying):
    clean, corrupted, metric = copying
    model = build_copying_machine()
    by_head = interp.patch(model, clean, corrupted, metric, site="z", positions="each")
    expected = np.zeros((2, 2, 9))
    expected[1, 0, 8] = 1
    np.testing.assert_allclose(by_head.recovery, expected, atol=1e-4)
    assert by_head.top(1) == [(1, 0, 8)]
    assert (by_head.p_values == np.where(expected, 2 / 2**8, 1)).all()

    stream = interp.patch(model, clean, corrupted, metric, site="resid_pre")
    expected = np.zeros((2, 9))
    expected[:, 3] = 1  # the answer's token, until the last layer reads it
    np.testing.assert_allclose(stream.recovery, expected, atol=1e-4)
    value = interp.patch(model, clean, corrupted, metric, site="v", positions="each", direction="noise")
    expected = np.ones((2, 2, 9))
    expected[1, 0, 3] = 0
    np.testing.assert_allclose(value.recovery, expected, atol=1e-4)


def test_what_the_runs_share_is_not_run(copying):
    clean, corrupted, metric = copying
    stream = interp.patch(build_copying_machine(), clean, corrupted, metric, site="resid_pre", layers=[0])
    assert stream.n_runs == len(clean)  # only position 3 differs before layer 0


def test_hooks_are_as_before_also_after_an_error():
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=97, n_ctx=16, attn_only=True)
    seen = []
    model.add_hook("blocks.1.attn.hook_z", lambda z, hook: seen.append(z.shape))
    before = [list(point._forward_hooks) for point in model.hook_dict.values()]
    interp.patch(model, CLEAN, CORRUPTED, interp.kl_to_clean(), site="q")
    calls = []

    def fail(logits):
        calls.append(1)
        if len(calls) > 3:
            raise KeyError
        return logits[:, 0]

    with pytest.raises(KeyError):
        interp.patch(model, CLEAN, CORRUPTED, fail, site="q")
    assert before == [list(point._forward_hooks) for point in model.hook_dict.values()]
    assert seen


def test_running_out_of_memory_halves_the_batch(model, monkeypatch):
    metric = interp.logit_difference(ANSWER, WRONG)
    expected = interp.patch(model, CLEAN, CORRUPTED, metric, site="resid_pre")
    run = patch_engine.SuffixRuns.logits

    def fail_on_many(self, layer, rows):
        if len(rows.example) > 4:
            raise torch.OutOfMemoryError
        return run(self, layer, rows)

    monkeypatch.setattr(patch_engine.SuffixRuns, "logits", fail_on_many)
    result = interp.patch(model, CLEAN, CORRUPTED, metric, site="resid_pre")
    np.testing.assert_allclose(result.values, expected.values, atol=1e-5, rtol=0)
    assert any("out of memory" in note for note in result.notes)


def test_statistics_table_and_pictures(model):
    n = 20
    clean, corrupted = random_tokens(3, n), random_tokens(4, n)
    result = interp.patch(model, clean, corrupted, interp.answer_log_probability(3), site="z", seed=1)
    low, high = result.interval
    assert ((low <= result.mean) & (result.mean <= high)).all()
    frame = result.to_frame()
    assert len(frame) == result.mean.size
    low, high = result.recovery_interval
    assert ((low <= result.recovery) & (result.recovery <= high)).all()
    everywhere = interp.patch(
        model, clean, corrupted, interp.answer_log_probability(3), site="resid_post", positions="all"
    )
    for bound in (everywhere.recovery, *everywhere.recovery_interval):  # the whole stream restores every example
        np.testing.assert_allclose(bound, 1, atol=1e-3)
    layer, head, position = result.top(1)[0]
    row = frame.set_index(["layer", "head", "position"]).loc[(layer, head, position)]
    assert row["value"] == result.mean[layer, head, position]
    assert row["recovery"] == pytest.approx(
        (row["value"] - row["corrupted"]) / (row["clean"] - row["corrupted"]), abs=1e-6
    )
    assert f"strongest layer {layer}, head {head}, position {position}" in repr(result)
    assert "at each head's strongest position" in result.figure().alt
    stream = interp.patch(model, clean, corrupted, interp.kl_to_clean(), site="attn_out", layers=[1], positions=[-1, 2])
    assert stream.positions == (LENGTH - 1, 2)
    assert stream.values.shape == (n, 1, 2)
    assert "7 positions" in stream.figure().alt
    assert "<svg" in stream._repr_html_()


@pytest.mark.parametrize("site", ["z", "resid_pre"])
def test_several_metrics_in_one_sweep_are_those_of_a_sweep_each(site, monkeypatch):
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=97, n_ctx=16, attn_only=True, seed=2)
    metrics = {
        "difference": interp.logit_difference(ANSWER, WRONG),
        "KL": interp.kl_to_clean(),
        "first": lambda logits: logits.mul_(2)[:, 0],  # changes what it is given
    }
    together = interp.patch(model, CLEAN, CORRUPTED, metrics, site=site)
    assert together.metric == "difference"
    assert together["difference"] is together
    for name, metric in metrics.items():
        alone = interp.patch(model, CLEAN, CORRUPTED, metric, site=site)
        assert together[name].metric == name
        np.testing.assert_array_equal(together[name].values, alone.values)
        np.testing.assert_array_equal(together[name].clean, alone.clean)
        np.testing.assert_array_equal(together[name].corrupted, alone.corrupted)
        assert together[name].n_runs == alone.n_runs
    assert "; also by KL, first; n=3 examples)" in repr(together)
    frame = together.to_frame()
    assert frame.groupby("metric", sort=False).size().to_dict() == dict.fromkeys(metrics, together.mean.size)
    with pytest.raises(interp.InputError, match="not measured by 'loss'; its metrics: difference, KL, first"):
        together["loss"]
    with pytest.raises(interp.InputError, match=r"metric=\{\} measures nothing; give at least one metric"):
        interp.patch(model, CLEAN, CORRUPTED, {}, site=site)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_a_row_for_each_example(direction):
    model = interp.load(make_tiny("llama"), device="cpu")
    result = interp.patch(model, CLEAN, CORRUPTED, METRIC, site="k", direction=direction)
    frame = result.to_frame(rows="examples")
    assert len(frame) == result.values.size
    row = frame.set_index(["example", "layer", "head", "position"]).loc[(2, 1, 0, 3)]
    assert row["value"] == result.values[2, 1, 0, 3]
    base = result.corrupted[2] if direction == "denoise" else result.clean[2]
    assert row["effect"] == pytest.approx(result.values[2, 1, 0, 3] - base)
    assert (row["clean"], row["corrupted"]) == (result.clean[2], result.corrupted[2])
    assert row["query_heads"] == "0,1,2"
    means = frame.groupby(["layer", "head", "position"])["value"].mean()
    cells = result.to_frame().set_index(["layer", "head", "position"])
    np.testing.assert_allclose(means, cells["value"])
    np.testing.assert_allclose(cells["effect"], frame.groupby(["layer", "head", "position"])["effect"].mean())
    with as_without_type_checks(), pytest.raises(interp.InputError, match="rows='cell' isn't known; use 'cells' or"):
        result.to_frame(rows="cell")


def test_errors_and_p_values_of_each_cell(model):
    result = interp.patch(
        model, random_tokens(3, 20), random_tokens(4, 20), interp.answer_log_probability(3), site="z", positions="all"
    )
    spread = [np.std(result.values[:, layer, head], ddof=1) for layer, head in np.ndindex(result.mean.shape)]
    np.testing.assert_allclose(result.standard_error.ravel(), np.array(spread) / np.sqrt(20))
    low, high = result.effect_interval
    effect = result.effects.mean(axis=0)
    assert ((low <= effect) & (effect <= high)).all()
    assert (result.single_p_values <= result.p_values).all()
    frame = result.to_frame()
    assert (frame.effect_low <= frame.effect).all()
    assert (frame.single_p_value <= frame.p_value).all()
    single = interp.patch(model, CLEAN[:1], CORRUPTED[:1], interp.answer_log_probability(3), site="z")
    assert np.isnan(single.standard_error).all()


METRIC = interp.logit_difference(ANSWER, WRONG)
MISTAKES = [
    ({"corrupted": CORRUPTED[:, :5]}, r"clean tokens have shape \(3, 7\) and the corrupted ones \(3, 5\)"),
    ({"corrupted": CORRUPTED + 97}, "corrupted tokens go from .* but this model's ids go from 0 to 96"),
    ({"site": "resid_middle"}, "site='resid_middle' isn't known; use one of resid_pre, resid_mid"),
    ({"site": "mlp_out"}, "the hook 'hook_mlp_out' has no effect in this HookedTransformer"),
    ({"site": "resid_mid"}, "site='resid_mid' doesn't exist: this model has no MLP"),
    ({"direction": "clean"}, "direction='clean' isn't known; use one of denoise, noise"),
    ({"layers": [0, 2]}, "The layer 2 doesn't exist: this model has layers 0 to 1"),
    ({"site": "z", "heads": [2]}, "The head 2 doesn't exist: this model has heads 0 to 1"),
    ({"heads": [0]}, r"heads=\[0\] were given, but resid_pre isn't made of heads"),
    ({"layers": [1, 1]}, r"layers=\[1, 1\] names none or one twice"),
    ({"positions": [3, 7]}, "The position 7 doesn't exist: the examples have positions 0 to 6"),
    ({"positions": []}, r"positions=\[\] names none"),
    ({"positions": "last"}, "positions='last' isn't known; use 'each', 'all' or a list of positions or of roles"),
    ({"scored": -8}, "The position -8 doesn't exist"),
    ({"scored": [1, 2]}, r"scored has shape \(2,\) for 3 examples"),
    ({"batch_size": 0}, "batch_size=0 runs nothing"),
    (
        {"metric": interp.answer_log_probability(97)},
        "The answer 97 is not a token id of this model: they go from 0 to 96",
    ),
    ({"metric": interp.answer_log_probability([1, 2])}, "2 answers were given for 3 examples"),
    (
        {"metric": lambda logits: logits},
        r"gave shape \(3, 97\) for 3 examples; it must return a tensor of shape \(3,\)",
    ),
    ({"metric": lambda logits: 1.0}, "gave float for 3 examples"),
    ({"metric": lambda logits: logits[:, 0] * float("nan")}, "gave nan for example 0; it must be finite"),
    ({"metric": "logit"}, "metric='logit' is not a function"),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_mistakes(changed, message):
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=97, n_ctx=16, attn_only=True)
    given = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, "site": "resid_pre", **changed}
    with as_without_type_checks(), pytest.raises(interp.InputError, match=message):
        interp.patch(model, given.pop("clean"), given.pop("corrupted"), given.pop("metric"), **given)


@pytest.mark.parametrize("answer", ["Paris", 1.5, True, [[1, 2]]])
def test_an_answer_is_one_token_id(answer):
    with as_without_type_checks(), pytest.raises(interp.InputError, match="is not one token id"):
        interp.logit_difference(answer, 0)


def test_no_recovery_without_a_difference():
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=97, n_ctx=16, attn_only=True)
    result = interp.patch(model, CLEAN, CLEAN, METRIC, site="resid_pre")
    assert result.n_runs == 0
    assert np.isnan(result.recovery).all()
    with pytest.raises(interp.InputError, match="have the same mean logit difference"):
        result.figure()
