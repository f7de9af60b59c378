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

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.metrics import Metric, prepare_metric
from interp.interventions.patch_engine import SuffixRuns, WholeRuns, can_skip, find_changes
from interp.interventions.patch_plan import Plan, make_plan
from interp.interventions.patch_result import Direction, PatchResult, Site
from interp.interventions.patch_sites import reaches_scored_only
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at
from interp.models.provenance import get_provenance
from interp.models.tokens import hash_tokens

_KEPT_BYTES = 2**28
"""Activations of the two unpatched runs that are kept at once."""
_ENOUGH_TOKENS = 1024
"""From here on a matrix product is hardly faster per token."""


@torch.no_grad()
def patch(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    metric: Metric | Callable[..., Any],
    *,
    site: Site,
    direction: Direction = "denoise",
    positions: Literal["each", "all"] | Sequence[int] = "each",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scored: int | Sequence[int] | Int[Tensor, "example"] = -1,
    batch_size: int | Literal["auto"] = "auto",
    seed: int = 0,
) -> PatchResult:
    """Patch every layer, head (where the site has heads) and position of `site`, one at a time.

    `positions`: each by itself, all of them together, or each of those listed; negative ones count from the end. For
    `pattern` they are query positions. `layers` and `heads` restrict the sweep; for `k` and `v` heads are key-value heads.
    `scored` is the position whose logits the metric gets, one for all or one for each example. `batch_size` is how many
    sequences run at once, `auto` a number whose activations stay within 256 MB; running out of memory halves it.

    `metric` is `interp.logit_difference(...)`, `interp.answer_log_probability(...)`, `interp.kl_to_clean()`, or a function
    from logits [example, d_vocab] to one value per example, in which no example's value depends on another's logits.
    """
    if direction not in get_args(Direction):
        raise InputError(f"direction={direction!r} isn't known; use one of {', '.join(get_args(Direction))}.")
    if batch_size != "auto" and batch_size < 1:
        raise InputError(f"batch_size={batch_size} runs nothing; give at least 1, or 'auto'.")
    plan = make_plan(model, clean, corrupted, site=site, positions=positions, layers=layers, heads=heads, scored=scored)
    measure = prepare_metric(metric, n_examples=len(clean), d_vocab=model.cfg.d_vocab)
    tokens = {"clean": clean.to(model.cfg.device), "corrupted": corrupted.to(model.cfg.device)}
    affordable = choose_batch_size(model, clean.shape[1]) if batch_size == "auto" else batch_size
    notes: list[str] = []
    logits = {name: _run_whole(model, tokens[name], plan.scored, affordable, notes) for name in tokens}
    baselines = {name: _to_numpy(measure(logits[name].clone(), logits["clean"])) for name in tokens}

    base, source = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    sweep = _Sweep(model, tokens[base], tokens[source], site, plan, measure, logits[base], logits["clean"], batch_size)
    sweep.values[:] = baselines[base][:, None, None]
    sweep.run()
    return PatchResult(
        site=site,
        direction=direction,
        metric=measure.name,
        layers=plan.layers,
        heads=plan.heads,
        positions=plan.positions,
        query_heads=plan.query_heads,
        values=sweep.values.reshape(len(clean), *plan.shape),
        clean=baselines["clean"],
        corrupted=baselines["corrupted"],
        scored=tuple(plan.scored.tolist()),
        engine="suffix" if sweep.skips else "whole",
        n_runs=int(sweep.was_run.sum()),
        seed=seed,
        data_sha256=hash_tokens(torch.cat([clean, corrupted])),
        provenance=get_provenance(model),
        notes=tuple(dict.fromkeys(notes + sweep.notes)),
    )


