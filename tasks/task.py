"""What a model is asked: a task draws batches by seed and scores logits.

A `Batch` says, position by position, which token should come next and whether that position counts. `roles` names
positions, so that an intervention can speak of "the second copy" instead of indices that move from row to row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


class TaskError(ValueError):
    """A task was asked for what it cannot give; the message says what was given, what was expected and what to do."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Token sequences with the answer and the weight of each position."""

    tokens: Int[Tensor, "batch pos"]
    """What the model reads."""
    targets: Int[Tensor, "batch pos"]
    """`targets[b, t]` is the token that should follow position t; meaningless where neither trained nor scored."""
    trained: Bool[Tensor, "batch pos"]
    """Positions whose loss is trained on."""
    scored: Bool[Tensor, "batch pos"]
    """Positions whose prediction the task's score counts; behind the last that is trained, scored or has a role, logits
    may be missing."""
    roles: Mapping[str, Int[Tensor, "batch width"] | Bool[Tensor, "batch pos"]] = field(default_factory=dict)
    """Named positions: an index tensor [batch, width], or a mask [batch, pos] where the count differs per row."""

    def take(self, rows: slice | Int[Tensor, "rows"]) -> "Batch":
        """The batch of these rows."""
        return Batch(
            tokens=self.tokens[rows],
            targets=self.targets[rows],
            trained=self.trained[rows],
            scored=self.scored[rows],
            roles={name: role[rows] for name, role in self.roles.items()},
        )


@runtime_checkable
class Task(Protocol):
    """A family of sequences with known rules; everything is drawn from one integer seed."""

    @property
    def name(self) -> str:
        """A short name for records."""

    @property
    def d_vocab(self) -> int:
        """Number of token ids the task uses."""

    @property
    def n_ctx(self) -> int:
        """Length of its longest sequence."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits `sample` knows; the first is the one to train on."""

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sequences of a split, on the CPU; the same seed gives the same batch."""

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, "batch"]]:
        """Named scores, one value per sequence, the main one first: it is what a run shows."""
