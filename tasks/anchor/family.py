"""What the families that aren't composite tasks share: sizes, the key split, one score.

A family says in `_draw` how a sequence of the training or of the test part is made; the rest is here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.anchor.checks import check_keys, check_size
from tasks.anchor.sequences import is_right
from tasks.anchor.splits import Keys, KeyTable, allow_keys, check_modulus
from tasks.checks import check_number, check_split
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """A task of noise, keys and anchors with a training and a test part; the defaults are the published sizes."""

    n_sequences: int | None = None
    """Size of a training set drawn once, from which batches take with replacement; None draws afresh every time."""
    data_seed: int = 0
    """Which training set."""
    modulus: int = 8
    """A key is kept for the test where key = position (mod modulus)."""
    n_ctx: int = 9
    """Length of every sequence."""
    d_vocab: int = 201
    """Number of tokens."""
    first_key: int = 20
    """Smallest key and noise token."""
    last_key: int = 99
    """Largest key and noise token."""

    def __post_init__(self) -> None:
        check_keys(self.first_key, self.last_key, anchors=self.anchors, d_vocab=self.d_vocab)
        if self.n_ctx < self.shortest:
            raise TaskError(f"n_ctx={self.n_ctx} is too short for {self.name}: give at least {self.shortest}")
        check_modulus(self.modulus, keys=self.keys, positions=range(self.n_ctx))
        check_size(self.n_sequences)

    @property
    @abstractmethod
    def name(self) -> str:
        """The family's name."""

    @property
    @abstractmethod
    def anchors(self) -> tuple[int, ...]:
        """The tokens that are anchors."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The shortest sequence that holds all items."""

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`, and `id` with keys kept for the test."""
        return ("train", "id")

    @property
    def keys(self) -> range:
        """All keys, which are also the noise."""
        return range(self.first_key, self.last_key + 1)

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sequences; each item of the family has a role of its name, [n, 1], and `noise` is a mask."""
        check_split(split, self.splits, name=self.name)
        check_number(n)
        generator = derive_generator(seed, self.name, split)
        if split == "train" and self.n_sequences is not None:
            return _draw_training_set(self).take(torch.randint(self.n_sequences, (n,), generator=generator))
        return self._draw(n, split, generator)

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`accuracy`: whether the most likely token behind the last position is the target, for each sequence."""
        return {"accuracy": is_right(logits, batch)}

    @abstractmethod
    def _draw(self, n: int, split: str, generator: torch.Generator) -> Batch:
        """`n` sequences of a split."""

    def _draw_keys(self, position: Int[Tensor, " n"], split: str, generator: torch.Generator) -> Int[Tensor, " n"]:
        """A key for each position: one kept for the test unless the split is `train`."""
        part: Keys = "train" if split == "train" else "test"
        return _list_keys(self.keys, self.n_ctx, self.modulus, part).draw(position, generator)


@lru_cache(maxsize=64)
def _list_keys(keys: range, n_ctx: int, modulus: int, part: Keys) -> KeyTable:
    return KeyTable.from_mask(allow_keys(keys, range(n_ctx), modulus=modulus, part=part), keys)


@lru_cache(maxsize=4)
def _draw_training_set(task: Family) -> Batch:
    assert task.n_sequences is not None
    return task._draw(task.n_sequences, "train", derive_generator(task.data_seed, task.name, "training set"))
