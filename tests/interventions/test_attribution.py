"""Estimates equal patches where effects are linear, gradients equal finite differences, and the check tells on the screen."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from interp.interventions.attribution import attribution_patch
from interp.interventions.attribution_result import rank_correlation
from interp.interventions.attribution_screen import Screen
from interp.interventions.patch_sites import HOOKS
from tasks.task import Batch
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

N, LENGTH = 3, 7
SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "result", "q", "k", "v", "pattern")
ANSWER, WRONG = [5, 11, 2], 7
METRIC = interp.logit_difference(ANSWER, WRONG)


def random_tokens(seed, n=N, length=LENGTH, d_vocab=97):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(seed))


CLEAN, CORRUPTED = random_tokens(0), random_tokens(1)


def build_small(**overrides):
    settings = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_vocab": 97, "n_ctx": 16, "attn_only": True, "seed": 1}
    return interp.build(**{**settings, **overrides})


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    """Learned positions and LayerNorm, or rotary ones, RMSNorm and grouped queries."""
    return interp.load(make_tiny(request.param), device="cpu")


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize(("site", "layers"), [("z", [1]), ("v", [1]), ("attn_out", [1]), ("pattern", [1])])
def test_is_exact_where_the_metric_is_linear_in_the_activation(site, layers, direction, steps):
    """Without norms and MLPs, logits are linear in what the last layer's attention reads, weighs and writes."""
    model = build_small(normalization_type=None)
    arguments = {"site": site, "layers": layers, "direction": direction, "scored": [6, 3, 5]}
    exact = interp.patch(model, CLEAN, CORRUPTED, METRIC, **arguments)
    screen = attribution_patch(model, CLEAN, CORRUPTED, METRIC, steps=steps, check=2, **arguments)
    assert screen.axes == exact.axes
    np.testing.assert_allclose(screen.estimates, exact.effects, atol=1e-5, rtol=0)
    np.testing.assert_allclose(screen.exact, screen._estimates_of(screen.cells), atol=1e-5)
    assert screen.rank_correlation == pytest.approx(1)
    assert np.abs(exact.effects).max() > 1e-3


@pytest.mark.parametrize("site", SITES)
def test_equals_finite_differences(model, site):
    """In float64, the metric along (source - base) at one cell: its derivative at 0 by central differences."""
    model = make_double(model)
    metric = interp.answer_log_probability(ANSWER)
    screen = attribution_patch(model, CLEAN, CORRUPTED, metric, site=site, scored=[6, 3, 5], check=0)
    by_head = screen.estimated.heads is not None
    h, layer, head, position = 1e-4, 0, 1, 3
    kind = "hook_resid_mid" if site == "resid_mid" else HOOKS[site]
    name = f"blocks.{layer}.{kind}"
    _, cache = model.run_with_cache(CLEAN)

    def measure(scale):
        def move(activation, hook):
            moved = activation.clone()
            here = moved.transpose(1, 2) if site == "pattern" else moved
            source = cache[name].transpose(1, 2) if site == "pattern" else cache[name]
            where = (slice(None), position, *([head] if by_head else []))
            here[where] += scale * (source[where] - here[where])
            return moved

        with torch.no_grad():
            logits = model.run_with_hooks(CORRUPTED, fwd_hooks=[(name, move)])
        return metric(logits[torch.arange(N), [6, 3, 5]])

    expected = (measure(h) - measure(-h)) / (2 * h)
    found = screen.estimates[(slice(None), layer, *([head] if by_head else []), position)]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(found).max(), rtol=0)
    assert np.abs(found).max() > 1e-5


def make_double(model):
    """A copy in float64."""
    import copy

    double = copy.deepcopy(model).to(torch.float64)
    double.cfg.dtype = torch.float64
    return double


