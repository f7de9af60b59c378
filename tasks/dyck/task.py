"""Dyck-(k, D): predict which bracket closes, in strings whose depth shapes were trained or never were (2305.18741).

    start (a (b b) (c c) a) end         scored: the prefixes before b), c) and a), among the k closing brackets

To close the right one a model must know which bracket is still open, however far back: by counting depth, or by a tree.
The loss is on all brackets and on the end. `corpora` has the splits `train`, `id` and `ood`, `answers` the accuracy.

>>> task = Dyck(types=3, depth=4, max_length=30, n_train=500, n_test=50)
>>> batch = task.sample(8, split="ood", seed=0)
>>> logits = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
>>> task.read_answers(logits, batch).accuracy(min_distance=10)
1.0
"""

from dataclasses import asdict, dataclass
from string import ascii_lowercase
from typing import get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.checks import check_number, check_split
from tasks.dyck.answers import ClosingAnswers
from tasks.dyck.corpora import HeldOut, Lengths, draw_corpora
from tasks.dyck.strings import SHORTEST, Strings, find_openers
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

_START, _END, _FIRST = 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Dyck:
    """Strings of brackets; the defaults are the published setting."""

    types: int = 20
    """Kinds of brackets, k."""
    depth: int = 10
    """Most brackets open at once, D."""
    max_length: int = 500
    """Most brackets of a string; longer ones are dropped."""
    held_out: HeldOut = "component"
    """Whose shapes `id` shares with the training set: each top-level component's (the published program), or the
    whole string's (the paper's words)."""
    withheld_share: float = 0.0
    """Share of the shapes of 8 or more brackets that are kept from the training set; 0 leaves it to what it lacks."""
    lengths: Lengths = "as_drawn"
    """`matched`: as many `id` as `ood` strings of each length."""
    n_train: int = 200_000
    """Strings in the training set; some are drawn more than once."""
    n_test: int = 20_000
    """Strings of `id` and of `ood`, before lengths are matched."""
    data_seed: int = 0
    """Which strings."""

    def __post_init__(self) -> None:
        if not 1 <= self.types <= len(ascii_lowercase):
            raise TaskError(f"types={self.types} cannot be written: give 1 to {len(ascii_lowercase)} kinds of brackets")
        if self.depth < 2:
            raise TaskError(f"depth={self.depth} nests nothing: give at least 2")
        if self.max_length < SHORTEST:
            raise TaskError(f"max_length={self.max_length} leaves no string: give at least {SHORTEST}")
        for name, value, choices in (
            ("held_out", self.held_out, get_args(HeldOut)),
            ("lengths", self.lengths, get_args(Lengths)),
        ):
            if value not in choices:
                raise TaskError(f"{name}={value!r} is unknown: give {' or '.join(map(repr, choices))}")
        if not 0 <= self.withheld_share < 1:
            raise TaskError(f"withheld_share={self.withheld_share} must be a share from 0 up to, not including, 1")
        for name in ("n_train", "n_test"):
            if getattr(self, name) < 1:
                raise TaskError(f"{name}={getattr(self, name)} leaves a split without strings: give at least 1")

    @property
    def name(self) -> str:
        """`dyck`, with k and D, and whose shapes are held out."""
        return f"dyck ({self.types}, {self.depth}), shapes held out by {self.held_out}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token: `(a` opens, `a)` closes."""
        kinds = ascii_lowercase[: self.types]
        return ("pad", "start", "end", *(f"({kind}" for kind in kinds), *(f"{kind})" for kind in kinds))

    @property
    def d_vocab(self) -> int:
        """Padding, start and end, and the brackets."""
        return _FIRST + 2 * self.types

    @property
    def n_ctx(self) -> int:
        """The start and the longest string."""
        return self.max_length + 1

    @property
    def splits(self) -> tuple[str, ...]:
        """Trained on; new strings of trained shapes; strings with a shape never trained."""
        return ("train", "id", "ood")

    def strings(self, split: str) -> Strings:
        """All strings of a split, drawn when they are first asked for; TaskError where too few are found."""
        check_split(split, self.splits, name=self.name)
        return draw_corpora(**asdict(self))[split]

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` strings of the split, with replacement, in rows as long as the longest of the split.

        Roles: masks `open` and `close`, the brackets that are read; `opener` [n, pos], where a closing bracket comes
        next: the position of the bracket that it closes, elsewhere the position itself.
        """
        check_split(split, self.splits, name=self.name)
        check_number(n)
        strings = self.strings(split)
        rows = torch.randint(len(strings), (n,), generator=derive_generator(seed, "dyck", split))
        return self.write(strings.take(rows), longest=int(strings.lengths.max()))

    def write(self, strings: Strings, *, longest: int | None = None) -> Batch:
        """The batch of these strings, once each, in rows for the `longest`: `sample` says which roles it has."""
        n, longest = len(strings), longest or int(strings.lengths.max())
        words = strings.pad(-_FIRST, width=longest) + _FIRST  # so that padding is 0
        border = torch.zeros((n, 1), dtype=torch.long)
        tokens = torch.cat([border + _START, words], dim=1)
        targets = torch.cat([words, border], dim=1).scatter(1, strings.lengths[:, None], _END)
        first_close = _FIRST + self.types
        closes = targets >= first_close
        steps = (words >= _FIRST).long() - 2 * (words >= first_close).long()
        opened = torch.cat([find_openers(steps) + 1, border], dim=1)  # behind the start
        return Batch(
            tokens=tokens,
            targets=targets,
            trained=torch.arange(longest + 1) <= strings.lengths[:, None],
            scored=closes,
            roles={
                "open": (tokens >= _FIRST) & (tokens < first_close),
                "close": tokens >= first_close,
                "opener": torch.where(closes, opened, torch.arange(longest + 1)),
            },
        )

    def read_answers(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> ClosingAnswers:
        """Every closing bracket of the batch, with its distance and whether the model has it right, on the CPU."""
        string, position = batch.scored.cpu().nonzero(as_tuple=True)
        return ClosingAnswers(
            string=string,
            distance=position + 1 - batch.roles["opener"].cpu()[string, position],
            right=self._find_right(logits, batch).cpu()[string, position],
        )

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`closing_accuracy`, the share of each string's closing brackets that are right; chance is 1 / k."""
        scored = batch.scored.to(logits.device)
        right = self._find_right(logits, batch) & scored
        return {"closing_accuracy": right.sum(-1) / scored.sum(-1)}

    def _find_right(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Bool[Tensor, "batch pos"]:
        """Where the best of the closing brackets is the target."""
        first_close = _FIRST + self.types
        best = logits[..., first_close : first_close + self.types].argmax(-1) + first_close
        return best == batch.targets.to(logits.device)
