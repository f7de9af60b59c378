"""When models come to the tree's rule: known curves, known seeds, and a small lab from end to end."""

import json
import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.labs.trained import read_trained
from analyses.recipes import RECIPES
from analyses.structural_grokking.lab import LABS
from analyses.structural_grokking.outcome import Curve, choose_rule, describe_curve
from analyses.structural_grokking.over_seeds import compare_depths, correlate, count_ends
from analyses.structural_grokking.page import write_lab_page
from analyses.structural_grokking.progress import MEASURES, Progress, measure_weights
from analyses.structural_grokking.run import GROKKING
from analyses.structural_grokking.sections import write_curves, write_depths, write_rules
from analyses.structural_grokking.trained import TrainedGrammar, read_tree
from analyses.structural_grokking.write_tables import write_tables
from interp.complexity.sparsity import attention_sparsity
from interp.errors import InputError
from interp.models.build import build
from interp.records.store import Store
from interp.trees.brackets import compare_brackets
from interp.trees.projections import project_trees
from tasks.grammar import QuestionFormation, TenseInflection, split_by_construction
from tasks.seeding import derive_seed
from tests.analyses.tiny_grokking import put_curves, shrink

STEPS = np.arange(6) * 500.0


def make_curve(validation, generalisation, *, objects=None, **shares):
    shares = {"linear": 0.0, "other": 0.0} | shares
    return Curve(
        steps=STEPS,
        seconds=STEPS / 50,
        validation=np.array(validation, dtype=float),
        generalisation=np.array(generalisation, dtype=float),
        object_relative=np.array(generalisation if objects is None else objects, dtype=float),
        shares={name: np.full(6, share) for name, share in shares.items()},
    )


def test_a_late_rise_is_found_with_all_its_steps():
    found = describe_curve(make_curve([0.2, 1, 0.99, 1, 1, 1], [0.3, 0.1, 0.0, 0.5, 0.9, 0.7]), n_last=2)
    assert (found.saturated, found.early_step, found.early) == (500, 500, 0.1)
    assert (found.lowest, found.best, found.final) == (0.0, 0.9, pytest.approx(0.8))
    assert (found.rose, found.rose_seconds) == (2000, 40)
    assert found.variation == pytest.approx(0.1 + 0.5 + 0.4 + 0.2)  # the drop before saturation doesn't count
    assert found.fall == pytest.approx(0.2)
    assert found.grokked


def test_early_stopping_is_the_earliest_of_equally_good_evaluations():
    found = describe_curve(make_curve([0.2, 0.9, 1, 1, 0.9, 1], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), n_last=1)
    assert (found.early_step, found.early) == (1000, 0.2)


def test_without_saturation_nothing_after_it_is_known():
    found = describe_curve(make_curve([0.2] * 6, [0.1] * 6), n_last=1)
    for value in (found.saturated, found.lowest, found.rose, found.rose_seconds, found.variation, found.fall):
        assert math.isnan(value)
    assert not found.grokked


@pytest.mark.parametrize(
    ("validation", "generalisation", "grokked"),
    [
        ([0, 1, 1, 1, 1, 1], [0, 0.19, 0.2, 0.3, 0.6, 0.1], True),
        ([0, 1, 1, 1, 1, 1], [0, 0.19, 0.2, 0.3, 0.59, 0.1], False),  # not three times the bound
        ([0, 1, 1, 1, 1, 1], [0, 0.20, 0.2, 0.3, 0.6, 0.1], False),  # never low
        ([0, 0.9, 1, 1, 1, 1], [0, 0.1, 0.2, 0.3, 0.6, 0.1], False),  # low, but before validation is right
        ([0, 1, 1, 1, 1, 1], [0.9, 0.19, 0.1, 0.1, 0.1, 0.1], False),  # high before it, not after
    ],
)
def test_grokking_is_low_when_validation_is_right_and_three_times_the_bound_later(validation, generalisation, grokked):
    assert describe_curve(make_curve(validation, generalisation), n_last=1).grokked == grokked


