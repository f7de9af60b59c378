"""The composite task: a key, two anchors behind it, noise around them; what comes of the key?

    ... noise  x  a_1  a_2  noise ...   ->   f(x; a_1, a_2) = g(g(x; a_1); a_2)

ArXiv 2405.05409 and 2501.08537: x + s(a_1) + s(a_2) with s = +5, +1, -2, -8. Three rules fit what is trained on:
four maps put together (reasoning), ten unordered pairs (symmetric), each sequence by itself (memorising). A design
(`tasks.anchor.designs`) trains some pairs on another answer, or leaves them out, so that the rules differ there.

Splits: `train`; `id`, trained pairs with keys kept for the test; `held_out`, the pairs never trained; `altered`, the
pairs trained on another answer. On `held_out` the target is the composition.

At the last key position the last token is an anchor. Measure on `task.with_last_free()`, where `last` is always noise.

>>> task = Composite(altered={(3, 4): -6}, held_out=[(4, 3)])
>>> task.target(50, (1, 2)), task.target(50, (3, 4)), task.target(50, (4, 3))
(56, 44, 40)
>>> batch = task.sample(256, split="held_out", seed=0)
>>> batch.tokens.shape, set(read_role(batch, "anchor_1").tolist()), sorted(batch.roles)
(torch.Size([256, 9]), {4}, ['anchor_1', 'anchor_2', 'key', 'last', 'noise'])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.anchor.checks import check_keys, check_pairs, check_places, check_size, check_targets, spell
from tasks.anchor.functions import PAPER_FUNCTION, AnchorFunction, Pair
from tasks.anchor.sequences import assemble, draw_noise, predict, read_role
from tasks.anchor.splits import KeyPlaces, Keys, check_modulus
from tasks.anchor.tables import PairTables
from tasks.checks import check_number, check_split
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

Rule = Literal["data", "reasoning", "symmetric"]
"""What is trained on, the composition of the maps, what is trained on for the same anchors in the other order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Composite:
    """Anchors beside a key; fields that map pairs take a dictionary and keep it as sorted items."""

    function: AnchorFunction = PAPER_FUNCTION
    """What each anchor does."""
    altered: Mapping[Pair, int] | tuple[tuple[Pair, int], ...] = ()
    """Pairs trained on another answer, each with its shift from the key."""
    held_out: Sequence[Pair] = ()
    """Pairs that are never trained."""
    weights: Mapping[Pair, float] | tuple[tuple[Pair, float], ...] = ()
    """How often a pair is trained on, relative to the others; 1 where it isn't named."""
    n_sequences: int | None = None
    """Size of a training set drawn once, from which batches take with replacement; None draws afresh every time."""
    data_seed: int = 0
    """Which training set."""
    modulus: int | None = 9
    """A key is kept for the test where key = position (mod modulus); None trains on all keys and has no `id` split."""
    held_out_keys: Keys = "train"
    """Keys of the `held_out` split: those trained on, as in the published code, or those kept for the test."""
    n_ctx: int = 9
    """Length of every sequence."""
    d_vocab: int = 120
    """Number of tokens; the papers have 201, and no id beyond 109 occurs."""
    first_key: int = 20
    """Smallest key and noise token."""
    last_key: int = 99
    """Largest key and noise token."""
    key_positions: Sequence[int] = ()
    """Where the key may stand, each place equally likely; empty for all that leave room for the anchors."""
    key_offset: int = -1
    """The key's place counted from the first anchor: -1 just before it, 2 just behind two anchors, or farther away."""
    group_size: int = 2
    """Anchors in a row; where it isn't 2, read "pair" as so many anchors."""
    title: str = "composite"
    """How the name in records begins."""

    def __post_init__(self) -> None:
        behind = max(self.group_size - 1 - self.key_offset, 0)
        fits = range(max(self.key_offset, 0), self.n_ctx - behind)
        tidy = {
            "altered": tuple(sorted(dict(self.altered).items())),
            "held_out": tuple(sorted(set(self.held_out))),
            "weights": tuple(sorted(dict(self.weights).items())),
            "key_positions": tuple(self.key_positions or fits),
        }
        for field, value in tidy.items():
            object.__setattr__(self, field, value)
        self._check(fits)

    @property
    def name(self) -> str:
        """The title, then what the design changes."""
        parts = [self.title]
        parts += [f"{spell([pair for pair, _ in self.altered])} altered"] if self.altered else []
        parts += [f"{spell(self.held_out)} held out"] if self.held_out else []
        parts += [f"{self.n_sequences} sequences"] if self.n_sequences is not None else []
        return ", ".join(parts)

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`, and those of `id`, `held_out` and `altered` that the design has."""
        there = {"id": self.modulus is not None, "held_out": bool(self.held_out), "altered": bool(self.altered)}
        return ("train", *(split for split, is_there in there.items() if is_there))

    @property
    def keys(self) -> range:
        """All keys, which are also the noise."""
        return range(self.first_key, self.last_key + 1)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair of anchors, trained or not."""
        return self.function.pairs(self.group_size)

    @property
    def trained_pairs(self) -> dict[Pair, float]:
        """The pairs that are trained on, each with its share of the training sequences."""
        weight = {pair: 1.0 for pair in self.pairs} | dict(self.weights) | dict.fromkeys(self.held_out, 0.0)
        total = sum(weight.values())
        return {pair: weight[pair] / total for pair in self.pairs if weight[pair] > 0}

    @property
    def shifts(self) -> dict[Pair, int]:
        """target - key of each pair, for those where it is the same for all keys; a held-out pair by composition."""
        shift = _tabulate(self).answers - torch.tensor(self.keys)
        same = (shift == shift[:, :1]).all(1).tolist()
        return {pair: by for pair, by, is_shift in zip(self.pairs, shift[:, 0].tolist(), same, strict=True) if is_shift}

    def target(self, key: int, pair: Pair, *, rule: Rule = "data") -> int:
        """The right answer for a key and a pair, in the data or by a rule."""
        if rule not in get_args(Rule):
            raise TaskError(f"rule={rule!r} is unknown: give one of {', '.join(get_args(Rule))}")
        if rule == "symmetric":
            return self.target(key, pair[::-1])
        shift = dict(self.altered).get(pair) if rule == "data" else None
        return self.function(key, pair) if shift is None else key + shift

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` sequences; roles `key`, `anchor_1`, `anchor_2`, ... and `last` are [n, 1], `noise` is a mask."""
        check_split(split, self.splits, name=self.name)
        if split == "held_out":
            return self.sample_pairs(n, pairs=self.held_out, keys=self.held_out_keys, seed=seed)
        if split == "altered":
            return self.sample_pairs(n, pairs=[pair for pair, _ in self.altered], seed=seed)
        check_number(n)
        generator = derive_generator(seed, "anchor", split)
        if split == "train" and self.n_sequences is not None:
            return _draw_training_set(self).take(torch.randint(self.n_sequences, (n,), generator=generator))
        pair = _tabulate(self).draw(torch.rand(n, dtype=torch.float64, generator=generator))
        return self._draw(pair, "test" if split == "id" else "train", generator)

    def sample_pairs(self, n: int, *, pairs: Sequence[Pair], keys: Keys = "train", seed: int) -> Batch:
        """`n` sequences that go through `pairs` in turn, trained or not, with keys of the training or of the test.

        One seed gives the same keys, positions and noise whatever the pairs.
        """
        check_number(n)
        unknown = [pair for pair in pairs if pair not in self.pairs]
        if unknown or not pairs:
            raise TaskError(f"pairs={list(pairs)} names no pairs of the anchors: give some of task.pairs, as (1, 2)")
        generator = derive_generator(seed, "anchor", "pairs", keys)
        turn = torch.tensor([self.pairs.index(pair) for pair in pairs])
        return self._draw(turn[torch.arange(n) % len(turn)], keys, generator)

    def swap(self, batch: Batch) -> Batch:
        """The same sequences with their anchors in reverse order, and the targets of that."""
        tables = _tabulate(self)
        key, position = read_role(batch, "key"), batch.roles["key"][:, 0]
        return self._assemble(batch.tokens, key, position, tables.swap(tables.find(batch)))

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`accuracy` against the target; with held-out pairs also who follows which rule, one value per sequence.

        `reasoning`: the prediction is the composition. `symmetric`: it is the answer to the anchors in the other order;
        left out where that is the same on all held-out pairs. `other`: none of these. Seen pairs may follow all at once.
        """
        tables, prediction = _tabulate(self), predict(logits, batch)
        scores = {"accuracy": prediction == batch.targets[:, -1]}
        if self.held_out:
            pair, key = tables.find(batch), read_role(batch, "key") - self.first_key
            scores["reasoning"] = prediction == tables.composed[pair, key]
            if self._symmetry_shows():
                scores["symmetric"] = prediction == tables.answers[tables.swap(pair), key]
            scores["other"] = ~torch.stack(list(scores.values())).any(0)
        return {name: values.float() for name, values in scores.items()}

    def count_items(self, split: str) -> int:
        """How many different (pair, key, position) a split can hold."""
        check_split(split, self.splits, name=self.name)
        part = "test" if split == "id" else self.held_out_keys if split == "held_out" else "train"
        n_pairs = {"held_out": len(self.held_out), "altered": len(self.altered)}.get(split, len(self.trained_pairs))
        return n_pairs * int(_list_places(self, part).table.counts.sum())

    def with_last_free(self) -> "Composite":
        """This task without the key positions at which the last token is the key or an anchor."""
        behind = max(self.group_size - 1 - self.key_offset, 0)
        free = tuple(p for p in self.key_positions if p + behind < self.n_ctx - 1)
        if not free:
            raise TaskError(f"key positions {self.key_positions} all put an item last: give a longer n_ctx")
        return replace(self, key_positions=free)

    def _check(self, fits: range) -> None:
        check_keys(self.first_key, self.last_key, anchors=self.function.anchors, d_vocab=self.d_vocab)
        check_places(
            self.n_ctx,
            fits=fits,
            positions=self.key_positions,
            group_size=self.group_size,
            key_offset=self.key_offset,
        )
        check_pairs(self.pairs, altered=dict(self.altered), held_out=self.held_out, weights=dict(self.weights))
        check_modulus(self.modulus, keys=self.keys, positions=self.key_positions)
        for pair, targets in zip(self.pairs, _tabulate(self).answers.tolist(), strict=True):
            check_targets(self.keys, pair, targets, d_vocab=self.d_vocab)
        if self.held_out_keys not in get_args(Keys):
            raise TaskError(f"held_out_keys={self.held_out_keys!r} is unknown: give 'train' or 'test'")
        if self.held_out_keys == "test" and self.modulus is None:
            raise TaskError("held_out_keys='test' needs keys that are kept for the test: give a modulus")
        check_size(self.n_sequences)

    def _symmetry_shows(self) -> bool:
        """Whether a held-out pair has another answer than the same anchors in the other order."""
        tables, held_out = _tabulate(self), torch.tensor([self.pairs.index(pair) for pair in self.held_out])
        return not torch.equal(tables.answers[held_out], tables.answers[tables.swap(held_out)])

    def _draw(self, pair: Int[Tensor, " batch"], part: Keys, generator: torch.Generator) -> Batch:
        """Sequences of these pairs, by their numbers, with keys, positions and noise drawn."""
        key, position = _list_places(self, part).draw(len(pair), generator)
        return self._assemble(draw_noise(len(pair), self.n_ctx, self.keys, generator), key, position, pair)

    def _assemble(
        self,
        background: Int[Tensor, "batch pos"],
        key: Int[Tensor, " batch"],
        position: Int[Tensor, " batch"],
        pair: Int[Tensor, " batch"],
    ) -> Batch:
        tables = _tabulate(self)
        items = {"key": (position, key)}
        for i, token in enumerate(tables.anchors[pair].unbind(1)):
            items[f"anchor_{i + 1}"] = (position - self.key_offset + i, token)
        return assemble(background, items, target=tables.answers[pair, key - self.first_key])


@lru_cache(maxsize=64)
def _tabulate(task: Composite) -> PairTables:
    composed = {pair: [task.function(key, pair) for key in task.keys] for pair in task.pairs}
    altered = {pair: [key + shift for key in task.keys] for pair, shift in dict(task.altered).items()}
    return PairTables.from_lists(
        task.pairs,
        answers=list((composed | altered).values()),
        composed=list(composed.values()),
        shares=list(({pair: 0.0 for pair in task.pairs} | task.trained_pairs).values()),
    )


@lru_cache(maxsize=64)
def _list_places(task: Composite, part: Keys) -> KeyPlaces:
    return KeyPlaces.from_split(task.keys, task.key_positions, modulus=task.modulus, part=part)


@lru_cache(maxsize=4)
def _draw_training_set(task: Composite) -> Batch:
    """The fixed set: each pair's number of sequences is its share to within one, as the papers' equal amounts are."""
    assert task.n_sequences is not None
    places = (torch.arange(task.n_sequences, dtype=torch.float64) + 0.5) / task.n_sequences
    return task._draw(_tabulate(task).draw(places), "train", derive_generator(task.data_seed, "anchor", "training set"))
