"""Project the weights of chosen heads onto a subspace or off it, and give the model its own weights back afterwards.

With V [d_model, r] orthonormal and P = I - V V^T (remove) or V V^T (keep):

    QK side   what the heads' keys read      W_K <- P W_K
    OV side   what the heads write           W_O <- W_O P

P acts on the residual stream where the bridge was found with `fold="norms"`: keys read it through a norm's gain g, so that the
stored weights become diag(1/g) P C diag(g) W_K (C centres, where the norm does), and the norm's bias goes on giving the keys
what it gave them. With `fold="none"`, as published, P acts on the stored weights.

Query heads that share a key-value head are all edited with it. `shared_keys="copied"` gives every query head of the layer a
copy first, and edits those of the chosen heads alone. Weights are not written over: the module gets other parameters for the
time of a block and its own ones afterwards, so that what comes back is what was there, bit for bit.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> before = model.blocks[0].attn.W_K
>>> edit = edit_heads(model, [(0, 1)], {0: torch.eye(8)[:, :3].double()}, side="QK", part="keep", fold="norms")
>>> with swap_weights(model, edit):
...     model.blocks[0].attn.W_K is before
False
>>> model.blocks[0].attn.W_K is before
True
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.circuits.factors import Fold
from interp.circuits.norms import Norm, measure_norm
from interp.circuits.probe import probe_attention
from interp.errors import InputError
from interp.interventions.project import Part
from interp.interventions.select import Head, group_heads
from interp.models.weights import expand_kv

Side = Literal["QK", "OV"]
SharedKeys = Literal["edited", "copied"]
Edit = dict[int, dict[str, Tensor]]
"""The parameters of each layer's attention that are exchanged."""


def require_editable(model: Any, heads: Sequence[Head], *, side: Side, shared_keys: SharedKeys) -> None:
    """InputError unless the heads' weights can be exchanged and the subspace means the same to them."""
    if not isinstance(model, HookedTransformer) or model.cfg.load_in_4bit:
        raise InputError(
            f"The weights of this {type(model).__name__} of {getattr(model.cfg, 'model_name', None) or 'a model'} can't be "
            "exchanged; give a HookedTransformer, or edit one subspace at a time with `interp.project`."
        )
    for layer in group_heads(model, heads):
        norm = getattr(model.blocks[layer].attn, "k_norm", None)
        if side == "QK" and shared_keys == "copied" and norm is not None and norm.w.shape[-1] != model.cfg.d_head:
            raise InputError(
                f"The keys of layer {layer} pass one norm over all heads together, so none can have a copy of its own; "
                "use shared_keys='edited'."
            )
        if side == "OV" and probe_attention(model, layer).norm_after is not None:
            raise InputError(
                f"What the heads of layer {layer} write passes a norm before it reaches the residual stream, so the bridge can't "
                "be projected out of W_O; use side='QK'."
            )


def edit_heads(
    model: Any,
    heads: Sequence[Head],
    bases: Mapping[int, Float[Tensor, "d_model _rank"]],
    *,
    side: Side,
    part: Part,
    fold: Fold,
    shared_keys: SharedKeys = "edited",
) -> Edit:
    """The parameters of the edited model; each layer of `heads` has its own orthonormal basis in float64."""
    edit: Edit = {}
    for layer, chosen in group_heads(model, heads).items():
        if side == "OV":
            edit[layer] = {"W_O": _project_output(model, layer, chosen, bases[layer], part)}
        else:
            edit[layer] = _project_keys(model, layer, chosen, bases[layer], part, fold, shared_keys)
    return edit


