"""Two families with one anchor before its key: many anchors that meet few keys, and answers that are drawn by chance.

>>> task = MultiAnchor()
>>> batch = task.sample(100, split="masked", seed=0)  # anchor k with the keys that it never met in training
>>> bool(((read_role(batch, "key") - 20) // 8 + 1 == read_role(batch, "anchor_1")).all())
True
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.anchor.checks import check_targets
from tasks.anchor.family import Family
from tasks.anchor.sequences import assemble, draw_noise, predict, read_role
from tasks.anchor.splits import Keys, KeyTable, allow_keys
from tasks.task import Batch, TaskError


@dataclass(frozen=True, kw_only=True)
class MultiAnchor(Family):
    """`k x -> x + k` for anchors 1 to 10; anchor k is never trained on the keys of interval k.

    The keys are cut into as many equal intervals as there are anchors (published: eight keys each). A model that takes
    the anchors for ten separate maps fails on the split `masked`, one that learnt addition does not.
    """

    n_anchors: int = 10
    """Anchors 1 to n."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.n_anchors <= len(self.keys):
            raise TaskError(f"n_anchors={self.n_anchors} is out of range: give from 2 to {len(self.keys)}")
        highest = self.last_key + self.n_anchors
        check_targets([self.last_key], (self.n_anchors,), [highest], d_vocab=self.d_vocab)
        if not all(_list_keys(self, split).counts.all() for split in self.splits):
            raise TaskError(f"modulus={self.modulus} leaves an anchor without a key to test: give a smaller one")

    @property
    def name(self) -> str:
        """`multi-anchor`."""
        return "multi-anchor"

    @property
    def anchors(self) -> tuple[int, ...]:
        """1 to n."""
        return tuple(range(1, self.n_anchors + 1))

    @property
    def shortest(self) -> int:
        """An anchor and its key."""
        return 2

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`; `id`, trained intervals with keys kept for the test; `masked`, the intervals never trained."""
        return ("train", "id", "masked")

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        anchor = torch.randint(self.n_anchors, (n,), generator=generator)
        position = torch.randint(1, self.n_ctx, (n,), generator=generator)
        key = _list_keys(self, split).draw(anchor * self.n_ctx + position, generator)
        items = {"key": (position, key), "anchor_1": (position - 1, anchor + 1)}
        return assemble(draw_noise(n, self.n_ctx, self.keys, generator), items, target=key + anchor + 1)


@lru_cache(maxsize=64)
def _list_keys(task: MultiAnchor, split: str) -> KeyTable:
    """The keys of each anchor and position, one row for each, positions running faster."""
    interval = torch.arange(len(task.keys)) * task.n_anchors // len(task.keys)
    own = (interval == torch.arange(task.n_anchors)[:, None])[:, None].expand(-1, task.n_ctx, -1)
    part: Keys = "test" if split == "id" else "train"
    other = ~own & allow_keys(task.keys, range(task.n_ctx), modulus=task.modulus, part=part)
    return KeyTable.from_mask((own if split == "masked" else other).flatten(0, 1), task.keys)


@dataclass(frozen=True, kw_only=True)
class StatisticalOutput(Family):
    """`3 x -> x` with probability p, `x + 1` otherwise: does the model learn the odds?

    No model can be right more often than max(p, 1 - p). `key_probability` and `next_probability` are what it gives to
    the two answers, and should be p and 1 - p. Published: p = 0.8, 100 draws of each sequence.
    """

    probability: float = 0.8
    """p, of the key itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.probability <= 1:
            raise TaskError(f"probability={self.probability} is none: give a number from 0 to 1")
        check_targets([self.last_key], (3,), [self.last_key + 1], d_vocab=self.d_vocab)

    @property
    def name(self) -> str:
        """`statistical output`."""
        return "statistical output"

    @property
    def anchors(self) -> tuple[int, ...]:
        """The anchor 3."""
        return (3,)

    @property
    def shortest(self) -> int:
        """The anchor and its key."""
        return 2

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`accuracy` against the drawn answer, and the probabilities of key and key + 1, for each sequence."""
        p = logits[:, -1].float().softmax(-1)
        key = read_role(batch, "key").to(p.device)[:, None]
        return {
            "accuracy": (predict(logits, batch) == batch.targets[:, -1]).float(),
            "key_probability": p.gather(1, key)[:, 0],
            "next_probability": p.gather(1, key + 1)[:, 0],
        }

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        position = torch.randint(1, self.n_ctx, (n,), generator=generator)
        key = self._draw_keys(position, split, generator)
        items = {"key": (position, key), "anchor_1": (position - 1, torch.full((n,), 3))}
        other = torch.rand(n, dtype=torch.float64, generator=generator) >= self.probability
        return assemble(draw_noise(n, self.n_ctx, self.keys, generator), items, target=key + other)
