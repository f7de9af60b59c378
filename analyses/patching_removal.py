"""How much of the logit difference do these heads carry? Their outputs are replaced, and those of random heads.

The prompts are run with the outputs z of the chosen heads taken from the same prompt with three unrelated names, at every
position: all that the heads know of these names is gone, and everything else they write stays (resample ablation: Chan
et al. 2022, causal scrubbing). With d the logit difference of the whole model and d' what is left of it,

    share = 1 - mean(d') / mean(d)

Control: as many random heads of the same layers, drawn anew `n_draws` times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.heads.control import draw_control_heads
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.metrics import logit_difference
from interp.interventions.patch_sites import record
from interp.interventions.select import Head, group_heads
from interp.models.batching import choose_batch_size, for_each_batch, split_evenly
from interp.models.forward import logits_at, run_until
from interp.statistics import bootstrap_interval, permutation_p_value
from tasks.prompts.ioi import IOIBatch

SIGNIFICANT = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadRemoval:
    """Logit difference of every prompt: whole model, chosen heads replaced, random heads replaced."""

    heads: tuple[Head, ...]
    """The heads that were replaced."""
    whole: Float[np.ndarray, "prompt"]
    """Logit difference of the whole model."""
    removed: Float[np.ndarray, "prompt"]
    """Logit difference with the chosen heads replaced."""
    control_heads: tuple[tuple[Head, ...], ...]
    """The random heads of each draw."""
    control: Float[np.ndarray, "draw prompt"]
    """Logit difference with the random heads replaced."""
    seed: int
    """Seed of the draws and of the intervals."""
    notes: tuple[str, ...] = ()
    """Layers without enough other heads, halved batches."""

    @property
    def n_draws(self) -> int:
        return len(self.control_heads)

    @property
    def share(self) -> tuple[float, float, float]:
        """(value, low, high) of the share of the logit difference that goes with the chosen heads."""
        return self._share_of(self.whole - self.removed)

    @property
    def control_share(self) -> tuple[float, float, float]:
        """(value, low, high) of the share that goes with random heads, the mean over draws."""
        return self._share_of(self.whole - self.control.mean(axis=0))

    @property
    def control_shares(self) -> Float[np.ndarray, "draw"]:
        """The share that goes with the random heads of each draw."""
        return 1 - self.control.mean(axis=1) / self.whole.mean()

    @property
    def difference(self) -> tuple[float, float, float]:
        """(value, low, high) of the chosen heads' share beyond the mean control's."""
        return self._share_of(self.control.mean(axis=0) - self.removed)

    @property
    def p_value(self) -> float:
        """Share of draws, the chosen heads among them, that carry as much: at best 1 / (1 + n_draws)."""
        return permutation_p_value(self.share[0], self.control_shares)

    @property
    def confirmed(self) -> bool:
        """The interval of the difference lies above 0 and p is at most 0.05, which takes at least 19 draws."""
        return bool(self.difference[1] > 0 and self.p_value <= SIGNIFICANT)

    def _share_of(self, lost: Float[np.ndarray, "prompt"]) -> tuple[float, float, float]:
        """mean(lost) / mean(whole), with the interval of the ratio as linearised at its value."""
        share = float(lost.mean() / self.whole.mean())
        low, high = bootstrap_interval((lost - share * self.whole) / self.whole.mean(), seed=self.seed)
        return share, share + float(low), share + float(high)


@torch.inference_mode()
def remove_heads(
    model: Any, prompts: IOIBatch, heads: Sequence[Head], *, n_draws: int = 20, seed: int = 0
) -> HeadRemoval:
    """Replace the outputs of `heads`, and of as many random heads of the same layers, on the same prompts.

    Raises `InputError` for a head that doesn't exist, or where the model has too few others.
    """
    chosen = tuple(heads)
    controls, notes = draw_control_heads(model, chosen, n_draws=n_draws, seed=seed)
    conditions = [group_heads(model, head_set) for head_set in ((), chosen, *controls)]
    hooks = {layer: f"blocks.{layer}.attn.hook_z" for groups in conditions for layer in groups}
    device = model.cfg.device
    values = np.zeros((len(conditions), len(prompts)))

    def run(rows: slice) -> None:
        tokens, scored = prompts.tokens[rows].to(device), prompts.scored[rows].to(device)
        measure = logit_difference(prompts.io[rows], prompts.s[rows])
        other = record(model, prompts.corrupted["unrelated"][rows].to(device), hooks)
        start = None
        if isinstance(model, HookedTransformer):  # a bridge would recompute the earlier layers all the same
            start = (min(hooks), run_until(model, tokens, f"blocks.{min(hooks)}.hook_resid_pre"))
        found = []
        for groups in conditions:
            edits = [(hooks[layer], _write(other[layer], numbers)) for layer, numbers in groups.items()]
            with add_hooks(model, edits):
                found.append(measure(logits_at(model, tokens, scored, start=start).float()).cpu().numpy())
        values[:, rows] = found

    at_most = min(choose_batch_size(model, prompts.tokens.shape[1]), 32)
    halved = for_each_batch(len(prompts), run, batch_size=split_evenly(len(prompts), at_most=at_most))
    return HeadRemoval(
        heads=chosen,
        whole=values[0],
        removed=values[1],
        control_heads=tuple(controls),
        control=values[2:],
        seed=seed,
        notes=(*notes, *halved),
    )


def _write(other: Float[Tensor, "batch pos head_index d_head"], heads: list[int]) -> HookFunction:
    def edit(z: Float[Tensor, "batch pos head_index d_head"], hook: HookPoint) -> Tensor:
        edited = z.clone()
        edited[:, :, heads] = other[:, :, heads]
        return edited

    return edit