class _Sweep:
    """Runs a plan and fills in the value of every cell in which a patch can do something."""

    def __init__(
        self,
        model: Any,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        site: Site,
        plan: Plan,
        measure: Metric,
        base_logits: Float[Tensor, "example d_vocab"],
        clean_logits: Float[Tensor, "example d_vocab"],
        batch_size: int | Literal["auto"],
    ) -> None:
        self.model, self.base, self.source, self.site, self.plan = model, base, source, site, plan
        self.measure, self.base_logits, self.clean_logits = measure, base_logits, clean_logits
        self.batch_size, self.skips = batch_size, can_skip(model)
        shape = (len(base), len(plan.layers), plan.n_columns)
        self.values = np.zeros(shape)
        self.was_run = np.zeros(shape, dtype=bool)
        self.notes: list[str] = []

    def run(self) -> None:
        for group in self._group_examples():

            def run(rows: slice, group: Tensor = group) -> None:
                self._run_examples(group[rows])

            at_once = max(1, _KEPT_BYTES // self._kept_bytes())
            self.notes += for_each_batch(len(group), run, batch_size=min(len(group), at_once))

    def _run_examples(self, examples: Int[Tensor, "chunk"]) -> None:
        engine = SuffixRuns if self.skips else WholeRuns
        scored = self.plan.scored[examples]
        there = examples.to(self.base.device)
        runs = engine(self.model, self.base[there], self.source[there], scored, site=self.site, layers=self.plan.layers)
        for index, layer in enumerate(self.plan.layers):
            lonely = reaches_scored_only(self.site, layer, n_layers=self.model.cfg.n_layers)
            jobs = self.plan.find_jobs(find_changes(runs, layer), scored if lonely else None)

            def run(rows: slice, index: int = index, layer: int = layer, jobs: Tensor = jobs) -> None:
                logits = runs.logits(layer, self.plan.make_rows(jobs[rows], self.base.device)).float()
                self._score(index, jobs[rows, 0], examples[jobs[rows, 1]], logits)

            if len(jobs):
                self.notes += for_each_batch(len(jobs), run, batch_size=self._rows_at_once(len(examples)))

    def _score(
        self, layer_index: int, cells: Int[Tensor, "row"], examples: Int[Tensor, "row"], logits: Float[Tensor, "row _"]
    ) -> None:
        """The metric gets whole batches, one a cell: logits of other examples are those of the unpatched run."""
        for cell in cells.unique().tolist():
            rows = (cells == cell).nonzero()[:, 0]
            mine = examples[rows].to(logits.device)
            batch = self.base_logits.clone()
            batch[mine] = logits[rows.to(logits.device)]
            place = (examples[rows].numpy(), layer_index, cell)
            self.values[place] = _to_numpy(self.measure(batch, self.clean_logits)[mine])
            self.was_run[place] = True

    def _group_examples(self) -> list[Int[Tensor, "group"]]:
        """Examples with the same scored position, where that lets runs end there."""
        if not self.skips:
            return [torch.arange(len(self.base))]
        return [(self.plan.scored == scored).nonzero()[:, 0] for scored in self.plan.scored.unique()]

    def _rows_at_once(self, n_examples: int) -> int:
        """Patches that run together begin at the same position, so only neighbours should."""
        if self.batch_size != "auto":
            return self.batch_size
        n_positions = self.base.shape[1]
        affordable = choose_batch_size(self.model, n_positions)
        if not self.skips or self.plan.positions is None:
            return affordable
        neighbours = max(1, n_positions // 16) * len(self.plan.heads or (0,)) * n_examples
        return min(affordable, max(neighbours, _ENOUGH_TOKENS // n_positions))

    def _kept_bytes(self) -> int:
        """Bytes of one example's activations that both unpatched runs keep for the time of a sweep."""
        cfg, n_positions = self.model.cfg, self.base.shape[1]
        site = cfg.n_heads * n_positions if self.site == "pattern" else max(cfg.d_model, cfg.n_heads * cfg.d_head)
        stream = cfg.d_model + 2 * cfg.n_heads * cfg.d_head
        return 4 * n_positions * cfg.n_layers * (2 * site + stream)


def _run_whole(
    model: Any, tokens: Int[Tensor, "example pos"], scored: Int[Tensor, "example"], batch_size: int, notes: list[str]
) -> Float[Tensor, "example d_vocab"]:
    """Logits at the scored positions of an unpatched run."""
    found: dict[int, Tensor] = {}
    marked = (torch.arange(tokens.shape[1]) == scored[:, None]).to(tokens.device)

    def run(rows: slice) -> None:
        found[rows.start] = logits_at(model, tokens[rows], marked[rows]).float()

    notes += for_each_batch(len(tokens), run, batch_size=min(len(tokens), batch_size))
    return torch.cat([found[start] for start in sorted(found)])


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
