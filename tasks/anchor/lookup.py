"""Three families in which the last token asks for something read before.

>>> batch = Recitation(direction="forward").sample(100, split="id", seed=0)
>>> bool((batch.tokens[:, -1:] == batch.tokens.gather(1, batch.roles["first"])).all())  # `a 3 b ... a` asks for b
True
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from tasks.anchor.checks import check_targets
from tasks.anchor.family import Family
from tasks.anchor.functions import PAPER_FUNCTION
from tasks.anchor.sequences import assemble, draw_noise
from tasks.task import Batch, TaskError

Direction = Literal["forward", "backward", "both"]


@dataclass(frozen=True, kw_only=True)
class Recitation(Family):
    """`a 3 b ... a -> b` recites forward, `a 3 b ... b -> a` backward.

    Both a and b are kept for the test by their own position. Roles: `first` (a), `second` (b), `anchor_1`, and `key`,
    the one that is the answer.
    """

    direction: Direction = "both"
    """Which way; with both, half of the sequences are of each, and each is a split."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction not in get_args(Direction):
            raise TaskError(f"direction={self.direction!r} is unknown: give 'forward', 'backward' or 'both'")

    @property
    def name(self) -> str:
        """`recitation`, with its direction where it has one."""
        return "recitation" if self.direction == "both" else f"{self.direction} recitation"

    @property
    def anchors(self) -> tuple[int, ...]:
        """The anchor 3."""
        return (3,)

    @property
    def shortest(self) -> int:
        """`a 3 b` and the token that asks."""
        return 4

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`, `id` and, where both directions are trained, the `id` sequences of each."""
        return ("train", "id", *(["forward", "backward"] if self.direction == "both" else []))

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        place = torch.randint(self.n_ctx - 3, (n,), generator=generator)
        first = self._draw_keys(place, split, generator)
        second = self._draw_keys(place + 2, split, generator)
        way = split if split in ("forward", "backward") else self.direction
        share = {"forward": 1.0, "backward": 0.0, "both": 0.5}[way]
        forward = torch.rand(n, dtype=torch.float64, generator=generator) < share
        items = {
            "first": (place, first),
            "anchor_1": (place + 1, torch.full((n,), 3)),
            "second": (place + 2, second),
            "last": (torch.full((n,), self.n_ctx - 1), torch.where(forward, first, second)),
        }
        answer = torch.where(forward, second, first)
        items["key"] = (place + 2 * forward, answer)
        return assemble(draw_noise(n, self.n_ctx, self.keys, generator), items, target=answer)


@dataclass(frozen=True, kw_only=True)
class ReadingComprehension(Family):
    """`... q v ... 3 q -> v`: the question q behind the anchor occurred in the passage; the answer stood next to it.

    The passage holds no token twice, so each question has one answer. Roles: `question` (q in the passage), `key` (v),
    `anchor_1`, `last` (q again). Published by name and results only ("in-context near value"): the generator is ours.
    """

    @property
    def name(self) -> str:
        """`reading comprehension`."""
        return "reading comprehension"

    @property
    def anchors(self) -> tuple[int, ...]:
        """The anchor 3."""
        return (3,)

    @property
    def shortest(self) -> int:
        """Question and answer, the anchor and the question again."""
        return 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_ctx - 2 > len(self.keys):
            raise TaskError(
                f"a passage of {self.n_ctx - 2} different tokens needs as many keys, but there are {len(self.keys)}"
            )

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        place = torch.randint(self.n_ctx - 3, (n,), generator=generator)
        key = self._draw_keys(place + 1, split, generator)
        background = _draw_distinct_noise(n, self.n_ctx, self.keys, but=key, generator=generator)
        question = background.gather(1, place[:, None])[:, 0]
        items = {
            "question": (place, question),
            "key": (place + 1, key),
            "anchor_1": (torch.full((n,), self.n_ctx - 2), torch.full((n,), 3)),
            "last": (torch.full((n,), self.n_ctx - 1), question),
        }
        return assemble(background, items, target=key)


@dataclass(frozen=True, kw_only=True)
class WorkingMemory(Family):
    """`... a x ... b y ... a -> g(x; a)`: of two anchors with their keys, the last token asks for one.

    g is that of the composite task. Roles: `key` and `anchor_1` of the group that is asked, `other_key` and
    `other_anchor` of the group that isn't. Published by name, length and result only: the generator is ours.
    """

    n_ctx: int = 20
    """Length of every sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for anchor in self.anchors:
            targets = [PAPER_FUNCTION(key, (anchor,)) for key in self.keys]
            check_targets(self.keys, (anchor,), targets, d_vocab=self.d_vocab)

    @property
    def name(self) -> str:
        """`working memory`."""
        return "working memory"

    @property
    def anchors(self) -> tuple[int, ...]:
        """The anchors of the composite task."""
        return PAPER_FUNCTION.anchors

    @property
    def shortest(self) -> int:
        """Two anchors with a key each and the token that asks."""
        return 5

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        early, late = _draw_different(self.n_ctx - 3, n, generator)
        early, late = torch.minimum(early, late), torch.maximum(early, late) + 1
        asked_first = torch.rand(n, generator=generator) < 0.5
        asked, other = torch.where(asked_first, early, late), torch.where(asked_first, late, early)
        anchors = _draw_different(len(self.anchors), n, generator)
        anchor, other_anchor = (torch.tensor(self.anchors)[index] for index in anchors)
        key = self._draw_keys(asked + 1, split, generator)
        items = {
            "anchor_1": (asked, anchor),
            "key": (asked + 1, key),
            "other_anchor": (other, other_anchor),
            "other_key": (other + 1, self._draw_keys(other + 1, split, generator)),
            "last": (torch.full((n,), self.n_ctx - 1), anchor),
        }
        background = draw_noise(n, self.n_ctx, self.keys, generator)
        return assemble(background, items, target=key + torch.tensor(PAPER_FUNCTION.maps)[anchors[0]])


def _draw_different(n_values: int, n: int, generator: torch.Generator) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Two different numbers below `n_values` in each row, every ordered pair equally likely."""
    one = torch.randint(n_values, (n,), generator=generator)
    other = torch.randint(n_values - 1, (n,), generator=generator)
    return one, other + (other >= one)


def _draw_distinct_noise(
    n: int, n_ctx: int, keys: range, *, but: Int[Tensor, " n"], generator: torch.Generator
) -> Int[Tensor, "n n_ctx"]:
    """Noise of which the first n_ctx - 2 tokens are different from each other and from `but`; the last two are free."""
    order = torch.rand((n, len(keys)), generator=generator).scatter(1, (but - keys.start)[:, None], -1.0)
    distinct = keys.start + order.topk(n_ctx - 2, dim=1).indices
    return torch.cat([distinct, draw_noise(n, 2, keys, generator)], dim=1)
