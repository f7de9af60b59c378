"""What the patching cells mean: maps, the strongest heads, and whether the answer goes with them."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from analyses.analysis import Cells
from analyses.heads import name_head
from analyses.patching_cells import best_place, is_informative, rank_heads, restore_patch, restore_removal
from analyses.patching_heads import EDGES, name_edge
from analyses.patching_removal import HeadRemoval
from analyses.report.page import Definition, Figure, Section
from interp.figures.ablation import Effect, ablation
from interp.figures.heads import head_map
from interp.figures.svg import to_svg
from interp.interventions.patch_result import PatchResult
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.records.store import Cell
from interp.statistics import bootstrap_interval

QUESTION = "Which positions and heads carry the answer of an indirect-object sentence?"
RANDOM_HEADS = "random heads of the same layers"
UNRELATED = "three unrelated names"
_TITLE = "Who receives it? Indirect objects"


def write_section(provenance: Provenance, cells: Cells) -> Section:
    """The section, from the cells of `patching`."""
    behaviour = cells["patching/behaviour"]
    if not is_informative(cells):
        return _write_uninformative(behaviour)
    positions, heads = (restore_patch(provenance, cells[f"patching/{part}"]) for part in ("positions", "heads"))
    removal = restore_removal(cells["patching/removal"])
    return Section(
        anchor="patching",
        title=_TITLE,
        question=QUESTION,
        verdict=f"{_verdict(behaviour, removal)} {_name_strongest(heads)}",
        control=_control(behaviour, removal),
        figures=(_draw_positions(positions), *_draw_heads(heads, removal.heads), _draw_removal(removal)),
        table=_table(heads, cells["patching/heads"], removal.heads),
        table_caption="The heads that were replaced, strongest first: recovery at the position where it is larger, with its "
        "95% interval and a p-value corrected for all heads and both positions; attention and direct effect on the "
        "sentences themselves.",
        definitions=_DEFINITIONS,
        notes=_notes(behaviour, positions, removal),
    )


def _write_uninformative(behaviour: Cell) -> Section:
    prefers, low, high = _estimate(behaviour, "whole/prefers_io")
    return Section(
        anchor="patching",
        title=_TITLE,
        question=QUESTION,
        verdict=f"The model doesn't tell the two people apart: it ranks the receiver's name above the giver's in {prefers:.0%} "
        f"[{low:.0%}, {high:.0%}] of the sentences, where chance is 50%. Patching would show nothing, so nothing was patched.",
        control=_describe_unrelated(behaviour),
        definitions=_DEFINITIONS[:1],
        notes=(_describe_prompts(behaviour),),
    )


def _verdict(behaviour: Cell, removal: HeadRemoval) -> str:
    prefers, low, high = _estimate(behaviour, "whole/prefers_io")
    accuracy, _, _ = _estimate(behaviour, "whole/accuracy")
    n_heads = len(removal.heads)
    share, share_low, share_high = removal.share
    carry = "carry" if n_heads > 1 else "carries"
    heads = f"the {n_heads} heads that patching finds" if n_heads > 1 else f"head {name_head(removal.heads[0])}"
    if removal.confirmed:
        found = f"Of its logit difference {heads} {carry} {share:.0%} [{share_low:.0%}, {share_high:.0%}]"
    elif removal.n_draws < 19:
        found = f"The model has too few other heads for a test; with {heads} {share:.0%} of its logit difference goes"
    else:
        found = f"It is not shown that {heads} {carry} the answer: with them goes {share:.0%} of the logit difference"
    return (
        f"The model names the receiver: it ranks that name above the giver's in {prefers:.0%} [{low:.0%}, {high:.0%}] of the "
        f"sentences and above every other token in {accuracy:.0%}. {found}."
    )


def _name_strongest(result: PatchResult) -> str:
    head = rank_heads(result, 1)[0]
    place = int(best_place(result)[head])
    low, high = (bound[(*head, place)] for bound in result.recovery_interval)
    return (
        f"Strongest is {name_head(head)}, which at {(result.position_labels or ())[place]} alone brings back "
        f"{result.recovery[(*head, place)]:.0%} [{low:.0%}, {high:.0%}] of it."
    )


def _control(behaviour: Cell, removal: HeadRemoval) -> str:
    random, low, high = removal.control_share
    more, more_low, more_high = removal.difference
    return (
        f"{RANDOM_HEADS.capitalize()} carry {random:.0%} [{low:.0%}, {high:.0%}]; the difference is {more:.0%} "
        f"[{more_low:.0%}, {more_high:.0%}], p\u00a0=\u00a0{removal.p_value:.3f}, on other sentences than the heads were "
        f"found on (n\u00a0=\u00a0{len(removal.whole)}, {removal.n_draws} draw{'s' if removal.n_draws > 1 else ''}). "
        + _describe_unrelated(behaviour)
    )


def _describe_unrelated(behaviour: Cell) -> str:
    prefers, low, high = _estimate(behaviour, "unrelated/prefers_io")
    accuracy, _, _ = _estimate(behaviour, "unrelated/accuracy")
    n = len(behaviour.arrays["whole/accuracy"])
    return (
        f"With {UNRELATED} in the same sentences it ranks the first of these two above the second in {prefers:.0%} "
        f"[{low:.0%}, {high:.0%}] and above every token in {accuracy:.0%}; n\u00a0=\u00a0{n} sentences."
    )


def _draw_positions(result: PatchResult) -> Figure:
    return Figure(
        svg=to_svg(result.figure()),
        caption="The residual stream before each layer, taken from the sentence and put into the one in which the giver's "
        "second mention (S2) is the receiver's name: 1 is the answer brought back. IO, S1 and the token after S1 come "
        f"before the only difference, so they are 0 by construction. Logit difference {result.clean.mean():.2f} in the "
        f"sentence, {result.corrupted.mean():.2f} in the other; n\u00a0=\u00a0{len(result.values)} sentences.",
        verdict=_follow_answer(result),
    )


def _follow_answer(result: PatchResult) -> str:
    """Until which layer most of the answer is at S2, and from which on at the last token."""
    labels = result.position_labels or ()
    at_s2, at_last = (result.recovery[:, labels.index(role)] > 0.5 for role in ("S2", "last"))
    if not at_s2.any() or not at_last.any():
        return ""
    leaves, arrives = result.layers[int(np.flatnonzero(at_s2)[-1])], result.layers[int(np.flatnonzero(at_last)[0])]
    return (
        f"Up to layer {leaves} more than half of the answer is where the giver is met again; from layer {arrives} on it is "
        "where it is given."
    )


def _draw_heads(result: PatchResult, chosen: tuple[Head, ...]) -> list[Figure]:
    recovery, place = result.recovery, best_place(result)
    most = max(0.1, float(np.ceil(10 * recovery.max()) / 10))
    figures = []
    for index, label in enumerate(result.position_labels or ()):
        here = recovery[..., index]
        lowest = np.unravel_index(here.argmin(), here.shape)
        picture = head_map(
            here,
            label="recovery of the logit difference",
            top=[head for head in chosen if place[head] == index],
            title=f"Heads at {label}",
            vmax=most,
        )
        where = {"S2": "where the giver is met again", "last": "where the answer is given"}.get(label, label)
        against = name_head((int(lowest[0]), int(lowest[1])))
        figures.append(
            Figure(
                svg=to_svg(picture),
                caption=f"Each head's output z at {label}, {where}, put into the other sentence. Outlined: those of the "
                f"strongest heads that recover more here. Below 0 is drawn as 0; lowest is {against} with {here[lowest]:.2f}.",
            )
        )
    return figures


def _draw_removal(result: HeadRemoval) -> Figure:
    random = result.control.mean(axis=1)
    effect = Effect(
        name="logit difference",
        unit="",
        untouched=float(result.whole.mean()),
        removed=float(result.removed.mean()),
        removed_interval=_interval(result.removed, result.seed),
        random=random,
        random_interval=_interval(random, result.seed),
    )
    n_heads = len(result.heads)
    chosen = f"{n_heads} strongest heads replaced" if n_heads > 1 else "strongest head replaced"
    picture = ablation([effect], removed_label=chosen, random_label="random heads replaced")
    return Figure(
        svg=to_svg(picture),
        caption="The logit difference with the heads' outputs taken from the same sentences with three unrelated names. "
        f"Replaced: {', '.join(map(name_head, result.heads))}. Small dots are draws of random heads of the same layers; "
        f"lines are 95% intervals, over {len(result.whole)} sentences for the chosen heads.",
    )


def _interval(values: Float[np.ndarray, "sample"], seed: int) -> tuple[float, float] | None:
    low, high = bootstrap_interval(values, seed=seed)
    return None if np.isnan(low) else (float(low), float(high))


def _table(result: PatchResult, cell: Cell, heads: tuple[Head, ...]) -> pd.DataFrame:
    ranked = rank_heads(result, len(heads))
    labels = result.position_labels or ()
    place = best_place(result)
    at = tuple(np.array([(*head, place[head]) for head in ranked]).T)
    low, high = result.recovery_interval
    columns: dict[str, object] = {
        "head": [name_head(head) for head in ranked],
        "at": [labels[place[head]] for head in ranked],
        "recovery": result.recovery[at],
        "low": low[at],
        "high": high[at],
        "p": result.p_values[at],
    }
    for name in (*(name_edge(*edge) for edge in EDGES), "direct effect"):
        columns[name.replace(" to ", " → ")] = cell.arrays[f"reads/{name}"].mean(axis=0)[at[0], at[1]].round(3)
    return pd.DataFrame(columns)


def _notes(behaviour: Cell, positions: PatchResult, removal: HeadRemoval) -> tuple[str, ...]:
    return (
        _describe_prompts(behaviour),
        "A head that attends from the last token to IO and has a direct effect on the logits reads like a name mover; one "
        "that attends from there to S2 and has none reads like S-inhibition; one that acts at S2 and attends to S1 or the "
        "token after it reads like a duplicate-token or induction head (Wang et al. 2022). These are descriptions, not tests.",
        "A head's p compares its effect with the largest of all heads, so a weak one may have a large p and an interval "
        "above 0.",
        *dict.fromkeys((*positions.notes, *removal.notes)),
    )


def _describe_prompts(behaviour: Cell) -> str:
    n, names = len(behaviour.arrays["whole/accuracy"]), behaviour.about["n_names"]
    return (
        f"Sentences such as `{behaviour.about['examples'][0]}`: half name the receiver first, half the giver; names are {names} "
        f"that this tokenizer writes as one token. The model is tested on {n} of them."
    )


def _estimate(cell: Cell, name: str) -> tuple[float, float, float]:
    """(mean, low, high)."""
    values = cell.arrays[name]
    low, high = bootstrap_interval(values, seed=cell.about["seed"])
    return float(values.mean()), float(low), float(high)


_DEFINITIONS = (
    Definition(
        name="logit difference",
        formula="logit of the receiver's name (IO) minus logit of the giver's (S), after the last token",
        source="Wang et al. 2022, arXiv 2211.00593",
        docs="patching",
    ),
    Definition(
        name="recovery",
        formula="(patched − other) / (sentence − other) of mean logit differences; other: the sentence whose second mention "
        "of the giver is the receiver's name",
        source="Heimersheim & Nanda 2024, arXiv 2404.15255",
        docs="patching",
    ),
    Definition(
        name="p of a head",
        formula="sign flips over sentences, with the maximum over all heads and positions as the statistic",
        source="Westfall & Young 1993",
        docs="patching",
    ),
    Definition(
        name="share carried",
        formula="1 − (logit difference with the heads' outputs taken from the same sentences with three unrelated names) / "
        "(logit difference of the whole model)",
        source="resampling: Chan et al. 2022, causal scrubbing; p: (1 + draws as large) / (1 + draws)",
        docs="patching",
    ),
    Definition(
        name="direct effect",
        formula="what the head's output at the last token adds to the logit difference by itself, in logits, with the last "
        "norm's scale as it was",
        source="Wang et al. 2022, arXiv 2211.00593, section 3.1",
        docs="patching",
    ),
)
