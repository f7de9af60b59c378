"""Does a head raise the token that it reads? The eigenvalues of its OV circuit from token to token.

W_E W_OV W_U (d_vocab x d_vocab) says how reading a token changes the logit of each token. Positive eigenvalues mean that
tokens, or mixtures of tokens, raise themselves (Elhage et al. 2021, A Mathematical Framework for Transformer Circuits,
"Detecting Copying Behavior"). One number a head:

    score = sum(lambda) / sum abs(lambda)        from -1 to 1; the sum is real, since eigenvalues come in conjugate pairs

W_E W_V W_O W_U has the nonzero eigenvalues of the d_head x d_head core W_O T W_V with T = W_U W_E. T is d_model x d_model:
it serves every head of the model, takes one pass over the vocabulary in pieces, and saves each head two products with the
whole vocabulary, 4 d_vocab d_head d_model multiply-adds.

Probabilities don't change when all logits are shifted alike, so W_U is centred over the vocabulary. Without that the mean
embedding and the mean unembedding decide the score of most heads, whatever they do with single tokens.

Norms: with `fold="norms"` W_V and W_O are those of `read_factors`, and W_U has the final norm's gain in front, centred for a
LayerNorm. Their positive scales depend on the data and can't turn a sign. Left out: positions, biases, MLPs (which in many
models rework the embedding before an attention head reads it), and a norm on the embedding.

The control is the same score with the tokens of W_U shuffled: what a head shows that copies into random tokens.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=12, n_ctx=4, attn_only=True)
>>> copying = copying_eigenvalues(model)
>>> copying.eigenvalues.shape, copying.scores.shape
((1, 2, 4), (1, 2))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from interp.circuits.composition import share
from interp.circuits.factors import Fold, read_factors
from interp.errors import InputError
from interp.interventions.select import choose_layers
from interp.models.provenance import Provenance, get_provenance
from interp.models.weights import final_norm_gain, unembedding
from tasks.seeding import derive_generator

if TYPE_CHECKING:
    from interp.figures.style import Picture

_TOKENS_AT_ONCE = 8192


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyingEigenvalues:
    """The nonzero eigenvalues of each head's circuit from token to token, beside those with shuffled tokens."""

    layers: tuple[int, ...]
    """The layer of each entry along the layer axis."""
    eigenvalues: Complex[np.ndarray, "layer head d_head"]
    """Eigenvalues of W_E W_OV W_U, the largest first."""
    control: Complex[np.ndarray, "layer head d_head"]
    """The same with the tokens of W_U in random order."""
    fold: Fold
    """Whether norms were folded into the weights."""
    seed: int
    """Seed of the order."""
    provenance: Provenance
    """The model that was measured."""

    @property
    def scores(self) -> Float[np.ndarray, "layer head"]:
        """sum(lambda) / sum(abs(lambda)): 1 where all that is read raises itself; 0 for a head that is all zero."""
        return _score(self.eigenvalues)

    @property
    def control_scores(self) -> Float[np.ndarray, "layer head"]:
        """`scores` with shuffled tokens."""
        return _score(self.control)

    def to_frame(self) -> pd.DataFrame:
        """One row a head: layer, head, score, control."""
        layer, head = np.meshgrid(self.layers, range(self.eigenvalues.shape[1]), indexing="ij")
        columns = {"layer": layer, "head": head, "score": self.scores, "control": self.control_scores}
        return pd.DataFrame({name: values.ravel() for name, values in columns.items()})

    def figure(self) -> "Picture":
        """Heat map of the positive scores, the five largest outlined."""
        from interp.figures.heads import head_map

        drawn = np.full((max(self.layers) + 1, self.eigenvalues.shape[1]), np.nan)
        drawn[list(self.layers)] = self.scores
        order = np.argsort(-self.scores, axis=None, kind="stable")[:5]
        rows, heads = np.unravel_index(order, self.scores.shape)
        top = [(self.layers[row], int(head)) for row, head in zip(rows, heads, strict=True)]
        return head_map(
            drawn, label="copying eigenvalues, sum / sum of sizes", top=top, title="Copying, from the weights"
        )

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        row, head = np.unravel_index(self.scores.argmax(), self.scores.shape)
        shuffled = self.control_scores
        return (
            f"CopyingEigenvalues({self.provenance.model}: {self.scores.size} heads, largest score {self.layers[row]}.{head} "
            f"{self.scores[row, head]:.2f}, {(self.scores > shuffled.max()).sum()} above every head with shuffled tokens, "
            f"which lie from {shuffled.min():.2f} to {shuffled.max():.2f})"
        )


