"""Which keys are trained on: a key x at position p belongs to the test split where  x = p  (mod m).

Value and position decide together, so every value and every position is trained on, but never both at once. The
papers write `mod(x, m) == p`, which is the same wherever p < m, and they disagree on m for sequences of n = 9 tokens:
n - 2 = 7 in the text of arXiv 2405.05409, n - 1 = 8 in the code of 2401.08309, n = 9 in the code of 2501.08537.

>>> is_test_key(torch.tensor([27, 28, 29]), torch.tensor(1), modulus=9)
tensor([False,  True, False])
>>> published_amounts(900_000), published_amounts(200_000)
((50625, 5625), (11250, 1250))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tasks.task import TaskError

Keys = Literal["train", "test"]


def is_test_key(
    key: Int[Tensor, "*#shape"], position: Int[Tensor, "*#shape"], *, modulus: int
) -> Bool[Tensor, "*shape"]:
    """Whether a key at a position is kept for the test."""
    return (key - position) % modulus == 0


def allow_keys(
    keys: range, positions: Sequence[int], *, modulus: int | None, part: Keys
) -> Bool[Tensor, "position key"]:
    """Which keys may stand at which position in a part of the data; without a modulus, each in each part."""
    if modulus is None:
        return torch.ones(len(positions), len(keys), dtype=torch.bool)
    test = is_test_key(torch.tensor(keys), torch.tensor(positions)[:, None], modulus=modulus)
    return test if part == "test" else ~test


def check_modulus(modulus: int | None, *, keys: range, positions: Sequence[int]) -> None:
    """Raise `TaskError` unless training and test both have keys at every position."""
    if modulus is None:
        return
    if modulus < 2:
        raise TaskError(f"modulus={modulus} leaves no key to train on: give at least 2, or None for no key split")
    empty = [p for p in positions if not any((key - p) % modulus == 0 for key in keys)]
    if empty:
        raise TaskError(
            f"modulus={modulus} leaves position {empty[0]} without a test key from {keys[0]} to {keys[-1]}: "
            "give a smaller modulus"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyTable:
    """Draws keys, each of those that its row allows equally likely."""

    keys: Int[Tensor, "row key"]
    """The allowed keys of each row, in front."""
    counts: Int[Tensor, " row"]
    """How many they are."""

    @classmethod
    def from_mask(cls, allowed: Bool[Tensor, "row key"], keys: range) -> "KeyTable":
        """The table of a mask over `keys`."""
        front = (~allowed).int().argsort(dim=1, stable=True)
        return cls(keys=torch.tensor(keys)[front], counts=allowed.sum(1))

    def draw(self, rows: Int[Tensor, " batch"], generator: torch.Generator) -> Int[Tensor, " batch"]:
        """A key for each of `rows`."""
        uniform = torch.rand(len(rows), dtype=torch.float64, generator=generator)
        return self.keys[rows, (uniform * self.counts[rows]).long()]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPlaces:
    """Draws where the key stands, each position equally likely, and then which key it is."""

    positions: Int[Tensor, " position"]
    """Where it may stand."""
    table: KeyTable
    """The keys of each of these positions."""

    @classmethod
    def from_split(cls, keys: range, positions: Sequence[int], *, modulus: int | None, part: Keys) -> "KeyPlaces":
        """The places of one part of the data."""
        allowed = allow_keys(keys, positions, modulus=modulus, part=part)
        return cls(positions=torch.tensor(positions), table=KeyTable.from_mask(allowed, keys))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """`n` keys and their positions."""
        place = torch.randint(len(self.positions), (n,), generator=generator)
        return self.table.draw(place, generator), self.positions[place]


def published_amounts(total: int, *, n_pairs: int = 16, train_share: float = 0.9) -> tuple[int, int]:
    """Sequences of each pair with training keys and with test keys, where the papers speak of `total` sequences.

    `total` counts all pairs and both kinds of keys. So 900,000 sequences with 15 trained pairs are 759,375 to train
    on, and 200,000 with 14 are 157,500.
    """
    train = round(total * train_share / n_pairs)
    return train, round(total / n_pairs) - train
