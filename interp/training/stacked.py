"""Several models of one shape in one computation: every weight gains a leading model axis, every product is batched.

    x [model, batch * pos, d_in]  @  W [model, d_in, d_out]  + b [model, 1, d_out]

The parameters of each model, and their gradients, become views into the stacked tensors. So what is done to a model
(its own optimizer's update, an evaluation, a checkpoint) acts on the stack, and the stack's backward pass fills each
model's gradients. The models stay models of their own; `release` gives them memory of their own again.

>>> from interp.models.build import build
>>> shape = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_vocab": 5, "n_ctx": 4, "act_fn": "gelu", "device": "cpu"}
>>> models = [build(**shape, seed=seed) for seed in range(3)]
>>> tokens = torch.randint(5, (3, 6, 4), generator=torch.Generator().manual_seed(0))
>>> own = torch.stack([model(row) for model, row in zip(models, tokens)])
>>> torch.allclose(Stack(models).run(tokens), own, atol=1e-5)
True
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.components.mlps.gated_mlp import GatedMLP
from transformer_lens.components.mlps.mlp import MLP

from interp.training.forward import is_plain, rotate

_INCIDENTAL = ("seed", "model_name", "tokenizer_name", "initializer_range", "init_mode", "init_weights")


def can_stack(models: Sequence[HookedTransformer]) -> bool:
    """Whether these models have one shape, which `Stack` knows, and all of their parameters are trained."""
    first = models[0].cfg
    shape = [field.name for field in fields(first) if field.name not in _INCIDENTAL]
    return all(
        is_plain(model)
        and all(getattr(model.cfg, name) == getattr(first, name) for name in shape)
        and all(parameter.requires_grad for parameter in model.parameters())
        and all(type(block.mlp) in (MLP, GatedMLP) for block in model.blocks if not first.attn_only)
        and not str(first.act_fn).endswith("_ln")
        for model in models
    )


class Stack:
    """The models' parameters, stacked; see `can_stack` for which models these can be."""

    def __init__(self, models: Sequence[HookedTransformer]) -> None:
        self.models = tuple(models)
        self.cfg = models[0].cfg
        self.parameters: dict[str, Tensor] = {}
        for name, _ in models[0].named_parameters():
            own = [model.get_parameter(name) for model in models]
            stacked = torch.stack([parameter.detach() for parameter in own]).requires_grad_()  # [model, ...]
            stacked.grad = torch.zeros_like(stacked)
            for index, parameter in enumerate(own):
                parameter.data, parameter.grad = stacked.detach()[index], stacked.grad[index]
            self.parameters[name] = stacked

    def zero_grad(self) -> None:
        """Set all gradients to 0 in place, since each model holds views of them."""
        for stacked in self.parameters.values():
            assert stacked.grad is not None
            stacked.grad.zero_()

    def release(self) -> None:
        """Give each model parameters in memory of its own, without gradients."""
        for model in self.models:
            for parameter in model.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None

    def run(
        self, tokens: Int[Tensor, "model batch pos"], *, last_only: bool = False
    ) -> Float[Tensor, "model batch out d_vocab"]:
        """Logits of each model on its own sequences; at the last position alone with `last_only`."""
        n_models, length = len(self.models), tokens.shape[-1]
        W_E = self.parameters["embed.W_E"]  # [model, d_vocab, d_model]
        first_row = W_E.shape[1] * torch.arange(n_models, device=tokens.device).view(-1, 1, 1)
        residual = F.embedding(tokens + first_row, W_E.flatten(0, 1))  # [model, batch, pos, d_model]
        if self.cfg.positional_embedding_type == "standard":
            residual = residual + self.parameters["pos_embed.W_pos"][:, None, :length]
        for layer in range(self.cfg.n_layers):
            last = last_only and layer == self.cfg.n_layers - 1
            attended = self._attend(layer, self._normalise(f"blocks.{layer}.ln1", residual), last_only=last)
            residual = (residual[:, :, -1:] if last else residual) + attended
            if not self.cfg.attn_only:
                residual = residual + self._run_mlp(layer, self._normalise(f"blocks.{layer}.ln2", residual))
        residual = self._normalise("ln_final", residual)
        return _affine(residual, self.parameters["unembed.W_U"], self.parameters["unembed.b_U"])

    def _normalise(self, name: str, x: Float[Tensor, "model batch pos d_model"]) -> Tensor:
        kind = self.cfg.normalization_type
        if kind is None:
            return x
        rms = kind.startswith("RMS")
        normed = (F.rms_norm if rms else F.layer_norm)(x, x.shape[-1:], eps=self.cfg.eps)
        gain, bias = (self.parameters.get(f"{name}.{leaf}") for leaf in ("w", "b"))  # [model, d_model]
        if gain is None:
            return normed
        return normed * _per_model(gain) if bias is None else torch.addcmul(_per_model(bias), normed, _per_model(gain))

    def _attend(self, layer: int, x: Float[Tensor, "model batch pos d_model"], *, last_only: bool) -> Tensor:
        attention: Any = self.models[0].blocks[layer].attn  # for its rotations and its scale, which have no parameters
        weights = {name: self.parameters[f"blocks.{layer}.attn.{name}"] for name in attention._parameters}
        q, k, v = (
            _affine(
                x[:, :, -1:] if last_only and which == "Q" else x,
                weights[f"W_{which}"].transpose(1, 2).flatten(2),  # [model, d_model, head_index * d_head]
                weights[f"b_{which}"].flatten(1),
            )
            .flatten(0, 1)
            .unflatten(-1, (self.cfg.n_heads, self.cfg.d_head))
            .transpose(1, 2)
            for which in "QKV"
        )  # each [model * batch, head_index, pos, d_head]
        if self.cfg.positional_embedding_type == "rotary":
            q, k = rotate(attention, q, first=k.shape[2] - q.shape[2]), rotate(attention, k, first=0)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=not last_only, scale=1 / float(attention.attn_scale))
        z = z.transpose(1, 2).flatten(2).unflatten(0, x.shape[:2])  # [model, batch, pos, head_index * d_head]
        return _affine(z, weights["W_O"].flatten(1, 2), weights["b_O"])

    def _run_mlp(self, layer: int, x: Float[Tensor, "model batch pos d_model"]) -> Tensor:
        mlp: Any = self.models[0].blocks[layer].mlp
        weights = {name: self.parameters[f"blocks.{layer}.mlp.{name}"] for name in mlp._parameters}
        if self.cfg.gated_mlp:
            hidden = mlp.act_fn(_affine(x, weights["W_gate"], None)) * _affine(x, weights["W_in"], None)
            hidden = hidden + _per_model(weights["b_in"])
        else:
            hidden = mlp.act_fn(_affine(x, weights["W_in"], weights["b_in"]))
        return _affine(hidden, weights["W_out"], weights["b_out"])


def _affine(
    x: Float[Tensor, "model batch pos d_in"],
    weight: Float[Tensor, "model d_in d_out"],
    bias: Float[Tensor, "model d_out"] | None,
) -> Float[Tensor, "model batch pos d_out"]:
    rows = x.flatten(1, 2)
    product = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)
    return product.unflatten(1, x.shape[1:3])


def _per_model(vector: Float[Tensor, "model width"]) -> Float[Tensor, "model 1 1 width"]:
    return vector[:, None, None]
