"""Rule tasks in the report: a machine that solves sentences, sections from known numbers, models that can't be asked."""

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from analyses.analysis import Options, Subject
from analyses.registry import choose_analyses
from analyses.rule_tasks import RULES, choose_counts
from analyses.rule_tasks_cells import TASKS, pack_removal, restore_removal
from analyses.rule_tasks_section import write_section
from analyses.runner import Ask, claim_folder, run_asks
from interp.models.provenance import get_provenance
from interp.prompts.choices import ChoiceScores
from interp.prompts.removal_result import RankedRemoval, RemovalStep
from interp.records.store import Cell
from tests.analyses.receiver import build_receiver_machine
from tests.conftest import make_tokenizer
from tests.tasks.prompts.test_rules import make_words

N_DRAWS = 20
N = 40


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The rows, the page and the folder of a quick report on the receiver machine, whose tokenizer has no symbols."""
    model = build_receiver_machine()
    folder = tmp_path_factory.mktemp("runs") / "machine"
    return (*ask(model, folder), folder)


def ask(model, folder):
    subject = Subject(model=model, provenance=interp.get_provenance(model))
    asks = [Ask(name="machine", load=lambda: subject, analyses=tuple(choose_analyses(["rules"])))]
    run_asks(asks, claim_folder(folder, {"models": ["machine"]}), options=Options(quick=True), command="c", title="t")
    return pd.read_parquet(folder / "results.parquet"), (folder / "report.html").read_text()


def test_what_the_machine_can_do_is_measured_and_what_it_cannot_be_asked_is_said(reported):
    rows, page, _ = reported
    rules = rows[rows["analysis"] == "rules"]
    assert set(rules["task"]) == {"indirect object (names)"}
    values = rules.set_index(["metric", rules["control"].fillna("")])["value"]
    assert (
        values["accuracy", ""]
        == values["accuracy by summed log-probability", ""]
        == values["generated exactly", ""]
        == 1
    )
    assert values["accuracy", "chance"] == 0.5
    assert ("accuracy, 1 head removed", "random heads of the same layers") in values.index
    assert "fuzzy copying can&#39;t be asked: the tokenizer writes" in page
    assert "The model follows none of these rules above chance" in page
    assert "Rules on symbols" in page
    assert page.count("<svg") >= 1


def test_every_draw_is_a_row_with_its_heads(reported):
    rows = reported[0]
    draws = rows[rows["metric"].str.startswith("accuracy lost, one draw")]
    assert len(draws) == 3  # a layer of four heads has three others
    assert draws["note"].str.fullmatch(r"draw \d: \d\.\d").all()


def test_a_report_that_is_asked_again_reads_its_cells(reported, monkeypatch):
    rows, page, folder = reported
    monkeypatch.setattr("analyses.rule_tasks.score_choices", None)
    again, same = ask(build_receiver_machine(), folder)
    assert same == page
    pd.testing.assert_frame_equal(again, rows)


def test_a_model_that_guesses_is_not_taken_apart(tmp_path):
    tokenizer = make_words()
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=len(tokenizer), n_ctx=96, seed=0)
    model.tokenizer = tokenizer
    rows, page = ask(model, tmp_path / "run")
    rules = rows[rows["analysis"] == "rules"]
    assert set(rules["task"]) == {variant.title for variant in TASKS.values()}
    assert not rules["metric"].str.contains("removed").any()
    assert (rules[rules["control"].isna()]["note"] == "not above chance: uninformative").all()
    assert "follows none of these rules above chance" in page
    assert "Not above chance, so uninformative and left out: fuzzy copying (" in page


def make_result(*, before, after, control, n_choices=2, heads=10, seed=0):
    """Items of which a share is right before, after removal, and under every draw."""
    provenance = get_provenance(interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4))

    def scores(share, rows=N):
        right = np.arange(N)[:rows] % 10 < 10 * share
        return np.stack([np.where(right, -1.0, -3.0), *[np.full(rows, -2.0)] * (n_choices - 1)], axis=-1)

    def likeliest(rows=N):
        return np.zeros((rows, n_choices), dtype=bool)

    whole = ChoiceScores(
        log_probability=scores(before), likeliest=likeliest(), n_tokens=np.ones((N, n_choices), dtype=int),
        answers=np.zeros(N, dtype=int), seed=seed, provenance=provenance,
    )  # fmt: skip
    step = RemovalStep(
        whole=whole,
        heads=tuple((3, head) for head in range(heads)),
        log_probability=scores(after),
        likeliest=likeliest(),
        control_heads=tuple(tuple((2, draw + head) for head in range(heads)) for draw in range(N_DRAWS)),
        control_items=np.tile(np.arange(N), (N_DRAWS, 1)),
        control_log_probability=np.stack([scores(control)] * N_DRAWS),
        control_likeliest=np.stack([likeliest()] * N_DRAWS),
        notes=("layer 3 has too few other heads, so its control borrows a head of layer 2",),
    )
    steps = (step,) if whole.informative else ()
    return RankedRemoval(whole=whole, steps=steps, seed=seed)


def write(results):
    """The section from cells that hold these results, and a refusal for every other task."""
    cells = {}
    for name in TASKS:
        about = {"refused": "no words"}
        arrays = {}
        if name in results:
            arrays, packed = pack_removal(results[name])
            example = {"text": "list: horse: && ; cow:", "choice_texts": [" &&", " ##"], "answer": 0}
            about = {**packed, "refused": None, "example": example}
        cells[f"rules/{name}"] = Cell(frame=pd.DataFrame(), arrays=arrays, about=about)
    return write_section(get_provenance(interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4)), cells)


def test_results_survive_the_store():
    result = make_result(before=0.9, after=0.3, control=0.8)
    arrays, about = pack_removal(result)
    back = restore_removal(result.whole.provenance, Cell(frame=pd.DataFrame(), arrays=arrays, about=about))
    pd.testing.assert_frame_equal(back.to_frame(), result.to_frame())
    assert back.steps[0].heads == result.steps[0].heads
    assert back.steps[0].control_heads == result.steps[0].control_heads
    assert back.steps[0].notes == result.steps[0].notes
    assert repr(back) == repr(result)


def test_the_verdict_sets_the_rule_beside_what_is_known_by_heart():
    section = write(
        {
            "fuzzy_copying": make_result(before=0.9, after=0.2, control=0.9),
            "icl_original": make_result(before=1.0, after=0.9, control=1.0),
            "icl_symbols": make_result(before=0.9, after=0.4, control=0.8),
            "ioi_symbols": make_result(before=0.3, after=0.3, control=0.3),
        }
    )
    assert section.verdict.startswith(
        "Following a rule depends on the model's 10 strongest induction heads in fuzzy copying and classes (symbols as labels). "
        "Without them accuracy on rules goes from 90% to 20% in fuzzy copying and from 90% to 40% in classes (symbols as "
        "labels); on what can be known by heart, from 100% to 90% in classes (original labels)."
    )
    assert (
        "classes (symbols as labels) lose 30 percentage points more than classes (original labels) [" in section.verdict
    )
    assert "Without as many random heads of the same layers: fuzzy copying 90%" in section.control
    assert "classes (symbols as labels) 40 [" in section.control
    assert "Not above chance, so uninformative and left out: indirect object (symbols) (30% [" in section.control
    assert "n\u00a0=\u00a040 items, 20 draws" in section.control
    assert len(section.figures) == 1
    assert section.figures[0].svg.count("so no head was removed") == 1
    table = section.table.set_index(["task", "removed"])
    assert table.loc[("classes (symbols as labels)", 10), "lost beyond"] == pytest.approx(0.4)
    assert table.loc[("fuzzy copying", 10), "p"] == pytest.approx(1 / 21)
    assert np.isnan(table.loc[("indirect object (symbols)", 0), "p"])
    assert any("`list: horse: && ; cow:`" in note and "right is `&&`" in note for note in section.notes)
    assert (
        "With 10 removed, layer 3 has too few other heads, so its control borrows a head of layer 2." in section.notes
    )
    assert "indirect object (names) can't be asked: no words." in section.notes


def test_a_loss_that_random_heads_share_shows_nothing():
    section = write({"fuzzy_copying": make_result(before=0.9, after=0.4, control=0.4)})
    assert section.verdict.startswith(
        "It is not shown that following a rule depends on the model's 10 strongest induction heads."
    )
    assert "percentage point" not in section.verdict


def test_nothing_that_can_be_asked_is_said_so():
    section = write({})
    assert section.verdict == "None of the tasks can be put to the model: no words."
    assert section.figures == ()


def test_counts_go_up_to_one_head_in_nine_and_fifty():
    assert choose_counts(270) == [10, 20, 30]
    assert choose_counts(1024) == [10, 20, 30, 40, 50]
    assert choose_counts(144) == [5, 10, 15]
    assert choose_counts(8) == [1]


def test_models_that_cannot_be_asked_say_why():
    def refuse(model):
        return RULES.applies(Subject(model=model, provenance=interp.get_provenance(model)))

    size = {"d_model": 8, "d_vocab": 97, "attn_only": True}
    model = interp.build(n_layers=2, n_heads=2, n_ctx=96, **size)
    assert "the model has no tokenizer, so no sentence can be put to it" in refuse(model)
    model.tokenizer = make_tokenizer()
    assert "words as one token each" in refuse(model)
    assert "has one head" in refuse(interp.build(n_layers=1, n_heads=1, n_ctx=96, **size))
    short = interp.build(n_layers=2, n_heads=2, n_ctx=8, **size)
    short.tokenizer = make_words()
    assert "the model reads 8 tokens at most, and a prompt takes" in refuse(short)
    assert refuse(build_receiver_machine()) is None


@pytest.mark.slow
def test_smollm2_copies_fuzzily_with_its_induction_heads(smollm2):
    from interp.prompts.removal import remove_ranked_heads
    from tasks.prompts import FuzzyCopying, ICLClassification

    items = FuzzyCopying(smollm2.tokenizer).sample(12, seed=0)
    heads = interp.score_heads(smollm2, n_sequences=4).top("induction", 10)
    weights = smollm2.blocks[18].attn.W_O.clone()
    result = remove_ranked_heads(smollm2, items, heads, counts=[10], n_draws=3, n_shares=3)
    assert torch.equal(smollm2.blocks[18].attn.W_O, weights)
    assert result.whole.informative
    assert result.steps[0].accuracy()[0] < 0.35
    assert result.steps[0].control_accuracy()[0] > 0.35
    known = interp.prompts.choices.score_choices(smollm2, ICLClassification(smollm2.tokenizer).sample(6, seed=0))
    assert known.accuracy()[0] > 0.8
