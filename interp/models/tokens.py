"""Which token ids a random probe may use, and what stands first.

Special ids (chat markers, padding, end of text) and rows of the embedding that no token of the tokenizer uses would
turn a random sequence into something the model never saw, so they are left out where the tokenizer tells.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
>>> usable_vocabulary(model), resolve_bos(model, "auto")
(tensor([0, 1, 2, 3, 4]), None)
"""

import hashlib
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError

Bos = Literal["auto", "none", "bos"] | int
"""`auto`: the tokenizer's BOS where the model expects one; `none`; `bos`: the tokenizer's, always; or a token id."""


def usable_vocabulary(model: Any) -> Int[Tensor, "ids"]:
    """All ids of the model, less those its tokenizer marks as special or doesn't use; on the CPU, ascending."""
    d_vocab = model.cfg.d_vocab
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return torch.arange(d_vocab)
    used = {token_id for token_id in tokenizer.get_vocab().values() if token_id < d_vocab}
    special = set(tokenizer.all_special_ids)
    special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return torch.tensor(sorted(used - special), dtype=torch.long)


def hash_tokens(tokens: Int[Tensor, "sequence pos"]) -> str:
    """SHA-256 of the ids and their shape: two measurements with one hash read the same data."""
    digest = hashlib.sha256(str(tuple(tokens.shape)).encode())
    digest.update(tokens.cpu().to(torch.int64).contiguous().numpy().tobytes())
    return digest.hexdigest()


def resolve_bos(model: Any, bos: Bos) -> int | None:
    """The id that stands first, or None. Raises `InputError` where a BOS is asked for and there is none."""
    if bos == "none":
        return None
    if isinstance(bos, int):
        if not 0 <= bos < model.cfg.d_vocab:
            raise InputError(
                f"The first token has id {bos}, but this model's ids go from 0 to {model.cfg.d_vocab - 1}."
            )
        return bos
    if bos not in ("auto", "bos"):
        raise InputError(f"bos={bos!r} isn't known; use 'auto', 'none', 'bos' or a token id.")
    tokenizer = getattr(model, "tokenizer", None)
    bos_id = getattr(tokenizer, "bos_token_id", None)
    if bos == "auto":
        return bos_id if getattr(model.cfg, "default_prepend_bos", False) else None
    if bos_id is None:
        raise InputError(
            "bos='bos' was asked for, but this model has no tokenizer with a BOS token; give its id instead."
        )
    return bos_id
