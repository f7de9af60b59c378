"""Trees in the report: models with a known answer, training runs, sections from known numbers, models that can't be asked."""

import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import interp
from analyses.analysis import Options, Subject
from analyses.headlines import pick_headlines
from analyses.registry import DEFAULT, choose_analyses
from analyses.report_models import open_subject
from analyses.runner import Ask, claim_folder, run_asks
from analyses.tree_projections import N_UNTRAINED, TREES
from analyses.tree_projections_cells import (
    Condition,
    Measured,
    match_spans,
    measure_condition,
    pack_condition,
    pack_sentences,
    pack_tree,
    restore_condition,
    restore_sentences,
    restore_tree,
)
from analyses.tree_projections_compare import compare_conditions, compare_layers
from analyses.tree_projections_section import write_section
from analyses.tree_projections_sentences import draw_gold_sentences, prepare_sentences, shuffle_words, write_text
from interp.models.provenance import get_provenance
from interp.records.store import Cell
from interp.training.config import TrainConfig
from interp.trees.charts import measure_charts
from interp.trees.scores import span_probabilities
from tasks.grammar import QuestionFormation, TenseInflection
from tasks.trees import draw_tree, list_spans, right_branching

QUESTIONS = QuestionFormation(train=300, validation=200, generalisation=200)
TENSES = TenseInflection(train=1, validation=200, generalisation=200)
SHUFFLED = "the same words in random order"


