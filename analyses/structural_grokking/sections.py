"""What the accuracies of a task's models say: when they generalise, by which rule, and whether depth matters."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyses.report.page import Figure, Section
from analyses.solutions.shares import Share
from analyses.structural_grokking.curves import draw_depths, draw_seeds, group_by_depth
from analyses.structural_grokking.definitions import CURVES, RULES
from analyses.structural_grokking.keep import FOLLOWED
from analyses.structural_grokking.outcome import Rule
from analyses.structural_grokking.over_seeds import compare_depths, count_ends
from analyses.structural_grokking.trained import TrainedGrammar
from interp.figures.svg import to_svg
from interp.statistics import bootstrap_interval
from tasks.grammar import CONSTRUCTIONS

_RULES: tuple[Rule, ...] = ("hierarchical", "shortcut", "linear", "mixed", "none")
_NOISE = 0.05
_SHORT = {
    "hierarchical rule": "hierarchical",
    "linear rule": "linear",
    "relative-clause shortcut": "shortcut",
    "no rule": "none",
}


def write_curves(trained: Sequence[TrainedGrammar], failed: Mapping[str, str]) -> Section:
    """When generalisation comes, and what early stopping would have found."""
    told = [
        f"of {depth} layers {Share(found=sum(one.outcome.grokked for one in models), n=len(models))}"
        for depth, models in group_by_depth(trained).items()
    ]
    outcomes = [one.outcome for one in trained]
    early, final, best = (tell_mean([getattr(one, name) for one in outcomes]) for name in ("early", "final", "best"))
    return Section(
        anchor="curves",
        title="Long after validation is right",
        question="Is the tree's rule found, and when, once lines of the training's kind are right?",
        verdict=f"Models that grok, with generalisation below 20% when validation is at 99%, and at 60% or more later: "
        f"{', '.join(told)}. {_tell_rise(trained)}",
        control=f"Early stopping would have found generalisation of {early}; the end is {final}, the best evaluation {best}, and "
        f"before training it is {tell_mean([one.curve.generalisation[0] for one in trained])}.",
        figures=(
            Figure(
                svg=to_svg(draw_seeds(trained)),
                caption="A panel is a model, with the rule that it ended with. Grey: lines of the training's kind; blue: lines "
                f"where the rules differ; orange: those of them with an object relative clause{_tell_shortcut(trained)}.",
            ),
        ),
        table=_count_steps([_tabulate_curve(one) for one in trained]),
        table_caption="A row is a model, numbers are its generalisation. Early stopping is the earliest evaluation with the best "
        "validation, the end the mean of the last five, lowest is from saturation on. Variation adds up all moves, and fall is "
        "the deepest below the maximum so far: curves are not monotone.",
        definitions=CURVES,
        notes=tuple(f"{name} is missing: {error}" for name, error in failed.items()),
    )


def write_rules(trained: Sequence[TrainedGrammar]) -> Section:
    """Which rule each model ended with, and whether seeds fall apart in two."""
    told = []
    for depth, models in group_by_depth(trained).items():
        counts = Counter(one.outcome.rule for one in models)
        rules = ", ".join(f"{counts[rule]} {rule}" for rule in _RULES if counts[rule])
        told.append(f"{depth} layers: {rules}")
    return Section(
        anchor="rules",
        title="Which rule they end with",
        question="Is it the tree's rule, a shortcut that looks like it, or the linear rule?",
        verdict=f"At the end, of {len(trained)} models: {'; '.join(told)}. {_tell_ends(trained)}",
        control=_tell_rules(trained),
        table=pd.DataFrame([_tabulate_rules(one) for one in trained]),
        table_caption="A row is a model after training, on fresh lines: the share that follows each rule, of which an answer can "
        "follow several, whole answers without a mistake, and what is right by construction of the subject.",
        definitions=RULES,
    )


def write_depths(trained: Sequence[TrainedGrammar]) -> Section | None:
    """Whether depths differ by more than seeds do; None of one depth."""
    groups = group_by_depth(trained)
    if len(groups) < 2:
        return None
    finals = {depth: np.array([one.outcome.final for one in models]) for depth, models in groups.items()}
    told = [
        f"{depth} layers {tell_mean(values)}, {count_ends(values)[0]} above 80%" for depth, values in finals.items()
    ]
    p = compare_depths({str(depth): values for depth, values in finals.items()})
    if math.isnan(p):
        judged = "With one seed a depth, nothing can be said about depth."
    elif p < _NOISE:
        judged = f"Depths differ by more than seeds do (p = {p:.3f}, permutation of the seeds)."
    else:
        judged = f"Within noise: seeds alone make depths differ as much (p = {p:.2f}, permutation of the seeds)."
    return Section(
        anchor="depth",
        title="Does depth matter?",
        question="Do models of some depths end with more generalisation than those of others?",
        verdict=f"{judged} Final generalisation: {'; '.join(told)}.",
        figures=(
            Figure(
                svg=to_svg(draw_depths(trained)),
                caption="Left: small dots are seeds, large ones their mean with its bootstrap interval over seeds. Right: the "
                "share above 80% with Wilson's interval.",
            ),
        ),
        notes=("All depths have one learning rate and one number of steps; another choice may suit another depth.",),
    )


def tell_mean(values: Sequence[float] | np.ndarray) -> str:
    """A share as a mean with its bootstrap interval over models."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = bootstrap_interval(numbers)
    interval = "" if math.isnan(float(low)) else f" [{float(low):.0%}, {float(high):.0%}]"
    return f"{numbers.mean():.0%}{interval}"


