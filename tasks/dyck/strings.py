"""Balanced strings of k kinds of brackets, at most D deep, drawn as Murty et al. (arXiv 2305.18741) draw them.

    nothing open     end 1/2,  open 1/2        no end before 4 brackets: there, open 1
    0 < depth < D    open 1/2, close 1/2
    depth = D        close 1

The kind of an opened bracket is uniform, and a closing one has that of the last bracket still open. Strings longer than
`max_length` are dropped; the published program has such a bound, 500, and doesn't apply it.

A bracket is a number: 0 ... k - 1 open, k ... 2 k - 1 close. Since lengths differ widely, strings stand one behind the
other in one tensor.

>>> strings = draw_strings(4, types=2, depth=3, max_length=20, generator=torch.Generator().manual_seed(0))
>>> strings.lengths.tolist()
[14, 4, 8, 8]
>>> strings.row(1).tolist()
[1, 3, 1, 3]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

SHORTEST = 4
"""A string doesn't end before so many brackets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Strings:
    """Strings of any lengths, one behind the other."""

    brackets: Int[Tensor, " brackets"]
    """All of them: 0 ... k - 1 open, k ... 2 k - 1 close."""
    lengths: Int[Tensor, " strings"]
    """Brackets of each."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Strings({len(self):,} strings of brackets, {len(self.brackets):,} brackets)"

    def row(self, index: int) -> Int[Tensor, " length"]:
        """One string."""
        end = int(self.lengths[: index + 1].sum())
        return self.brackets[end - int(self.lengths[index]) : end]

    def take(self, rows: Int[Tensor, " rows"]) -> "Strings":
        """These strings, in this order."""
        starts, lengths = (self.lengths.cumsum(0) - self.lengths)[rows], self.lengths[rows]
        first = lengths.cumsum(0) - lengths
        at = torch.arange(int(lengths.sum())) + (starts - first).repeat_interleave(lengths)
        return Strings(brackets=self.brackets[at], lengths=lengths)

    def pad(self, value: int, *, width: int) -> Int[Tensor, "strings width"]:
        """A string a row, filled up on the right."""
        inside = torch.arange(width) < self.lengths[:, None]
        rows = torch.full(inside.shape, value)
        rows[inside] = self.brackets.long()
        return rows


def join(parts: Sequence[Strings]) -> Strings:
    """The strings of all parts."""
    return Strings(
        brackets=torch.cat([part.brackets for part in parts]), lengths=torch.cat([part.lengths for part in parts])
    )


def draw_strings(n: int, *, types: int, depth: int, max_length: int, generator: torch.Generator) -> Strings:
    """`n` strings, without those that are longer than `max_length`."""
    brackets = torch.zeros((n, max_length + 1), dtype=torch.int16)
    lengths = torch.zeros(n, dtype=torch.long)
    stacks = torch.zeros((n, depth), dtype=torch.long)
    heights = torch.zeros(n, dtype=torch.long)
    going = torch.arange(n)
    for position in range(max_length + 1):
        height = heights[going]
        coin = torch.rand(len(going), generator=generator) < 0.5
        ended = (height == 0) & coin & (position >= SHORTEST)
        lengths[going[ended]] = position
        going, height, coin = going[~ended], height[~ended], coin[~ended]
        if not len(going):
            break
        opens = (height == 0) | (coin & (height < depth))
        kind = torch.randint(types, (len(going),), generator=generator)
        stacks[going[opens], height[opens]] = kind[opens]
        kind = torch.where(opens, kind, stacks[going, (height - 1).clamp(min=0)])
        brackets[going, position] = torch.where(opens, kind, kind + types).short()
        heights[going] = torch.where(opens, height + 1, height - 1)
    lengths, rows = lengths[lengths > 0], brackets[lengths > 0]
    return Strings(brackets=rows[torch.arange(max_length + 1) < lengths[:, None]], lengths=lengths)


def find_openers(steps: Int[Tensor, "strings longest"]) -> Int[Tensor, "strings longest"]:
    """Where the bracket that each one closes was opened; its own place for one that closes none.

    `steps` are 1 for opening, -1 for closing, 0 behind the end. A pair has one level: the depth behind its opening
    bracket is that before its closing one. Within a level pairs stand one after the other, so that sorted by level, and
    by place within it, each closing bracket stands right behind its opening one.
    """
    closes: Bool[Tensor, "strings longest"] = steps < 0
    level = torch.where(steps == 0, steps.shape[1], steps.cumsum(1) + closes.long())
    order = level.argsort(dim=1, stable=True)
    before = order.roll(1, dims=1)
    openers = torch.empty_like(order).scatter_(1, order, before)
    return torch.where(closes, openers, torch.arange(steps.shape[1]))
