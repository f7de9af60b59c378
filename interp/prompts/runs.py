"""Log-probabilities of every choice of every item, with heads taken out, and nothing computed twice.

Items are grouped by the length of their prompts, so that no prompt is padded. In a group

- the layers below `lowest`, which no removal touches, run once for all removals;
- a prompt runs once for all its choices, which read its keys and values; the choices' first tokens are scored at the
  prompt's last position, and choices of one token cost nothing more;
- only scored positions are unembedded, those of many groups at once, since each call copies the whole unembedding;
- a head is removed (z = 0) by setting its W_O to zero for the time of the run, so that fused kernels can be used.

A TransformerBridge, a model with hooks of the caller's own and architectures in which these shortcuts don't hold run
whole passes over prompt and choice, with heads removed by hooks.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry as KeysValues

from interp.errors import InputError
from interp.interventions.ablate import ablate_heads
from interp.interventions.patch_engine import can_skip
from interp.interventions.select import Head, group_heads
from interp.models.batching import choose_batch_size, split_evenly
from interp.models.forward import logits_at, run_until
from interp.models.suffix import normalise, run_block
from tasks.prompts.rules import ChoiceItem

_MOST_ROWS = 32
_MOST_SCORED = 256


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _Batch:
    """Items whose prompts have one length."""

    rows: list[int]
    """Their numbers among all items."""
    prompts: Int[Tensor, "item pos"]
    choices: Int[Tensor, "item choice token"]
    """Padded on the right."""
    followed: Bool[Tensor, "item choice followed"]
    """Of all tokens of a choice but the longest one's last, those that another token of it follows."""