@torch.no_grad()
def copying_eigenvalues(
    model: Any, *, layers: Sequence[int] | None = None, fold: Fold = "norms", seed: int = 0
) -> CopyingEigenvalues:
    """The copying eigenvalues of every head of `layers` (all layers), and of the control.

    Raises `InputError` for layers that don't exist, and for a model whose logits aren't of the tokens that it reads.
    """
    chosen = choose_layers(model, layers)
    embedding, unembed = model.W_E.detach(), unembedding(model).detach()
    if len(embedding) != unembed.shape[1]:
        raise InputError(
            f"This model reads {len(embedding)} tokens and gives {unembed.shape[1]} logits; copying needs the same tokens."
        )
    order = torch.randperm(len(embedding), generator=derive_generator(seed, "copying_eigenvalues"))
    gain = final_norm_gain(model) if fold == "norms" else None
    centred = fold == "norms" and model.cfg.normalization_type in ("LN", "LNPre")
    own, shuffled = (_join(unembed, embedding, gain, centred, tokens) for tokens in (None, order))
    found = []
    for layer in chosen:
        factors = read_factors(model, layer, fold=fold)
        found.append([_eigenvalues(factors.W_V, factors.W_O, joined) for joined in (own, shuffled)])
    eigenvalues, control = (np.stack(parts) for parts in zip(*found, strict=True))
    return CopyingEigenvalues(
        layers=tuple(chosen),
        eigenvalues=eigenvalues,
        control=control,
        fold=fold,
        seed=seed,
        provenance=get_provenance(model),
    )


def _join(
    unembed: Float[Tensor, "d_model d_vocab"],
    embedding: Float[Tensor, "d_vocab d_model"],
    gain: Float[Tensor, "d_model"] | None,
    centred: bool,
    order: Int[Tensor, "d_vocab"] | None,
) -> Float[Tensor, "d_model d_model"]:
    """W_U W_E in pieces of the vocabulary, W_U centred over tokens; token i of W_E meets token order[i] of W_U."""
    total = torch.zeros(len(unembed), embedding.shape[1], dtype=torch.float64, device=unembed.device)
    tokens = torch.arange(len(embedding)) if order is None else order
    mean = unembed.mean(1, keepdim=True, dtype=torch.float64).float()
    for start in range(0, len(embedding), _TOKENS_AT_ONCE):
        columns = unembed[:, tokens[start : start + _TOKENS_AT_ONCE].to(unembed.device)].float() - mean
        total += columns @ embedding[start : start + _TOKENS_AT_ONCE].float()
    if gain is not None:
        total *= gain.double()[:, None]
    if centred:
        total -= total.mean(0)
    return total.float()


def _eigenvalues(
    values: Float[Tensor, "kv_head d_model d_head"],
    outputs: Float[Tensor, "head d_head d_model"],
    joined: Float[Tensor, "d_model d_model"],
) -> Complex[np.ndarray, "head d_head"]:
    read = joined @ values  # [kv_head, d_model, d_head]
    core = share(outputs.unflatten(0, (len(values), -1)), read[:, None]).flatten(0, 1)
    eigenvalues = torch.linalg.eigvals(core.double().cpu()).numpy()
    order = np.argsort(-np.abs(eigenvalues), axis=-1, kind="stable")
    return np.take_along_axis(eigenvalues, order, axis=-1)


def _score(eigenvalues: Complex[np.ndarray, "layer head d_head"]) -> Float[np.ndarray, "layer head"]:
    sizes = np.abs(eigenvalues).sum(-1)
    return np.divide(eigenvalues.sum(-1).real, sizes, out=np.zeros(sizes.shape), where=sizes > 0)
