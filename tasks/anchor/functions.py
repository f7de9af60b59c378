"""The anchor function: anchors say what is to be done with a key.

    one anchor      f(x; a)              = g(x; a)
    q anchors       f(x; a_1, ..., a_q)  = g(... g(g(x; a_1); a_2) ...; a_q)

Zhang et al., arXiv 2401.08309, and for two anchors arXiv 2405.05409, equation 1. A map g(.; a) is a shift x + s, or
any table. Shifts commute, so that the order of two anchors can't be seen in the answer; tables needn't.

>>> PAPER_FUNCTION(23, (1, 2)), PAPER_FUNCTION(23, (2, 1))
(29, 29)
>>> double = AnchorFunction.from_maps({1: 5, 2: lambda x: 2 * x}, values=range(40))
>>> double(10, (1, 2)), double(10, (2, 1))
(30, 25)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from tasks.task import TaskError

Pair = tuple[int, ...]
"""The anchors of one sequence as they are read: two of them in the papers' tasks, hence the name."""
Order = Literal["left_to_right", "right_to_left"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchorFunction:
    """Anchors, the map of each, and the order in which maps are applied; called with a key and its anchors."""

    anchors: tuple[int, ...]
    """The tokens that are anchors."""
    maps: tuple[int | tuple[int, ...], ...]
    """One map an anchor: a number s is the shift x + s, a tuple is the table of a map, from x to its entry x."""
    order: Order = "left_to_right"
    """Which anchor acts on the key first."""

    def __post_init__(self) -> None:
        if len(self.anchors) != len(self.maps) or not self.anchors:
            raise TaskError(f"{len(self.anchors)} anchors have {len(self.maps)} maps: give one map for each anchor")
        if len(set(self.anchors)) < len(self.anchors) or min(self.anchors) < 0:
            raise TaskError(f"the anchors {self.anchors} must be different token ids of at least 0")
        if self.order not in ("left_to_right", "right_to_left"):
            raise TaskError(f"order={self.order!r} is unknown: give 'left_to_right' or 'right_to_left'")

    @classmethod
    def from_maps(
        cls,
        maps: Mapping[int, int | Sequence[int] | Callable[[int], int]],
        *,
        values: range = range(0),
        order: Order = "left_to_right",
    ) -> "AnchorFunction":
        """The function with the map of each anchor given as a shift, a table or a callable.

        A callable is written down as a table over `values`, which starts at 0 and reaches every value that a key or
        an anchor before it can give.
        """
        if values and values != range(len(values)):
            raise TaskError(f"values={values} must count from 0, since a table is read by value: give range(n)")
        written: list[int | tuple[int, ...]] = []
        for anchor, of in maps.items():
            if callable(of) and not values:
                raise TaskError(f"the map of anchor {anchor} is a callable: give values=range(n), all it may be asked")
            if isinstance(of, int):
                written.append(of)
            else:
                written.append(tuple(of(x) for x in values) if callable(of) else tuple(of))
        return cls(anchors=tuple(maps), maps=tuple(written), order=order)

    def __call__(self, key: int, anchors: Sequence[int]) -> int:
        """The value of the function at one key."""
        for anchor in anchors if self.order == "left_to_right" else reversed(anchors):
            if anchor not in self.anchors:
                raise TaskError(f"{anchor} is no anchor: the anchors are {', '.join(map(str, self.anchors))}")
            how = self.maps[self.anchors.index(anchor)]
            if isinstance(how, int):
                key += how
            elif 0 <= key < len(how):
                key = how[key]
            else:
                raise TaskError(f"the map of anchor {anchor} has no entry for {key}: it covers 0 to {len(how) - 1}")
        return key

    def pairs(self, size: int = 2) -> tuple[Pair, ...]:
        """Every sequence of `size` anchors, in the order (1, 1), (1, 2), ..."""
        return tuple(product(self.anchors, repeat=size))


PAPER_FUNCTION = AnchorFunction(anchors=(1, 2, 3, 4), maps=(5, 1, -2, -8))
"""The four anchors of arXiv 2405.05409 and 2501.08537."""
