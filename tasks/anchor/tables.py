"""The pairs of a task as tensors, so that a batch is drawn, answered and scored without a loop.

>>> tables = PairTables.from_lists([(1, 1), (1, 2)], answers=[[21], [22]], composed=[[21], [22]], shares=[0.0, 1.0])
>>> tables.draw(torch.tensor([0.0, 0.9], dtype=torch.float64)).tolist()  # pair 0 is never trained
[1, 1]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from tasks.anchor.functions import Pair
from tasks.task import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTables:
    """What each pair of anchors means, by the number of the pair and of the key."""

    anchors: Int[Tensor, "pair anchor"]
    """The tokens."""
    answers: Int[Tensor, "pair key"]
    """The target in the data."""
    composed: Int[Tensor, "pair key"]
    """The composition of the maps."""
    cumulative: Float64[Tensor, " pair"]
    """Share of the training sequences up to and with this pair."""

    @classmethod
    def from_lists(
        cls,
        pairs: Sequence[Pair],
        *,
        answers: Sequence[Sequence[int]],
        composed: Sequence[Sequence[int]],
        shares: Sequence[float],
    ) -> "PairTables":
        """The tables of lists with one entry a pair; `shares` sum to 1."""
        return cls(
            anchors=torch.tensor(pairs),
            answers=torch.tensor(answers),
            composed=torch.tensor(composed),
            cumulative=torch.tensor(shares, dtype=torch.float64).cumsum(0),
        )

    def draw(self, uniform: Float64[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The pair at each place of [0, 1), which pairs divide by their shares."""
        # The shares may sum to a rounding error less than 1; times their sum, no place is behind the last of them.
        return torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True)

    def find(self, batch: Batch) -> Int[Tensor, " batch"]:
        """The number of each row's pair."""
        roles = [batch.roles[f"anchor_{i + 1}"] for i in range(self.anchors.shape[1])]
        return self._number(batch.tokens.gather(1, torch.cat(roles, dim=1)))

    def swap(self, pair: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The number of the pair with the same anchors in reverse order."""
        return self._number(self.anchors[pair].flip(1))

    def _number(self, tokens: Int[Tensor, "batch anchor"]) -> Int[Tensor, " batch"]:
        return (tokens[:, None, :] == self.anchors).all(-1).int().argmax(1)
