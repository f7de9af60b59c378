"""The training pass: models of one shape, or one alone, in one computation with every weight along a model axis.

    x [model, batch * pos, d_in]  @  W [model, d_in, d_out]  + b [model, 1, d_out]

The mathematics is HookedTransformer's own without its hook points, in few and fused kernels: one product for queries, keys
and values, no rotations or masks built anew, no attention patterns to look at. With `last_only` the last layer is
computed for the last position alone: its keys and values are of all positions, its query, MLP and logits of one.

The models' parameters (`FlatParameters`) lie in the rows of one matrix. The pass reads them there, and its gradients
go there; each model stays a model of its own, and so does each one's optimizer.

>>> from interp.models.build import build
>>> shape = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_vocab": 5, "n_ctx": 4, "act_fn": "gelu", "device": "cpu"}
>>> models = [build(**shape, seed=seed) for seed in range(3)]
>>> tokens = torch.randint(5, (3, 6, 4), generator=torch.Generator().manual_seed(0))
>>> own = torch.stack([model(row) for model, row in zip(models, tokens)])
>>> stack = Stack([FlatParameters(model) for model in models])
>>> torch.allclose(stack.run(tokens), own, atol=1e-5)
True
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.models.architecture import architecture_of
from interp.training.flat import FlatParameters, Place, joint_name

_INCIDENTAL = ("seed", "model_name", "tokenizer_name", "initializer_range", "init_mode", "init_weights")


class Stack:
    """Models of a kind that `is_plain` knows, all of one shape. Several move to a memory that they share.

    One model alone has no model axis, which saves the time of adding and taking it away at every weight.
    """

    def __init__(self, parameters: Sequence[FlatParameters]) -> None:
        self.parameters = tuple(parameters)
        self.model: Any = parameters[0].model  # for its shape, its rotations and its activation function
        self.cfg = self.model.cfg
        self.architecture = architecture_of(self.model)
        values, gradients = parameters[0].vector, parameters[0].gradient
        if len(parameters) > 1:
            values, gradients = (values.new_empty(len(parameters), len(values)) for _ in range(2))
            for own, value, gradient in zip(parameters, values, gradients, strict=True):
                own.move(value, gradient)
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self.weights: dict[str, Tensor] = {}
        """Each [*model, ...], by name; those of a layer without `blocks.<layer>.` also in `layers`."""
        for name, place in _join(parameters[0].places).items():
            weight = place.of(values).detach()
            if place.stretch != "fixed":
                weight.requires_grad_()
                self._gradients.append((weight, place.of(gradients)))
            self.weights[name] = weight
        if len(parameters) == 1:
            for weight, gradient in self._gradients:
                weight.grad = gradient
        if "pos_embed.W_pos" not in self.weights and self.cfg.positional_embedding_type == "standard":
            self.weights["pos_embed.W_pos"] = self.model.pos_embed.W_pos  # a fixed table, the same in all models
        self.layers: list[dict[str, Tensor]] = [{} for _ in range(self.cfg.n_layers)]
        for name, weight in self.weights.items():
            if name.startswith("blocks."):
                _, layer, leaf = name.split(".", 2)
                self.layers[int(layer)][leaf] = weight

    def backward(self, loss: Float[Tensor, ""]) -> None:
        """Write the gradient of the loss over that of each model's parameters; several models only."""
        loss.backward()
        for weight, gradient in self._gradients:
            if weight.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(weight.grad)
            weight.grad = None

    def separate(self) -> None:
        """Give the parameters of each model a memory of their own again."""
        for own in self.parameters:
            own.move(own.vector.clone(), own.gradient.clone())

    def run(
        self, tokens: Int[Tensor, "*model batch pos"], *, last_only: bool = False
    ) -> Float[Tensor, "*model batch out d_vocab"]:
        """Logits of each model on its own sequences; at the last position alone with `last_only`."""
        residual = self._embed(tokens)
        for layer, weights in enumerate(self.layers):
            residual = self._run_block(layer, weights, residual, last_only and layer == self.cfg.n_layers - 1)
        if self.architecture.norm_placement == "pre":
            residual = self._normalise(residual, self.weights, "ln_final")
        return _affine(residual, self.weights["unembed.W_U"], self.weights["unembed.b_U"])

    def _embed(self, tokens: Int[Tensor, "*model batch pos"]) -> Float[Tensor, "*model batch pos d_model"]:
        W_E = self.weights["embed.W_E"]  # [*model, d_vocab, d_model]
        if W_E.dim() == 3:
            tokens = tokens + W_E.shape[1] * torch.arange(len(W_E), device=tokens.device).view(-1, 1, 1)
        residual = F.embedding(tokens, W_E.flatten(0, -2))
        if self.architecture.embedding_scale == "sqrt_d_model":
            residual = residual * math.sqrt(self.cfg.d_model)
        if self.cfg.positional_embedding_type == "standard":
            W_pos = self.weights["pos_embed.W_pos"][..., : tokens.shape[-1], :]
            residual = residual + (W_pos[:, None] if W_pos.dim() == 3 else W_pos)
        return residual

    def _run_block(
        self, layer: int, weights: dict[str, Tensor], x: Float[Tensor, "*model batch pos d_model"], last_only: bool
    ) -> Float[Tensor, "*model batch out d_model"]:
        here = x[..., -1:, :] if last_only else x
        if self.architecture.norm_placement == "post":
            x = self._normalise(here + self._attend(layer, weights, x, last_only), weights, "ln1")
            return x if self.cfg.attn_only else self._normalise(x + self._run_mlp(layer, weights, x), weights, "ln2")
        x = here + self._attend(layer, weights, self._normalise(x, weights, "ln1"), last_only)
        return x if self.cfg.attn_only else x + self._run_mlp(layer, weights, self._normalise(x, weights, "ln2"))

    def _normalise(self, x: Float[Tensor, "*model batch pos d_model"], weights: dict[str, Tensor], name: str) -> Tensor:
        kind, width = self.cfg.normalization_type, x.shape[-1:]
        if kind is None:
            return x
        gain, bias = weights.get(name + ".w"), weights.get(name + ".b")  # [*model, d_model]
        own = gain is not None and gain.dim() == 1
        if kind.startswith("RMS"):
            x = F.rms_norm(x, width, gain if own else None, self.cfg.eps)
        else:
            x = F.layer_norm(x, width, gain if own else None, bias if own else None, self.cfg.eps)
        if own or gain is None:
            return x
        return x * _spread(gain) if bias is None else torch.addcmul(_spread(bias), x, _spread(gain))

    def _attend(
        self, layer: int, weights: dict[str, Tensor], x: Float[Tensor, "*model batch pos d_model"], last_only: bool
    ) -> Float[Tensor, "*model batch out d_model"]:
        attention = self.model.blocks[layer].attn
        heads = (self.cfg.n_heads, self.cfg.d_head)
        width = self.cfg.n_heads * self.cfg.d_head
        W_QKV = weights["attn.W_QKV"].movedim(-2, -4).flatten(-3)  # [*model, d_model, 3 * head_index * d_head]
        b_QKV = weights["attn.b_QKV"].flatten(-3)
        if last_only:
            q = _affine(x[..., -1:, :], W_QKV[..., :width], b_QKV[..., :width])
            k, v = _affine(x, W_QKV[..., width:], b_QKV[..., width:]).view(-1, x.shape[-2], 2, *heads).unbind(2)
            q = q.view(-1, 1, *heads)
        else:
            q, k, v = _affine(x, W_QKV, b_QKV).view(-1, x.shape[-2], 3, *heads).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [model * batch, head_index, pos, d_head]
        if self.cfg.positional_embedding_type == "rotary":
            q, k = _rotate(attention, q, first=k.shape[2] - q.shape[2]), _rotate(attention, k, first=0)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=not last_only, scale=1 / float(attention.attn_scale))
        z = z.transpose(1, 2).reshape(*x.shape[:-2], -1, width)
        return _affine(z, weights["attn.W_O"].flatten(-3, -2), weights["attn.b_O"])

    def _run_mlp(self, layer: int, weights: dict[str, Tensor], x: Float[Tensor, "*model batch pos d_model"]) -> Tensor:
        activate = self.model.blocks[layer].mlp.act_fn
        if self.cfg.gated_mlp:
            hidden = activate(_affine(x, weights["mlp.W_gate"], None)) * _affine(x, weights["mlp.W_in"], None)
            b_in = weights["mlp.b_in"]
            hidden = hidden + (_spread(b_in) if b_in.dim() == 2 else b_in)
        else:
            hidden = activate(_affine(x, weights["mlp.W_in"], weights["mlp.b_in"]))
        return _affine(hidden, weights["mlp.W_out"], weights["mlp.b_out"])


