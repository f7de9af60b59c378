"""Score one resident model again and again under edits of its weights, running only the blocks that an edit can change.

Every edit of a sweep leaves the blocks below the lowest edited layer alone, so the residual stream before that layer is
computed once and kept; each pass begins there, and only the scored positions are unembedded. Models to which this doesn't
apply (hooks of the caller's own, say) run whole.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.patch_engine import can_skip
from interp.models.batching import choose_batch_size, for_each_batch, split_evenly
from interp.models.forward import logits_at, run_until
from interp.models.suffix import run_block


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Scores:
    """Means over the scored positions of each sequence."""

    error: Float[np.ndarray, "sequence"]
    """Share of positions whose likeliest token is wrong."""
    probability: Float[np.ndarray, "sequence"]
    """Probability of the right token."""
    loss: Float[np.ndarray, "sequence"]
    """Minus its log, in nats."""


class Scorer:
    """Scores of sequences of one length, from block `lowest` on; every sequence has as many scored positions."""

    def __init__(
        self, model: Any, tokens: Int[Tensor, "sequence pos"], scored: Bool[Tensor, "pos"], *, lowest: int
    ) -> None:
        self.model, self.lowest = model, lowest
        self.tokens, self.scored = tokens.to(model.cfg.device), scored.to(model.cfg.device)
        self.skips = can_skip(model)
        self.at_once = min(choose_batch_size(model, tokens.shape[1]), 16)
        self.notes: list[str] = []
        if self.skips:
            self.residual = self._run_below()

    @property
    def n_blocks(self) -> int:
        """Blocks that each pass runs."""
        return self.model.cfg.n_layers - (self.lowest if self.skips else 0)

    def measure(self, n: int | None = None) -> Scores:
        """Scores of the first `n` sequences, or of all, with the weights that the model has now."""
        n = len(self.tokens) if n is None else n
        kept = [np.zeros(n) for _ in range(3)]

        def run(rows: slice) -> None:
            for values, part in zip(kept, self._score(rows), strict=True):
                values[rows] = part

        for note in for_each_batch(n, run, batch_size=split_evenly(n, at_most=self.at_once)):
            if note not in self.notes:
                self.notes.append(note)
        error, probability, loss = kept
        return Scores(error=error, probability=probability, loss=loss)

    def _run_below(self) -> Float[Tensor, "sequence pos d_model"]:
        batches = self.tokens.split(self.at_once)
        return torch.cat([run_until(self.model, batch, f"blocks.{self.lowest}.hook_resid_pre") for batch in batches])

    @torch.inference_mode()
    def _score(self, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens = self.tokens[rows]
        start = None
        if self.skips:
            stream = self.residual[rows]
            for block in self.model.blocks[self.lowest :]:
                stream = run_block(block, stream, None)
            start = (self.model.cfg.n_layers, stream)
        scored = self.scored.expand(tokens.shape)
        logits = logits_at(self.model, tokens, scored, start=start).float()  # [batch * scored, d_vocab]
        targets = tokens.roll(-1, dims=1)[scored]
        log_probability = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        wrong = (logits.argmax(-1) != targets).float()
        parts = (wrong, log_probability.exp(), -log_probability)
        return tuple(part.view(len(tokens), -1).mean(1).cpu().numpy() for part in parts)  # type: ignore[return-value]
