"""The weight matrices of a model by part, layer and head, alike for HookedTransformer, TransformerBridge and HookedEncoder.

Every matrix is oriented as TransformerLens has it, [d_in, d_out], so that a column is what one output neuron reads.
The heads of a layer are one matrix, as in the papers: W_Q is [d_model, n_heads * d_head], W_O [n_heads * d_head, d_model].
Keys and values exist once per key-value head. Embeddings belong to no layer; a fixed table of positions is none of the
weights, since training doesn't change it.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> [(matrix.name, tuple(matrix.weights.shape)) for matrix in find_matrices(model, parts=("W_Q", "W_U"))]
[('0.W_Q', (8, 8)), ('W_U', (8, 5))]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.models.embeddings import SinusoidalPositions
from interp.models.weights import n_key_value_heads

Part = Literal["W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "W_U"]
Heads = Literal["together", "apart"]

_ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
_MLP = ("W_in", "W_gate", "W_out")


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightMatrix:
    """One weight matrix of a model."""

    part: Part
    """Which one, by TransformerLens's name."""
    layer: int | None
    """Its layer; None for embeddings and the unembedding."""
    head: int | None
    """Its head, a key-value head for W_K and W_V; None where the heads of a layer are together."""
    weights: Float[Tensor, "d_in d_out"]
    """[d_in, d_out]: a column is what one output neuron reads."""

    @property
    def name(self) -> str:
        """Such as `W_E`, `0.W_in` or, for head 3, `0.W_Q.3`."""
        place = [self.layer, self.part, self.head]
        return ".".join(str(piece) for piece in place if piece is not None)


def find_matrices(
    model: Any, *, parts: Sequence[Part] | None = None, heads: Heads = "together"
) -> tuple[WeightMatrix, ...]:
    """The matrices of the wanted parts that the model has, layer by layer, embeddings first.

    Raises `InputError` for an unknown part or one that this model doesn't have.
    """
    wanted = get_args(Part) if parts is None else tuple(parts)
    unknown = [part for part in wanted if part not in get_args(Part)]
    if unknown or not wanted:
        raise InputError(f"parts={list(wanted)} names no weights; choose from {', '.join(get_args(Part))}.")
    if heads not in get_args(Heads):
        raise InputError(f"heads={heads!r} isn't known; use {' or '.join(map(repr, get_args(Heads)))}.")
    found: list[WeightMatrix] = []
    for part in ("W_E", "W_pos"):
        if part in wanted:
            found += _as_matrix(part, None, _embedding(model, part))
    for layer in range(model.cfg.n_layers):
        for part in _ATTENTION:
            if part in wanted:
                found += _attention_matrices(model, part, layer, heads)
        mlp = getattr(model.blocks[layer], "mlp", None)
        for part in _MLP:
            if part in wanted:
                found += _as_matrix(part, layer, getattr(mlp, part, None))
    if "W_U" in wanted:
        found += _as_matrix("W_U", None, model.W_U)
    absent = [part for part in wanted if all(matrix.part != part for matrix in found)]
    if parts is not None and absent:
        has = ", ".join(dict.fromkeys(matrix.part for matrix in find_matrices(model)))
        raise InputError(f"This model has no {', '.join(absent)}; it has {has}.")
    return tuple(found)


def _as_matrix(part: Any, layer: int | None, weights: Tensor | None, head: int | None = None) -> list[WeightMatrix]:
    # Mixtures of experts keep several matrices under one name, or none under it.
    if weights is None or weights.dim() != 2:
        return []
    return [WeightMatrix(part=part, layer=layer, head=head, weights=weights.detach())]


def _embedding(model: Any, part: str) -> Tensor | None:
    if part == "W_E":
        return model.W_E
    positions = getattr(model, "pos_embed", None) or getattr(model.embed, "pos_embed", None)  # an encoder's is inside
    if isinstance(positions, SinusoidalPositions):  # a fixed table, which training doesn't change
        return None
    return getattr(positions, "W_pos", None)


def _attention_matrices(model: Any, part: Any, layer: int, heads: Heads) -> list[WeightMatrix]:
    per_head = _per_head(model, part, layer)  # [head, d_model, d_head], W_O [head, d_head, d_model]
    if heads == "apart":
        return [matrix for head, weights in enumerate(per_head) for matrix in _as_matrix(part, layer, weights, head)]
    together = per_head.flatten(0, 1) if part == "W_O" else per_head.movedim(0, 1).flatten(1)
    return _as_matrix(part, layer, together)


def _per_head(model: Any, part: str, layer: int) -> Float[Tensor, "head row column"]:
    weights = getattr(model.blocks[layer].attn, part)
    if part not in ("W_K", "W_V"):
        return weights
    shared = len(weights) // n_key_value_heads(model)  # a HookedTransformer repeats them for every query head
    return weights[::shared]
