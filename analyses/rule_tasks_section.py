"""What the rule cells mean: which tasks the model does, and which of them go with its induction heads."""

import pandas as pd

from analyses.analysis import Cells
from analyses.report.page import Definition, Figure, Section
from analyses.rule_tasks_cells import TASKS, restore_removal
from interp.figures.removal import RemovalPanel, removal_panels
from interp.figures.svg import to_svg
from interp.models.provenance import Provenance
from interp.prompts.removal_result import RankedRemoval
from interp.statistics import bootstrap_interval

QUESTION = "Does following a rule depend on the induction heads, where what is known by heart doesn't?"
RANDOM_HEADS = "random heads of the same layers"
_TITLE = "Rules on symbols"
_NBSP = "\u00a0"


def write_section(provenance: Provenance, cells: Cells) -> Section:
    """The section, from the cells of `rules`."""
    mine = {name: cells[f"rules/{name}"] for name in TASKS}
    results = {name: restore_removal(provenance, cell) for name, cell in mine.items() if cell.about["refused"] is None}
    able = {name: result for name, result in results.items() if result.steps}
    if not results:
        return Section(
            anchor="rules", title=_TITLE, question=QUESTION,
            verdict=f"None of the tasks can be put to the model: {mine['fuzzy_copying'].about['refused']}.",
        )  # fmt: skip
    example = next(cell.about["example"] for cell in mine.values() if cell.about["refused"] is None)
    refused = {name: cell.about["refused"] for name, cell in mine.items() if cell.about["refused"] is not None}
    return Section(
        anchor="rules",
        title=_TITLE,
        question=QUESTION,
        verdict=_verdict(able),
        control=_control(able, results),
        figures=(_draw(results),),
        table=_table(results),
        table_caption="Accuracy without the strongest induction heads and without as many random ones of the same layers.",
        definitions=_DEFINITIONS,
        notes=_notes(able, example, refused),
    )


def _verdict(able: dict[str, RankedRemoval]) -> str:
    rules = [name for name in able if not TASKS[name].by_heart]
    if not rules:
        return "The model follows none of these rules above chance, so removing heads shows nothing about rules."
    depending = [name for name in rules if able[name].steps[0].depends]
    n_heads = able[rules[0]].steps[0].n_heads
    heads = (
        f"the model's {n_heads} strongest induction heads" if n_heads > 1 else "the model's strongest induction head"
    )
    if depending:
        opening = f"Following a rule depends on {heads} in {_join([TASKS[name].title for name in depending])}"
    else:
        opening = f"It is not shown that following a rule depends on {heads}"
    known = [name for name in able if TASKS[name].by_heart]
    by_heart = f"; on what can be known by heart, {_join([_fall(name, able) for name in known])}" if known else ""
    falls = _join([_fall(name, able) for name in rules])
    return f"{opening}. Without them accuracy on rules goes {falls}{by_heart}. {_compare(able)}".rstrip()


def _fall(name: str, able: dict[str, RankedRemoval]) -> str:
    before, after = able[name].whole.accuracy()[0], able[name].steps[0].accuracy()[0]
    return f"from {_percent(before)} to {_percent(after)} in {TASKS[name].title}"


def _compare(able: dict[str, RankedRemoval]) -> str:
    """What the rule loses more than its memorised form, beyond random heads in both."""
    told = []
    for name, result in able.items():
        partner = TASKS[name].memorised
        if partner in able:
            ours, theirs = (each.steps[0].beyond_control() for each in (result, able[partner]))
            low, high = bootstrap_interval(ours - theirs, seed=result.seed)
            value = float((ours - theirs).mean())
            told.append(
                f"{TASKS[name].title} lose {_points(abs(value))} {'more' if value >= 0 else 'less'} than "
                f"{TASKS[partner].title} [{100 * low:.0f}, {100 * high:.0f}]"
            )
    return f"Beyond random heads, {_join(told)}." if told else ""


def _control(able: dict[str, RankedRemoval], results: dict[str, RankedRemoval]) -> str:
    parts = []
    if able:
        steps = {name: result.steps[0] for name, result in able.items()}
        to = [f"{TASKS[name].title} {_percent(step.control_accuracy()[0])}" for name, step in steps.items()]
        beyond = []
        for name, step in steps.items():
            value, low, high = step.lost_beyond_control()
            p = f"p{_NBSP}={_NBSP}{step.p_value():.3f}"
            beyond.append(f"{TASKS[name].title} {100 * value:.0f} [{100 * low:.0f}, {100 * high:.0f}], {p}")
        step = next(iter(steps.values()))
        n_draws = f"{step.n_draws} draw{'s' if step.n_draws > 1 else ''}"
        parts.append(
            f"Without as many {RANDOM_HEADS}: {_join(to)}. Percentage points lost beyond them: {'; '.join(beyond)} "
            f"(n{_NBSP}={_NBSP}{len(step.whole.answers)} items, {n_draws})."
        )
    chance = [
        f"{TASKS[name].title} ({_percent(result.whole.accuracy()[0])} [{_percent(result.whole.accuracy()[1])}, "
        f"{_percent(result.whole.accuracy()[2])}], chance {_percent(result.whole.chance)})"
        for name, result in results.items()
        if name not in able
    ]
    if chance:
        parts.append(f"Not above chance, so uninformative and left out: {_join(chance)}.")
    return " ".join(filter(None, parts))