@pytest.mark.parametrize(
    ("right", "objects", "shares", "rule"),
    [
        (1.0, 1.0, {"linear": 0.0, "shortcut": 4 / 7, "other": 0.0}, "hierarchical"),
        (4 / 7, 0.0, {"linear": 3 / 7, "shortcut": 1.0, "other": 0.0}, "shortcut"),
        (0.0, 0.0, {"linear": 1.0, "shortcut": 3 / 7, "other": 0.0}, "linear"),
        (0.85, 0.55, {"linear": 0.1, "shortcut": 0.6, "other": 0.0}, "mixed"),  # high, but not on object relatives
        (0.8, 0.9, {"linear": 0.1, "shortcut": 0.5, "other": 0.0}, "mixed"),
        (0.1, 0.1, {"linear": 0.05, "shortcut": 0.1, "other": 0.85}, "none"),
        (1.0, math.nan, {"linear": 0.0, "other": 0.0}, "hierarchical"),  # nothing known of object relatives
    ],
)
def test_what_each_rule_does_throughout_is_called_by_its_name(right, objects, shares, rule):
    assert choose_rule(right, objects, shares) == rule


def test_more_last_evaluations_than_there_are_is_a_mistake():
    with pytest.raises(InputError, match="n_last=7 of 6 evaluations can't be averaged: give 1 to all of them"):
        describe_curve(make_curve([1] * 6, [1] * 6), n_last=7)


def test_the_exact_p_value_is_that_of_all_ways_to_deal_out_the_seeds():
    rng = np.random.default_rng(0)
    one, other = rng.random(3), rng.random(4) + 0.3
    values = np.concatenate([one, other])

    def differ(order):
        dealt = values[list(order)]
        mean = values.mean()
        return 3 * (dealt[:3].mean() - mean) ** 2 + 4 * (dealt[3:].mean() - mean) ** 2

    draws = np.array([differ(order) for order in permutations(range(7))])
    expected = np.mean(draws >= differ(range(7)) - 1e-12)
    assert compare_depths({"2": one, "6": other}) == pytest.approx(expected)


def test_depths_that_are_alike_differ_in_few_draws_and_one_depth_says_nothing():
    rng = np.random.default_rng(1)
    p_values = [compare_depths({str(g): rng.random(4) for g in range(3)}, n_draws=200, seed=i) for i in range(60)]
    assert 0.3 < np.mean(p_values) < 0.7
    assert compare_depths({str(g): np.full(4, float(g)) for g in range(3)}) < 0.01
    assert math.isnan(compare_depths({"2": np.ones(5)}))
    assert math.isnan(compare_depths({"2": np.ones(1), "6": np.zeros(1)}))


def test_seeds_are_counted_where_they_end_and_related():
    high, low, between = count_ends(np.array([0.81, 0.8, 0.2, 0.19, 0.5]))
    assert (high.found, low.found, between.found) == (1, 1, 3)
    x = np.array([0.0, 1.0, 2.0, 3.0, 5.0])
    assert correlate(x, 2 * x + 1).value == pytest.approx(1)
    noisy = np.array([0.0, 3.0, 1.0, 2.0, 4.0])
    found = correlate(x, noisy)
    assert found.value == pytest.approx(np.corrcoef(x, noisy)[0, 1])
    assert found.low < found.value < found.high
    assert repr(correlate(x, np.ones(5))) == "unknown"


