"""Lines of text drawn from patterns: each position says which draw decides its word, and from which list of words.

    pattern of `our yak does sleep . quest does our yak sleep ?`

    draw      0    1     2      3                       2      0    1    3
    list      Det  N.sg  Aux.sg V.intr  .  quest       Aux.sg Det  N.sg V.intr  ?

Two positions with the same draw hold the same word, or the same lemma in another form where their lists differ. A batch
is one choice of patterns, one tensor of uniform numbers and two gathers, however many rows it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.language.sequences import PAD, assemble, mask_between
from tasks.task import Batch, TaskError

START, END = "start", "end"
"""The words in front of a line and behind it."""

_ROUNDS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A line but for the choice of its words."""

    draws: tuple[int, ...]
    """The draw that decides the word of each position; any where the list has one word."""
    lists: tuple[str, ...]
    """The list that each position's word is from."""
    roles: Mapping[str, int | tuple[int, int]]
    """Named positions: one, or all from the first up to, not including, the second."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Patterns:
    """Many patterns, as tensors."""

    draws: Int[Tensor, "pattern pos"]
    """The draw of each position."""
    lists: Int[Tensor, "pattern pos"]
    """The list of each position; the last list is the padding."""
    sizes: Int[Tensor, " list"]
    """How many words each list has."""
    words: Int[Tensor, "list word"]
    """The tokens of each list."""
    lengths: Int[Tensor, " pattern"]
    """The length of each pattern's lines."""
    roles: Mapping[str, Int[Tensor, "pattern 1"] | Bool[Tensor, "pattern pos"]]
    """Named positions of each pattern."""

    def draw(self, n: int, *, weights: Float[Tensor, " pattern"], generator: torch.Generator) -> "Lines":
        """`n` lines, each pattern as often as its weight says, words equally likely."""
        pattern = torch.multinomial(weights, n, replacement=True, generator=generator)
        uniform = torch.rand(n, int(self.draws.max()) + 1, generator=generator, dtype=torch.float64)
        lists = self.lists[pattern]
        word = (uniform.gather(1, self.draws[pattern]) * self.sizes[lists]).long()
        return Lines(tokens=self.words[lists, word].short(), pattern=pattern)

    def draw_distinct(
        self, n: int, *, weights: Float[Tensor, " pattern"], generator: torch.Generator, apart_from: Sequence["Lines"]
    ) -> "Lines":
        """`n` lines that differ from each other and from those of `apart_from`, in the order in which they came up.

        Raises:
            TaskError: the patterns with a weight don't have so many lines.
        """
        taken = np.concatenate([np.empty(0, dtype=np.int64), *(lines.keys() for lines in apart_from)])
        drawn: list[Lines] = []
        found = np.empty(0, dtype=np.int64)
        for _ in range(_ROUNDS):
            fresh = self.draw(int(1.3 * (n - len(found))) + 32, weights=weights, generator=generator)
            keys = np.concatenate([found, fresh.keys()])
            first = np.sort(np.unique(keys, return_index=True)[1])
            first = first[~np.isin(keys[first], taken)]
            drawn.append(fresh.take(torch.from_numpy(first[first >= len(found)] - len(found))))
            found = keys[first]
            if len(found) >= n:
                return _concatenate(drawn).take(torch.arange(n))
        raise TaskError(f"only {len(found)} different lines of {n} came up: ask for fewer, or allow more templates")

    def assemble(self, lines: "Lines", *, width: int, scored: str) -> Batch:
        """The batch of these lines in rows of `width`: every word is trained, those of the role `scored` are scored."""
        tokens = lines.tokens[:, :width].long()
        roles = {
            name: role[lines.pattern] if role.shape[1] == 1 else role[lines.pattern, :width]
            for name, role in self.roles.items()
        }
        behind = mask_between(torch.ones(len(lines), 1).long(), self.lengths[lines.pattern, None], width=width)
        every = assemble(tokens, answer=behind, roles=roles)
        return replace(every, scored=assemble(tokens, answer=roles[scored], roles={}).scored)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lines:
    """Lines that were drawn."""

    tokens: Int[Tensor, "line pos"]
    """Padded on the right; 16 bits, since a whole training set is kept."""
    pattern: Int[Tensor, " line"]
    """Which pattern each follows."""

    def __len__(self) -> int:
        return len(self.pattern)

    def take(self, rows: Int[Tensor, " rows"]) -> "Lines":
        """The lines of these rows."""
        return Lines(tokens=self.tokens[rows], pattern=self.pattern[rows])

    def keys(self) -> Int[np.ndarray, " line"]:
        """A hash of each line: equal lines have equal ones."""
        factors = np.random.default_rng(0).integers(1, 2**63, size=self.tokens.shape[1], dtype=np.int64)
        # A product beyond 64 bits wraps around, which is the hash.
        return (self.tokens.numpy().astype(np.int64) * factors).sum(1)


def tabulate(
    patterns: Sequence[Pattern], *, lists: Mapping[str, tuple[str, ...]], vocabulary: Sequence[str]
) -> Patterns:
    """The patterns as tensors, one a row."""
    number, token = {name: i for i, name in enumerate(lists)}, {word: i for i, word in enumerate(vocabulary)}
    width, most = max(len(one.draws) for one in patterns), max(map(len, lists.values()))
    rows = [[token[word] for word in words] for words in lists.values()]
    return Patterns(
        draws=torch.tensor([[*one.draws, *[0] * (width - len(one.draws))] for one in patterns]),
        lists=torch.tensor(
            [[*(number[name] for name in one.lists), *[len(lists)] * (width - len(one.lists))] for one in patterns]
        ),
        sizes=torch.tensor([*map(len, rows), 1]),
        words=torch.tensor([*([*row, *[PAD] * (most - len(row))] for row in rows), [PAD] * most]),
        lengths=torch.tensor([len(one.draws) for one in patterns]),
        roles={
            name: torch.tensor([[one.roles[name]] for one in patterns])
            if isinstance(example, int)
            else _mark(torch.tensor([one.roles[name] for one in patterns]), width=width)
            for name, example in patterns[0].roles.items()
        },
    )


def _mark(between: Int[Tensor, "pattern 2"], *, width: int) -> Bool[Tensor, "pattern pos"]:
    return mask_between(between[:, :1], between[:, 1:], width=width)


def _concatenate(parts: Sequence[Lines]) -> Lines:
    return Lines(tokens=torch.cat([part.tokens for part in parts]), pattern=torch.cat([part.pattern for part in parts]))