def _tell_shortcut(trained: Sequence[TrainedGrammar]) -> str:
    return ", where the shortcut fails too" if any("shortcut" in one.curve.shares for one in trained) else ""


def _tell_rise(trained: Sequence[TrainedGrammar]) -> str:
    rose = [one.outcome for one in trained if math.isfinite(one.outcome.rose)]
    if not rose:
        return "None ever reaches 80%."
    steps, seconds = sorted(one.rose for one in rose), sorted(one.rose_seconds for one in rose)
    when = [f"{steps[0]:,.0f} to {steps[-1]:,.0f}", f"{seconds[0]:.0f} to {seconds[-1]:.0f} s"]
    if len(rose) == 1:
        when = [f"{steps[0]:,.0f}", f"{seconds[0]:.0f} s"]
    return (
        f"{len(rose)} of {len(trained)} reach{'es' if len(rose) == 1 else ''} 80% at some evaluation, the first time at step "
        f"{when[0]} ({when[1]})."
    )


def _tell_ends(trained: Sequence[TrainedGrammar]) -> str:
    high, low, between = count_ends(np.array([one.outcome.final for one in trained]))
    told = f"Generalisation ends above 80% in {high}, below 20% in {low}, between in {between}"
    if high.found and low.found and not between.found:
        return f"{told}: two groups with nothing between."
    return f"{told}."


def _tell_rules(trained: Sequence[TrainedGrammar]) -> str:
    if any("shortcut" in one.curve.shares for one in trained):
        return "One rule throughout gives a generalisation of 100% (hierarchical), 57% (shortcut) or 0% (linear)."
    return "One rule throughout gives a generalisation of 100% (hierarchical) or 0% (linear)."


def _tabulate_curve(one: TrainedGrammar) -> dict[str, object]:
    found = one.outcome
    return {
        "layers": one.depth,
        "seed": one.cell.seed,
        "grokked": "yes" if found.grokked else "no",
        "validation 99% at step": found.saturated,
        "lowest": found.lowest,
        "early stopping": found.early,
        "end": found.final,
        "best": found.best,
        "80% at step": found.rose,
        "80% at second": found.rose_seconds,
        "variation": found.variation,
        "fall": found.fall,
    }


def _count_steps(rows: list[dict[str, object]]) -> pd.DataFrame:
    """The table, with steps and seconds as whole numbers, which may be missing."""
    table = pd.DataFrame(rows)
    whole = [name for name in map(str, table) if name.endswith(("step", "second"))]
    return table.assign(**{name: table[name].round().astype("Int64") for name in whole})


def _tabulate_rules(one: TrainedGrammar) -> dict[str, object]:
    names = {words: _SHORT.get(words, words) for words in FOLLOWED.values()}
    names |= {name.replace("_", " "): name.replace("_", " ") for name in CONSTRUCTIONS}
    numbers = {short: one.value(f"generalisation: {words}") for words, short in names.items()}
    return {
        "layers": one.depth,
        "seed": one.cell.seed,
        "rule": one.outcome.rule,
        **{name: value for name, value in numbers.items() if not math.isnan(value)},
    }
