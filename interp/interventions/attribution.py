"""Attribution patching: the effect of every patch of a sweep, estimated from one backward pass.

With base the run that is patched, source the run that activations come from, and a the activation of a cell,

    effect of its patch  ≈  (a_source - a_base) · d metric / d a,  the gradient taken in the base run,

exact where the metric is linear in a (Nanda 2023, neelnanda.io/attribution-patching; Syed et al. 2023, arXiv:2310.10348;
Kramár et al. 2024, arXiv:2403.00745). With `steps` it is the mean gradient on the straight line from a_base to a_source,
one layer at a time (integrated gradients, as in Marks et al. 2024, arXiv:2403.19647). Both are screens: the strongest
cells, and random others as a control, are patched exactly, and the result says how well the estimates rank them.

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> clean, corrupted = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 3, 2]])
>>> screen = attribution_patch(model, clean, corrupted, interp.logit_difference(1, 3), site="z", check=2)
>>> screen.estimates.shape, list(screen.cells) == screen.top(2)
((1, 2, 2, 3), True)
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.attribution_result import AttributionResult
from interp.interventions.attribution_screen import Screen
from interp.interventions.metrics import Metric, kl_to_clean, prepare_metric
from interp.interventions.patch_plan import Plan, make_plan
from interp.interventions.patch_positions import PatchPositions, Scored
from interp.interventions.patch_result import Direction, PatchResult, Site
from interp.interventions.patch_sweep import run_sweep
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.provenance import get_provenance
from interp.models.tokens import hash_tokens
from tasks.seeding import derive_seed
from tasks.task import Batch


def attribution_patch(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    metric: Metric | Callable[..., Any],
    *,
    site: Site,
    direction: Direction = "denoise",
    positions: PatchPositions = "each",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scored: Scored = -1,
    batch: Batch | None = None,
    steps: int = 0,
    check: int = 20,
    batch_size: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> AttributionResult:
    """Estimate the effect of every patch of `interp.patch`, whose arguments and cells these are.

    `steps=0` takes the gradient in the base run: one forward and one backward pass for all cells of all layers. `steps=n`
    takes the mean of n gradients between the two activations of a layer, with all its cells moving together: n passes a
    layer. `check` cells with the largest mean estimates, and as many random others in which a patch can do something,
    are patched exactly; 0 leaves that out. `batch_size` is how many examples run at once, `auto` a number whose
    activations in all layers stay within 256 MB; running out of memory halves it.

    `metric` must be differentiable. Raises `InputError` where it isn't, for `kl_to_clean` with `direction="noise"` and
    `steps=0` (at the clean run its gradient is zero), and wherever `interp.patch` does.
    """
    if direction not in get_args(Direction):
        raise InputError(f"direction={direction!r} isn't known; use one of {', '.join(get_args(Direction))}.")
    for name, given, least in (("steps", steps, 0), ("check", check, 0), ("batch_size", batch_size, 1)):
        if given != "auto" and int(given) < least:
            raise InputError(f"{name}={given} was given; it must be at least {least}.")
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
    measure = prepare_metric(metric, n_examples=len(clean), d_vocab=model.cfg.d_vocab)
    if measure.name == kl_to_clean().name and direction == "noise" and not steps:
        raise InputError(
            "kl_to_clean is smallest at the clean run, so its gradient there is zero and every estimate would be; "
            "give steps=5 or so, direction='denoise', or another metric."
        )
    affordable = max(1, choose_batch_size(model, clean.shape[1]) // model.cfg.n_layers)
    at_once = min(len(clean), affordable if batch_size == "auto" else batch_size)
    with torch.inference_mode(False):
        # Clones, here and in `Screen`: a tensor made in inference mode can't take part in a backward pass.
        tokens = {"clean": clean.clone().to(model.cfg.device), "corrupted": corrupted.clone().to(model.cfg.device)}
        screen = Screen(model, tokens, site, direction, plan, measure, steps)
        notes = for_each_batch(len(clean), screen.run, batch_size=at_once)
    base = screen.baselines["corrupted" if direction == "denoise" else "clean"]
    estimated = PatchResult(
        site=site,
        direction=direction,
        metric=f"{measure.name}, estimated",
        layers=plan.layers,
        heads=plan.heads,
        positions=plan.places.shared,
        position_labels=plan.places.labels,
        query_heads=plan.query_heads,
        values=(base[:, None, None] + screen.estimates).reshape(len(clean), *plan.shape),
        clean=screen.baselines["clean"],
        corrupted=screen.baselines["corrupted"],
        scored=tuple(plan.scored.tolist()),
        engine="whole",
        n_runs=0,
        seed=seed,
        data_sha256=hash_tokens(torch.cat([clean, corrupted])),
        provenance=get_provenance(model),
        notes=tuple(notes),
    )
    strongest, others = _choose_cells(np.abs(screen.estimates.mean(axis=0)), screen.can_act, check, seed)
    cells = np.concatenate([strongest, others])
    exact = np.zeros((len(clean), len(cells)))
    if len(cells):
        only = np.zeros_like(screen.can_act)
        only[tuple(cells.T)] = True
        [swept] = run_sweep(model, clean, corrupted, [measure], plan=plan, site=site, direction=direction, only=only)
        exact = swept.values[:, *cells.T] - base[:, None]
    return AttributionResult(
        estimated=estimated,
        estimates=screen.estimates.reshape(len(clean), *plan.shape),
        steps=steps,
        cells=_name_cells(plan, strongest),
        exact=exact[:, : len(strongest)],
        control_cells=_name_cells(plan, others),
        control_exact=exact[:, len(strongest) :],
    )


def _choose_cells(
    sizes: Float[np.ndarray, "layer cell"], can_act: Bool[np.ndarray, "layer cell"], n: int, seed: int
) -> tuple[Int[np.ndarray, "top 2"], Int[np.ndarray, "control 2"]]:
    """(layer index, cell) of the strongest estimates, and of random others, of those in which a patch can act."""
    acting = np.flatnonzero(can_act)
    ranked = acting[np.argsort(-sizes.ravel()[acting], kind="stable")]
    generator = np.random.default_rng(derive_seed(seed, "attribution control"))
    others = np.sort(generator.permutation(ranked[n:])[:n])
    return tuple(np.stack(np.unravel_index(cells, sizes.shape), axis=1) for cells in (ranked[:n], others))  # type: ignore[return-value]


def _name_cells(plan: Plan, cells: Int[np.ndarray, "cell 2"]) -> tuple[tuple[Any, ...], ...]:
    """(layer, head, position or role) without the axes that are not there."""
    axes: list[Any] = [axis for axis in (plan.layers, plan.heads, plan.places.shared or plan.places.labels) if axis]
    flat = cells[:, 0] * plan.n_columns + cells[:, 1]
    places = np.stack(np.unravel_index(flat, plan.shape), axis=1)
    return tuple(tuple(axis[i] for axis, i in zip(axes, place, strict=True)) for place in places)