def have_one_shape(one: FlatParameters, other: FlatParameters) -> bool:
    """Whether these models could be stacked: one configuration but for their names, and the same parameters trained."""
    shape = [field.name for field in fields(one.model.cfg) if field.name not in _INCIDENTAL]
    return (
        all(getattr(one.model.cfg, name) == getattr(other.model.cfg, name) for name in shape)
        and architecture_of(one.model) == architecture_of(other.model)
        and one.places == other.places
    )


def _join(places: dict[str, Place]) -> dict[str, Place]:
    """The places, with queries', keys' and values' weights of a layer as one [3, ...]."""
    joined: dict[str, Place] = {}
    for name, place in places.items():
        shape = (3, *place.shape) if joint_name(name) != name else place.shape
        joined.setdefault(joint_name(name), Place(start=place.start, shape=shape, stretch=place.stretch))
    return joined


def _affine(
    x: Float[Tensor, "*model batch pos d_in"],
    weight: Float[Tensor, "*model d_in d_out"],
    bias: Float[Tensor, "*model d_out"] | None,
) -> Float[Tensor, "*model batch pos d_out"]:
    if weight.dim() == 2:
        return F.linear(x, weight.mT, bias)
    rows = x.flatten(1, 2)
    product = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)
    return product.view(*x.shape[:3], -1)


def _spread(vector: Float[Tensor, "model width"]) -> Float[Tensor, "model 1 1 width"]:
    return vector[:, None, None]


def _rotate(attention: Any, x: Float[Tensor, "batch head_index pos d_head"], *, first: int) -> Float[Tensor, "..."]:
    """Rotary embedding of positions from `first` on, in the model's own pairing."""
    here = slice(first, first + x.shape[2])
    cos, sin = attention.rotary_cos[here], attention.rotary_sin[here]  # [pos, d_head]
    if attention.cfg.rotary_adjacent_pairs:
        turn = torch.complex(cos[:, ::2], sin[:, ::2])
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
    half = x.shape[-1] // 2
    one, other, cos, sin = x[..., :half], x[..., half:], cos[:, :half], sin[:, :half]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
