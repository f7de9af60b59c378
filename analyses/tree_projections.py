"""Does a model compute along the grammar's trees: beside untrained models, and beside the same words in random order?

Sentences with gold trees come from two small grammars. At every layer a tree is projected from how little the states of each
span depend on the rest of the sentence (`interp.project_trees`; Murty et al., arXiv 2211.01288 and 2305.18741); it is
scored, and compared with the gold tree. In the same charts the gold phrases are compared with other spans that begin, or
end, at the same word. Over words in random order both differences are those of a model to which positions alone matter.

    interp report smollm2 --analyses trees
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from transformer_lens import HookedTransformer

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.tree_projections_cells import (
    SCORES,
    SHUFFLED,
    UNTRAINED,
    Condition,
    measure_condition,
    only,
    pack_condition,
    pack_sentences,
    restore_measured,
)
from analyses.tree_projections_compare import LayerContrast, compare_conditions
from analyses.tree_projections_figures import BASELINES, GOLD, name_metric
from analyses.tree_projections_section import QUESTION, write_section
from analyses.tree_projections_sentences import (
    GoldSentence,
    describe_first_token,
    find_own_task,
    prepare_sentences,
)
from interp.errors import InputError
from interp.models.initialise import Initialisation, initialise
from interp.models.tokens import hash_tokens
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval
from interp.trees.brackets import BracketScores, Parser
from interp.trees.words import read_sentences
from tasks.seeding import derive_seed

N_UNTRAINED = 4
"""Models with random weights: one alone would be one draw."""
SAME_START = "gold phrases above spans with the same first word"
SAME_END = "gold phrases above spans with the same last word"

_row = partial(Measurement, analysis="trees")


def choose_number(options: Options) -> int:
    """Sentences: 100, when quick 24."""
    return 2 * options.n_sequences


def _measure_model(subject: Subject, options: Options, cells: Cells) -> Outcome:
    gold, written, _, bos = prepare_sentences(subject, options, n=choose_number(options))
    found = measure_condition(subject.model, written, [one.tree for one in gold], bos=bos, seed=options.seed)
    words = read_sentences(subject.model, written, bos=bos)
    own = find_own_task(subject)
    ids = [torch.tensor([token for word in own for token in word]) for own in words]
    data = hash_tokens(torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1))
    scored = found.compare(gold)
    return Outcome(
        measurements=[
            *_condition_rows(found, gold, scored, control=None, seed=options.seed, data_sha256=data),
            *_baseline_rows(scored[found.layers[0]], seed=options.seed, data_sha256=data),
        ],
        arrays=pack_condition(found),
        about={
            "sentences": pack_sentences(gold),
            "first": describe_first_token(subject.model, bos, own),
            "n_tokens": [len(one) for one in ids],
            "bos": bos,
            "own_task": None if own is None else own.name,
            "seed": options.seed,
        },
    )


def _measure_shuffled(subject: Subject, options: Options, cells: Cells) -> Outcome:
    gold, _, shuffled, bos = prepare_sentences(subject, options, n=choose_number(options))
    found = measure_condition(subject.model, shuffled, [one.tree for one in gold], bos=bos, seed=options.seed)
    rows = _condition_rows(found, gold, found.compare(gold), control=SHUFFLED, seed=options.seed)
    return Outcome(measurements=list(rows), arrays=pack_condition(found))


def _measure_untrained(subject: Subject, options: Options, cells: Cells, *, draw: int) -> Outcome:
    if not isinstance(subject.model, HookedTransformer):
        return Outcome(measurements=[], about={"refused": "a TransformerBridge has no copy with random weights"})
    gold, written, _, bos = prepare_sentences(subject, options, n=choose_number(options))
    model = copy.deepcopy(subject.model)
    initialise(model, Initialisation(), seed=derive_seed(options.seed, "untrained", draw))
    found = measure_condition(model, written, [one.tree for one in gold], bos=bos, seed=options.seed)
    rows = _condition_rows(found, gold, found.compare(gold), control=UNTRAINED, seed=options.seed, note=f"draw {draw}")
    return Outcome(measurements=list(rows), arrays=pack_condition(found))


def _condition_rows(
    found: Condition,
    gold: list[GoldSentence],
    scored: dict[int, BracketScores],
    *,
    control: str | None,
    seed: int,
    **shared: Any,
) -> Iterator[Measurement]:
    splits = np.array([len(one.words) - 1 for one in gold])
    numbers = {GOLD: found.gold, SAME_START: found.same_start, SAME_END: found.same_end}
    for score in SCORES:
        numbers |= {f"t, {score}": found.scores[score], f"t a node, {score}": found.scores[score] / splits}
    row = partial(_row, n=len(gold), control=control, seed=seed, **shared)
    for metric, values in numbers.items():
        ends = zip(found.layers, values.mean(axis=1), *bootstrap_interval(values.T, seed=seed), strict=True)
        for layer, value, low, high in ends:
            yield row(metric=metric, layer=layer, value=float(value), low=float(low), high=float(high))
    for layer in found.layers:
        yield from _bracket_rows(scored[layer], "projected", partial(row, layer=layer), seed=seed)


def _bracket_rows(
    scored: BracketScores, parser: Parser, row: "partial[Measurement]", *, seed: int
) -> Iterator[Measurement]:
    for one in only(scored, parser).to_frame(seed=seed).to_dict("records"):
        yield row(metric=name_metric(one["group"]), value=one["found"], low=one["low"], high=one["high"])


def _baseline_rows(scored: BracketScores, *, seed: int, **shared: Any) -> Iterator[Measurement]:
    for parser, name in BASELINES.items():
        row = partial(_row, control=name, n=scored.totals.shape[1], seed=seed, **shared)
        yield from _bracket_rows(scored, parser, row, seed=seed)


def _compare(subject: Subject, options: Options, cells: Cells) -> Outcome:
    """Differences and their p-values, from the parts before it."""
    measured = restore_measured(cells)
    contrasts = compare_conditions(measured, seed=options.seed)
    named = {
        f"{GOLD}, beyond {SHUFFLED}": contrasts.gold_beyond_shuffled,
        f"{SAME_START}, beyond {SHUFFLED}": contrasts.start_beyond_shuffled,
        f"{SAME_END}, beyond {SHUFFLED}": contrasts.end_beyond_shuffled,
        f"t, uniform_split, beyond {SHUFFLED}": contrasts.own_beyond_shuffled,
        f"t, uniform_split, beyond {UNTRAINED}s": contrasts.own_beyond_untrained,
        f"t, sampled, beyond {UNTRAINED}s": contrasts.published_beyond_untrained,
        "F1, without root, beyond right-branching trees": contrasts.f1_beyond_right,
    }
    rows = [
        row
        for metric, contrast in named.items()
        if contrast is not None
        for row in _contrast_rows(metric, contrast, n=len(measured.sentences), seed=options.seed)
    ]
    layers = {"phrases": contrasts.phrase_layer, "F1": contrasts.f1_beyond_right.best}
    rows += [_row(metric=f"layer named for {what}", value=float(layer)) for what, layer in layers.items()]
    return Outcome(measurements=rows)


def _contrast_rows(metric: str, contrast: LayerContrast, *, n: int, seed: int) -> Iterator[Measurement]:
    for layer in contrast.layers:
        value, low, high, p_value = contrast.at(layer)
        yield _row(metric=metric, layer=layer, value=value, low=low, high=high, n=n, seed=seed)
        yield _row(
            metric=f"p-value, {metric}", layer=layer, value=p_value, n=n, seed=seed, note="corrected for the layers"
        )


def _refuse(subject: Subject) -> str | None:
    if getattr(subject.model.cfg, "attention_dir", "causal") != "causal":
        return "it reads later words too, and its charts would need a pass for every span"
    try:
        prepare_sentences(subject, Options(bos="none"), n=choose_number(Options()))
    except InputError as error:
        reason = str(error).rstrip(".")
        return reason[0].lower() + reason[1:]
    return None


TREES = Analysis(
    name="trees",
    question=QUESTION,
    parts=(
        Part(name="model", measure=_measure_model),
        Part(name="shuffled", measure=_measure_shuffled),
        *(
            Part(name=f"untrained_{draw}", measure=partial(_measure_untrained, draw=draw))
            for draw in range(1, N_UNTRAINED + 1)
        ),
        Part(name="comparison", measure=_compare),
    ),
    write_section=write_section,
    applies=_refuse,
)
