"""Which heads compose? Every pair of a writing head and a later reading head, from the weights alone.

Three scores a pair, none of which forms a d_model x d_model matrix: the diagonal score Z (Song, Xu & Zhong 2024,
arXiv:2408.09503; does the reader look for what the writer was given?), the composition score (Elhage et al. 2021; how
much of what is written is read?) and the subspace match (do they meet in the same directions?). Only a head in an earlier
layer can feed a later one, so only those pairs are ranked; their mirrors, the same heads with the roles exchanged, are
the null from the model's own heads (`interp.circuits.nulls`).

Layers are read one writer at a time against a few readers: memory doesn't grow with the number of pairs, but for one number
a pair, and for each layer the small parts of its factors (triangles and `rank` directions a head).

>>> import interp
>>> model = interp.build(n_layers=3, d_model=32, n_heads=4, d_vocab=20, n_ctx=8, attn_only=True)
>>> scores = score_pairs(model, keep=5)
>>> scores.n_pairs, len(scores.null), len(scores.to_frame())
(48, 48, 5)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.composition import (
    Circuit,
    Kind,
    Summary,
    measure_norms,
    multiply,
    normalise,
    reading_circuit,
    writing_circuit,
)
from interp.circuits.diagonal import standardise
from interp.circuits.factors import Distance, Fold, read_factors
from interp.circuits.pair_result import By, PairScores
from interp.circuits.subspaces import Match, match_bases, top_directions
from interp.errors import InputError
from interp.interventions.select import choose_layers
from interp.models.provenance import get_provenance

Null = Literal["mirror", "none"]
Include = Literal["causal", "all"]

_READER_BYTES = 2**28
"""Factors of readers that are held at once; each writer is read anew for every such block."""
_UNSORTED = 2**16
"""Pairs that are collected beyond `keep` before the weakest are dropped."""


@torch.no_grad()
def score_pairs(
    model: Any,
    *,
    kind: Kind = "K",
    by: By = "diagonal",
    layers: Sequence[int] | None = None,
    distance: Distance = "none",
    rank: int | None = None,
    score: Match = "largest",
    fold: Fold = "norms",
    null: Null = "mirror",
    include: Include = "causal",
    keep: int | None = None,
) -> PairScores:
    """Score all pairs of heads of `layers` (all layers), the writer's layer before the reader's.

    `by` ranks the pairs, and its null is measured. `rank` directions are matched, 10 or d_head where that is less.
    `null="mirror"` scores the mirrored pairs too, which doubles the time. `include="all"` lists pairs of one layer and
    mirrored pairs as well, marked as what they are, without p- and q-values. `keep` keeps the rows of so many pairs
    instead of all. `distance` turns keys to a distance, `fold="none"` takes the stored weights, as the reference does.
    Raises `InputError` for fewer than two layers, a rank above d_head, a distance without rotary positions, unknown words.
    """
    chosen = choose_layers(model, layers)
    for name, given, known in (("by", by, By), ("null", null, Null), ("include", include, Include)):
        if given not in get_args(known):
            raise InputError(f"{name}={given!r} isn't known; use one of {', '.join(get_args(known))}.")
    if len(chosen) < 2:
        raise InputError(
            f"A pair needs a writer in an earlier layer than its reader, but only layer {chosen[0]} is there."
        )
    if keep is not None and keep < 1:
        raise InputError(f"keep={keep} keeps no pair; give at least 1, or leave it out to keep all.")
    first = read_factors(model, chosen[0], fold=fold)
    rank = min(10, *first.W_Q.shape[1:]) if rank is None else rank
    n_readers = max(1, _READER_BYTES // (2 * first.W_Q.numel() * first.W_Q.element_size()))
    read_writer = _Writers(model, rank=rank, fold=fold)
    rows = _Rows(by=by, keep=keep)
    layer_pairs: list[tuple[int, int]] = []
    values: list[np.ndarray] = []
    for start in range(0, len(chosen), n_readers):
        readers = [
            (layer, _read_reader(model, layer, kind=kind, distance=distance, rank=rank, fold=fold))
            for layer in chosen[start : start + n_readers]
        ]
        for writer_layer in chosen:
            facing = [
                (layer, reader)
                for layer, reader in readers
                if writer_layer < layer or include == "all" or (null == "mirror" and writer_layer > layer)
            ]
            if not facing:
                continue
            writer = read_writer(writer_layer)
            for layer, reader in facing:
                listed = writer_layer < layer or include == "all"
                scores = _score(reader, writer, wanted=get_args(By) if listed else (by,), match=score)
                layer_pairs.append((writer_layer, layer))
                values.append(scores[by])
                if listed:
                    rows.add(writer_layer, layer, scores)
    heads, kept = rows.finish()
    return PairScores(
        kind=kind,
        by=by,
        distance=distance,
        fold=fold,
        score=score,
        rank=rank,
        d_model=first.d_model,
        d_head=first.d_head,
        layer_pairs=np.array(layer_pairs),
        values=np.stack(values),
        heads=heads,
        provenance=get_provenance(model),
        **kept,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Side:
    """What a layer's heads bring to a pair."""

    circuit: Circuit
    norms: Float[Tensor, "head"]
    directions: Float[Tensor, "head d_model rank"]