@pytest.mark.parametrize("site", ["resid_pre", "resid_post"])
def test_steps_add_up_to_the_effect_of_the_whole_site(model, site):
    """Completeness: along the line from all of the site to all of the site, the gradients integrate to the effect."""
    metric = interp.answer_log_probability(ANSWER)
    exact = interp.patch(model, CLEAN, CORRUPTED, metric, site=site, positions="all")
    errors = {}
    for steps in (0, 3, 12):
        screen = attribution_patch(
            model, CLEAN, CORRUPTED, metric, site=site, positions="all", layers=[0], steps=steps, check=0
        )
        errors[steps] = np.abs(screen.estimates[:, 0] - exact.effects[:, 0]).max()
    if site == "resid_pre":
        np.testing.assert_allclose(exact.effects[:, 0], exact.clean - exact.corrupted, atol=1e-5)
    assert errors[12] < errors[3] / 4 < errors[0] / 4, errors


@pytest.mark.parametrize("site", ["resid_pre", "resid_mid", "attn_out", "mlp_out", "z", "q", "k", "v", "pattern"])
@pytest.mark.parametrize("steps", [0, 2])
def test_both_classes_agree(both, site, steps):
    ours, theirs = (
        attribution_patch(one, CLEAN, CORRUPTED, METRIC, site=site, scored=[6, 3, 6], steps=steps, check=0)
        for one in both
    )
    np.testing.assert_allclose(theirs.estimates, ours.estimates, atol=1e-5, rtol=0)
    assert ours.estimated.query_heads == theirs.estimated.query_heads
    assert np.abs(ours.estimates).max() > 1e-4


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
    screen = attribution_patch(build_copying_machine(), *copying, site="z", check=3)
    expected = np.zeros((2, 2, 9))
    expected[1, 0, 8] = 1
    np.testing.assert_allclose(screen.estimated.recovery, expected, atol=1e-4)
    assert screen.top(1) == [(1, 0, 8)]
    assert screen.cells[0] == (1, 0, 8)
    np.testing.assert_allclose(screen.exact[:, 0], screen.estimated.clean - screen.estimated.corrupted, rtol=1e-4)
    assert "strongest layer 1, head 0, position 8" in repr(screen)


def test_a_saturated_softmax_hides_its_queries_and_keys_and_the_check_tells(copying):
    """The corrupted run looks for another token: the query decides everything, and its gradient is zero."""
    clean, _, _ = copying
    corrupted = clean.clone()
    corrupted[:, 8] = clean[:, 1]  # now the answer is segment[2]
    metric = interp.logit_difference(clean[:, 3], clean[:, 2])
    model = build_copying_machine()
    exact = interp.patch(model, clean, corrupted, metric, site="q")
    np.testing.assert_allclose(exact.recovery[1, 0, 8], 1, atol=0.01)
    screen = attribution_patch(model, clean, corrupted, metric, site="q", check=1)
    gap = exact.clean.mean() - exact.corrupted.mean()
    assert np.abs(screen.estimates).max() < 1e-6 * gap
    every = attribution_patch(model, clean, corrupted, metric, site="q", check=100)
    assert (1, 0, 8) in every.cells
    np.testing.assert_allclose(every.exact[:, every.cells.index((1, 0, 8))], exact.effects[:, 1, 0, 8], rtol=1e-4)
    by_value = attribution_patch(model, clean, corrupted, metric, site="z", check=0)
    assert by_value.top(1) == [(1, 0, 8)]
    np.testing.assert_allclose(by_value.estimated.recovery[1, 0, 8], 1, atol=0.01)


def test_missed_names_strong_cells_that_the_screen_left_out(copying):
    clean, _, _ = copying
    corrupted = clean.clone()
    corrupted[:, 8] = clean[:, 1]
    metric = interp.logit_difference(clean[:, 3], clean[:, 2])
    screen = attribution_patch(build_copying_machine(), clean, corrupted, metric, site="q", check=1)
    assert screen.cells + screen.control_cells == ((1, 0, 8), (1, 1, 8))  # no other query differs; estimates are tied
    assert screen.missed == ()
    swapped = replace(
        screen,
        cells=screen.control_cells,
        exact=screen.control_exact,
        control_cells=screen.cells,
        control_exact=screen.exact,
    )
    assert swapped.missed == ((1, 0, 8),)
    both = attribution_patch(build_copying_machine(), clean, corrupted, metric, site="q", check=2)
    assert np.isnan(both.rank_correlation)  # both estimates are zero


