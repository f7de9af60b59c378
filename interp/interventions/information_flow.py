"""Which edges between roles carry the answer, layer by layer.

For each layer and each ordered pair of roles (query role q <- key role k): the attention mass from q to k, and what the
answer loses when just these edges are cut, in all heads of that layer (attention knockout: Geva et al. 2023,
arXiv 2304.14767). With p the uncut and p' the cut prediction at the scored position,

    KL(p || p') = sum_y p(y) log(p(y) / p'(y)),   accuracy = [argmax p' = target],   log p'(target)

beside the same for random edge sets of the same layer that remove as much attention mass. The picture of it, tokens left
to right and layers bottom to top, is that of Zhang et al. 2024 (arXiv 2405.05409, figure 3), who draw the mass alone.

>>> import interp, torch
>>> from tasks.task import Batch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> tokens = torch.tensor([[0, 1, 2], [3, 4, 1]])
>>> last = torch.tensor([[False, False, True]]).expand(2, -1)
>>> roles = {"key": torch.tensor([[0], [1]]), "last": torch.tensor([[2], [2]])}
>>> batch = Batch(tokens=tokens, targets=tokens, trained=last, scored=last, roles=roles)
>>> flow = information_flow(model, batch, n_controls=3)
>>> flow.roles, flow.kl.shape  # [example, layer, query role, key role]
(('rest', 'key', 'last'), (2, 2, 3, 3))
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from interp.errors import InputError
from interp.interventions.flow_result import InformationFlow
from interp.interventions.flow_sweep import FlowSweep
from interp.interventions.knock_out import KnockOutMode, choose_edit
from interp.interventions.role_edges import assign_roles
from interp.interventions.select import Head, choose_heads
from interp.models.provenance import get_provenance
from interp.models.tokens import hash_tokens
from tasks.task import Batch


@torch.no_grad()
def information_flow(
    model: Any,
    batch: Batch,
    *,
    roles: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[Head] | None = None,
    mode: KnockOutMode = "mask",
    n_controls: int = 20,
    seed: int = 0,
    batch_size: int | Literal["auto"] = "auto",
) -> InformationFlow:
    """Cut the edges of every pair of roles in every layer, one layer and pair at a time, and as many random ones.

    `roles` are names of `batch.roles`, in the order of the picture; by default all of them, left to right. They may not
    overlap; positions without a role are called `rest`. Positions after the batch's last scored one are left out. The
    answer is `batch.targets` where `batch.scored`; of several scored positions in a row the mean is taken.
    `heads` are those in which edges are cut: numbers in each of `layers`, or (layer, head) pairs; all by default.
    `mode` is that of `knock_out_attention`. `batch_size` is how many sequences run at once; `auto` fits the memory.

    What is cut: every edge from a position of q to one of k at or before it, so for q = k also that of a position to
    itself. With mode `mask` a query that would be left without a key keeps itself; with `bos` the edge to the first token
    is never cut. `n_controls` random sets are drawn anew for each example from the other edges of the layer whose query
    can still reach a scored position (see `edge_controls`); under `mask` they leave every query a key.

    Raises `InputError` for roles that overlap, don't exist or have no position, a row without a scored position, and
    layers, heads, modes and numbers that don't exist.
    """
    by_layer = choose_heads(model, layers, heads)
    choose_edit(model, mode)
    _check(model, batch, n_controls=n_controls, batch_size=batch_size)
    names, where = assign_roles(batch, roles)
    length, device = where.shape[2], model.cfg.device
    sweep = FlowSweep(
        model,
        batch.tokens[:, :length].to(device),
        batch.targets[:, :length].to(device),
        batch.scored[:, :length].to(device),
        where.to(device),
        heads=by_layer,
        mode=mode,
        n_controls=n_controls,
        seed=seed,
        batch_size=batch_size,
    )
    sweep.run()
    return InformationFlow(
        roles=names,
        layers=tuple(by_layer),
        heads=tuple(tuple(chosen) for chosen in by_layer.values()),
        mode=mode,
        attention_mass=sweep.attention_mass,
        removed_mass=sweep.removed_mass[:, 0],
        accuracy=sweep.accuracy[:, 0],
        kl=sweep.kl[:, 0],
        log_prob=sweep.log_prob[:, 0],
        uncut_accuracy=sweep.uncut_accuracy,
        uncut_log_prob=sweep.uncut_log_prob,
        control_accuracy=_mean_over_examples(sweep.accuracy[:, 1:]),
        control_kl=_mean_over_examples(sweep.kl[:, 1:]),
        control_mass=_mean_over_examples(sweep.removed_mass[:, 1:]),
        engine=sweep.engine,
        n_runs=sweep.n_runs,
        seed=seed,
        data_sha256=hash_tokens(batch.tokens),
        provenance=get_provenance(model),
        notes=tuple(dict.fromkeys(sweep.notes)),
    )


def _mean_over_examples(values: Float[np.ndarray, "example *rest"]) -> Float[np.ndarray, "*rest"]:
    """Over the examples that have a value; NaN where none has one."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def _check(model: Any, batch: Batch, *, n_controls: int, batch_size: int | Literal["auto"]) -> None:
    if n_controls < 1:
        raise InputError(f"n_controls={n_controls} leaves an effect without anything to compare; give at least 1.")
    if batch_size != "auto" and batch_size < 1:
        raise InputError(f"batch_size={batch_size} runs nothing; give at least 1, or 'auto'.")
    unscored = (~batch.scored.any(dim=1)).nonzero()
    if len(unscored):
        raise InputError(
            f"Sequence {int(unscored[0])} has no scored position, so there is no answer to follow; leave it out."
        )
    if batch.tokens.shape[1] > model.cfg.n_ctx:
        raise InputError(f"The sequences have {batch.tokens.shape[1]} tokens, but this model reads {model.cfg.n_ctx}.")
    for name, ids in (("tokens", batch.tokens), ("targets", batch.targets[batch.scored])):
        if ids.min() < 0 or ids.max() >= model.cfg.d_vocab:
            raise InputError(
                f"The {name} go from {int(ids.min())} to {int(ids.max())}, but this model's ids from 0 to "
                f"{model.cfg.d_vocab - 1}."
            )
