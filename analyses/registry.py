"""The analyses that can be named, and the order they run in."""

import difflib
from collections.abc import Sequence

from analyses.analysis import Analysis
from analyses.common_bridge import BRIDGE
from analyses.copying import COPYING
from analyses.heads import HEADS
from analyses.induction import INDUCTION
from analyses.patching import PATCHING
from analyses.rule_tasks import RULES
from analyses.solutions.section import SOLUTIONS
from analyses.tree_projections import TREES
from interp.errors import InputError

ANALYSES: dict[str, Analysis] = {
    analysis.name: analysis for analysis in (COPYING, HEADS, INDUCTION, BRIDGE, PATCHING, RULES, SOLUTIONS, TREES)
}
DEFAULT = tuple(name for name in ANALYSES if name not in ("bridge", "rules", "trees"))
"""What is asked when nothing is named; the others take many minutes on a pretrained model."""


def choose_analyses(names: Sequence[str]) -> list[Analysis]:
    """The named analyses with all that they need before them; raises `InputError` for a name that isn't there."""
    chosen: dict[str, Analysis] = {}
    for name in names:
        if name not in ANALYSES:
            close = difflib.get_close_matches(name, ANALYSES, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InputError(f"There is no analysis {name!r}; there are {', '.join(ANALYSES)}.{hint}")
        for needed in (*ANALYSES[name].needs, name):
            chosen[needed] = ANALYSES[needed]
    if not chosen:
        raise InputError(f"No analysis was named; give one or more of {', '.join(ANALYSES)}.")
    return list(chosen.values())
