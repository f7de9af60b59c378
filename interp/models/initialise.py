"""Weights of a small model from one integer: every matrix is Gaussian with `std = d_in ** -gamma`.

    W ~ N(0, std ** 2),   std = m * d_in ** -gamma * r,   biases 0,   norm gains 1

gamma is an exponent: **a larger gamma is a smaller initialisation**, and 0.5 keeps the scale of activations. Zhang et
al. (arXiv 2405.05409, 2501.08537) tie small initialisation to solutions that reason rather than memorise. Each part of
the model (`PARTS`) can have an exponent of its own.

m is `init_multiplier`, 1 unless given. Critical windows (arXiv 2605.04396) calls it gamma and writes `var = gamma ** 2 /
d_in`: a larger multiplier is a larger initialisation, with gamma = 0.5 here. r is 1, or `1 / sqrt(2 L)` for the two
matrices of each of the L layers that write into the residual stream, W_O and W_out (Radford et al. 2019, and the
published code of 2501.08537).

`d_in` is the true input side of the matrix: `d_model` for W_Q, W_K, W_V, W_in and W_U, `n_heads * d_head` for W_O (a
layer's heads are summed, so together they are one matrix), `d_mlp` for W_out. For the embeddings W_E and W_pos it is
`d_model`. As a map on one-hot vectors their input side would be the vocabulary, but only one input is ever active, so
nothing is summed over it: the width of the stream that the vector enters sets the scale, as in the published code.
`embedding_std` overrides it, 1.0 being PyTorch's own `nn.Embedding`.

>>> fan_in("blocks.0.attn.W_O", (4, 16, 64)), fan_in("blocks.0.mlp.W_out", (256, 64)), fan_in("embed.W_E", (1000, 64))
(64, 256, 64)
>>> part_of("blocks.0.attn.W_O"), part_of("blocks.0.attn.b_O")
('vo', None)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from transformer_lens import HookedEncoder, HookedTransformer

from interp.errors import InputError
from tasks.seeding import derive_generator

Part = Literal["embedding", "qk", "vo", "mlp", "unembed"]
ResidualScale = Literal["one", "one_over_sqrt_2L"]

PARTS: Mapping[str, tuple[str, ...]] = {
    "embedding": ("W_E", "W_pos", "W_token_type"),
    "qk": ("W_Q", "W_K", "_W_K"),
    "vo": ("W_V", "_W_V", "W_O"),
    "mlp": ("W_in", "W_gate", "W_out"),
    "unembed": ("W_U",),
}
"""The weight matrices of a HookedTransformer or HookedEncoder by part."""

_INTO_RESIDUAL = (".W_O", ".W_out")


def part_of(name: str) -> Part | None:
    """The part that the parameter `name` belongs to, None for one that is not a weight matrix."""
    leaf = name.rsplit(".", 1)[-1]
    return next((cast(Part, part) for part, leaves in PARTS.items() if leaf in leaves), None)


def fan_in(name: str, shape: Sequence[int]) -> int | None:
    """The input side of the parameter `name`, None for one that is not a weight matrix."""
    part = part_of(name)
    if part is None:
        return None
    if part == "embedding":
        return shape[-1]
    return math.prod(shape[:-1]) if name.endswith(".W_O") else shape[-2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Initialisation:
    """The scale of every matrix; InputError for a number or a name that cannot be used.

    >>> print(Initialisation(gamma=0.8, gamma_by_part={"qk": 0.5}, residual_scale="one_over_sqrt_2L"))
    std = d_in ** -0.8, qk d_in ** -0.5, W_O and W_out divided by sqrt(2 L)
    """

    gamma: float = 0.5
    """The exponent of every part that `gamma_by_part` does not name; larger is smaller weights."""
    gamma_by_part: Mapping[Part, float] | None = None
    """Exponents of single parts by their names, such as 0.8 for `qk`."""
    init_multiplier: float = 1.0
    """What every standard deviation is multiplied by; larger is larger weights."""
    residual_scale: ResidualScale = "one"
    """What W_O and W_out of each layer are multiplied by besides."""
    embedding_std: float | None = None
    """The standard deviation of W_E and W_pos itself, whatever the other fields say."""

    def __post_init__(self) -> None:
        _check_finite("gamma", self.gamma)
        given = self.gamma_by_part if self.gamma_by_part is not None else {}
        if not isinstance(given, Mapping):
            raise InputError(f"gamma_by_part must map parts to exponents, such as {{'qk': 0.8}}, not {given!r}")
        for part, exponent in given.items():
            if part not in PARTS:
                raise InputError(f"gamma_by_part names the part {part!r}, which is none of {', '.join(PARTS)}")
            _check_finite(f"gamma_by_part[{part!r}]", exponent)
        _check_finite("init_multiplier", self.init_multiplier, least=0.0)
        if self.residual_scale not in ("one", "one_over_sqrt_2L"):
            raise InputError(f"residual_scale={self.residual_scale!r} is unknown: give 'one' or 'one_over_sqrt_2L'")
        if self.embedding_std is not None:
            _check_finite("embedding_std", self.embedding_std, least=0.0)

    def std(self, name: str, shape: Sequence[int], *, n_layers: int) -> float | None:
        """The standard deviation of the parameter `name`, None for one that is not a weight matrix."""
        part, inputs = part_of(name), fan_in(name, shape)
        if part is None or inputs is None:
            return None
        if part == "embedding" and self.embedding_std is not None:
            return self.embedding_std
        std = self.init_multiplier * inputs ** -(self.gamma_by_part or {}).get(part, self.gamma)
        divided = self.residual_scale == "one_over_sqrt_2L" and name.endswith(_INTO_RESIDUAL)
        return std / math.sqrt(2 * n_layers) if divided else std

    def __str__(self) -> str:
        multiplier = "" if self.init_multiplier == 1 else f"{self.init_multiplier:g} * "
        text = f"std = {multiplier}d_in ** {-self.gamma:g}"
        for part, exponent in (self.gamma_by_part or {}).items():
            text += f", {part} {multiplier}d_in ** {-exponent:g}"
        if self.residual_scale == "one_over_sqrt_2L":
            text += ", W_O and W_out divided by sqrt(2 L)"
        return text if self.embedding_std is None else f"{text}, embeddings std = {self.embedding_std:g}"


def initialise(model: HookedTransformer | HookedEncoder, scheme: Initialisation, *, seed: int = 0) -> None:
    """Draw every weight anew; each parameter has its own generator, made from seed and name.

    So the same seed gives the same directions at every scale, and a deeper model the weights of the layers it shares.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = scheme.std(name, parameter.shape, n_layers=model.cfg.n_layers)
            if std is None:
                parameter.fill_(1.0 if name.rsplit(".", 1)[-1] == "w" else 0.0)
                continue
            # Drawn in float32 on the CPU, so that the weights do not depend on the model's device or dtype.
            drawn = torch.randn(parameter.shape, generator=derive_generator(seed, "initialise", name))
            parameter.copy_(drawn * std)


def _check_finite(name: str, value: object, *, least: float = -math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, not {value!r}")
    if value < least:
        raise InputError(f"{name} must not be negative, not {value!r}")
