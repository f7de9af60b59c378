"""What a model is asked under every edit: to repeat a random segment, and to go on with ordinary text."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InputError
from interp.models.tokens import usable_vocabulary
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator


def draw_copies(
    model: Any, *, n_sequences: int, segment: int, bos: int | None, seed: int
) -> tuple[Int[Tensor, "sequence pos"], Bool[Tensor, "pos"]]:
    """Sequences of two copies of a random segment, and the S - 1 positions of the second copy whose next token is known.

    Raises `InputError` where they are longer than the model's context, or the vocabulary is smaller than a segment.
    """
    if n_sequences < 2 or segment < 2:
        raise InputError(
            f"n_sequences={n_sequences} and segment={segment} were given, but an interval needs at least 2 sequences and a copy "
            "at least 2 tokens."
        )
    n_positions = int(bos is not None) + 2 * segment
    if n_positions > model.cfg.n_ctx:
        raise InputError(
            f"2 copies of {segment} tokens make a sequence of {n_positions}, but this model reads at most "
            f"n_ctx={model.cfg.n_ctx}; give a smaller `segment`."
        )
    vocabulary = usable_vocabulary(model)
    if len(vocabulary) - int(bos in vocabulary.tolist()) < segment:
        raise InputError(
            f"A segment of {segment} distinct tokens needs as many ids, but the vocabulary has {len(vocabulary)}; "
            "give a smaller `segment`."
        )
    tokens = repeated_tokens(
        n=n_sequences,
        segment=segment,
        copies=2,
        vocabulary=vocabulary,
        bos=bos,
        generator=derive_generator(seed, "bridge sequences"),
    )
    position = torch.arange(n_positions)
    return tokens, (position >= n_positions - segment) & (position < n_positions - 1)


def check_text(model: Any, text: Int[Tensor, "passage pos"]) -> Bool[Tensor, "pos"]:
    """The positions of text that are scored: all but the last, whose next token isn't there."""
    if text.dim() != 2 or len(text) < 2 or not 2 <= text.shape[1] <= model.cfg.n_ctx:
        raise InputError(
            f"text has shape {list(text.shape)}; give ids of at least 2 passages of 2 to n_ctx={model.cfg.n_ctx} tokens, all of "
            "one length."
        )
    if not 0 <= int(text.min()) <= int(text.max()) < model.cfg.d_vocab:
        raise InputError(
            f"text has ids from {int(text.min())} to {int(text.max())}, but this model's go from 0 to {model.cfg.d_vocab - 1}."
        )
    return torch.arange(text.shape[1]) < text.shape[1] - 1
