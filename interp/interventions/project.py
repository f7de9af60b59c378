"""Remove a subspace of the residual stream, or keep nothing else, in what chosen heads read or write.

With V an orthonormal basis [d_model, rank] of the subspace, P = V V^T for `keep` and P = I - V V^T for `remove`:

    reads    W_Q <- P W_Q    W_K <- P W_K    W_V <- P W_V    (`qk`: the first two)
    writes   W_O <- W_O P
    activations x <- x P

The biases of a head are no read of the residual stream and stay. Removing what keys and queries share of a subspace is
the test of the common bridge of Song, Xu & Zhong (arXiv 2408.09503). The control is a random basis of the same rank.

>>> import interp, torch
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> basis = torch.eye(8)[:, :3]
>>> with interp.project(model, basis, where="W_K", heads=[(0, 1)]) as projection:
...     bool((model.blocks[0].attn.W_K[1, :3] == 0).all()), projection.rank
(True, 3)
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import add_hooks, lift_hooks
from interp.interventions.select import Head, choose_heads, choose_layers
from interp.models.check import acting_hooks, require_hook
from interp.models.weights import n_key_value_heads
from tasks.seeding import derive_generator

Weight = Literal["W_Q", "W_K", "W_V", "W_O", "qk"]
Activation = Literal["resid_pre", "resid_post", "attn_out", "mlp_out"]
Part = Literal["remove", "keep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """What `project` changed."""

    where: str
    """The weights or the activation."""
    part: Part
    """Whether the subspace was removed, or all but the subspace."""
    rank: int
    """Dimensions of the subspace: directions of the basis that depend on the others don't count."""
    heads: tuple[Head, ...]
    """The heads that were asked for, as (layer, query head); none for an activation."""
    collateral_heads: tuple[Head, ...]
    """Heads that were not asked for, but changed as well since they share keys or values with one that was."""