@pytest.mark.parametrize("kind", [QuestionFormation, TenseInflection])
def test_progress_measures_what_each_library_function_says_alone(kind):
    task = kind(train=200, validation=60, generalisation=40)
    model = build(
        n_layers=2, d_model=16, n_heads=2, d_vocab=task.d_vocab, n_ctx=task.n_ctx, act_fn="relu", seed=3, device="cpu"
    )  # fmt: skip
    progress = Progress(task=task, every=100, n_lines=30, n_trees=8)
    found = progress(model, 200)

    sentences = task.sentences("validation")[:8]
    word = {word: i for i, word in enumerate(task.vocabulary)}
    tokens = [[word[w] for w in one.words] for one in sentences]
    projected = project_trees(model, tokens, layer="last", bos=word["start"], n_untrained=0)
    assert found["t_closed"] == pytest.approx(projected.scores["closed"][0].mean(), rel=1e-4)
    gold = compare_brackets(projected.trees[1], [one.tree for one in sentences])
    assert found["f1"] == pytest.approx(gold.f1_without_root)
    alone = [attention_sparsity(model, torch_row(word["start"], row)) for row in tokens]
    assert found["entropy"] == pytest.approx(np.mean([one.normalised.mean() for one in alone]), rel=1e-4)
    assert found["entropy_published"] == pytest.approx(np.mean([one.published[0] for one in alone]), rel=1e-4)
    assert found["norm_per_layer"] == pytest.approx(measure_weights(model)["norm"] / 2)

    batch = task.sample(30, split="generalisation", seed=derive_seed(0, "grokking progress"))
    right = task.score(model(batch.tokens), batch)["hierarchical"]
    for name, values in split_by_construction(right, batch).items():
        assert found[name] == pytest.approx(float(values.mean()))


def torch_row(start, row):
    return torch.tensor([[start, *row]])


def test_between_its_steps_progress_measures_constructions_alone():
    task = QuestionFormation(train=100, validation=50, generalisation=20)
    model = build(
        n_layers=1, d_model=8, n_heads=2, d_vocab=task.d_vocab, n_ctx=task.n_ctx, act_fn="relu", device="cpu"
    )  # fmt: skip
    found = Progress(task=task, every=100, n_lines=20, n_trees=4)(model, 150)
    assert all(math.isnan(found[name]) for name in MEASURES)
    assert 0 <= found["object_relative"] <= 1


@pytest.mark.parametrize("name", ["question_formation", "tense_inflection"])
def test_the_recipes_of_interp_train_are_those_of_the_lab(name):
    recipe = RECIPES[name](seed=2)
    lab = LABS[{"question_formation": "small", "tense_inflection": "tense"}[name]]()
    assert recipe.task.name == name.replace("_", " ")
    assert (recipe.model["seed"], recipe.config.seed, recipe.config.steps) == (
        2,
        2,
        lab.settings[0].config.steps,
    )
    assert recipe.task.batches == "one_length"


