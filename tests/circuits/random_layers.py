"""Layers for tests: of random tensors, and of small models of each kind, with their dense matrices in float64."""

import torch
from torch import Tensor

import interp
from interp.circuits.factors import LayerFactors, read_factors, rotate_keys
from tests.conftest import make_tiny


def random_layer(
    *, seed: int = 0, n_heads: int = 4, n_kv_heads: int | None = None, d_model: int = 40, d_head: int = 6
) -> LayerFactors:
    """Gaussian factors without biases or positions."""
    generator = torch.Generator().manual_seed(seed)
    n_kv_heads = n_kv_heads or n_heads
    shapes = {
        "W_Q": (n_heads, d_model, d_head),
        "W_K": (n_kv_heads, d_model, d_head),
        "W_V": (n_kv_heads, d_model, d_head),
        "W_O": (n_heads, d_head, d_model),
        "b_Q": (n_heads, d_head),
        "b_K": (n_kv_heads, d_head),
        "b_V": (n_kv_heads, d_head),
        "b_O": (d_model,),
    }
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return LayerFactors(layer=seed, scale=1.0, rotary=None, **weights)


def model_layers(kind: str) -> tuple[LayerFactors, LayerFactors]:
    """Layers 0 and 1 of a tiny model: `gpt2` has LayerNorm, `llama` RMSNorm, grouped queries and rotary positions."""
    model = interp.load(make_tiny(kind), device="cpu")
    return read_factors(model, 0), read_factors(model, 1)


def dense_qk(factors: LayerFactors, distance: int | str = "none") -> Tensor:
    """W_Q W_K^T of every query head."""
    keys = rotate_keys(factors, distance).double().repeat_interleave(factors.group, 0)  # type: ignore[arg-type]
    return factors.W_Q.double() @ keys.mT


def dense_ov(factors: LayerFactors) -> Tensor:
    """W_V W_O of every query head."""
    return factors.W_V.double().repeat_interleave(factors.group, 0) @ factors.W_O.double()


def dense_products(writer: LayerFactors, reader: LayerFactors, kind: str, distance: int | str = "none") -> Tensor:
    """W of every pair, [reader head, writer head, d_model, d_model], as the docstring of `composition` writes it."""
    moved = dense_ov(writer)[None]
    if kind == "Q":
        return moved @ dense_qk(reader, distance)[:, None]
    if kind == "K":
        return dense_qk(reader, distance)[:, None] @ moved.mT
    return moved @ dense_ov(reader)[:, None]
