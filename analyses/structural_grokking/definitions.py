"""How each number of the lab is defined."""

from analyses.report.page import Definition

_PAPER = "Murty et al., arXiv 2305.18741"

CURVES = (
    Definition(
        name="validation",
        formula="share of lines of the training's kind that are answered rightly: first auxiliary, or main verb",
        source=_PAPER,
        docs="structural_grokking",
    ),
    Definition(
        name="generalisation",
        formula="the same where the hierarchical and the linear rule differ",
        source=_PAPER,
        docs="structural_grokking",
    ),
    Definition(
        name="early stopping",
        formula="generalisation at the earliest evaluation with the best validation",
        source=_PAPER,
        docs="structural_grokking",
    ),
    Definition(
        name="end",
        formula="generalisation, mean of the last 5 evaluations",
        source="curves are not monotone",
        docs="structural_grokking",
    ),
    Definition(
        name="grokked",
        formula="validation ≥ 99% with generalisation < 20%, and at a later evaluation generalisation ≥ 60%",
        source="after " + _PAPER,
        docs="structural_grokking",
    ),
    Definition(
        name="variation",
        formula="Σ |change of generalisation from one evaluation to the next|, from saturation on",
        source="Qin et al., arXiv 2412.04619",
        docs="structural_grokking",
    ),
)
RULES = (
    Definition(
        name="hierarchical",
        formula="end > 80%, and > 60% on object relative clauses",
        source="this library",
        docs="structural_grokking",
    ),
    Definition(
        name="shortcut",
        formula="follows in > 80%: the first auxiliary not right behind who or that moves; object relative clauses < 20%",
        source="this library",
        docs="structural_grokking",
    ),
    Definition(
        name="linear",
        formula="follows in > 80%: the first auxiliary moves, or the verb agrees with the last noun",
        source="McCoy et al., arXiv 2001.03632",
        docs="structural_grokking",
    ),
    Definition(
        name="none, mixed",
        formula="over 80% follow no rule; anything else",
        source="this library",
        docs="structural_grokking",
    ),
)
TREES = (
    Definition(
        name="t-score, closed form",
        formula="Σ over nodes of the tree of (best split − mean split) of its chart",
        source=f"public code of {_PAPER}, without sampling",
        docs="structural_grokking",
    ),
    Definition(
        name="t-score, equation 2",
        formula="Σ over spans of the tree of c − E over random trees of the same sum",
        source="Murty et al., arXiv 2211.01288, exact",
        docs="structural_grokking",
    ),
    Definition(
        name="bracket F1",
        formula="brackets in both / brackets in one, the root aside",
        source=_PAPER,
        docs="structural_grokking",
    ),
    Definition(
        name="attention entropy",
        formula="mean of −Σ a log a / log(number of keys)",
        source=f"after {_PAPER}",
        docs="structural_grokking",
    ),
    Definition(
        name="rms of a weight",
        formula="‖θ‖ / √(number of weights)",
        source=f"after {_PAPER}",
        docs="structural_grokking",
    ),
)