def test_the_check_equals_a_full_sweep(model):
    arguments = {"site": "z", "direction": "noise", "scored": [6, 3, 5]}
    exact = interp.patch(model, CLEAN, CORRUPTED, METRIC, **arguments)
    screen = attribution_patch(model, CLEAN, CORRUPTED, METRIC, check=5, **arguments)
    for cells, effects in ((screen.cells, screen.exact), (screen.control_cells, screen.control_exact)):
        assert len(cells) == 5
        for i, cell in enumerate(cells):
            np.testing.assert_allclose(effects[:, i], exact.effects[(slice(None), *cell)], atol=1e-5)
            assert np.abs(effects[:, i]).max() > 0  # only cells in which a patch can do something
    assert not set(screen.cells) & set(screen.control_cells)
    assert list(screen.cells) == screen.top(5)
    means = exact.effects.mean(axis=0)
    expected = rank_correlation(
        np.array([[screen.mean[cell] for cell in screen.cells]]), np.array([[means[cell] for cell in screen.cells]])
    )
    assert screen.rank_correlation == pytest.approx(float(expected[0]))
    low, high = screen.rank_correlation_interval
    assert -1 <= low <= high <= 1
    weakest = min(abs(means[cell]) for cell in screen.cells)
    assert screen.missed == tuple(cell for cell in screen.control_cells if abs(means[cell]) > weakest)
    other = attribution_patch(model, CLEAN, CORRUPTED, METRIC, check=5, seed=1, **arguments)
    assert other.cells == screen.cells
    assert other.control_cells != screen.control_cells


