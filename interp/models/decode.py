"""Greedy decoding of many answers at once, with the right answer as a draft.

    y_t = argmax p(. | prompt, y_1 ... y_{t-1})   until `end` is written

A pass over prompt and draft gives the argmax at every position. Up to the first position at which it isn't the draft's
word, the draft is what greedy decoding writes; there the argmax goes in its place and the next pass looks further. So an
answer that the model has right costs one pass, and each mistake one more, instead of one pass a word, and the result is the
same. (Drafts of another model are checked likewise in speculative decoding: Leviathan et al. 2023, arXiv:2211.17192.)

Rows are padded on the right, where a causal model doesn't look, so prompts of all lengths run together.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=6, attn_only=True)
>>> right = torch.tensor([[1, 2, 3, 3, 0], [1, 3, 2, 4, 4]])
>>> decode_greedily(model, right, first=torch.tensor([3, 2]), end=4, n_tokens=3).shape
torch.Size([2, 3])
"""

from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at


@torch.inference_mode()
def decode_greedily(
    model: Any,
    tokens: Int[Tensor, "row pos"],
    *,
    first: Int[Tensor, "row"],
    end: int,
    n_tokens: int = 50,
    batch_size: int | Literal["auto"] = "auto",
) -> Int[Tensor, "row n_tokens"]:
    """What the model writes from position `first` of each row on, up to and with `end`; 0 behind it, on the CPU.

    The tokens before `first` are the prompt, those from there on a draft, which decides how fast it goes and not what is
    written. At most `n_tokens` are written, and as many as the context holds.

    Raises `InputError` for a row without a prompt, an answer that would begin behind the row or the context, and a model
    that reads later tokens.
    """
    _check(model, tokens, first, n_tokens)
    longest = min(model.cfg.n_ctx, int(first.max()) + n_tokens)
    drafts = torch.zeros(len(tokens), longest, dtype=torch.long)
    drafts[:, : tokens.shape[1]] = tokens[:, :longest].cpu()
    written = torch.zeros(len(tokens), n_tokens, dtype=torch.long)

    def run(rows: slice) -> None:
        written[rows] = _decode(model, drafts[rows], first[rows].cpu(), end=end, n_tokens=n_tokens)

    at_once = choose_batch_size(model, longest) if batch_size == "auto" else batch_size
    for_each_batch(len(tokens), run, batch_size=at_once)
    return written


def _decode(
    model: Any, drafts: Int[Tensor, "row pos"], first: Int[Tensor, "row"], *, end: int, n_tokens: int
) -> Int[Tensor, "row n_tokens"]:
    drafts = drafts.clone()
    position = torch.arange(drafts.shape[1])
    stop = (first + n_tokens).clamp(max=drafts.shape[1])
    checked = first.clone()  # everything before is what greedy decoding writes
    going = torch.arange(len(drafts))
    while len(going):
        width = int(stop[going].max())
        rows = drafts[going, :width]
        open_ones = (position[:width] >= checked[going, None]) & (position[:width] < stop[going, None])
        guesses = rows.clone()
        before = open_ones.roll(-1, dims=1)
        before[:, -1] = False
        logits = logits_at(model, rows.to(model.cfg.device), before.to(model.cfg.device))
        guesses[open_ones] = logits.argmax(-1).cpu()  # both masks go row by row
        wrong = (guesses != rows) & open_ones
        place = torch.where(wrong.any(1), wrong.int().argmax(1), stop[going] - 1)
        drafts[going, place] = guesses[torch.arange(len(going)), place]
        checked[going] = place + 1
        ended = (drafts[going] == end) & (position >= first[going, None]) & (position < checked[going, None])
        going = going[~ended.any(1) & (checked[going] < stop[going])]
    at = first[:, None] + torch.arange(n_tokens)
    answers = drafts.gather(1, at.clamp(max=drafts.shape[1] - 1)).masked_fill(at >= checked[:, None], 0)
    ends = (answers == end).long()
    return answers.masked_fill(ends.cumsum(1) > ends, 0)


def _check(model: Any, tokens: Int[Tensor, "row pos"], first: Int[Tensor, "row"], n_tokens: int) -> None:
    if getattr(model.cfg, "attention_dir", "causal") != "causal":
        raise InputError("This model reads later tokens, so it can't write one after the other; give a causal model.")
    if n_tokens < 1:
        raise InputError(f"n_tokens={n_tokens} writes nothing; give at least 1.")
    if len(first) != len(tokens) or not len(first):
        raise InputError(
            f"first has {len(first)} positions for {len(tokens)} rows; give one for each row, at least one."
        )
    longest = min(tokens.shape[1], model.cfg.n_ctx - 1)
    if int(first.min()) < 1 or int(first.max()) > longest:
        raise InputError(
            f"The answers begin at positions {int(first.min())} to {int(first.max())}, but a prompt needs a token and must lie "
            f"within the row and the context: give positions 1 to {longest}."
        )
