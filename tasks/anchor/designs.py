"""Data designs: what a composite task trains on, so that reasoning, symmetry and memory give different answers.

| design | trained | never trained | what the solutions answer there |
|---|---|---|---|
| `altered_pair` | 15 pairs, (3, 4) on x - 6 | (4, 3) | reasoning x - 10, symmetric x - 6 |
| `dropped_pairs` | 14 pairs | (3, 4), (4, 3) | reasoning x - 10, anything else if not |
| `noise_groups` | 16 pairs, some groups on wrong targets | none | how fast each pair is learnt |

Altered and dropped: arXiv 2405.05409; noise groups: the code of arXiv 2501.08537. Every setting of `Composite` can be
given too, so that `dropped_pairs(n_sequences=3000)` is the setting in which a small model memorises.

>>> altered_pair(weight=0.3).trained_pairs[3, 4] / altered_pair().trained_pairs[3, 4] < 0.35
True
>>> noise_groups(1).altered
(((1, 2), 4), ((2, 1), 4))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.anchor.composite import Composite
from tasks.anchor.functions import Pair
from tasks.task import TaskError

WRONG_SHIFTS: Mapping[Pair, int] = {(1, 2): 4, (1, 3): 1, (1, 4): -5, (2, 3): 5, (2, 4): -9, (3, 4): -6}
"""The noise groups in their published order, each with the wrong shift that both of its pairs are trained on."""


def altered_pair(pair: Pair = (3, 4), *, shift: int = -6, weight: float = 1.0, **settings: Any) -> Composite:
    """Train `pair` on x + `shift` and hold out the pair in the other order.

    `weight` is how often the altered pair is trained on, relative to the others: published as 1. In trials models of
    width 64 then ended symmetric at every initialisation, and with 0.3 most of the small ones reasoned.
    """
    swapped = pair[::-1]
    if swapped == pair:
        raise TaskError(f"{pair} is the same in the other order, so there is nothing to hold out: give another pair")
    return Composite(altered={pair: shift}, held_out=[swapped], weights={pair: weight}, **settings)


def dropped_pairs(pairs: Sequence[Pair] = ((3, 4), (4, 3)), **settings: Any) -> Composite:
    """Hold out `pairs` and train all others on their composition."""
    return Composite(held_out=pairs, **settings)


def noise_groups(n_groups: int, **settings: Any) -> Composite:
    """Train all pairs, those of the first `n_groups` noise groups on one wrong target for both orders."""
    if not 0 <= n_groups <= len(WRONG_SHIFTS):
        raise TaskError(f"n_groups={n_groups} is out of range: there are {len(WRONG_SHIFTS)} noise groups")
    wrong = list(WRONG_SHIFTS.items())[:n_groups]
    return Composite(altered={order: shift for pair, shift in wrong for order in (pair, pair[::-1])}, **settings)