def _read_reader(model: Any, layer: int, *, kind: Kind, distance: Distance, rank: int, fold: Fold) -> _Side:
    circuit = reading_circuit(read_factors(model, layer, fold=fold), kind=kind, distance=distance)
    return _Side(circuit=circuit, norms=measure_norms(circuit), directions=top_directions(circuit, rank=rank))


class _Writers:
    """Writers by layer: the factors are read anew each time, what is small and costly is kept."""

    def __init__(self, model: Any, *, rank: int, fold: Fold) -> None:
        self.model, self.rank, self.fold = model, rank, fold
        self.known: dict[int, tuple[Summary, Tensor, Tensor]] = {}

    def __call__(self, layer: int) -> _Side:
        factors = read_factors(self.model, layer, fold=self.fold)
        if layer not in self.known:
            circuit = writing_circuit(factors)
            self.known[layer] = circuit.summary, measure_norms(circuit), top_directions(circuit, rank=self.rank)
        summary, norms, directions = self.known[layer]
        return _Side(circuit=writing_circuit(factors, summary=summary), norms=norms, directions=directions)


def _score(reader: _Side, writer: _Side, *, wanted: Sequence[By], match: Match) -> dict[By, np.ndarray]:
    """The wanted scores of every pair of heads of two layers, [reader head, writer head]."""
    found: dict[By, Tensor] = {}
    if "match" in wanted:
        found["match"] = match_bases(reader.directions, writer.directions, score=match)
    if "composition" in wanted or "diagonal" in wanted:
        reading, writing = reader.circuit, writer.circuit
        products = multiply(reading, writing, wanted="all" if "diagonal" in wanted else "norms")
        found["composition"] = normalise(products, reader.norms, writer.norms)
        if "diagonal" in wanted:
            d_model, dtype = reading.inner.shape[-1], reading.inner.dtype
            found["diagonal"] = standardise(products, d_model=d_model, dtype=dtype)
    return {name: scores.float().cpu().numpy() for name, scores in found.items()}


class _Rows:
    """Scores of pairs as they come, the strongest `keep` of them, or all."""

    def __init__(self, *, by: By, keep: int | None) -> None:
        self.by, self.keep = by, keep
        self.heads: list[np.ndarray] = []
        self.scores: dict[By, list[np.ndarray]] = {name: [] for name in get_args(By)}
        self.n_new = 0

    def add(self, writer_layer: int, reader_layer: int, scores: dict[By, np.ndarray]) -> None:
        shape = scores[self.by].shape
        reader, writer = np.indices(shape, dtype=np.int32).reshape(2, -1)
        layers = np.full((2, reader.size), [[writer_layer], [reader_layer]], dtype=np.int32)
        self.heads.append(np.stack([layers[0], writer, layers[1], reader], axis=1))
        for name, found in scores.items():
            self.scores[name].append(found.ravel())
        self.n_new += reader.size
        if self.keep is not None and self.n_new > _UNSORTED:
            self.finish()

    def finish(self) -> tuple[np.ndarray, dict[By, np.ndarray]]:
        """Heads and scores, strongest first; the others are forgotten."""
        heads = np.concatenate(self.heads)
        scores = {name: np.concatenate(parts) for name, parts in self.scores.items()}
        order = np.argsort(-scores[self.by], kind="stable")[: self.keep]
        heads, scores = heads[order], {name: values[order] for name, values in scores.items()}
        self.heads, self.n_new = [heads], 0
        self.scores = {name: [values] for name, values in scores.items()}
        return heads, scores
