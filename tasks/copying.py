"""Copying a repeated segment, in and out of distribution (Song, Xu, Zhong, arXiv 2408.09503); repeated random tokens.

A sequence of `n_ctx` background tokens drawn from p holds one segment of L tokens twice, at s1 and at s2 >= s1 + L + 1:

    in distribution ("train", "id")   p_i ~ 1 / (i + 2.7),  L uniform in 10..19
    out of distribution ("ood")       p uniform,            L = 25, longer than any segment trained on

Only a rule, "look for the previous occurrence and repeat what followed", copies out of distribution. With `pool_size`
the training segments come from a fixed pool, and a small one can be memorised instead.

The error counts wrong argmax predictions at t in [s2 + 4, s2 + L - 1): the first four positions of the second copy
identify the segment, and the last one, s2 + L - 1, is left out since the token after the copy is random. The published
metric counts it; `published_error` gives that one, and a perfect copier that guesses the commonest token there scores
0.047 out of distribution instead of 0, and 0.094 in it (0.087 where all positions are averaged at once, as published).

>>> batch = Copying().sample(3, split="ood", seed=0)
>>> first, second = batch.roles["source_start"], batch.roles["copy_start"]
>>> steps = torch.arange(25)
>>> torch.equal(batch.tokens.gather(1, first + steps), batch.tokens.gather(1, second + steps))
True
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

Distribution = Literal["zipf", "two_level", "uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Copying:
    """The copying task; the defaults are the published setting."""

    d_vocab: int = 64
    """Number of tokens."""
    n_ctx: int = 64
    """Length of every sequence."""
    min_length: int = 10
    """Shortest segment in distribution."""
    max_length: int = 19
    """Longest segment in distribution."""
    ood_length: int = 25
    """Segment length out of distribution."""
    distribution: Distribution = "zipf"
    """Tokens in distribution: 1 / (i + 2.7), or four tokens with 1/8 each and the rest alike, or uniform."""
    pool_size: int | None = None
    """Number of segments there are in distribution, each with its own length; None draws every segment afresh."""
    pool_seed: int = 0
    """Which pool."""
    burn_in: int = 4
    """Positions at the start of the second copy that are not scored."""

    def __post_init__(self) -> None:
        if self.d_vocab < 5:
            raise TaskError(f"d_vocab={self.d_vocab} is too small for copying: give at least 5 tokens")
        if self.distribution not in ("zipf", "two_level", "uniform"):
            raise TaskError(f"distribution={self.distribution!r} is unknown: give 'zipf', 'two_level' or 'uniform'")
        if self.pool_size is not None and self.pool_size < 1:
            raise TaskError(f"pool_size={self.pool_size} leaves no segment: give at least 1, or None for no pool")
        if self.burn_in < 0:
            raise TaskError(f"burn_in={self.burn_in} must not be negative")
        if self.min_length > self.max_length:
            raise TaskError(f"min_length={self.min_length} is above max_length={self.max_length}")
        shortest = min(self.min_length, self.ood_length)
        if shortest < self.burn_in + 2:
            raise TaskError(
                f"a segment of {shortest} tokens has no scored position: with burn_in={self.burn_in} "
                f"give lengths of at least {self.burn_in + 2}"
            )
        longest = max(self.max_length, self.ood_length)
        if self.n_ctx < 2 * longest + 2:
            raise TaskError(
                f"two segments of {longest} tokens, a gap and a token behind them do not fit in n_ctx={self.n_ctx}: "
                f"give n_ctx of at least {2 * longest + 2}"
            )

    @property
    def name(self) -> str:
        """`copying`, with the pool where there is one."""
        return "copying" if self.pool_size is None else f"copying (pool of {self.pool_size})"

    @property
    def splits(self) -> tuple[str, ...]:
        """Trained on, in distribution, out of distribution."""
        return ("train", "id", "ood")

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sequences; roles: `source_start`, `copy_start`, `segment_length` [n, 1], `first_copy`, `second_copy`."""
        if split not in self.splits:
            raise TaskError(f"the copying task has no split {split!r}: give one of {', '.join(self.splits)}")
        if n < 1:
            raise TaskError(f"a batch of {n} sequences cannot be drawn: give at least 1")
        generator = derive_generator(seed, "copying", split)
        p = _probabilities("uniform" if split == "ood" else self.distribution, self.d_vocab)
        background = _draw(p, (n, self.n_ctx), generator)
        if split == "ood":
            lengths = torch.full((n, 1), self.ood_length)
            segments = _draw(p, (n, self.ood_length), generator)
        elif self.pool_size is None:
            lengths = torch.randint(self.min_length, self.max_length + 1, (n, 1), generator=generator)
            segments = _draw(p, (n, self.max_length), generator)
        else:
            pool_segments, pool_lengths = _draw_pool(self)
            chosen = torch.randint(self.pool_size, (n,), generator=generator)
            segments, lengths = pool_segments[chosen], pool_lengths[chosen]
        first, second = _place(lengths, self.n_ctx, generator)
        return self._assemble(background, segments, lengths, first, second)

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`error` and, one position longer, `published_error`: shares of wrong argmax predictions of each sequence."""
        wrong = (logits.argmax(-1) != batch.targets.to(logits.device)).float()
        last = batch.roles["copy_start"] + batch.roles["segment_length"] - 1  # [batch, 1]
        published = batch.scored | (torch.arange(batch.tokens.shape[1]) == last.cpu()).to(batch.scored.device)
        return {
            "error": _masked_mean(wrong, batch.scored.to(logits.device)),
            "published_error": _masked_mean(wrong, published.to(logits.device)),
        }

    def _assemble(
        self,
        background: Int[Tensor, "batch pos"],
        segments: Int[Tensor, "batch longest"],
        lengths: Int[Tensor, "batch 1"],
        first: Int[Tensor, "batch 1"],
        second: Int[Tensor, "batch 1"],
    ) -> Batch:
        position = torch.arange(self.n_ctx)
        tokens, copies = background, []
        for start in (first, second):
            offset = position - start  # [batch, pos]
            inside = (offset >= 0) & (offset < lengths)
            tokens = torch.where(inside, segments.gather(1, offset.clamp(0, segments.shape[1] - 1)), tokens)
            copies.append(inside)
        targets = tokens.roll(-1, dims=1)
        trained = (position < self.n_ctx - 1).expand(tokens.shape)
        scored = (position >= second + self.burn_in) & (position < second + lengths - 1)
        roles = {
            "source_start": first,
            "copy_start": second,
            "segment_length": lengths,
            "first_copy": copies[0],
            "second_copy": copies[1],
        }
        return Batch(tokens=tokens, targets=targets, trained=trained, scored=scored, roles=roles)


def repeated_tokens(
    *,
    n: int,
    segment: int,
    copies: int,
    vocabulary: Int[Tensor, " ids"],
    bos: int | None,
    sequences: Literal["repeated", "unrepeated"] = "repeated",
    generator: torch.Generator,
) -> Int[Tensor, "n pos"]:
    """`n` sequences of one random segment `copies` times, behind a BOS where one is given.

    The ids of a segment are distinct, so that each token has one place to look for: Song et al. draw with replacement,
    which is the same but for one sequence in 160 at 50,000 ids. "unrepeated" is the control: all tokens are distinct,
    so that nothing is there to be copied; a vocabulary too small for that gives segments drawn each for itself.
    """
    if n < 1 or segment < 1 or copies < 1:
        raise TaskError(f"n={n}, segment={segment} and copies={copies} must each be at least 1")
    if sequences not in ("repeated", "unrepeated"):
        raise TaskError(f"sequences={sequences!r} is unknown: give 'repeated' or 'unrepeated'")
    ids = vocabulary.cpu()[vocabulary.cpu() != bos] if bos is not None else vocabulary.cpu()
    if len(ids) < segment:
        raise TaskError(
            f"a segment of {segment} distinct tokens needs as many ids, but there are {len(ids)} to draw from"
        )
    if sequences == "repeated":
        tokens = _draw_distinct(ids, n, segment, generator).repeat(1, copies)
    elif len(ids) >= segment * copies:
        tokens = _draw_distinct(ids, n, segment * copies, generator)
    else:
        tokens = torch.cat([_draw_distinct(ids, n, segment, generator) for _ in range(copies)], dim=1)
    if bos is None:
        return tokens
    return torch.cat([torch.full((n, 1), bos, dtype=tokens.dtype), tokens], dim=1)


def _draw_distinct(ids: Int[Tensor, " ids"], n: int, width: int, generator: torch.Generator) -> Int[Tensor, "n width"]:
    """Rows of `width` different ids, each set and order equally likely."""
    return ids[torch.rand((n, len(ids)), generator=generator).topk(width, dim=1).indices]


def _probabilities(distribution: Distribution, d_vocab: int) -> Float[Tensor, " d_vocab"]:
    if distribution == "uniform":
        weights = torch.ones(d_vocab, dtype=torch.float64)
    elif distribution == "zipf":
        weights = 1 / (torch.arange(1, d_vocab + 1, dtype=torch.float64) + 2.7)
    else:
        weights = torch.full((d_vocab,), 0.5 / (d_vocab - 4), dtype=torch.float64)
        weights[:4] = 1 / 8
    return weights / weights.sum()


def _draw(
    p: Float[Tensor, " d_vocab"], shape: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "rows width"]:
    """Independent tokens from p, by inverting its cumulative distribution."""
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    return torch.searchsorted(p.cumsum(0), uniform, right=True).clamp(max=len(p) - 1)


@lru_cache(maxsize=8)
def _draw_pool(task: Copying) -> tuple[Int[Tensor, "pool longest"], Int[Tensor, "pool 1"]]:
    assert task.pool_size is not None
    generator = derive_generator(task.pool_seed, "copying", "pool")
    lengths = torch.randint(task.min_length, task.max_length + 1, (task.pool_size, 1), generator=generator)
    return _draw(_probabilities(task.distribution, task.d_vocab), (task.pool_size, task.max_length), generator), lengths


def _place(
    lengths: Int[Tensor, "batch 1"], n_ctx: int, generator: torch.Generator
) -> tuple[Int[Tensor, "batch 1"], Int[Tensor, "batch 1"]]:
    """Where the copies start: two distinct gaps g0 < g1 of 0..r-1 with r = n_ctx - 2 L give g0 and g1 + L.

    So there is always a token between the copies and one behind the second.
    """
    room = n_ctx - 2 * lengths
    uniform = torch.rand((2, *lengths.shape), dtype=torch.float64, generator=generator)
    one = (uniform[0] * room).long()
    other = (uniform[1] * (room - 1)).long()
    other = other + (other >= one)
    return torch.minimum(one, other), torch.maximum(one, other) + lengths


def _masked_mean(values: Float[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]) -> Float[Tensor, " batch"]:
    return (values * mask).sum(-1) / mask.sum(-1)
