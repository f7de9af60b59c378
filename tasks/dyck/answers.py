"""Which closing brackets a model gets right, and how far back each was opened (arXiv 2305.18741).

    accuracy(m) = share right of all closing brackets at least m brackets behind their opening one

A prefix ends just before a closing bracket; among the k closing tokens alone the model's best must be the right one. The
published accuracy out of distribution counts m = 10 by the paper's text. Its program never applies the filter. A bracket
encloses whole pairs, so distances are odd, and "at least 10" is 11 or more.

Strings hold different numbers of closing brackets, so the accuracy is a ratio of sums. `per_string` gives values whose
mean it is, v_i = a + (r_i - a c_i) / mean(c), with r_i of c_i right in string i: the interval of their mean is that of
the ratio, to first order, with strings as the independent units.

>>> answers = ClosingAnswers(string=torch.tensor([0, 0, 1]), distance=torch.tensor([1, 11, 1]), right=torch.ones(3) > 0)
>>> answers.accuracy(min_distance=10), len(answers.per_string(min_distance=10))
(1.0, 1)
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.task import TaskError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosingAnswers:
    """One entry a closing bracket."""

    string: Int[Tensor, " closers"]
    """The row of the batch it stands in."""
    distance: Int[Tensor, " closers"]
    """Brackets from its opening one to it: 1 where they are neighbours."""
    right: Bool[Tensor, " closers"]
    """Whether the model's best closing bracket is the right one."""

    def accuracy(self, *, min_distance: int = 0) -> float:
        """The share that is right of those at least `min_distance` behind their opening brackets."""
        return self._far(min_distance).double().mean().item()

    def per_string(self, *, min_distance: int = 0) -> Float[Tensor, " strings"]:
        """A value for each string that has such a bracket; their mean is the accuracy, their spread its error."""
        right = self._far(min_distance).double()
        string = self.string[self.distance >= min_distance]
        _, row, counts = string.unique(return_inverse=True, return_counts=True)
        hits = torch.zeros(len(counts), dtype=torch.double).index_add_(0, row, right)
        accuracy = right.mean()
        return accuracy + (hits - accuracy * counts) / counts.double().mean()

    def to_frame(self) -> "pd.DataFrame":
        """One row a closing bracket: string, distance, right."""
        import pandas as pd

        return pd.DataFrame({name: getattr(self, name).numpy() for name in ("string", "distance", "right")})

    def __repr__(self) -> str:
        far = int((self.distance >= 10).sum())
        behind = f", {self.accuracy(min_distance=10):.3f} of the {far:,} at distance 10 or more" if far else ""
        return f"ClosingAnswers({self.accuracy():.3f} of {len(self.right):,} closing brackets right{behind})"

    def _far(self, min_distance: int) -> Bool[Tensor, " far"]:
        right = self.right[self.distance >= min_distance]
        if len(right):
            return right
        raise TaskError(
            f"no closing bracket is {min_distance} or more behind its opening one: "
            f"give a min_distance of at most {int(self.distance.max()) if len(self.distance) else 0}, or more strings"
        )