def _draw(results: dict[str, RankedRemoval]) -> Figure:
    panels = [RemovalPanel(**result.to_panel(title=TASKS[name].title)) for name, result in results.items()]
    n_items = len(next(iter(results.values())).whole.answers)
    return Figure(
        svg=to_svg(removal_panels(panels, label="accuracy")),
        caption=f"Accuracy as the strongest induction heads are removed, with 95% intervals over {n_items} items. The band spans "
        "the draws of random heads of the same layers (the whole model's accuracy less what the draw loses on its items), the "
        "line in it is their mean. Dashed: chance.",
    )


def _table(results: dict[str, RankedRemoval]) -> pd.DataFrame:
    rows = []
    for name, result in results.items():
        whole = result.whole
        value, low, high = whole.accuracy()
        shared = {"task": TASKS[name].title, "chance": whole.chance}
        rows.append({**shared, "removed": 0, "accuracy": value, "low": low, "high": high,
                     "sum": whole.accuracy("sum")[0], "generated": whole.accuracy("generated")[0]})  # fmt: skip
        for step in result.steps:
            value, low, high = step.accuracy()
            lost, lost_low, lost_high = step.lost_beyond_control()
            rows.append(
                {**shared, "removed": step.n_heads, "accuracy": value, "low": low, "high": high,
                 "random": step.control_accuracy()[0], "lost beyond": lost, "lost low": lost_low,
                 "lost high": lost_high, "p": step.p_value(), "sum": step.accuracy("sum")[0],
                 "generated": step.accuracy("generated")[0]}
            )  # fmt: skip
    columns = ["task", "removed", "accuracy", "low", "high", "random", "lost beyond", "lost low", "lost high",
               "p", "sum", "generated", "chance"]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=columns)


def _notes(able: dict[str, RankedRemoval], example: dict, refused: dict[str, str]) -> tuple[str, ...]:
    notes = [
        f"The first item of the first task is `{example['text'].replace(chr(10), ' ⏎ ')}`, and its choices are "
        + ", ".join(f"`{choice.strip()}`" for choice in example["choice_texts"])
        + f"; right is `{example['choice_texts'][example['answer']].strip()}`.",
        "The verdict is on the smallest number of heads. Heads are removed by z = 0, in the order of the raw induction score. "
        "Each draw of random heads is scored on a share of the items, the shares in turn; what it loses is taken against the "
        "whole model on the same items. Random heads are never among those removed at that count, but may be weaker induction "
        "heads, which makes the control harder to beat.",
    ]
    notes += [f"{TASKS[name].title} can't be asked: {reason}." for name, reason in refused.items()]
    for result in list(able.values())[:1]:  # the layers are the same in every task
        notes += [f"With {step.n_heads} removed, {note}." for step in result.steps for note in step.notes]
    return tuple(notes)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _points(share: float) -> str:
    points = round(100 * share)
    return f"{points} percentage point{'' if points == 1 else 's'}"


def _join(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


_DEFINITIONS = (
    Definition(
        name="accuracy",
        formula="share of items whose right choice has the highest log-probability per token; a tie is not right",
        source="tasks after Song, Xu & Zhong, arXiv 2408.09503; length-normalised here",
        docs="rule_tasks",
    ),
    Definition(
        name="sum",
        formula="the same by the log-probability of all tokens together",
        source="as published in arXiv 2408.09503",
        docs="rule_tasks",
    ),
    Definition(
        name="generated",
        formula="share of items whose answer is what greedy decoding writes: each of its tokens the likeliest of all",
        source="the usual exact match, without decoding text",
        docs="rule_tasks",
    ),
    Definition(
        name="lost beyond",
        formula="mean over items of (share of the random draws under which the item is right − right without the heads)",
        source="control after arXiv 2408.09503, here drawn within the same layers",
        docs="rule_tasks",
    ),
    Definition(
        name="p",
        formula="(1 + draws that lose at least as much as the chosen heads do on the same items) / (1 + draws)",
        source="Phipson & Smyth 2010",
        docs="rule_tasks",
    ),
)
