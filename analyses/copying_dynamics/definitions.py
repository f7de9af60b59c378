"""How each number of the lab is defined."""

from analyses.report.page import Definition

_PAPER = "Song, Xu & Zhong, arXiv 2408.09503"

DEFINITIONS = (
    Definition(
        name="error",
        formula="share of wrong argmax predictions at t in [s₂ + 4, s₂ + L − 1)",
        source=f"{_PAPER}, corrected",
        docs="copying",
    ),
    Definition(
        name="previous-token attention",
        formula="mean over i of A[i, i − 1], of the head with most",
        source=_PAPER,
        docs="copying_dynamics",
    ),
    Definition(
        name="induction attention",
        formula="mean over t in [s₂, s₂ + L − 1) of A[t, t − (s₂ − s₁) + 1], of the head with most",
        source=_PAPER,
        docs="copying_dynamics",
    ),
    Definition(
        name="Z / √d_head",
        formula="(mean diag W − mean W) / (std W · √d_head) with W = W_QK of a reader times W_OV of a writer below it",
        source=f"{_PAPER}, public code",
        docs="composition",
    ),
    Definition(
        name="subspace match",
        formula="√mean σ² (or largest σ) of VᵀU: V the top 10 directions read by W_QK's keys, U those written by W_OV",
        source=f"{_PAPER}, public code",
        docs="composition",
    ),
    Definition(
        name="bridge share",
        formula="‖W_OV V‖² / ‖W_OV‖²: how much of what the writer writes lies in the reader's top 10 directions V; "
        "10 / d_model by chance",
        source=_PAPER,
        docs="copying_dynamics",
    ),
)
