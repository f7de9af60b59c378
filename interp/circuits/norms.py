"""Fold a norm into the weights that read behind it, or write before it.

A norm maps x to gain * c(x) / scale(x) + bias, where c takes the mean away in a LayerNorm and nothing in an RMSNorm, and
scale(x) is one positive number for each position. What is linear in it goes into the weights, with row vectors, C = I - 11^T/d:

    reads   x -> norm(x) W     W <- C diag(gain) W     b <- b + bias W     (x divided by its own scale)
    writes  norm(z W + b)      W <- W C diag(gain)     b <- b C diag(gain) + bias

Gains are measured rather than read: families store gain or gain - 1, under different names, and some have none.

>>> layer_norm = torch.nn.LayerNorm(4)
>>> norm = measure_norm(layer_norm, torch.zeros(4))
>>> norm.centres, norm.gain.tolist()
(True, [1.0, 1.0, 1.0, 1.0])
>>> x, W = torch.tensor([[1.0, 2.0, 3.0, 6.0]]), torch.eye(4)
>>> torch.allclose(x / x.std(correction=0) @ norm.fold_reader(W), layer_norm(x) @ W, atol=1e-4)
True
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from tasks.seeding import derive_generator

_LARGE = 1e3
"""So large that a norm's epsilon doesn't count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """What is linear in a LayerNorm or an RMSNorm."""

    gain: Float[Tensor, "width"]
    """What each channel is multiplied by, behind the division by the scale."""
    bias: Float[Tensor, "width"]
    """What is added to each channel; zeros where there is none."""
    centres: bool
    """Whether the mean over channels is taken away: a LayerNorm does, an RMSNorm doesn't."""

    def fold_reader(self, weights: Float[Tensor, "*head width out"]) -> Float[Tensor, "*head width out"]:
        """C diag(gain) W: weights that read the stream as weights that read its norm do."""
        scaled = self.gain.to(weights)[:, None] * weights
        return scaled - scaled.mean(-2, keepdim=True) if self.centres else scaled

    def fold_writer(self, weights: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """W C diag(gain): what is written through the norm, up to the scale that depends on the data."""
        centred = weights - weights.mean(-1, keepdim=True) if self.centres else weights
        return centred * self.gain.to(weights)


@torch.no_grad()
def measure_norm(norm: Callable[[Tensor], Tensor], like: Float[Tensor, "width"]) -> Norm:
    """What `norm`, called with activations [1, 1, width], does to them; `like` gives width, dtype and device.

    A norm maps x and -x to ±gain * c(x) / scale + bias, and forgets a shift of x where it centres. Raises `InputError`
    for a function that is no LayerNorm or RMSNorm, such as one that works on groups of channels.
    """
    sign = torch.ones_like(like)
    sign[1::2] = -1

    def apply(x: Tensor) -> Float[Tensor, "width"]:
        return norm((_LARGE * x)[None, None].to(like))[0, 0].double()

    up, down = apply(sign), apply(-sign)
    margin = max(1e-3, 16 * torch.finfo(like.dtype).eps)
    centres = bool((apply(sign + 2) - up).abs().max() <= margin * (up - down).abs().max() / 2)
    gain, bias = (up - down) / 2 / _normalise(sign, centres=centres), (up + down) / 2
    probe = torch.randn(len(like), generator=derive_generator(0, "norm probe")).to(like)
    expected = gain * _normalise(probe, centres=centres) + bias
    if not (apply(probe) - expected).abs().max() <= margin * expected.abs().max():
        raise InputError(
            "The norm before or after attention is neither a LayerNorm nor an RMSNorm, so it can't be folded."
        )
    return Norm(gain=gain.float(), bias=bias.float(), centres=centres)


def _normalise(x: Float[Tensor, "width"], *, centres: bool) -> Float[Tensor, "width"]:
    wide = x.double()
    centred = wide - wide.mean() if centres else wide
    return centred / centred.square().mean().sqrt()
