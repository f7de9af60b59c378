"""What a lab found, as sentences and tables in Markdown: for the page of the docs."""

import math
from collections.abc import Sequence

from analyses.structural_grokking.progress import MEASURES
from analyses.structural_grokking.sections import write_curves, write_depths, write_rules
from analyses.structural_grokking.trained import TrainedGrammar
from analyses.structural_grokking.tree_sections import write_measures

_COLUMNS = (
    *(
        "layers",
        "seed",
        "validation 99% at step",
        "lowest",
        "early stopping",
        "end",
        "best",
        "object relatives at the end",
    ),
    *("80% at step", "ends with", "t-score (untrained)", "F1"),
)


def write_tables(trained: Sequence[TrainedGrammar]) -> str:
    """The verdicts of the report, a line each, and one table with a row a model."""
    sections = (write_curves(trained, {}), write_rules(trained), write_depths(trained), write_measures(trained))
    told = [f"- {section.verdict} {section.control}".strip() for section in sections if section is not None]
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *(_write_row(one) for one in trained)]
    return "\n".join([*told, "", *(f"| {' | '.join(row)} |" for row in rows)])


def _write_row(one: TrainedGrammar) -> tuple[str, ...]:
    found, closed = one.outcome, MEASURES["t_closed"]
    shares = (found.lowest, found.early, found.final, found.best, found.final_object_relative)
    return (
        str(one.depth),
        str(one.cell.seed),
        _write_step(found.saturated),
        *("–" if math.isnan(share) else f"{share:.0%}" for share in shares),
        _write_step(found.rose),
        found.rule,
        f"{one.value(closed):.2f} ({one.untrained(closed):.2f})",
        f"{one.value(MEASURES['f1']):.2f}",
    )


def _write_step(step: float) -> str:
    return "–" if math.isnan(step) else f"{step:,.0f}"
