"""Models that add up a key and two shifts by a circuit that is known exactly, and look-up tables with a known behaviour.

Residual stream: [value | A | T | position one-hot]. The value of a key or of noise is the token, that of an anchor its
shift. Attention is by position, one-hot or in equal shares: the first layer writes the mean value of what it reads, times
a gain, into A; the second adds up the value and A of what it reads, times gains, into T. All other queries read
themselves. The logit of token t is 2 v t - t^2 with v = T, or A + T: largest where t = v.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from transformer_lens import HookedTransformer

import interp
from tasks.anchor import PAPER_FUNCTION, Composite, dropped_pairs

KEY, ANCHOR_1, ANCHOR_2, NOISE, LAST = 3, 4, 5, 6, 8
STRENGTH = 200.0
SHIFTS = {1: 5, 2: 1, 3: -2, 4: -8}


def make_task(**settings) -> Composite:
    return dropped_pairs(key_positions=(KEY,), **settings)


@dataclass(frozen=True, kw_only=True)
class Wiring:
    first: Mapping[int, tuple[int, ...]]
    """{query: the positions that it reads} in the first layer."""
    first_gain: float
    last: tuple[int, ...]
    """What the last token reads in the second layer."""
    last_gains: tuple[float, float]
    """Of the value and of A."""
    reads_a: bool = False
    """Whether the last token's own A counts for the answer."""


WIRINGS = {
    "parallel": Wiring(
        first={ANCHOR_1: (KEY,), ANCHOR_2: (KEY,)}, first_gain=1, last=(ANCHOR_1, ANCHOR_2), last_gains=(2, 1)
    ),
    "serial": Wiring(first={ANCHOR_2: (KEY, ANCHOR_1)}, first_gain=2, last=(ANCHOR_2,), last_gains=(1, 1)),
    "symmetric": Wiring(first={LAST: (ANCHOR_1, ANCHOR_2)}, first_gain=2, last=(KEY,), last_gains=(1, 0), reads_a=True),
    "hybrid": Wiring(  # the first anchor takes up the key, the last token the second anchor
        first={ANCHOR_1: (KEY,), LAST: (ANCHOR_2,)}, first_gain=1, last=(ANCHOR_1,), last_gains=(1, 1), reads_a=True
    ),
    "distributed": Wiring(  # by way of a noise token
        first={NOISE: (KEY, ANCHOR_1, ANCHOR_2)}, first_gain=3, last=(NOISE,), last_gains=(0, 1)
    ),
}


def build_machine(
    wiring: Wiring, *, in_front: int = 0, behind: int = 0, d_vocab: int = 120, n_ctx: int = 9
) -> HookedTransformer:
    """With so many idle layers in front and behind, which read everything and write nothing."""
    model = interp.build(
        n_layers=in_front + 2 + behind, d_model=3 + n_ctx, n_heads=1, d_head=n_ctx, d_vocab=d_vocab, n_ctx=n_ctx,
        attn_only=True, normalization_type=None, use_attn_scale=False, device="cpu",
    )  # fmt: skip
    busy = model.blocks[in_front : in_front + 2]
    value, a, t, place = 0, 1, 2, slice(3, 3 + n_ctx)
    tokens = torch.arange(d_vocab, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, value] = torch.tensor([float(SHIFTS.get(token, token)) for token in range(d_vocab)])
        model.pos_embed.W_pos[:, place] = torch.eye(n_ctx)
        for block, reads in zip(busy, (wiring.first, {LAST: wiring.last}), strict=True):
            for query in range(n_ctx):
                for key in reads.get(query, (query,)):
                    block.attn.W_Q[0, 3 + query, key] = STRENGTH
            block.attn.W_K[0, place] = torch.eye(n_ctx)
        first, last = busy[0].attn, busy[1].attn
        first.W_V[0, value, 0] = wiring.first_gain
        first.W_O[0, 0, a] = 1
        last.W_V[0, value, 0], last.W_V[0, a, 0] = wiring.last_gains
        last.W_O[0, 0, t] = 1
        model.unembed.W_U[t] = 2 * tokens
        model.unembed.W_U[a] = 2 * tokens * wiring.reads_a
        model.unembed.b_U[:] = -tokens.square()
    return model


class Table:
    """A stand-in for a model that looks its answer up: `answer(key, pair, position, row)`."""

    def __init__(self, answer: Callable[[int, tuple[int, int], int, int], int]) -> None:
        self.answer = answer
        self.cfg = SimpleNamespace(device="cpu", d_model=8, n_heads=1, d_mlp=None, d_vocab=120, n_ctx=9)

    def __call__(self, tokens: torch.Tensor, return_type: str = "logits") -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, self.cfg.d_vocab)
        for row, sequence in enumerate(tokens.tolist()):
            place = next(p for p, token in enumerate(sequence) if token in PAPER_FUNCTION.anchors)
            pair = (sequence[place], sequence[place + 1])
            logits[row, :, self.answer(sequence[place - 1], pair, place - 1, row)] = 1
        return logits