def test_all_models_of_a_lab_read_the_same_lines():
    cells = LABS["small"]().cells
    assert len({cell.setting.task for cell in cells}) == 1
    assert len({cell.setting.observe for cell in cells}) == 1
    assert len({cell.key for cell in cells}) == len(cells) == 15
    assert cells[1].name == "question_formation_4_layers-seed_0"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished lab of four models and its folder."""
    lab = shrink(LABS["small"](), seeds=2)
    folder = tmp_path_factory.mktemp("lab") / "run"
    GROKKING.run(lab, folder, command="interp grokking", device="cpu", processes=1)
    return lab, folder


@pytest.mark.slow
def test_a_finished_lab_has_a_report_and_every_measure_where_it_was_measured(run):
    lab, folder = run
    frame = pd.read_parquet(folder / "results.parquet")
    assert set(frame["model"]) == {cell.name for cell in lab.cells}
    for name in MEASURES.values():
        rows = frame[frame["metric"] == f"training: {name}"]
        assert rows.groupby("model")["step"].apply(list).tolist() == [[0, 4]] * 4
    rows = frame[frame["metric"] == "training: generalisation, hierarchical rule"]
    assert rows.groupby("model")["step"].apply(list).tolist() == [[0, 2, 4]] * 4
    f1 = frame[frame["metric"] == MEASURES["f1"]]
    named = {"untrained model", "left trees", "right trees", "uniform split trees", "catalan trees"}
    assert set(f1["control"].dropna()) == named
    page = (folder / "report.html").read_text()
    for title in ("Long after validation is right", "Which rule they end with", "Does depth matter?", "Some trees"):
        assert title in page


@pytest.mark.slow
def test_what_is_kept_of_a_model_is_measured_on_the_model_that_was_trained(run):
    lab, folder = run
    one = read_trained(lab, Store(folder, mode="read"), TrainedGrammar)[0]
    steps, values = one.follow("t_closed")
    assert list(steps) == [0, 4]
    assert one.value(MEASURES["t_closed"]) == pytest.approx(values[-1], rel=1e-5)
    assert one.untrained(MEASURES["t_closed"]) == pytest.approx(values[0], rel=1e-5)
    assert len(one.trees) == 3
    assert read_tree([[0, 1], [2, 3]]) == ((0, 1), (2, 3))


@pytest.mark.slow
def test_a_finished_lab_is_not_trained_again(run):
    lab, folder = run
    before = {path: path.stat().st_mtime_ns for path in (folder / "models").rglob("*") if path.is_file()}
    GROKKING.run(lab, folder, command="interp grokking", device="cpu", processes=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_the_page_says_in_words_who_grokked_and_whether_depth_matters(run, tmp_path):
    lab, folder = run
    trained = read_trained(lab, Store(folder, mode="read"), TrainedGrammar)
    flat, ones = np.zeros(6), np.ones(6)
    linear = {"generalisation_hierarchical": flat, "object_relative": flat, "generalisation_linear": ones}
    rise = np.array([0.3, 0.0, 0.1, 0.9, 1.0, 1.0])
    tree = {"generalisation_hierarchical": rise, "object_relative": rise, "generalisation_linear": 1 - rise}
    trained = [
        put_curves(
            one, step=STEPS, seconds=STEPS / 50, validation_hierarchical=np.array([0.2, 1, 1, 1, 1, 1]),
            generalisation_shortcut=flat, generalisation_other=flat, **(linear if one.depth == 1 else tree),
        )
        for one in trained
    ]  # fmt: skip
    curves = write_curves(trained, {})
    assert "of 1 layers 0 of 2 [0%, 66%], of 2 layers 2 of 2 [34%, 100%]" in curves.verdict
    assert "at step 1,500 to 1,500 (30 to 30 s)" in curves.verdict
    assert "Early stopping would have found generalisation of 0% [0%, 0%]" in curves.control
    rules = write_rules(trained)
    assert "1 layers: 2 linear; 2 layers: 2 mixed" in rules.verdict  # the mean of the last five is 0.6
    depths = write_depths(trained)
    assert depths is not None
    assert "Within noise: seeds alone make depths differ as much (p = 0.33" in depths.verdict
    assert write_depths([one for one in trained if one.depth == 2]) is None
    told = write_tables(trained).splitlines()
    assert told[0].startswith("- Models that grok")
    assert told[-1].startswith("| 2 | 1 | 500 | 0% | 0% | 60% | 100% | 60% | 1,500 | mixed |")
    lone = replace(lab, settings=lab.settings[:1])
    assert write_lab_page(lone, Store(tmp_path / "empty"), command="interp grokking").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "smal"], "There is no lab 'smal'; there are small, post_norm, tense, paper. Did you mean small?"),
        (["--seeds", "0"], "seeds must be a whole number of at least 1, not 0"),
        (["--shard", "3/2"], "--shard 3/2 can't be used; give i/n with i from 1 to n"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_interp, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_interp("grokking", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_times_each_depth(run_interp, tmp_path):
    code, out, _ = run_interp(
        "grokking", "--seeds", 1, "--steps", 2, "--dry-run", "--device", "cpu", "--out", tmp_path / "none", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["models"] == [f"question_formation_{depth}_layers-seed_0" for depth in (2, 4, 6)]
    assert found["measured"] == ", ".join(found["models"])
    assert not (tmp_path / "none").exists()
