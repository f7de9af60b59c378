"""Put the weights of heads into the places of others.

A head read its own layer's norm, of gain g and bias b, and gets that of another layer, of gain g' and bias b'. With
`fold="norms"` it takes its norm along, and goes on reading the residual stream as it did:

    W <- diag(g / g') W        bias <- bias + b W - b' diag(g / g') W

Query heads that share a key-value head get a copy of it each first, so that no other head is touched.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> edit = move_heads(model, places=[(1, 0)], sources=[(0, 1)], side="OV", fold="norms")
>>> torch.equal(edit[1]["W_O"][0], model.blocks[0].attn.W_O[1])
True
"""

from collections.abc import Sequence
from typing import Any

import torch

from interp.bridge.edit import Edit, Side, copy_shared, norm_before, read_parameter
from interp.circuits.factors import Fold
from interp.interventions.select import Head


def move_heads(model: Any, places: Sequence[Head], sources: Sequence[Head], *, side: Side, fold: Fold) -> Edit:
    """The parameters of the model in which each place has the weights that its source has in the untouched model."""
    kinds = ("Q", "K") if side == "QK" else ("V",)
    layers = {layer for pairs in (places, sources) for layer, _ in pairs}
    norms = {layer: norm_before(model, layer, fold) for layer in layers}
    whole = {layer: _spread_out(model, layer, side) for layer in layers}
    edit: Edit = {layer: {name: tensor.clone() for name, tensor in whole[layer].items()} for layer, _ in places}
    for (layer, head), (its_layer, its_head) in zip(places, sources, strict=True):
        here, there = norms[layer], norms[its_layer]
        for kind in kinds:
            weight, bias = (_name(model, f"{letter}_{kind}") for letter in ("W", "b"))
            read = whole[its_layer][weight][its_head].double()  # [d_model d_head]
            moved = read * (there.gain.double() / here.gain.double()).to(read)[:, None]
            edit[layer][weight][head] = moved.to(edit[layer][weight])
            shift = there.bias.to(read) @ read - here.bias.to(read) @ moved
            edit[layer][bias][head] = (whole[its_layer][bias][its_head].double() + shift).to(edit[layer][bias])
        if side == "OV":
            edit[layer]["W_O"][head] = whole[its_layer]["W_O"][its_head]
    return edit


def _spread_out(model: Any, layer: int, side: Side) -> dict[str, torch.Tensor]:
    """The weights of a side, one row for each query head."""
    own = copy_shared(model, layer)
    names = ("W_Q", "b_Q", "W_K", "b_K") if side == "QK" else ("W_V", "b_V", "W_O")
    plain = {_name(model, name): read_parameter(model, layer, name) for name in names}
    return {**plain, **own}


def _name(model: Any, name: str) -> str:
    return f"_{name}" if name[-1] in "KV" and hasattr(model.blocks[0].attn, f"_{name}") else name
