"""What enters the first block of the transformer as it was first published: scaled embeddings and fixed positions.

    x_t = s W_E[token_t] + W_pos[t],    W_pos[t, 2i] = sin(t / 10000^(2i / d_model)),    W_pos[t, 2i + 1] = cos(same angle)

(Vaswani et al. 2017, arXiv 1706.03762, sections 3.4 and 3.5.) s is 1, or sqrt(d_model): then the embedding can be drawn with
std d_model ** -0.5 and still be as large as the positions, and an update that moves each weight by the learning rate, as
Adam's does, moves the stream sqrt(d_model) times as far. W_E stays the parameter itself, before it is scaled.

The table is a buffer: part of the model's state, but no parameter, so nothing draws it, trains it or counts its norm.

>>> table = sinusoidal_table(n_ctx=3, d_model=4)
>>> table[0].tolist(), round(float(table[1, 0]), 4)  # sin 0, cos 0, ...; sin 1
([0.0, 1.0, 0.0, 1.0], 0.8415)
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformerConfig
from transformer_lens.components import Embed, PosEmbed


def sinusoidal_table(*, n_ctx: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """The fixed positions in float64: sines in even dimensions, cosines in odd ones, wavelengths 2 pi to 10000 * 2 pi."""
    rate = 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]


class SinusoidalPositions(PosEmbed):
    """Positions that are computed, not learned: `W_pos` is a buffer."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__(cfg)
        del self.W_pos
        self.register_buffer("W_pos", sinusoidal_table(n_ctx=cfg.n_ctx, d_model=cfg.d_model).to(cfg.dtype))


class ScaledEmbed(Embed):
    """An embedding whose rows are multiplied by sqrt(d_model) on their way into the stream."""

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """`W_E[tokens] * sqrt(d_model)`."""
        return super().forward(tokens) * math.sqrt(self.cfg.d_model)
