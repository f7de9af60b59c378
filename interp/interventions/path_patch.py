"""Path patching: what does a head tell *this* reader, and does the answer depend on it?

Activation patching moves everything that a head's output reaches. Path patching moves one path: what the senders write,
as the receivers read it directly. Every other head stays as in the base run; the MLPs between are computed again
(`recomputed`, Wang et al. 2022, arXiv:2211.00593, section 3.1 and appendix B) or stay as well (`frozen`: the residual
stream alone, Goldowsky-Dill et al. 2023, arXiv:2304.05969). With x_r the stream of the base run before receiver r,

    x_r' = x_r + sum over senders s of (z_s[source] - z_s[base]) W_O,s  (+ what the MLPs between make of it)

the receivers' queries, keys or values become those of x_r', and the base run is done again with them in place.

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> clean, corrupted = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 3, 2]])
>>> result = patch_paths(model, clean, corrupted, interp.logit_difference(1, 3), receivers=[(1, 0, "k")])
>>> result.senders, result.values.shape
(((0, 0), (0, 1)), (1, 2))
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.metrics import Metric, prepare_metric
from interp.interventions.patch_engine import can_skip
from interp.interventions.patch_plan import make_plan
from interp.interventions.patch_positions import Scored
from interp.interventions.patch_result import Direction
from interp.interventions.patch_sweep import run_unpatched, to_numpy
from interp.interventions.path_engine import MlpPaths, SuffixPaths, WholePaths
from interp.interventions.path_result import PathPatchResult
from interp.interventions.paths import (
    Receiver,
    Sender,
    choose_senders,
    group_receivers,
    last_reader,
    mark_senders,
)
from interp.interventions.select import Positions, resolve_positions
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.check import require_hook
from interp.models.provenance import get_provenance
from interp.models.tokens import hash_tokens
from tasks.task import Batch

_KEPT_BYTES = 2**28
"""Activations of the two unpatched runs that are kept at once."""


@torch.no_grad()
def patch_paths(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    metric: Metric | Callable[..., Any],
    *,
    receivers: Sequence[Receiver] | Literal["logits"],
    senders: Literal["each"] | Sequence[Sender | Sequence[Sender]] = "each",
    mlps: MlpPaths = "recomputed",
    direction: Direction = "denoise",
    positions: Positions | None = None,
    scored: Scored = -1,
    batch: Batch | None = None,
    batch_size: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> PathPatchResult:
    """Patch the direct paths from senders to `receivers`, one entry of `senders` at a time.

    `receivers` all receive at once, at every position: `(layer, head, "q")`, `"k"` or `"v"`, where heads of k and v are
    key-value heads; or `"logits"`, the stream after the last block. `senders` is `"each"` head in a layer before the last
    receiver's, or a list; each of its entries is one sender, `(layer, head)` or `(layer, "mlp")`, or a list of senders that
    are patched together. `positions` restricts what they send to some positions (indices, a mask, or roles of `batch`).

    `mlps`: `"recomputed"` MLPs after a sender react to it, and what they then write belongs to the path; `"frozen"` MLPs
    write what they write in the base run. `direction` `"denoise"` sends clean outputs in the corrupted run, `"noise"`
    corrupted outputs in the clean run. `metric`, `scored` and `batch_size` are as in `interp.patch`.

    Raises `InputError` for a sender or receiver that doesn't exist, a sender in or after the last receiver's layer, and
    whatever `interp.patch` refuses.
    """
    for name, given, allowed in (("direction", direction, Direction), ("mlps", mlps, MlpPaths)):
        if given not in get_args(allowed):
            raise InputError(f"{name}={given!r} isn't known; use one of {', '.join(get_args(allowed))}.")
    if batch_size != "auto" and batch_size < 1:
        raise InputError(f"batch_size={batch_size} runs nothing; give at least 1, or 'auto'.")
    plan = make_plan(
        model, clean, corrupted, site="z", positions="all", layers=None, heads=None, scored=scored, batch=batch
    )
    reads, logits_too = group_receivers(model, receivers)
    if reads and logits_too:
        raise InputError(
            "The receivers name heads and the logits, but the logits also change with what those heads then do; "
            "measure the two in separate calls."
        )
    entries = choose_senders(model, senders, before=last_reader(model, reads, logits_too))
    heads, mlp_senders = mark_senders(model, entries)
    if mlp_senders.any() or (mlps == "frozen" and not getattr(model.cfg, "attn_only", False)):
        require_hook(model, "hook_mlp_out")
    at = torch.ones(clean.shape, dtype=torch.bool)
    if positions is not None:
        at = resolve_positions(positions, argument="positions", batch=batch)(*clean.shape)
    measure = prepare_metric(metric, n_examples=len(clean), d_vocab=model.cfg.d_vocab)

    tokens = {"clean": clean.to(model.cfg.device), "corrupted": corrupted.to(model.cfg.device)}
    rows_at_once = choose_batch_size(model, clean.shape[1]) if batch_size == "auto" else batch_size
    notes: list[str] = []
    logits = {name: run_unpatched(model, tokens[name], plan.scored, rows_at_once, notes) for name in tokens}
    baselines = {name: to_numpy(measure(logits[name].clone(), logits["clean"])) for name in tokens}
    base, source = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    values = np.repeat(baselines[base][:, None], len(entries), axis=1)
    skips = can_skip(model)
    engine = SuffixPaths if skips else WholePaths
    n_runs = 0

    def run_examples(examples: Int[Tensor, "chunk"]) -> None:
        nonlocal n_runs
        there = examples.to(tokens[base].device)
        paths = engine(
            model,
            tokens[base][there],
            tokens[source][there],
            plan.scored[examples],
            heads=heads,
            mlp_senders=mlp_senders,
            positions=at[examples],
            reads=reads,
            mlps=mlps,
        )
        jobs = paths.find_changes().any(dim=-1).nonzero().cpu()  # [job 2]

        def run(rows: slice) -> None:
            found = paths.run(jobs[rows]).float()
            for sender in jobs[rows, 0].unique().tolist():  # the metric gets whole batches, one a sender
                mine = (jobs[rows, 0] == sender).nonzero()[:, 0]
                which = examples[jobs[rows, 1][mine]]
                whole = logits[base].clone()
                whole[which.to(whole.device)] = found[mine.to(found.device)]
                values[which.numpy(), sender] = to_numpy(measure(whole, logits["clean"]))[which.numpy()]

        notes.extend(for_each_batch(len(jobs), run, batch_size=rows_at_once))
        n_runs += len(jobs)

    groups = [torch.arange(len(clean))]
    if skips:  # runs end at the scored position, so those scored at the same one go together
        groups = [(plan.scored == position).nonzero()[:, 0] for position in plan.scored.unique()]
    kept = max(1, _KEPT_BYTES // _kept_bytes(model, clean.shape[1]))
    for group in groups:

        def run_group(rows: slice, group: Tensor = group) -> None:
            run_examples(group[rows])

        notes += for_each_batch(len(group), run_group, batch_size=min(len(group), kept))
    return PathPatchResult(
        receivers="logits" if logits_too else tuple(tuple(receiver) for receiver in receivers),
        senders=entries,
        mlps=mlps,
        direction=direction,
        metric=measure.name,
        values=values,
        clean=baselines["clean"],
        corrupted=baselines["corrupted"],
        scored=tuple(plan.scored.tolist()),
        engine="suffix" if skips else "whole",
        n_runs=n_runs,
        seed=seed,
        data_sha256=hash_tokens(torch.cat([clean, corrupted])),
        provenance=get_provenance(model),
        notes=tuple(dict.fromkeys(notes)),
    )


def _kept_bytes(model: Any, n_positions: int) -> int:
    """Bytes of one example's activations that both unpatched runs keep for the time of a sweep."""
    cfg = model.cfg
    attention = cfg.n_heads * cfg.d_head
    return 4 * n_positions * cfg.n_layers * (4 * attention + 4 * cfg.d_model)