@contextmanager
def project(
    model: Any,
    basis: Float[Tensor, "_d_model _columns"],
    *,
    where: Weight | Activation,
    part: Part = "remove",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[Head] | None = None,
) -> Iterator[Projection]:
    """Project weights or activations; undone bit for bit when the block ends, also by an exception.

    The columns of `basis` span the subspace and need not be orthonormal. `heads` are query heads of each of `layers`,
    or (layer, head) pairs; an activation belongs to a layer, not to a head. Weights are projected in float64 and
    written in their own precision; what is written to the chosen weights inside the block is lost at its end.

    Raises `InputError` for a basis of the wrong shape, with values that are not finite, of rank 0 or with more columns
    than d_model, for a place or head that doesn't exist, and for weights that this model does not compute with.
    """
    if part not in get_args(Part):
        raise InputError(f"part={part!r} isn't known; use one of {', '.join(get_args(Part))}.")
    if where not in (*get_args(Weight), *get_args(Activation)):
        known = ", ".join((*get_args(Weight), *get_args(Activation)))
        raise InputError(f"where={where!r} isn't known; use one of {known}.")
    span = _orthonormalise(basis, d_model=model.cfg.d_model)
    if where in get_args(Activation):
        if heads is not None:
            raise InputError(f"where={where!r} is an activation of a whole layer; give `layers=` instead of heads.")
        require_hook(model, f"hook_{where}")
        hooks = [(f"blocks.{layer}.hook_{where}", _edit(span, part)) for layer in choose_layers(model, layers)]
        with add_hooks(model, hooks):
            yield Projection(where=where, part=part, rank=span.shape[1], heads=(), collateral_heads=())
        return
    by_layer = choose_heads(model, layers, heads)
    names = ("W_Q", "W_K") if where == "qk" else (where,)
    chosen = {(layer, head) for layer, its_heads in by_layer.items() for head in its_heads}
    touched: set[Head] = set()
    acting_hooks(model)  # kept for the model's lifetime, so it must not be probed first inside the block
    for name in names:
        _require_weights(model, name, layers=list(by_layer))
    with ExitStack() as edits:
        for name in names:
            share = model.cfg.n_heads // n_key_value_heads(model) if name in ("W_K", "W_V") else 1
            for layer, its_heads in by_layer.items():
                rows = sorted({head // share for head in its_heads})
                edits.enter_context(_replaced(_stored_weights(model, layer, name), rows, span, name=name, part=part))
                touched |= {(layer, row * share + other) for row in rows for other in range(share)}
        yield Projection(
            where=where,
            part=part,
            rank=span.shape[1],
            heads=tuple(sorted(chosen)),
            collateral_heads=tuple(sorted(touched - chosen)),
        )


def _orthonormalise(basis: Float[Tensor, "_d_model _columns"], *, d_model: int) -> Float[Tensor, "d_model rank"]:
    """An orthonormal basis of the same span in float64; how long a direction is does not matter."""
    if basis.dim() != 2 or len(basis) != d_model:
        raise InputError(
            f"The basis has shape {list(basis.shape)}, but this model's residual stream has {d_model} dimensions; "
            f"give a matrix [{d_model}, rank] whose columns span the subspace."
        )
    if not basis.is_floating_point():
        raise InputError(f"The basis holds {basis.dtype}; give floating-point directions.")
    if not basis.isfinite().all():
        raise InputError("The basis has values that are not finite; give finite directions.")
    if basis.shape[1] > d_model:
        raise InputError(
            f"The basis has {basis.shape[1]} columns, but no subspace of {d_model} dimensions has a larger rank; "
            f"give at most {d_model}."
        )
    wide = basis.detach().cpu().double()
    lengths = wide.norm(dim=0)
    wide = wide[:, lengths > 0] / lengths[lengths > 0]
    left, strengths, _ = torch.linalg.svd(wide, full_matrices=False)
    rounding = max(basis.shape) * torch.finfo(torch.promote_types(basis.dtype, torch.float32)).eps
    span = left[:, strengths > rounding * strengths.max()] if wide.shape[1] else left
    if span.shape[1] == 0:
        raise InputError("The basis has rank 0, so there is nothing to project on; give a direction that is not zero.")
    return span


def _edit(span: Tensor, part: Part) -> Any:
    def edit(activation: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Tensor:
        wide = activation.to(torch.promote_types(activation.dtype, torch.float32))
        basis = span.to(wide.dtype).to(wide.device)
        inside = (wide @ basis) @ basis.T
        return (inside if part == "keep" else wide - inside).to(activation.dtype)

    return edit


@contextmanager
def _replaced(weights: Tensor, rows: list[int], span: Tensor, *, name: str, part: Part) -> Iterator[None]:
    """The weights of these rows projected in place, and put back."""
    before = weights[rows].clone()
    wide = before.cpu().double()  # [row d_model d_head], W_O: [row d_head d_model]
    inside = (wide @ span) @ span.T if name == "W_O" else span @ (span.T @ wide)
    try:
        weights[rows] = (inside if part == "keep" else wide - inside).to(weights.dtype).to(weights.device)
        yield
    finally:
        weights[rows] = before


def _stored_weights(model: Any, layer: int, name: str) -> Float[Tensor, "stored_head _in _out"]:
    """The parameter itself, one row for each head that is stored: fewer than query heads for shared keys and values."""
    attention = model.blocks[layer].attn
    own = f"_{name}" if hasattr(attention, f"_{name}") else name  # a HookedTransformer expands what is shared
    return getattr(attention, own).detach()


@torch.no_grad()
def _require_weights(model: Any, name: str, *, layers: Sequence[int]) -> None:
    """InputError unless this model computes with the weights that an edit would change."""
    refusal = InputError(
        f"where={name!r} cannot be projected in this {type(model).__name__} of "
        f"{getattr(model.cfg, 'model_name', 'a model')}, which does not compute with weights that can be edited in "
        f"place; project an activation instead: {', '.join(get_args(Activation))}."
    )
    try:
        stored = [_stored_weights(model, layer, name) for layer in layers]
    except (AttributeError, KeyError, RuntimeError, ValueError) as absent:
        raise refusal from absent
    if any(weights.dim() != 3 or not weights.is_floating_point() for weights in stored):
        raise refusal
    if isinstance(model, HookedTransformer):
        return
    # A bridge may show a copy of the Hugging Face model's weights, or keep its own and compute with others: one layer tells.
    weights = stored[0]
    tokens = torch.arange(min(4, model.cfg.n_ctx), device=weights.device)[None] % model.cfg.d_vocab
    before = weights.clone()
    noise = torch.randn(weights.shape, generator=derive_generator(0, "weight probe"))
    with lift_hooks(model):
        plain = model(tokens)
        try:
            weights.add_(noise.to(weights))
            changed = not torch.equal(model(tokens), plain)
        finally:
            weights.copy_(before)
    if not changed:
        raise refusal