class ChoiceRuns:
    """Items made ready for one model; `run` can be called with many sets of heads of layer `lowest` and above."""

    def __init__(self, model: Any, items: Sequence[ChoiceItem], *, lowest: int = 0) -> None:
        self.model, self.lowest = model, lowest
        self.shape = (len(items), require_alike(model, items))
        self.skips = can_skip(model)
        self.batches = list(_split(model, items))
        self.streams = [self._before(batch) for batch in self.batches] if self.skips else []

    @torch.inference_mode()
    def run(
        self, heads: Sequence[Head] = ()
    ) -> tuple[Float[np.ndarray, "item choice"], Bool[np.ndarray, "item choice"]]:
        """(log-probability of each choice in nats, whether each of its tokens is the likeliest of all)."""
        below = [head for head in heads if head[0] < self.lowest]
        if below:
            raise InputError(
                f"Head {below[0][0]}.{below[0][1]} lies below layer {self.lowest}, from which on these runs begin; "
                "make them with a smaller `lowest`."
            )
        log_probability, likeliest = np.zeros(self.shape), np.zeros(self.shape, dtype=bool)
        with silence_heads(self.model, heads) if self.skips else ablate_heads(self.model, heads):
            for batch, table in self._run_shared() if self.skips else self._run_whole():
                found = _gather(batch, table)
                log_probability[batch.rows], likeliest[batch.rows] = (values.cpu().numpy() for values in found)
        return log_probability, likeliest

    @torch.inference_mode()
    def _before(self, batch: _Batch) -> tuple[Tensor, Tensor]:
        """The residual stream before layer `lowest`: of the prompts, and of all tokens of choices but the last."""
        width = batch.prompts.shape[1]
        embedded = run_until(self.model, _join(batch), "blocks.0.hook_resid_pre")
        return self._run_layers(range(self.lowest), embedded[:: self.shape[1], :width], embedded[:, width:])

    def _run_layers(self, layers: range, prompt: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Both streams after `layers`; after the last of all, the prompts' last position alone."""
        for layer in layers:
            block = self.model.blocks[layer]
            if choice.shape[1]:
                choice = run_block(block, choice, _keys_values(block, prompt, repeats=self.shape[1]))
            prompt = run_block(block, prompt, None, last_only=layer == self.model.cfg.n_layers - 1)
        return prompt, choice

    def _run_shared(self) -> Iterator[tuple[_Batch, Tensor]]:
        """Each batch with the log-probabilities at its scored positions, unembedded many batches at once."""
        pending: list[tuple[_Batch, Tensor]] = []
        for number, batch in enumerate(self.batches):
            prompt, choice = self._run_layers(range(self.lowest, self.model.cfg.n_layers), *self.streams[number])
            later = choice.unflatten(0, (-1, self.shape[1]))[batch.followed]
            pending.append((batch, torch.cat([prompt[:, -1], later])))
            sizes = [len(stream) for _, stream in pending]
            if sum(sizes) >= _MOST_SCORED or number == len(self.batches) - 1:
                tables = self._unembed(torch.cat([stream for _, stream in pending])).split(sizes)
                yield from zip([waiting for waiting, _ in pending], tables, strict=True)
                pending = []

    def _run_whole(self) -> Iterator[tuple[_Batch, Tensor]]:
        """The same from whole passes: of each prompt, and before each choice of several tokens."""
        for batch in self.batches:
            width = batch.prompts.shape[1]
            last = torch.zeros_like(batch.prompts, dtype=torch.bool)
            last[:, -1] = True
            parts = [(batch.prompts, last)]
            if batch.followed.any():
                tokens = _join(batch)
                followed = torch.zeros_like(tokens, dtype=torch.bool)
                followed[:, width:] = batch.followed.flatten(0, 1)
                parts.append((tokens, followed))
            size = min(_MOST_ROWS, choose_batch_size(self.model, width))
            logits = [
                logits_at(self.model, rows, scored)
                for tokens, marked in parts
                for rows, scored in zip(tokens.split(size), marked.split(size), strict=True)
            ]
            yield batch, torch.cat(logits).float().log_softmax(-1)

    def _unembed(self, stream: Float[Tensor, "scored d_model"]) -> Float[Tensor, "scored d_vocab"]:
        """Log-probabilities."""
        everywhere = torch.ones(len(stream), 1, dtype=torch.bool, device=stream.device)
        start = (self.model.cfg.n_layers, stream[:, None])
        return logits_at(self.model, everywhere.long(), everywhere, start=start).float().log_softmax(-1)


def require_alike(model: Any, items: Sequence[ChoiceItem]) -> int:
    """How many choices each item has; raises `InputError` where that differs, or where an item doesn't fit the model."""
    if not items:
        raise InputError("There are no items to score; give at least one.")
    counts = sorted({len(item.choices) for item in items})
    if len(counts) > 1:
        raise InputError(
            f"Items have {counts[0]} to {counts[-1]} choices; score items of one number of choices at a time."
        )
    longest = max(len(item.tokens) + max(map(len, item.choices)) - 1 for item in items)
    if longest > model.cfg.n_ctx:
        raise InputError(
            f"An item takes {longest} tokens, but this model reads at most n_ctx={model.cfg.n_ctx}; give shorter prompts."
        )
    largest = max(token for item in items for tokens in (item.tokens, *item.choices) for token in tokens)
    if largest >= model.cfg.d_vocab:
        raise InputError(
            f"An item has token id {largest}, but this model's ids go from 0 to {model.cfg.d_vocab - 1}; "
            "cut the items with this model's tokenizer."
        )
    return counts[0]


@contextmanager
def silence_heads(model: Any, heads: Sequence[Head]) -> Iterator[None]:
    """W_O = 0 of these heads, which is z = 0; put back bit for bit."""
    kept: list[tuple[Tensor, list[int], Tensor]] = []
    try:
        for layer, numbers in group_heads(model, heads).items():
            weights = model.blocks[layer].attn.W_O.detach()
            kept.append((weights, numbers, weights[numbers].clone()))
            weights[numbers] = 0
        yield
    finally:
        for weights, numbers, before in kept:
            weights[numbers] = before


def _split(model: Any, items: Sequence[ChoiceItem]) -> Iterator[_Batch]:
    by_length: dict[int, list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        by_length[len(item.tokens)].append(row)
    for length, rows in sorted(by_length.items()):
        size = split_evenly(len(rows), at_most=min(_MOST_ROWS, choose_batch_size(model, length)))
        for start in range(0, len(rows), size):
            yield _stack(rows[start : start + size], items, device=model.cfg.device)


def _stack(rows: list[int], items: Sequence[ChoiceItem], *, device: Any) -> _Batch:
    chosen = [items[row] for row in rows]
    longest = max(len(choice) for item in chosen for choice in item.choices)
    padded = [[[*choice, *[choice[-1]] * (longest - len(choice))] for choice in item.choices] for item in chosen]
    n_tokens = torch.tensor([[len(choice) for choice in item.choices] for item in chosen], device=device)
    return _Batch(
        rows=rows,
        prompts=torch.tensor([item.tokens for item in chosen], device=device),
        choices=torch.tensor(padded, device=device),
        followed=torch.arange(1, longest, device=device) < n_tokens[..., None],
    )


def _join(batch: _Batch) -> Int[Tensor, "row pos"]:
    """Every prompt before every choice of its own, without the choice's last token, which nothing follows."""
    repeated = batch.prompts.repeat_interleave(batch.choices.shape[1], dim=0)
    return torch.cat([repeated, batch.choices.flatten(0, 1)[:, :-1]], dim=1)


def _keys_values(block: Any, stream: Float[Tensor, "item pos d_model"], *, repeats: int) -> KeysValues:
    """What this block's attention keeps of the prompts, once for each choice."""
    x = normalise(block.ln1, stream)
    _, keys, values = block.attn.calculate_qkv_matrices(x[:, :1], x, x)
    keys, values = (kept.repeat_interleave(repeats, dim=0) for kept in (keys, values))
    return KeysValues(keys, values, frozen=True)


def _gather(
    batch: _Batch, table: Float[Tensor, "scored d_vocab"]
) -> tuple[Float[Tensor, "item choice"], Bool[Tensor, "item choice"]]:
    """The choices' log-probabilities from those of all tokens: at the prompts' ends, then at `batch.followed`."""
    n_items = len(batch.prompts)
    best = table.argmax(-1)
    start, targets = batch.choices[..., 0], batch.choices[..., 1:][batch.followed]
    values = torch.zeros(batch.choices.shape, dtype=torch.float64, device=table.device)
    right = torch.ones_like(batch.choices, dtype=torch.bool)
    values[..., 0] = table[:n_items].gather(-1, start).double()
    right[..., 0] = best[:n_items, None] == start
    values[..., 1:][batch.followed] = table[n_items:].gather(-1, targets[:, None])[:, 0].double()
    right[..., 1:][batch.followed] = best[n_items:] == targets
    return values.sum(-1), right.all(-1)
