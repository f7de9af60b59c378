"""What a sweep will run, counted before it runs: the headline at every rank, all beside it on fewer sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from interp.bridge.subspaces import CONTROLS, Control, Fit
from interp.interventions.project import Part

KEPT_CONTROLS: tuple[Control, ...] = ("random", "other_heads")
"""The controls of keep-only: those of the same rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One edit of the weights, and what is scored under it."""

    fit: Fit
    """Which subspace."""
    part: Part
    """Whether it is removed, or all but it."""
    rank: int
    """The bridge's rank, which a control of equal energy is matched to."""
    draw: int
    """Which draw of a control; 0 for the bridge."""
    n_sequences: int
    """Repeated sequences that are scored."""
    n_passages: int
    """Passages of text that are scored."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """Every edit of a sweep, in order."""

    steps: tuple[Step, ...]
    """The edits."""
    n_sequences: int
    """Repeated sequences that the untouched model is scored on."""
    n_passages: int
    """Passages that the untouched model is scored on."""
    n_blocks: int
    """Blocks that each pass runs: those from the lowest edited one on."""

    @property
    def n_passes(self) -> int:
        """Sequences and passages sent through those blocks, over all edits."""
        return self.n_sequences + self.n_passages + sum(step.n_sequences + step.n_passages for step in self.steps)

    def __repr__(self) -> str:
        return f"SweepPlan({len(self.steps)} edits, {self.n_passes:,} sequences through {self.n_blocks} blocks)"


def plan_sweep(
    *,
    fits: Sequence[Fit],
    parts: Sequence[Part],
    ranks: Sequence[int],
    control_ranks: Sequence[int],
    n_draws: Mapping[Control, int],
    n_sequences: int,
    n_control_sequences: int,
    n_passages: int,
    n_blocks: int,
) -> SweepPlan:
    """The headline, first of `fits`, on all sequences and passages; everything beside it on a few sequences."""
    steps = []
    for part in parts:
        for rank in ranks:
            steps.append(
                Step(fit=fits[0], part=part, rank=rank, draw=0, n_sequences=n_sequences, n_passages=n_passages)
            )
            beside: list[tuple[Fit, int]] = [(fit, 0) for fit in fits[1:]]
            if rank in control_ranks:
                controls = CONTROLS if part == "remove" else KEPT_CONTROLS
                beside += [(fit, draw) for fit in controls for draw in range(n_draws[fit])]
            steps += [
                Step(fit=fit, part=part, rank=rank, draw=draw, n_sequences=n_control_sequences, n_passages=0)
                for fit, draw in beside
            ]
    return SweepPlan(steps=tuple(steps), n_sequences=n_sequences, n_passages=n_passages, n_blocks=n_blocks)
