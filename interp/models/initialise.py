"""Weights of a small model from one integer: every matrix is Gaussian with `std = d_in ** -gamma`.

    W ~ N(0, d_in ** (-2 * gamma)),   biases 0,   norm gains 1

gamma = 0.5 keeps the scale of activations; a larger gamma is a smaller initialisation, which Zhang et al.
(arXiv 2405.05409, 2501.08537) tie to solutions that reason rather than memorise. `d_in` is the true input side of the
matrix: `d_model` for W_Q, W_K, W_V, W_in and W_U, `n_heads * d_head` for W_O (a layer's heads are summed, so together
they are one matrix), `d_mlp` for W_out.

For the embeddings W_E and W_pos it is `d_model`. As a map on one-hot vectors their input side would be the vocabulary,
but only one input is ever active, so nothing is summed over it: the width of the stream that the vector enters sets the
scale, as in the published code. `embedding_std` overrides it, 1.0 being PyTorch's own `nn.Embedding`.

>>> fan_in("blocks.0.attn.W_O", (4, 16, 64))
64
>>> fan_in("blocks.0.mlp.W_out", (256, 64))
256
>>> fan_in("embed.W_E", (1000, 64))
64
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from tasks.seeding import derive_generator

_EMBEDDINGS = ("W_E", "W_pos")
_HEAD_INPUTS = ("W_Q", "W_K", "W_V", "_W_K", "_W_V")
_PLAIN = ("W_in", "W_gate", "W_out", "W_U")


def fan_in(name: str, shape: Sequence[int]) -> int | None:
    """The input side of the parameter `name`, None for one that is not a weight matrix."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in _EMBEDDINGS:
        return shape[-1]
    if leaf in _HEAD_INPUTS or leaf in _PLAIN:
        return shape[-2]
    if leaf == "W_O":
        return math.prod(shape[:-1])
    return None


def initialise(model: nn.Module, *, gamma: float = 0.5, embedding_std: float | None = None, seed: int = 0) -> None:
    """Draw every weight of a HookedTransformer anew; each parameter has its own generator, made from seed and name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            inputs = fan_in(name, parameter.shape)
            if inputs is None:
                parameter.fill_(1.0 if leaf == "w" else 0.0)
                continue
            std = embedding_std if embedding_std is not None and leaf in _EMBEDDINGS else inputs**-gamma
            # Drawn in float32 on the CPU, so that the weights do not depend on the model's device or dtype.
            drawn = torch.randn(parameter.shape, generator=derive_generator(seed, "initialise", name))
            parameter.copy_(drawn * std)
