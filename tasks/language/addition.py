"""Addition of two numbers, digit by digit, with a block of operands never trained (arXiv 2405.05409, figure 7).

    4 0 7 + 0 3 5 = 0 4 4 2         a, b in [0, 10^d),   block: low <= a <= high and low <= b <= high

Every number is padded with zeros in front: operands to d digits, the sum to d + 1. Operands are written with the most
significant digit first; `output_order` says how the sum is. In the block [400, 600]^2 no pair of leading digits 4 or 5
is ever trained, while each digit is, with other partners, and each pair is at the other places.

Splits: `train`; `id`, pairs outside of the block that are kept for the test; `block`.

>>> from tasks.language.sequences import spell
>>> task = Addition()
>>> batch = task.sample(3, split="block", seed=0)
>>> spell(batch.tokens[0], task.vocabulary)
'5 6 1 + 5 7 6 = 1 1 3 7'
>>> spell(Addition(output_order="least_significant_first").sample(3, split="block", seed=0).tokens[0], task.vocabulary)
'5 6 1 + 5 7 6 = 7 3 1 1'
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.checks import check_number, check_split
from tasks.language.held_out import check_share, draw_until, is_held_out
from tasks.language.sequences import assemble, mask_between, score_answers
from tasks.seeding import derive_generator, derive_seed
from tasks.task import Batch, TaskError

OutputOrder = Literal["most_significant_first", "least_significant_first"]

_VOCABULARY = ("pad", *map(str, range(10)), "+", "=")
_PLUS, _EQUALS = _VOCABULARY.index("+"), _VOCABULARY.index("=")


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """a + b; the defaults are the published operands and block."""

    digits: int = 3
    """Digits of an operand."""
    held_out: tuple[int, int] = (400, 600)
    """(low, high), both included: where both operands lie in it, a pair is never trained."""
    output_order: OutputOrder = "most_significant_first"
    """How the digits of the sum are written."""
    id_share: float = 0.1
    """Share of the pairs outside of the block that is kept for the test."""
    data_seed: int = 0
    """Which ones."""

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 9:
            raise TaskError(f"digits={self.digits} cannot be drawn: give 1 to 9")
        low, high = self.held_out
        if not 0 <= low <= high < 10**self.digits or (low, high) == (0, 10**self.digits - 1):
            raise TaskError(
                f"held_out={self.held_out} is no block of operands with {self.digits} digits: give (low, high) with "
                f"0 <= low <= high <= {10**self.digits - 1} that leaves some to train on"
            )
        if self.output_order not in get_args(OutputOrder):
            raise TaskError(
                f"output_order={self.output_order!r} is unknown: give {' or '.join(map(repr, get_args(OutputOrder)))}"
            )
        check_share("id_share", self.id_share)

    @property
    def name(self) -> str:
        """`addition`, with the digits and the block."""
        return f"addition of {self.digits} digits, {self.held_out[0]} to {self.held_out[1]} held out"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token."""
        return _VOCABULARY

    @property
    def d_vocab(self) -> int:
        """Padding, which no row needs, ten digits and two signs."""
        return len(_VOCABULARY)

    @property
    def n_ctx(self) -> int:
        """Two operands, two signs and the sum."""
        return 3 * self.digits + 3

    @property
    def splits(self) -> tuple[str, ...]:
        """Trained on, the same kind kept for the test, the block."""
        return ("train", "id", "block")

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sums; roles `a` and `b` [n, digits], `plus` and `equals` [n, 1], `sum` [n, digits + 1].

        Within `a`, `b` and `sum` positions go from the most significant digit to the least, however it is written.
        """
        check_split(split, self.splits, name=self.name)
        check_number(n)
        operands = self._draw(n, split, derive_generator(seed, "addition", split))
        return self._assemble(operands[:, 0], operands[:, 1])

    def is_in_block(self, operands: Int[Tensor, "batch 2"]) -> Bool[Tensor, " batch"]:
        """Whether both numbers lie in the block."""
        low, high = self.held_out
        return ((operands >= low) & (operands <= high)).all(1)

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`exact_match` of the sum, and `token_accuracy`, the share of its digits, one value per sequence."""
        return score_answers(logits, batch)

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Int[Tensor, "n 2"]:
        low, high = self.held_out
        if split == "block":
            return torch.randint(low, high + 1, (n, 2), generator=generator)
        kept = split == "id"
        seed = derive_seed(self.data_seed, "addition", "id")

        def keep(operands: Int[Tensor, "drawn 2"]) -> Bool[Tensor, " drawn"]:
            test = is_held_out(operands, share=self.id_share, seed=seed)
            return (test == kept) & ~self.is_in_block(operands)

        outside = 1 - (high - low + 1) ** 2 / 10 ** (2 * self.digits)
        return draw_until(
            n,
            lambda m: torch.randint(10**self.digits, (m, 2), generator=generator),
            keep,
            share=outside * (self.id_share if kept else 1 - self.id_share),
        )

    def _assemble(self, a: Int[Tensor, " batch"], b: Int[Tensor, " batch"]) -> Batch:
        n, d = len(a), self.digits
        total = _write(a + b, d + 1)
        places = torch.arange(2 * d + 2, self.n_ctx)
        if self.output_order == "least_significant_first":
            total, places = total.flip(1), places.flip(0)
        plus, equals = torch.full((n, 1), _PLUS), torch.full((n, 1), _EQUALS)
        tokens = torch.cat([_write(a, d), plus, _write(b, d), equals, total], dim=1)
        where = {
            "a": torch.arange(d),
            "plus": torch.tensor([d]),
            "b": torch.arange(d + 1, 2 * d + 1),
            "equals": torch.tensor([2 * d + 1]),
            "sum": places,
        }
        start = torch.full((n, 1), 2 * d + 2)
        answer = mask_between(start, torch.full_like(start, self.n_ctx), width=self.n_ctx)
        return assemble(tokens, answer=answer, roles={role: at.expand(n, -1) for role, at in where.items()})


def _write(numbers: Int[Tensor, " batch"], digits: int) -> Int[Tensor, "batch digits"]:
    """The tokens of each number, most significant digit first."""
    powers = 10 ** torch.arange(digits - 1, -1, -1)
    return numbers[:, None] // powers % 10 + 1
