"""How often something was found over seeds, with an interval that holds for few of them.

With k of n seeds, p = k / n and z = 1.96 the interval of Wilson (1927) is

    (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

>>> Share(found=5, n=5)
5 of 5 [57%, 100%]
>>> Share(found=0, n=5).interval[1] < 0.44
True
"""

import math
from dataclasses import dataclass

_Z = 1.959964


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Share:
    """`found` of `n` seeds."""

    found: int
    """Seeds with it."""
    n: int
    """Seeds in all."""

    @property
    def value(self) -> float:
        """The share; NaN of no seeds."""
        return self.found / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high), Wilson's 95%; (0, 1) of no seeds."""
        if not self.n:
            return 0.0, 1.0
        p, n = self.value, self.n
        middle, half = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
        low, high = ((middle + side * half) / (1 + _Z**2 / n) for side in (-1, 1))
        return max(0.0, low) if self.found else 0.0, min(1.0, high) if self.found < n else 1.0

    def __repr__(self) -> str:
        low, high = self.interval
        return f"{self.found} of {self.n} [{low:.0%}, {high:.0%}]"