def test_rank_correlation_with_ties():
    first = np.array([[1.0, 2.0, 2.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    second = np.array([[1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    found = rank_correlation(first, second)
    assert found[0] == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 3, 2, 4])[0, 1])
    assert np.isnan(found[1])


@pytest.mark.parametrize("named", [True, False])
def test_roles_and_positions_of_each_example(model, named):
    own = torch.tensor([[1, 0], [2, 1], [4, 3]])
    roles = {"name": own[:, :1], "both": own, "some": torch.arange(LENGTH).expand(N, -1) == own[:, 1:]}
    marks = CLEAN > -1
    batch = Batch(tokens=CLEAN, targets=CLEAN, trained=marks, scored=marks, roles=roles)
    given = {"positions": ["name", "both", "some"], "batch": batch} if named else {"positions": own}
    cells = [[[1], [1, 0], [0]], [[2], [2, 1], [1]], [[4], [4, 3], [3]]] if named else own[..., None].tolist()
    every = attribution_patch(model, CLEAN, CORRUPTED, METRIC, site="z", check=0)
    screen = attribution_patch(model, CLEAN, CORRUPTED, METRIC, site="z", check=3, **given)
    for example in range(N):
        for entry, positions in enumerate(cells[example]):
            expected = every.estimates[example][..., positions].sum(-1)
            np.testing.assert_allclose(screen.estimates[example][..., entry], expected, atol=1e-6)
    exact = interp.patch(model, CLEAN, CORRUPTED, METRIC, site="z", **given)
    for i, (layer, head, name) in enumerate(screen.cells):
        effects = exact.effects[:, layer, head, exact.position_labels.index(name)]
        np.testing.assert_allclose(screen.exact[:, i], effects, atol=1e-5)
    assert list(screen.to_frame()["position"].unique()) == list(exact.position_labels)


def test_all_positions_are_the_sum_of_each(model):
    each, together = (
        attribution_patch(model, CLEAN, CORRUPTED, METRIC, site="k", positions=positions, check=0)
        for positions in ("each", "all")
    )
    assert together.axes == ("layer", "head")
    np.testing.assert_allclose(together.estimates, each.estimates.sum(-1), atol=1e-6)


def test_batches_give_the_same(model, monkeypatch):
    arguments = {"site": "attn_out", "scored": [6, 3, 5], "check": 0}
    together = attribution_patch(model, CLEAN, CORRUPTED, interp.kl_to_clean(), **arguments)
    apart = attribution_patch(model, CLEAN, CORRUPTED, interp.kl_to_clean(), batch_size=2, **arguments)
    np.testing.assert_allclose(apart.estimates, together.estimates, atol=1e-6)
    run = Screen.run

    def fail_on_many(self, rows):
        if rows.stop - rows.start > 1:
            raise torch.OutOfMemoryError
        run(self, rows)

    monkeypatch.setattr(Screen, "run", fail_on_many)
    halved = attribution_patch(model, CLEAN, CORRUPTED, interp.kl_to_clean(), **arguments)
    np.testing.assert_allclose(halved.estimates, together.estimates, atol=1e-6)
    assert any("out of memory" in note for note in halved.estimated.notes)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_gradients_stay_inside(requires_grad, context):
    model = build_small(attn_only=False, d_mlp=32, act_fn="gelu_new")
    expected = attribution_patch(model, CLEAN, CORRUPTED, METRIC, site="resid_post", steps=2, check=2)
    model.requires_grad_(requires_grad)
    with context():
        was = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        given = CLEAN.clone(), CORRUPTED.clone()
        found = attribution_patch(model, *given, METRIC, site="resid_post", steps=2, check=2)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == was
    np.testing.assert_allclose(found.estimates, expected.estimates, atol=1e-6)
    assert all(p.grad is None and p.requires_grad == requires_grad for p in model.parameters())


def test_hooks_of_the_caller_act_and_survive():
    model = build_small()
    seen = []
    model.add_hook("blocks.1.attn.hook_z", lambda z, hook: seen.append(z.shape))
    before = [list(point._forward_hooks) for point in model.hook_dict.values()]
    with interp.ablate_heads(model, [(0, 1)]):
        screen = attribution_patch(model, CLEAN, CORRUPTED, METRIC, site="z", check=4)
        exact = interp.patch(model, CLEAN, CORRUPTED, METRIC, site="z")
    np.testing.assert_allclose(screen.estimated.corrupted, exact.corrupted, atol=1e-6)
    assert not screen.estimates[:, 0, 1].any()  # the removed head is 0 in both runs
    assert before == [list(point._forward_hooks) for point in model.hook_dict.values()]
    assert seen

    def fail(logits):
        raise KeyError

    with pytest.raises(KeyError):
        attribution_patch(model, CLEAN, CORRUPTED, fail, site="z")
    assert before == [list(point._forward_hooks) for point in model.hook_dict.values()]


def test_the_logit_soft_cap_counts():
    model = build_small(normalization_type=None)
    model.cfg.output_logits_soft_cap = 0.05
    exact = interp.patch(model, CLEAN, CORRUPTED, METRIC, site="resid_post", layers=[1], positions="all")
    screen = attribution_patch(
        model, CLEAN, CORRUPTED, METRIC, site="resid_post", layers=[1], positions="all", steps=16, check=0
    )
    np.testing.assert_allclose(screen.estimates, exact.effects, atol=1e-3)


def test_table_and_pictures():
    model = interp.load(make_tiny("llama"), device="cpu")
    n = 6
    clean, corrupted = random_tokens(3, n), random_tokens(4, n)
    metric = interp.answer_log_probability(3)
    screen = attribution_patch(model, clean, corrupted, metric, site="k", check=3)
    frame = screen.to_frame()
    assert len(frame) == screen.mean.size
    assert frame["checked"].value_counts().to_dict() == {"top": 3, "control": 3}
    cell = screen.cells[0]
    row = frame.set_index(["layer", "head", "position"]).loc[cell]
    assert row["estimate"] == pytest.approx(screen.mean[cell])
    assert row["exact"] == pytest.approx(screen.exact[:, 0].mean())
    assert row["exact_low"] <= row["exact"] <= row["exact_high"]
    assert row["estimate_low"] <= row["estimate"] <= row["estimate_high"]
    assert "query_heads" in frame
    for value, (low, high) in (
        (screen.rank_correlation, screen.rank_correlation_interval),
        (screen.control_rank_correlation, screen.control_rank_correlation_interval),
    ):
        assert -1 <= low <= value <= high <= 1
    text = repr(screen)
    assert "estimated effect on the log-probability of the answer" in text
    assert f"rank correlation with exact {screen.rank_correlation:.2f}" in text
    assert "on 3 random others" in text
    assert "recovery of the log-probability of the answer, estimated" in screen.figure().alt
    assert "<svg" in screen._repr_html_()
    unchecked = attribution_patch(model, clean, corrupted, metric, site="resid_pre", check=0)
    assert "none was patched" in repr(unchecked)
    assert unchecked.cells == unchecked.control_cells == unchecked.missed == ()
    assert np.isnan(unchecked.rank_correlation)
    assert unchecked.to_frame()["exact"].isna().all()
    single = attribution_patch(model, clean[:1], corrupted[:1], metric, site="z", check=3)
    assert np.isnan(single.rank_correlation_interval).all()
    assert np.isnan(single.control_rank_correlation_interval).all()
    same = attribution_patch(model, clean, clean, metric, site="z")
    assert same.cells == ()
    assert "<code>" in same._repr_html_()


MISTAKES = [
    ({"corrupted": CORRUPTED[:, :5]}, r"clean tokens have shape \(3, 7\) and the corrupted ones \(3, 5\)"),
    ({"site": "mlp"}, "site='mlp' isn't known; use one of resid_pre"),
    ({"direction": "clean"}, "direction='clean' isn't known; use one of denoise, noise"),
    ({"layers": [2]}, "The layer 2 doesn't exist: this model has layers 0 to 1"),
    ({"positions": [7]}, "The position 7 doesn't exist"),
    ({"steps": -1}, "steps=-1 was given; it must be at least 0"),
    ({"check": -2}, "check=-2 was given; it must be at least 0"),
    ({"batch_size": 0}, "batch_size=0 was given; it must be at least 1"),
    ({"metric": interp.answer_log_probability(97)}, "The answer 97 is not a token id of this model"),
    ({"metric": lambda logits: logits.argmax(-1).float()}, "has no gradient, so no effect can be estimated from one"),
    ({"metric": lambda logits: logits}, r"gave shape \(3, 97\) for 3 examples"),
    ({"metric": interp.kl_to_clean(), "direction": "noise"}, "kl_to_clean is smallest at the clean run"),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_mistakes(changed, message):
    model = build_small()
    given = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, "site": "resid_pre", **changed}
    with as_without_type_checks(), pytest.raises(interp.InputError, match=message):
        attribution_patch(model, given.pop("clean"), given.pop("corrupted"), given.pop("metric"), **given)


def test_kl_in_the_noise_direction_needs_steps():
    model = build_small()
    exact = interp.patch(
        model, CLEAN, CORRUPTED, interp.kl_to_clean(), site="resid_post", layers=[1], positions="all", direction="noise"
    )
    screen = attribution_patch(
        model,
        CLEAN,
        CORRUPTED,
        interp.kl_to_clean(),
        site="resid_post",
        layers=[1],
        positions="all",
        direction="noise",
        steps=32,
        check=0,
    )
    np.testing.assert_allclose(screen.estimates, exact.effects, rtol=0.01, atol=1e-5)