def make_word_tokenizer():
    """One token a word, the words of both grammars as the analysis writes them."""
    words = {word.replace("_", "-") for task in (QUESTIONS, TENSES) for word in task.vocabulary}
    vocabulary = {word: token for token, word in enumerate(["<s>", "<unk>", *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def make_reader(*, seed=0, attends=True):
    """A random model with a tokenizer; one that doesn't attend knows nothing of other words."""
    tokenizer = make_word_tokenizer()
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=len(tokenizer), n_ctx=24, act_fn="gelu", seed=seed,
                         device="cpu")  # fmt: skip
    if not attends:
        with torch.no_grad():
            for block in model.blocks:
                block.attn.W_O.zero_()
    model.tokenizer = tokenizer
    return model


def ask(subject, folder, **options):
    asks = [Ask(name="reader", load=lambda: subject, analyses=tuple(choose_analyses(["trees"])))]
    store = claim_folder(folder, {"models": ["reader"]})
    run_asks(asks, store, options=Options(quick=True, **options), command="c", title="t")
    return pd.read_parquet(folder / "results.parquet"), (folder / "report.html").read_text()


def make_subject(model, run=None):
    return Subject(model=model, provenance=get_provenance(model), run=run)


@pytest.fixture(scope="module", autouse=True)
def _few_lines():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyses.tree_projections_sentences.TEXT_TASKS", (QUESTIONS, TENSES))
        yield


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "reader"
    return (*ask(make_subject(make_reader(attends=False)), folder), folder)


def test_a_model_that_reads_no_other_word_scores_0_and_its_ties_branch_to_the_right(reported):
    """All similarities are 1, so every tree scores what random ones score, and of equal splits the leftmost wins."""
    rows, page, _ = reported
    own = rows[rows["control"].isna()].set_index(["metric", "layer"])["value"]
    phrases = [f"gold phrases above spans with the same {word} word" for word in ("first", "last")]
    for metric in (
        "t, uniform_split",
        "t, catalan",
        "t, closed",
        "t, sampled",
        "t of the gold tree, uniform_split",
        *phrases,
    ):
        assert own[metric, 0] == pytest.approx(0, abs=1e-4)
    right = rows[rows["control"].eq("right-branching trees").fillna(False)].set_index("metric")["value"]
    assert own["F1, without root", 1] == pytest.approx(right["F1, without root"])
    assert own["F1, without root, beyond right-branching trees", 1] == 0
    assert own["p-value, F1, without root, beyond right-branching trees", 1] == 1
    assert "It is not shown that it keeps the grammar&#39;s phrases together at any layer" in page
    assert "At no layer is it shown that its own trees have more of the gold brackets than right-branching ones" in page


def test_every_number_has_its_layer_its_interval_and_its_controls(reported):
    rows, page, _ = reported
    numbers = rows[rows["metric"].eq("t, uniform_split")]
    assert numbers["control"].fillna("").value_counts().to_dict() == {
        "": 2,
        SHUFFLED: 2,
        "untrained model": 2 * N_UNTRAINED,
    }
    assert (numbers["low"] <= numbers["value"] + 1e-12).all()
    assert (numbers["n"] == 24).all()
    assert set(rows["metric"][rows["metric"].str.startswith("gold brackets found")]) == {
        f"gold brackets found, {kind}" for kind in ("NP", "PP", "RC", "S", "VP")
    }
    assert page.count("<svg") >= 3
    assert "Subject with a subject relative" in page
    assert "Token 0 (<code>&lt;s&gt;</code>) stands in front of each sentence" in page
    assert "trees" not in DEFAULT


def test_the_headlines_are_at_the_layers_that_the_page_names(reported):
    rows, page, _ = reported
    told = {one.what.partition(",")[0]: one for one in pick_headlines(rows)}
    assert list(told) == [
        "phrases against same first word", "phrases against same last word", "F1 of its trees", "equation 2 of its trees"
    ]  # fmt: skip
    f1 = told["F1 of its trees"]
    assert f"at layer {f1.what[-1]}, F1 without the root is {f1.value:.2f} against {f1.control_value:.2f}" in page
    assert [one.control for one in told.values()] == [SHUFFLED, SHUFFLED, "right-branching trees", "untrained model"]


def test_a_report_that_is_asked_again_reads_its_cells(reported, monkeypatch):
    rows, page, folder = reported
    monkeypatch.setattr("analyses.tree_projections.measure_condition", None)
    again, same = ask(make_subject(make_reader(attends=False)), folder)
    assert same == page
    pd.testing.assert_frame_equal(again, rows)


def test_a_training_run_reads_its_own_words_behind_their_start(tmp_path):
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=QUESTIONS.d_vocab, n_ctx=QUESTIONS.n_ctx, seed=0,
                         act_fn="gelu", device="cpu")  # fmt: skip
    interp.train(
        model, QUESTIONS, TrainConfig(steps=2, batch_size=8, eval_sequences=8, warmup_steps=1), folder=tmp_path / "run"
    )
    subject = open_subject(str(tmp_path / "run"), device="cpu")
    assert TREES.applies(subject) is None
    gold, written, shuffled, bos = prepare_sentences(subject, Options(), n=24)
    assert QUESTIONS.vocabulary[bos] == "start"
    assert [[QUESTIONS.vocabulary[token] for token in one] for one in written] == [list(one.words) for one in gold]
    assert [sorted(one) for one in shuffled] == [sorted(one) for one in written]
    held_out = {one.words for split in QUESTIONS.splits[1:] for one in QUESTIONS.sentences(split)}
    assert {one.words for one in gold} <= held_out
    rows, page = ask(subject, tmp_path / "report")
    assert (rows.loc[rows["metric"].eq("t, closed"), "layer"] == 0).all()
    assert "from the grammar of question formation, none of which it was trained on" in page
    assert "<code>start</code> stands in front of each sentence" in page


def test_sentences_are_half_of_either_kind_and_know_their_construction():
    tasks = [QUESTIONS, TENSES]
    drawn = draw_gold_sentences(tasks, 40, seed=3)
    assert drawn == draw_gold_sentences(tasks, 40, seed=3)
    assert drawn != draw_gold_sentences(tasks, 40, seed=4)
    assert len({one.words for one in drawn}) == 40
    held_out = {one.words for one in QUESTIONS.sentences("generalisation")}
    assert [one.words in held_out for one in drawn[:20]].count(True) >= 10
    known = {
        "plain": "", "prepositional_phrase": "near her yaks", "intransitive_relative": "that does sleep",
        "subject_relative": "who does confuse the newt", "object_relative": "that the newts do admire",
    }  # fmt: skip
    for one in draw_gold_sentences(tasks, 160, seed=0):
        assert set(one.labels) == set(list_spans(one.tree))
        example = known[one.construction].split()
        assert (one.words[2] in ("who", "that")) == ("relative" in one.construction)
        if one.construction == "object_relative":
            assert one.words[3] in ("the", "some", "my", "your", "our", "her")
        assert one.construction == "plain" or len(example) > 0


def test_shuffled_words_are_the_same_words():
    one = draw_gold_sentences([QUESTIONS], 2, seed=0)[0]
    mixed = shuffle_words(one, seed=0, place=0)
    assert sorted(mixed.words) == sorted(one.words)
    assert mixed.tree == one.tree
    assert mixed != shuffle_words(one, seed=0, place=1)
    assert write_text(replace(one, words=("yaks", "high_five", "newts"))) == "yaks high-five newts"


def test_the_gold_tree_scores_its_spans_less_those_of_random_trees():
    model = make_reader(seed=1)
    gold = draw_gold_sentences([QUESTIONS, TENSES], 8, seed=0)
    written = [write_text(one) for one in gold]
    found = measure_condition(model, written, [one.tree for one in gold], bos=0, seed=0)
    charts = measure_charts(model, written, bos=0)
    for place, one in enumerate(gold):
        chart, n = charts[1][place].double().numpy(), len(one.words)
        spans = [*list_spans(one.tree), *((i, i + 1) for i in range(n))]
        weight = span_probabilities(n, "uniform_split").copy()
        weight[0, n] = 0
        expected = sum(chart[span] for span in spans if span != (0, n)) - np.nansum(weight * np.nan_to_num(chart))
        assert found.gold[1, place] == pytest.approx(expected, abs=1e-5)
    back = restore_condition(Cell(frame=pd.DataFrame(), arrays=pack_condition(found), about={}))
    assert back.trees == found.trees
    assert back.layers == (0, 1)
    np.testing.assert_array_equal(back.gold, found.gold)
    assert restore_sentences(pack_sentences(gold)) == tuple(gold)


def test_phrases_are_compared_with_spans_that_begin_or_end_at_the_same_word():
    chart = np.zeros((1, 5, 6))
    chart[0, 1, 3], chart[0, 1, 4], chart[0, 1, 5] = 0.9, 0.4, 0.2
    chart[0, 3, 5], chart[0, 2, 5] = 0.6, 0.1
    # Brackets that don't begin the sentence: (1, 5), (1, 3), (3, 5); nothing else begins at word 3 but (3, 5) itself.
    same_start, same_end = match_spans(chart, (0, ((1, 2), (3, 4))))
    assert same_start[0] == pytest.approx(((0.2 - 0.65) + (0.9 - 0.3)) / 2)
    assert same_end[0] == pytest.approx(((0.2 - 0.35) + (0.6 - 0.15)) / 2)  # nothing else ends before word 3
    assert match_spans(chart, ((((0, 1), 2), 3), 4)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("n_words", [1, 2, 7, 16])
def test_a_tree_survives_the_store(n_words):
    generator = random.Random(n_words)
    for _ in range(50):
        tree = draw_tree(n_words, generator, law="catalan")
        assert restore_tree(pack_tree(tree)) == tree


def make_measured(*, start=0.0, end=0.0, own=0.0, trees="gold", n_untrained=2, untrained=0.5):
    """Two layers; in the second the model's numbers are this much more than those of its controls."""
    sentences = tuple(draw_gold_sentences([QUESTIONS, TENSES], 60, seed=0))
    noise = np.random.default_rng(0).normal(0, 0.1, (2, len(sentences)))

    def make(rise, start, end, kind, floor=0.0):
        parsed = tuple(one.tree if kind == "gold" else right_branching(len(one.words)) for one in sentences)
        second = np.array([[0.0], [1.0]])
        values = noise + rise * second + floor
        return Condition(
            layers=(0, 1),
            trees={0: tuple(right_branching(len(one.words)) for one in sentences), 1: parsed},
            scores={score: values for score in ("uniform_split", "catalan", "closed", "sampled")},
            gold=noise[::-1] * 0.5,
            same_start=noise + start * second,
            same_end=noise + end * second,
        )

    return Measured(
        sentences=sentences,
        model=make(own, start, end, trees),
        shuffled=make(0.0, 0.0, 0.0, "right"),
        untrained=tuple(make(0.0, 0.0, 0.0, "right", floor=untrained + 0.01 * draw) for draw in range(n_untrained)),
    )


def write(measured, monkeypatch):
    """The section of these numbers, written by the analysis's own parts but for the measuring."""
    made = iter([measured.model, measured.shuffled, *measured.untrained])
    monkeypatch.setattr("analyses.tree_projections.measure_condition", lambda *_, **__: next(made))
    monkeypatch.setattr(
        "analyses.tree_projections.prepare_sentences",
        lambda *_, **__: (list(measured.sentences), [write_text(one) for one in measured.sentences], [], None),
    )
    subject = make_subject(make_reader())
    cells = {}
    for part in TREES.parts[: 2 + len(measured.untrained)] + TREES.parts[-1:]:
        outcome = part.measure(subject, Options(), cells)
        cells[f"trees/{part.name}"] = Cell(
            frame=interp.records.to_frame(outcome.measurements), arrays=outcome.arrays, about=outcome.about
        )
    return write_section(subject.provenance, cells)


def test_the_verdict_says_what_the_numbers_say(monkeypatch):
    section = write(make_measured(start=0.3, end=0.2, own=0.2), monkeypatch)
    assert section.verdict.startswith(
        "Without a first token it keeps the grammar's phrases together at layer 1: there phrases of the grammar score, "
        "against other spans with the same first word +0.3"
    )
    assert (
        "(difference 0.300 [0.300, 0.300], p\u00a0<\u00a00.001), and against other spans with the same last word +0.2"
        in section.verdict
    )
    assert (
        "Its own trees have more of the gold brackets than right-branching ones at layer 1: at best, at"
        in section.verdict
    )
    assert "F1 without the root is 1.00 against 0." in section.verdict
    assert f"Its own trees score more than those of {SHUFFLED} at layer 1 (equation 2)." in section.figures[0].verdict
    assert "by equation 2 they score more at no layer and less at all 2 layers" in section.figures[0].verdict
    assert "In 2 untrained models of this shape phrases score" in section.control
    assert "n\u00a0=\u00a060 sentences" in section.control
    table = section.table.set_index("layer")
    assert table.loc[1, "same first word"] - table.loc[1, "first, random order"] == pytest.approx(0.3)
    assert table.loc[1, "F1"] == 1
    assert table.loc[0, "p (right)"] == 1
    kinds = section.within[0].table.set_index("brackets")
    assert kinds.loc["NP", "found"] == 1
    assert kinds.loc["NP", "right-branching"] < 1
    assert any("`--bos`" in note for note in section.notes)
    assert len(section.folded[0].table) == 2 * (1 + 4 * 2)


def test_numbers_of_controls_alone_show_nothing(monkeypatch):
    section = write(make_measured(trees="right", untrained=-0.5), monkeypatch)
    assert section.verdict.startswith(
        "It is not shown that it keeps the grammar's phrases together at any layer. They score more than in random order against "
        "spans with the same first word at no layer, and against those with the same last word at no layer."
    )
    assert "At no layer is it shown that its own trees have more of the gold brackets" in section.verdict
    assert (
        f"At no layer do its own trees score more than those of {SHUFFLED} (equation 2)." in section.figures[0].verdict
    )
    assert "by equation 2 they score more at all 2 layers and less at no layer" in section.figures[0].verdict


@pytest.mark.parametrize(("start", "end", "kept"), [(0.3, 0.2, (1,)), (0.3, 0.0, ()), (0.0, 0.3, ()), (0.3, -0.3, ())])
def test_phrases_that_only_begin_or_only_end_well_are_not_kept_together(start, end, kept):
    contrasts = compare_conditions(make_measured(start=start, end=end), seed=0)
    assert contrasts.phrase_layers == kept


def test_without_untrained_models_it_says_so(monkeypatch):
    section = write(make_measured(n_untrained=0), monkeypatch)
    assert "untrained models" not in section.verdict + section.control + section.figures[0].verdict
    assert "No untrained model was measured: a TransformerBridge has no copy with random weights." in section.notes
    assert "untrained" not in section.folded[0].table


def test_more_than_the_mean_of_untrained_models_but_not_than_all_is_not_more():
    measured = make_measured(own=0.2, untrained=0.0)
    rival = replace(measured.untrained[0], scores={name: v + 0.3 for name, v in measured.model.scores.items()})
    low = replace(measured.untrained[0], scores={name: v - 1.0 for name, v in measured.model.scores.items()})
    contrast = compare_conditions(replace(measured, untrained=(rival, low)), seed=0).own_beyond_untrained
    assert (contrast.value > 0).all()
    assert contrast.above == ()


def test_a_difference_at_one_layer_of_many_must_survive_the_others():
    effects = np.random.default_rng(1).normal(0, 1, (40, 30))
    single = compare_layers(effects[:1] + 0.45, layers=(0,))
    several = compare_layers(np.concatenate([effects[:1] + 0.45, effects[1:]]), layers=tuple(range(40)))
    assert single.p_value[0] < several.p_value[0]
    assert single.at(0)[0] == several.at(0)[0]


def test_models_that_cannot_be_asked_say_why():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=71, n_ctx=64, attn_only=True, device="cpu")
    assert TREES.applies(make_subject(model)) == (
        "it has no tokenizer to read sentences with, and is no training run on question formation or tense inflection"
    )
    short = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=200, n_ctx=6, attn_only=True, device="cpu")
    short.tokenizer = make_word_tokenizer()
    assert "but this model reads at most 6; give shorter sentences" in TREES.applies(make_subject(short))
    both_ways = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=71, n_ctx=64, attn_only=True, device="cpu")
    both_ways.cfg.attention_dir = "bidirectional"
    assert "it reads later words too" in TREES.applies(make_subject(both_ways))
