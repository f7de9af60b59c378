"""How large the weights of a model are, as a whole and by group.

    norm = sqrt(sum_i theta_i^2),   rms = norm / sqrt(number of weights),   norm_per_layer = norm / n_layers

over the parameters that the model uses, each once: an unembedding that equals the embedding is counted there. A fixed table of
positions is no parameter and not counted, since training doesn't change it; an embedding that is scaled on its way into the
stream counts as it is stored.
`norm_per_layer` is the quantity of Murty et al. 2023 (arXiv:2305.18741). Since the norm grows like the root of the
depth, it is largest for shallow models by construction; `rms` compares models of different sizes. (The published
figures also contain the parameters of a decoder that is never used.)

>>> import interp
>>> model = interp.build(n_layers=4, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> norms = measure_norms(model)
>>> norms.norm == 4 * norms.norm_per_layer, list(norms.groups)
(True, ['embedding', 'attention', 'norms', 'unembedding'])
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.provenance import Provenance, get_provenance

_UNREAD = ("pooler.", "nsp_head.")
"""Parameters of an encoder that its logits don't depend on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNorm:
    """The weights of one group."""

    norm: float
    """Root of the sum of squares."""
    n_parameters: int
    """Number of weights."""

    @property
    def rms(self) -> float:
        """Root mean square of a weight."""
        return self.norm / math.sqrt(self.n_parameters)


@dataclass(frozen=True, kw_only=True)
class WeightNorms:
    """Norms of the used weights, as a whole and for `embedding`, `attention`, `mlp`, `norms` and `unembedding`."""

    groups: Mapping[str, GroupNorm]
    """The groups that the model has; biases belong to the part that adds them."""
    n_layers: int
    """Depth of the model."""
    provenance: Provenance
    """The model that was measured."""

    @property
    def norm(self) -> float:
        """Root of the sum of squares of all used weights."""
        return math.hypot(*(group.norm for group in self.groups.values()))

    @property
    def n_parameters(self) -> int:
        """Number of used weights."""
        return sum(group.n_parameters for group in self.groups.values())

    @property
    def rms(self) -> float:
        """Root mean square of a used weight: what models of different sizes are compared by."""
        return self.norm / math.sqrt(self.n_parameters)

    @property
    def norm_per_layer(self) -> float:
        """The published measure, norm / n_layers: largest for shallow models by construction."""
        return self.norm / self.n_layers

    def to_frame(self) -> pd.DataFrame:
        """One row a group, and `all`: norm, rms, n_parameters."""
        rows = [
            {"group": name, "norm": group.norm, "rms": group.rms, "n_parameters": group.n_parameters}
            for name, group in self.groups.items()
        ]
        rows.append({"group": "all", "norm": self.norm, "rms": self.rms, "n_parameters": self.n_parameters})
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {group.norm:.1f}" for name, group in self.groups.items())
        return (
            f"WeightNorms({self.provenance.model}: norm {self.norm:.2f}, rms {self.rms:.4f}, per layer "
            f"{self.norm_per_layer:.2f}; {parts}; n={self.n_parameters:,} weights)"
        )


@torch.no_grad()
def measure_norms(model: Any) -> WeightNorms:
    """Norms of the weights of a HookedTransformer, TransformerBridge or HookedEncoder, computed in float64.

    Of an encoder, the layers that read its sentence vector (pooler, next sentence) are left out: no word's logits use them. A
    HookedTransformer adds biases of zero where the original has none: they change no norm, but count in `rms`.
    """
    squares: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for group, parameter in _used_parameters(model):
        squares[group] = squares.get(group, 0.0) + float(parameter.cpu().double().square().sum())
        sizes[group] = sizes.get(group, 0) + parameter.numel()
    order = [name for name in ("embedding", "attention", "mlp", "norms", "unembedding") if sizes.get(name)]
    return WeightNorms(
        groups={name: GroupNorm(norm=math.sqrt(squares[name]), n_parameters=sizes[name]) for name in order},
        n_layers=model.cfg.n_layers,
        provenance=get_provenance(model),
    )


def _used_parameters(model: Any) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    """Each used parameter once, with its group; what belongs to no other part is a norm."""
    group_of: dict[int, str] = {}
    for group, module in _modules(model):
        for name, parameter in module.named_parameters():
            is_norm = "norm" in name or any(piece.startswith("ln") for piece in name.split("."))
            group_of.setdefault(id(parameter), "norms" if is_norm else group)
    tied = _is_tied(model)
    for name, parameter in model.named_parameters():  # gives a parameter that is shared once
        group = group_of.get(id(parameter), "norms")
        copied = ".qkv." in name  # a bridge keeps the joint matrix beside its three parts
        repeated = tied and group == "unembedding" and parameter.dim() > 1
        if not copied and not repeated and not name.startswith(_UNREAD):
            yield group, parameter


def _modules(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    yield "embedding", model.embed
    if getattr(model, "pos_embed", None) is not None:
        yield "embedding", model.pos_embed
    for block in model.blocks:
        yield "attention", block.attn
        if getattr(block, "mlp", None) is not None:
            yield "mlp", block.mlp
    if getattr(model, "mlm_head", None) is not None:
        yield "unembedding", model.mlm_head
    yield "unembedding", model.unembed


def _is_tied(model: Any) -> bool:
    embedding, unembedding = model.W_E, model.W_U
    return embedding.shape == unembedding.T.shape and torch.equal(embedding, unembedding.T)
