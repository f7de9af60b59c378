"""What the report says about trees: are phrases kept together, are its trees the grammar's, and more than what controls have."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.analysis import Cells
from analyses.report.page import Section
from analyses.tree_projections_cells import SHUFFLED, Condition, Measured, restore_measured
from analyses.tree_projections_compare import LayerContrast, TreeContrasts, compare_conditions
from analyses.tree_projections_definitions import DEFINITIONS
from analyses.tree_projections_figures import (
    BASELINES,
    F1,
    draw_layers,
    draw_trees,
    find_row,
    find_untrained,
    tabulate_kinds,
    tabulate_layers,
    tabulate_scores,
)
from interp.models.provenance import Provenance

QUESTION = "Does the model compute along the grammar's trees: are a phrase's states made from the phrase alone?"
_NBSP = "\u00a0"


def write_section(provenance: Provenance, cells: Cells) -> Section:
    """From the cells of the tree analysis."""
    about = cells["trees/model"].about
    measured = restore_measured(cells)
    contrasts = compare_conditions(measured, seed=about["seed"])
    frame = pd.concat([cell.frame for name, cell in cells.items() if name.startswith("trees/")])
    layer = contrasts.f1_beyond_right.best
    phrases = _tell_phrases(measured, contrasts, has_first=about["bos"] is not None)
    return Section(
        anchor="trees",
        title="Computing along trees",
        question=QUESTION,
        verdict=f"{phrases} {_tell_f1(contrasts, frame)}",
        control=_control(measured, contrasts, frame),
        figures=(draw_layers(measured, contrasts, frame, verdict=_tell_own(contrasts)), *draw_trees(measured, layer)),
        table=tabulate_layers(measured, contrasts, frame),
        table_caption="How much gold phrases score above other spans with the same first or last word, with p for the difference "
        "from random order; F1 of the model's own trees without the root, with p for the difference from right-branching trees.",
        definitions=DEFINITIONS,
        notes=_notes(measured, contrasts, about),
        within=(_write_kinds(measured, frame, layer),),
        folded=(
            Section(
                anchor="trees-scores",
                title="Every score by layer",
                question="",
                verdict="Scores of whole trees. Each is to be compared with its own floor, never with 0.",
                table=tabulate_scores(measured, frame),
                table_caption="With 95% intervals over sentences, and the mean, least and largest of the untrained models.",
            ),
        ),
    )


def _tell_phrases(measured: Measured, contrasts: TreeContrasts, *, has_first: bool) -> str:
    layer, found = contrasts.phrase_layer, contrasts.phrase_layers
    start, end = contrasts.start_beyond_shuffled, contrasts.end_beyond_shuffled
    place = measured.layers.index(layer)
    numbers = []
    for word, contrast, pick in (("first", start, lambda one: one.same_start), ("last", end, lambda one: one.same_end)):
        own, mixed = (float(pick(one)[place].mean()) for one in (measured.model, measured.shuffled))
        numbers.append(
            f"other spans with the same {word} word {_signed(own)}, in random order {_signed(mixed)} "
            f"({_difference(contrast, layer, decimals=3)})"
        )
    told = f"phrases of the grammar score, against {', and against '.join(numbers)}"
    if found:
        most = "" if len(found) == 1 else f", most at layer {layer}"
        it = "It" if has_first else "Without a first token it"
        return f"{it} keeps the grammar's phrases together {_list(found, measured.layers)}{most}: there {told}."
    return (
        "It is not shown that it keeps the grammar's phrases together at any layer. They score more than in random order against "
        f"spans with the same first word {_list(start.above, start.layers)}, and against those with the same last word "
        f"{_list(end.above, end.layers)}. At layer {layer} {told}."
    )


def _tell_f1(contrasts: TreeContrasts, frame: pd.DataFrame) -> str:
    contrast = contrasts.f1_beyond_right
    layer = contrast.best
    f1, right = find_row(frame, F1, layer=layer), find_row(frame, F1, BASELINES["right"])
    opening = (
        f"Its own trees have more of the gold brackets than right-branching ones {_list(contrast.above, contrast.layers)}"
        if contrast.above
        else "At no layer is it shown that its own trees have more of the gold brackets than right-branching ones"
    )
    return (
        f"{opening}: at best, at layer {layer}, F1 without the root is {f1['value']:.2f} against {right['value']:.2f} "
        f"({_difference(contrast, layer)})."
    )


def _tell_own(contrasts: TreeContrasts) -> str:
    """Whether the published scores of its own trees are more than those of untrained models, and than word order."""
    told = []
    against = (
        ("equation 2", contrasts.own_beyond_untrained),
        ("the published code's score", contrasts.published_beyond_untrained),
    )
    for name, contrast in against:
        if contrast is not None:
            above, below = (_list(found, contrast.layers) for found in (contrast.above, contrast.below))
            told.append(f"by {name} they score more {above} and less {below}")
    floor = f" Against untrained models, {'; '.join(told)}." if told else ""
    beyond = contrasts.own_beyond_shuffled
    order = (
        f"Its own trees score more than those of {SHUFFLED} {_list(beyond.above, beyond.layers)} (equation 2)."
        if beyond.above
        else f"At no layer do its own trees score more than those of {SHUFFLED} (equation 2)."
    )
    return f"{order}{floor}"


def _control(measured: Measured, contrasts: TreeContrasts, frame: pd.DataFrame) -> str:
    layer, best = (measured.layers.index(one) for one in (contrasts.phrase_layer, contrasts.f1_beyond_right.best))
    parts = []
    if measured.untrained:
        start, end = (
            np.array([getattr(one, side)[layer].mean() for one in measured.untrained])
            for side in ("same_start", "same_end")
        )
        brackets = find_untrained(frame, F1)[:, best]
        parts.append(
            f"In {len(measured.untrained)} untrained models of this shape phrases score {_range(start)} against spans with the "
            f"same first word and {_range(end)} against those with the same last one; F1 is "
            f"{brackets.min():.2f} to {brackets.max():.2f}."
        )
    mixed = find_row(frame, F1, SHUFFLED, layer=measured.layers[best])["value"]
    left, chance = (find_row(frame, F1, BASELINES[parser])["value"] for parser in ("left", "uniform_split"))
    parts.append(
        f"F1 with the words in random order {mixed:.2f}, of left-branching trees {left:.2f}, of random trees {chance:.2f}. "
        f"n{_NBSP}={_NBSP}{len(measured.sentences)} sentences; p is corrected for the layers."
    )
    return " ".join(parts)


def _write_kinds(measured: Measured, frame: pd.DataFrame, layer: int) -> Section:
    table = tabulate_kinds(measured, frame, layer)
    types = table[~table["brackets"].str.contains(" ")]
    best = max(types.to_dict("records"), key=lambda row: row["found"] - row["right-branching"])
    return Section(
        anchor="trees-kinds",
        title="Which phrases its trees have",
        question="",
        verdict=f"At layer {layer}, {best['found']:.0%} of the gold {best['brackets']}s, of right-branching trees "
        f"{best['right-branching']:.0%}, with the words in random order {best['words in random order']:.0%}: of all types the "
        "one where it is most above right-branching trees.",
        table=table,
        table_caption=f"Share of the gold brackets found at layer {layer}, roots aside but where they are named, by constituent "
        "type and by what stands behind the subject's noun; n counts brackets.",
    )


def _notes(measured: Measured, contrasts: TreeContrasts, about: dict) -> tuple[str, ...]:
    lengths = [len(one.words) for one in measured.sentences]
    asked = (
        "from the grammars of question formation and tense inflection, as text (`high_five` with a hyphen)"
        if about["own_task"] is None
        else f"from the grammar of {about['own_task']}, none of which it was trained on"
    )
    notes = [
        f"{len(lengths)} different sentences of {min(lengths)} to {max(lengths)} words, {asked}; half are of the kind that "
        f"these tasks train on, half of the kind that they hold out. The first is `{' '.join(measured.sentences[0].words)}`. "
        "Gold trees are of the source without its full stop, which is left out: a causal model's states don't depend on what "
        f"follows. A word has {sum(about['n_tokens']) / sum(lengths):.2f} tokens on average, whose states are summed.",
        f"{about['first']}."
        + (
            " So the word that begins a span has only itself to read, and its score depends much on which word that is. "
            "Ask again with a first token (`--bos`)."
            if about["bos"] is None
            else ""
        ),
        "Spans that begin a sentence score exactly 1 in a causal model. So a tree without them loses by equation 2, and the "
        f"first word stands alone in {_share_alone([measured.model]):.0%} of the model's own trees"
        + (f" and in {_share_alone(measured.untrained):.0%} of the untrained models'" if measured.untrained else "")
        + ", all layers together. Gold phrases are compared without these spans.",
        f"The gold tree as a whole scores more (equation 2) than over {SHUFFLED} "
        f"{_list(contrasts.gold_beyond_shuffled.above, measured.layers)}. That includes with which words its phrases begin and "
        "end: a span that begins with an article changes little.",
        "The layer named as the best was chosen among all: its p is corrected for that, its interval is not.",
    ]
    if measured.untrained:
        notes.append(
            "Untrained models have random weights of standard deviation d_in^−0.5. The model scores more than they do where it "
            "is above each of them and, sentence by sentence, above their mean."
        )
    else:
        notes.append("No untrained model was measured: a TransformerBridge has no copy with random weights.")
    return tuple(notes)


def _share_alone(conditions: Sequence[Condition]) -> float:
    trees = [tree for one in conditions for row in one.trees.values() for tree in row]
    return float(np.mean([isinstance(tree, tuple) and tree[0] == 0 for tree in trees]))


def _range(drawn: np.ndarray) -> str:
    return f"{_signed(drawn.min())} to {_signed(drawn.max())}"


def _difference(contrast: LayerContrast, layer: int, *, decimals: int = 2) -> str:
    value, low, high, p_value = contrast.at(layer)
    p = f"p{_NBSP}<{_NBSP}0.001" if p_value < 0.001 else f"p{_NBSP}={_NBSP}{p_value:.3f}"
    return f"difference {_number(value, decimals)} [{_number(low, decimals)}, {_number(high, decimals)}], {p}"


def _list(found: Sequence[int], layers: Sequence[int]) -> str:
    if not found:
        return "at no layer"
    if len(found) == 1:
        return f"at layer {found[0]}"
    if len(found) == len(layers):
        return f"at all {len(layers)} layers"
    if len(found) == 2:
        return f"at layers {found[0]} and {found[1]}"
    if found[-1] - found[0] == len(found) - 1:
        return f"at layers {found[0]} to {found[-1]}"
    return f"at {len(found)} of {len(layers)} layers"


def _number(value: float, decimals: int = 2) -> str:
    return f"{value:z.{decimals}f}".replace("-", "−")


def _signed(value: float) -> str:
    return f"{value:+z.3f}".replace("-", "−")
