"""Activation patching: put an activation of one run into another, and see whether the answer moves.

The clean and the corrupted prompt differ in what decides the answer. `denoise` runs the corrupted prompt with one
activation of the clean run in place (is it enough to bring the answer back?), `noise` runs the clean prompt with one
activation of the corrupted run (is it needed?). Every layer, head and position is patched in turn (Vig et al. 2020,
arXiv:2004.12265; Meng et al. 2022, arXiv:2202.05262; Heimersheim & Nanda 2024, arXiv:2404.15255).

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> clean, corrupted = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 3, 2]])
>>> result = interp.patch(model, clean, corrupted, interp.logit_difference(1, 3), site="resid_pre")
>>> result.recovery[0].round(5).tolist()  # only position 1 differs before layer 0
[0.0, 1.0, 0.0]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.metrics import Metric, prepare_metric
from interp.interventions.patch_plan import make_plan
from interp.interventions.patch_positions import PatchPositions, Scored
from interp.interventions.patch_result import Direction, PatchResult, Site
from interp.interventions.patch_sweep import run_sweep
from interp.models.provenance import get_provenance
from interp.models.tokens import hash_tokens
from tasks.task import Batch


def patch(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    metric: Metric | Callable[..., Any] | Mapping[str, Metric | Callable[..., Any]],
    *,
    site: Site,
    direction: Direction = "denoise",
    positions: PatchPositions = "each",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scored: Scored = -1,
    batch: Batch | None = None,
    batch_size: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> PatchResult:
    """Patch every layer, head (where the site has heads) and position of `site`, one at a time.

    `positions`, an entry of the position axis for each; for `pattern` they are query positions:

    - `"each"` by itself, `"all"` together, or a list that all examples share (negative ones count from the end);
    - roles that `batch` names, such as `["IO", "S1", "last"]`, which may move from example to example; a role with several
      positions in an example is patched at all of them together, and an example without the role is left unpatched;
    - integers [example, width], counted from the front: column j has the j-th position of every example.

    `layers` and `heads` restrict the sweep; for `k` and `v` heads are key-value heads. `scored` is the position whose logits
    the metric gets: one for all, one for each example, or a role. `batch_size` is how many sequences run at once, `auto` a
    number whose activations stay within 256 MB; running out of memory halves it.

    Prompts of different lengths are padded on the right, with any token id, and scored at their last tokens
    (`scored=lengths - 1`, or a role): a causal model never reads the padding, so no value depends on it, and a patch after
    the scored position does nothing. The clean and the corrupted prompt of an example stay aligned token by token.

    `metric` is `interp.logit_difference(...)`, `interp.answer_log_probability(...)`, `interp.kl_to_clean()`, or a function
    from logits [example, d_vocab] to one value per example, in which no example's value depends on another's logits. Several
    metrics, {name: metric}, are measured in one sweep: the result is the first one's, `result[name]` that of another.

    Raises `InputError` for a layer, head, position or role that doesn't exist, a role that is empty in every example,
    positions of an example after the one it is scored at, and prompts or a batch of another size.
    """
    if direction not in get_args(Direction):
        raise InputError(f"direction={direction!r} isn't known; use one of {', '.join(get_args(Direction))}.")
    if batch_size != "auto" and batch_size < 1:
        raise InputError(f"batch_size={batch_size} runs nothing; give at least 1, or 'auto'.")
    plan = make_plan(
        model,
        clean,
        corrupted,
        site=site,
        positions=positions,
        layers=layers,
        heads=heads,
        scored=scored,
        batch=batch,
    )
    measures = _prepare_metrics(metric, n_examples=len(clean), d_vocab=model.cfg.d_vocab)
    sweeps = run_sweep(
        model, clean, corrupted, measures, plan=plan, site=site, direction=direction, batch_size=batch_size
    )
    first, *others = [
        PatchResult(
            site=site,
            direction=direction,
            metric=measure.name,
            layers=plan.layers,
            heads=plan.heads,
            positions=plan.places.shared,
            position_labels=plan.places.labels,
            query_heads=plan.query_heads,
            values=swept.values.reshape(len(clean), *plan.shape),
            clean=swept.clean,
            corrupted=swept.corrupted,
            scored=tuple(plan.scored.tolist()),
            engine=swept.engine,
            n_runs=int(swept.was_run.sum()),
            seed=seed,
            data_sha256=hash_tokens(torch.cat([clean, corrupted])),
            provenance=get_provenance(model),
            notes=swept.notes,
        )
        for measure, swept in zip(measures, sweeps, strict=True)
    ]
    return replace(first, others=tuple(others))


def _prepare_metrics(metric: Any, *, n_examples: int, d_vocab: int) -> list[Metric]:
    """The metrics, checked, under the names that they were given."""
    if not isinstance(metric, Mapping):
        return [prepare_metric(metric, n_examples=n_examples, d_vocab=d_vocab)]
    if not metric:
        raise InputError("metric={} measures nothing; give at least one metric.")
    prepared = {name: prepare_metric(one, n_examples=n_examples, d_vocab=d_vocab) for name, one in metric.items()}
    return [replace(one, name=name) for name, one in prepared.items()]