def list_collateral(model: Any, heads: Sequence[Head], *, side: Side, shared_keys: SharedKeys) -> tuple[Head, ...]:
    """Query heads that were not chosen but lose the subspace as well, since they share a key-value head with one that was."""
    if side == "OV" or shared_keys == "copied":
        return ()
    collateral = []
    for layer, chosen in group_heads(model, heads).items():
        group = model.cfg.n_heads // len(read_parameter(model, layer, "W_K"))
        shared = {head // group for head in chosen}
        collateral += [(layer, h) for h in range(model.cfg.n_heads) if h // group in shared and h not in chosen]
    return tuple(collateral)


def read_weights(
    model: Any, heads: Sequence[Head], *, side: Side, fold: Fold
) -> dict[int, Float[Tensor, "d_model column"]]:
    """What the edit acts on, in float64: of each layer the columns of P that meet a chosen head's weights."""
    weights = {}
    for layer, chosen in group_heads(model, heads).items():
        if side == "OV":
            written = read_parameter(model, layer, "W_O")[chosen].cpu().double()  # [chosen d_head d_model]
            weights[layer] = written.flatten(0, 1).T
        else:
            keys = read_parameter(model, layer, "W_K")
            rows = sorted({head // (model.cfg.n_heads // len(keys)) for head in chosen})
            norm = norm_before(model, layer, fold)
            weights[layer] = norm.fold_reader(keys[rows].cpu().double()).transpose(0, 1).flatten(1)
    return weights


def read_parameter(model: Any, layer: int, name: str) -> Tensor:
    """The parameter as it is stored: keys and values once for each key-value head."""
    attention = model.blocks[layer].attn
    return attention._parameters[_stored_name(attention, name)].detach()


def norm_before(model: Any, layer: int, fold: Fold) -> Norm:
    """The norm that the layer's heads read through; one that does nothing for `fold="none"`."""
    name = probe_attention(model, layer).norm_before
    like = read_parameter(model, layer, "W_Q").new_zeros(model.cfg.d_model)
    if fold == "none" or name is None or isinstance(getattr(model.blocks[layer], name), torch.nn.Identity):
        return Norm(gain=torch.ones_like(like), bias=torch.zeros_like(like), centres=False)
    norm = measure_norm(getattr(model.blocks[layer], name), like)
    if not norm.gain.abs().min() > 1e-6 * norm.gain.abs().max():
        raise InputError(
            f"The norm of layer {layer} doesn't pass every dimension on, so no W_K behind it can read a projected residual "
            "stream; use fold='none'."
        )
    return norm


def copy_shared(model: Any, layer: int) -> dict[str, Tensor]:
    """Keys and values with a copy for every query head, where heads share them."""
    attention = model.blocks[layer].attn
    if not hasattr(attention, "_W_K"):
        return {}
    names = ("W_K", "b_K", "W_V", "b_V")
    return {f"_{name}": expand_kv(read_parameter(model, layer, name), model.cfg.n_heads) for name in names}


@contextmanager
def swap_weights(model: Any, edit: Edit) -> Iterator[None]:
    """These parameters in the place of the model's own for the time of the block."""
    kept: list[tuple[Any, str, Any]] = []
    repeats = [(model.blocks[layer].attn, getattr(model.blocks[layer].attn, "repeat_kv_heads", None)) for layer in edit]
    try:
        for layer, parameters in edit.items():
            attention = model.blocks[layer].attn
            for name, tensor in parameters.items():
                kept.append((attention, name, attention._parameters[name]))
                attention._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)
            if "_W_K" in parameters:
                attention.repeat_kv_heads = model.cfg.n_heads // len(parameters["_W_K"])
        yield
    finally:
        for attention, name, parameter in kept:
            attention._parameters[name] = parameter
        for attention, repeat in repeats:
            if repeat is not None:
                attention.repeat_kv_heads = repeat


def _project_output(model: Any, layer: int, chosen: list[int], basis: Tensor, part: Part) -> Tensor:
    edited = read_parameter(model, layer, "W_O").clone()
    wide = edited[chosen].cpu().double()
    inside = (wide @ basis) @ basis.T
    edited[chosen] = (inside if part == "keep" else wide - inside).to(edited)
    return edited


def _project_keys(
    model: Any, layer: int, chosen: list[int], basis: Tensor, part: Part, fold: Fold, shared_keys: SharedKeys
) -> dict[str, Tensor]:
    attention = model.blocks[layer].attn
    own = copy_shared(model, layer) if shared_keys == "copied" else {}
    keys_name, bias_name = _stored_name(attention, "W_K"), _stored_name(attention, "b_K")
    keys = own.get(keys_name, read_parameter(model, layer, "W_K")).clone()
    bias = own.get(bias_name, read_parameter(model, layer, "b_K")).clone()
    rows = sorted({head // (model.cfg.n_heads // len(keys)) for head in chosen})
    norm = norm_before(model, layer, fold)
    wide = keys[rows].cpu().double()  # [row d_model d_head]
    folded = norm.fold_reader(wide)
    inside = basis @ (basis.T @ folded)
    edited = (inside if part == "keep" else folded - inside) / norm.gain.cpu().double()[:, None]
    keys[rows] = edited.to(keys)
    bias[rows] += (norm.bias.cpu().double() @ (wide - edited)).to(bias)  # what the norm's bias gave, it still gives
    return {**own, keys_name: keys, bias_name: bias}


def _stored_name(attention: Any, name: str) -> str:
    return f"_{name}" if f"_{name}" in attention._parameters else name
