"""How the numbers of the reports on solutions are defined."""

from analyses.report.page import Definition
from interp.solutions.thresholds import Thresholds

_AT = Thresholds()

BEHAVIOUR = (
    Definition(
        name="behaviour",
        formula=f"reasoning: trained ≥ {_AT.fitted:g}, unseen keys ≥ {_AT.generalises:g}, held-out pairs composed ≥ "
        f"{_AT.reasons:g}, mirrored ≤ {_AT.spares:g}\n"
        f"symmetric: the same with mirrored ≥ {_AT.mirrors:g} and composed ≤ {_AT.spares:g}\n"
        f"memorising: trained ≥ {_AT.fitted:g}, unseen keys ≤ {_AT.remembers:g}\n"
        "none: anything else",
        source="after Zhang et al., arXiv 2405.05409 and 2501.08537",
        docs="solutions",
    ),
    Definition(
        name="commutes",
        formula="share of held-out sequences with the same answer for both orders of the anchors",
        source="Zhang et al., arXiv 2501.08537, inferred from its figures",
        docs="solutions",
    ),
)
MECHANISM = (
    Definition(
        name="mechanism",
        formula="the circuit of edges between roles that, kept alone, leaves at least "
        f"{_AT.sufficient:g} of the accuracy on trained sequences and, cut, at most {_AT.needed:g} of it, both beyond random "
        "edges\nhybrid: several of them, or only all together; distributed: none; agrees: parallel or serial for reasoning, "
        "symmetric for symmetric, distributed for memorising",
        source="circuits: Zhang et al., arXiv 2405.05409, figure 3",
        docs="solutions",
    ),
)
COMPLEXITY = (
    Definition(
        name="stable rank",
        formula="Σᵢ sᵢ² / s₁², with the singular values s₁ ≥ s₂ ≥ …",
        source="Zhang et al., arXiv 2501.08537; control: Gaussian matrices of the same shape",
        docs="solutions",
    ),
)
EVIDENCE = (
    Definition(
        name="accuracy lost when an edge is cut",
        formula="accuracy on trained sequences, uncut − with the attention from one role to another cut in one layer, before "
        "the softmax; control: random edges of the layer that carry as much attention",
        source="attention knockout: Geva et al., arXiv 2304.14767",
        docs="information_flow",
    ),
    Definition(
        name="cosine of states at equal minus at different targets",
        formula="mean cosine of two last-token states before the unembedding with equal targets − with different ones; "
        "control: targets shuffled among states",
        source="after Zhang et al., arXiv 2405.05409, figure 4",
        docs="solutions",
    ),
)
