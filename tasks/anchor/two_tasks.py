"""Memory and reasoning in one data set: which of the two is learnt first?

    reasoning   a_1, a_2 in 11..20     z, a_1, a_2 -> z + a_1 + a_2
    memory      a_1, a_2 in 1..10      z, a_1, a_2 -> a random label, drawn once for each (z, a_1, a_2)

Yao, Zhang & Xu, arXiv 2502.04375: nine tokens, keys and noise from 21 to 120, the reasoning pairs (11, 13) and
(13, 11) never trained, 200,000 sequences. Small initialisations learn reasoning well before memory; large ones learn
both together and fail on the unseen pairs. Ours where the source is silent: labels are keys, half of the sequences
are of each task, the key may stand wherever its anchors have room, and there is no key split.

>>> task = TwoTasks()
>>> batch = task.sample(100, split="held_out", seed=0)
>>> bool((batch.targets[:, -1:] == batch.tokens.gather(1, batch.roles["key"]) + 24).all())
True
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.anchor.checks import check_keys, check_pairs, check_size, check_targets
from tasks.anchor.functions import Pair
from tasks.anchor.sequences import assemble, draw_noise, is_right
from tasks.checks import check_number, check_split
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoTasks:
    """Memory anchors with random labels and reasoning anchors with sums; the defaults are the published setting."""

    n_anchors: int = 10
    """Anchors of each task: 1 to n for memory, n + 1 to 2 n for reasoning."""
    held_out: Sequence[Pair] = ((11, 13), (13, 11))
    """Reasoning pairs that are never trained."""
    memory_share: float = 0.5
    """Share of the training sequences that are memory."""
    n_sequences: int | None = None
    """Size of a training set drawn once, from which batches take with replacement; None draws afresh every time."""
    data_seed: int = 0
    """Which labels and which training set."""
    n_ctx: int = 9
    """Length of every sequence."""
    d_vocab: int = 161
    """Number of tokens."""
    first_key: int = 21
    """Smallest key, noise token and label."""
    last_key: int = 120
    """Largest key, noise token and label."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", tuple(self.held_out))
        if self.n_anchors < 1:
            raise TaskError(f"n_anchors={self.n_anchors} leaves no anchor: give at least 1")
        if not 0 <= self.memory_share <= 1:
            raise TaskError(f"memory_share={self.memory_share} is no share: give a number from 0 to 1")
        if self.n_ctx < 3:
            raise TaskError(f"n_ctx={self.n_ctx} is too short for a key and 2 anchors: give at least 3")
        check_size(self.n_sequences)
        anchors = range(1, 2 * self.n_anchors + 1)
        check_keys(self.first_key, self.last_key, anchors=anchors, d_vocab=self.d_vocab)
        check_pairs(self.reasoning_pairs, altered={}, held_out=self.held_out, weights={})
        largest = self.reasoning_pairs[-1]
        check_targets([self.last_key], largest, [self.last_key + sum(largest)], d_vocab=self.d_vocab)

    @property
    def name(self) -> str:
        """`memory and reasoning`, with the size of the training set where there is one."""
        fixed = f", {self.n_sequences} sequences" if self.n_sequences is not None else ""
        return f"memory and reasoning{fixed}"

    @property
    def splits(self) -> tuple[str, ...]:
        """The mixture, the memory part, the trained reasoning pairs, and the reasoning pairs never trained."""
        return ("train", "memory", "reasoning", *(["held_out"] if self.held_out else []))

    @property
    def keys(self) -> range:
        """All keys, which are also the noise and the labels."""
        return range(self.first_key, self.last_key + 1)

    @property
    def reasoning_pairs(self) -> tuple[Pair, ...]:
        """Every pair of reasoning anchors, trained or not."""
        anchors = range(self.n_anchors + 1, 2 * self.n_anchors + 1)
        return tuple((first, second) for first in anchors for second in anchors)

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sequences; roles `key`, `anchor_1`, `anchor_2` and `last` are [n, 1], `noise` is a mask.

        `memory` and `reasoning` draw afresh also where the training set is fixed: the same labels, other noise.
        """
        check_split(split, self.splits, name=self.name)
        check_number(n)
        generator = derive_generator(seed, "two tasks", split)
        if split == "train" and self.n_sequences is not None:
            return _draw_training_set(self).take(torch.randint(self.n_sequences, (n,), generator=generator))
        return _draw(self, n, split, generator)

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`accuracy`: whether the most likely token behind the last position is the target, for each sequence."""
        return {"accuracy": is_right(logits, batch)}


def _draw(task: TwoTasks, n: int, split: str, generator: torch.Generator) -> Batch:
    memory_share = {"memory": 1.0, "train": task.memory_share}.get(split, 0.0)
    memory = torch.rand(n, dtype=torch.float64, generator=generator) < memory_share
    held_out = [pair for pair in task.reasoning_pairs if pair in task.held_out]
    trained = [pair for pair in task.reasoning_pairs if pair not in task.held_out]
    pairs = torch.tensor(held_out if split == "held_out" else trained)
    reasoning_pair = pairs[torch.randint(len(pairs), (n,), generator=generator)]
    memory_pair = torch.randint(1, task.n_anchors + 1, (n, 2), generator=generator)
    first, second = torch.where(memory[:, None], memory_pair, reasoning_pair).unbind(1)
    key = torch.randint(task.first_key, task.last_key + 1, (n,), generator=generator)
    position = torch.randint(task.n_ctx - 2, (n,), generator=generator)
    # Reasoning rows look up a label too, which isn't used.
    row, column = (first - 1) % task.n_anchors, (second - 1) % task.n_anchors
    label = _draw_labels(task)[key - task.first_key, row, column]
    items = {"key": (position, key), "anchor_1": (position + 1, first), "anchor_2": (position + 2, second)}
    background = draw_noise(n, task.n_ctx, task.keys, generator)
    return assemble(background, items, target=torch.where(memory, label, key + first + second))


@lru_cache(maxsize=4)
def _draw_training_set(task: TwoTasks) -> Batch:
    assert task.n_sequences is not None
    return _draw(task, task.n_sequences, "train", derive_generator(task.data_seed, "two tasks", "training set"))


@lru_cache(maxsize=8)
def _draw_labels(task: TwoTasks) -> Int[Tensor, "key anchor anchor"]:
    shape = (len(task.keys), task.n_anchors, task.n_anchors)
    generator = derive_generator(task.data_seed, "two tasks", "labels")
    return torch.randint(task.first_key, task.last_key + 1, shape, generator=generator)
