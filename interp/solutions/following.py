"""Give the last token the state it would have with other anchors, layer by layer: does the answer follow them?

Two sequences share key, position and noise, and have different trained pairs of anchors. Where the anchors are brought to
the last token first, its answer follows them as soon as it has the other's state after the first layer; where they act on
the key elsewhere, only after the last (activation patching, see `interp.interventions.patch`).

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> follow_anchors(model, dropped_pairs(), n=14, seed=0).shape  # [sequence, layer]
(14, 2)
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.interventions.patch import patch
from tasks.anchor.composite import Composite
from tasks.seeding import derive_seed


def follow_anchors(model: Any, task: Composite, *, n: int, seed: int) -> Float[np.ndarray, "other layer"]:
    """1 where the answer is that of the other anchors, once the last token's state after a layer is theirs.

    About `n` sequences, those whose two answers differ. Raises `InputError` where none do.
    """
    free, pairs = task.with_last_free(), list(task.trained_pairs)
    turn = max(1, len(pairs) // 3)
    seed = derive_seed(seed, "other anchors")
    base = free.sample_pairs(n, pairs=pairs, seed=seed)
    other = free.sample_pairs(n, pairs=pairs[turn:] + pairs[:turn], seed=seed)  # the same keys and noise
    rows = (base.targets[:, -1] != other.targets[:, -1]).nonzero()[:, 0]
    if not len(rows):
        raise InputError(
            f"All pairs that {task.name!r} trains have the same answer, so no answer can follow the anchors."
        )
    base, other = base.take(rows), other.take(rows)
    target = other.targets[:, -1].to(model.cfg.device)

    def follows(logits: Tensor) -> Tensor:
        return (logits.argmax(-1) == target).double()

    patched = patch(model, other.tokens, base.tokens, follows, site="resid_post", positions=["last"], batch=base)
    values: np.ndarray = patched.values
    return values[..., 0]
