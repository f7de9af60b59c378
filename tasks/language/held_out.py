"""Which questions are kept for the test: a hash of what identifies them decides, so no list of them is needed.

    kept  <=>  h(x_1, ..., x_k; seed) < share,    h uniform on [0, 1)

So train and test are disjoint at any number of draws, and the same in every process and on every machine.

>>> rows = torch.cartesian_prod(torch.arange(100), torch.arange(100))
>>> f"{is_held_out(rows, share=0.1, seed=0).float().mean():.2f}"
'0.10'
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tasks.task import TaskError

_PRIME = 2**31 - 1
_FACTOR = 742_938_285
_DRAWS = 200


def is_held_out(rows: Int[Tensor, "batch width"], *, share: float, seed: int) -> Bool[Tensor, " batch"]:
    """Whether each row of whole numbers from 0 up is kept for the test."""
    state = torch.full((len(rows),), seed % _PRIME)
    # Two columns more than there are, so that the last one is mixed as well as the first.
    for column in (*rows.unbind(1), torch.zeros_like(state), torch.zeros_like(state)):
        state = (state + column + 1) * _FACTOR % _PRIME
        state = state ^ (state >> 15)
    return state < share * _PRIME


def draw_until(
    n: int,
    draw: Callable[[int], Int[Tensor, "drawn width"]],
    keep: Callable[[Int[Tensor, "drawn width"]], Bool[Tensor, " drawn"]],
    *,
    share: float,
) -> Int[Tensor, "n width"]:
    """The first `n` rows of `draw` that `keep` accepts, where about `share` of them are."""
    kept: list[Tensor] = []
    count = 0
    for _ in range(_DRAWS):
        rows = draw(int(1.2 * (n - count) / share) + 32)
        kept.append(rows[keep(rows)])
        count += len(kept[-1])
        if count >= n:
            return torch.cat(kept)[:n]
    raise TaskError(f"only {count} of {n} questions were found in {_DRAWS} draws: keep a larger share of them")


def check_share(name: str, share: float) -> None:
    """Something is left to train on, and something to test on."""
    if not 0 < share < 1:
        raise TaskError(f"{name}={share} must be a share between 0 and 1, such as 0.1")
