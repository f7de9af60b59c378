"""Run the patches of a plan: both unpatched runs, then every cell in which a patch can do something, many at once.

>>> import interp
>>> from interp.interventions.metrics import logit_difference
>>> from interp.interventions.patch_plan import make_plan
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> clean, corrupted = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 3, 2]])
>>> plan = make_plan(model, clean, corrupted, site="z", positions="all", layers=None, heads=None, scored=-1)
>>> metrics = [logit_difference(1, 3)]
>>> [swept] = run_sweep(model, clean, corrupted, metrics, plan=plan, site="z", direction="denoise")
>>> swept.values.shape  # [example layer cell]
(1, 2, 2)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.metrics import Metric
from interp.interventions.patch_engine import SuffixRuns, WholeRuns, can_skip, find_changes
from interp.interventions.patch_plan import Plan, is_causal
from interp.interventions.patch_result import Direction, Site
from interp.interventions.patch_sites import Rows, reaches_scored_only
from interp.models.batching import choose_batch_size, for_each_batch, split_evenly
from interp.models.forward import logits_at

_KEPT_BYTES = 2**28
"""Activations of the two unpatched runs that are kept at once."""
_ENOUGH_TOKENS = 1024
"""From here on a matrix product is hardly faster per token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Swept:
    """What the runs of a plan gave by one metric."""

    values: Float[np.ndarray, "example layer cell"]
    """The metric after each patch; that of the unpatched run where a patch does nothing or wasn't asked for."""
    clean: Float[np.ndarray, "example"]
    """The metric of the clean run."""
    corrupted: Float[np.ndarray, "example"]
    """The metric of the corrupted run."""
    was_run: Bool[np.ndarray, "example layer cell"]
    """Where a patch was run."""
    engine: Literal["suffix", "whole"]
    """Whether runs began at the patch."""
    notes: tuple[str, ...]
    """Halved batches."""


@torch.no_grad()
def run_sweep(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    measures: Sequence[Metric],
    *,
    plan: Plan,
    site: Site,
    direction: Direction,
    batch_size: int | Literal["auto"] = "auto",
    only: Bool[np.ndarray, "layer cell"] | None = None,
) -> list[Swept]:
    """Patch every cell of `plan`, or those marked in `only`, once; one result for each metric."""
    tokens = {"clean": clean.to(model.cfg.device), "corrupted": corrupted.to(model.cfg.device)}
    affordable = choose_batch_size(model, clean.shape[1]) if batch_size == "auto" else batch_size
    notes: list[str] = []
    logits = {name: run_unpatched(model, tokens[name], plan.scored, affordable, notes) for name in tokens}
    baselines = [
        {name: to_numpy(measure(logits[name].clone(), logits["clean"])) for name in tokens} for measure in measures
    ]
    base, source = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    sweep = _Sweep(
        model, tokens[base], tokens[source], site, plan, measures, logits[base], logits["clean"], batch_size, only
    )
    for values, baseline in zip(sweep.values, baselines, strict=True):
        values[:] = baseline[base][:, None, None]
    sweep.run()
    return [
        Swept(
            values=values,
            clean=baseline["clean"],
            corrupted=baseline["corrupted"],
            was_run=sweep.was_run,
            engine="suffix" if sweep.skips else "whole",
            notes=tuple(dict.fromkeys(notes + sweep.notes)),
        )
        for values, baseline in zip(sweep.values, baselines, strict=True)
    ]


class _Sweep:
    """Runs a plan and fills in the value of every cell in which a patch can do something."""

    def __init__(
        self,
        model: Any,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        site: Site,
        plan: Plan,
        measures: Sequence[Metric],
        base_logits: Float[Tensor, "example d_vocab"],
        clean_logits: Float[Tensor, "example d_vocab"],
        batch_size: int | Literal["auto"],
        only: Bool[np.ndarray, "layer cell"] | None,
    ) -> None:
        self.model, self.base, self.source, self.site, self.plan = model, base, source, site, plan
        self.measures, self.base_logits, self.clean_logits = measures, base_logits, clean_logits
        self.batch_size, self.skips = batch_size, can_skip(model)
        shape = (len(base), len(plan.layers), plan.n_columns)
        self.only = torch.ones(shape[1:], dtype=torch.bool) if only is None else torch.from_numpy(only)
        self.values = [np.zeros(shape) for _ in measures]
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
        there = examples.to(self.base.device)
        scored = self.plan.scored[examples]
        wanted = {index: layer for index, layer in enumerate(self.plan.layers) if self.only[index].any()}
        runs = engine(
            self.model, self.base[there], self.source[there], scored, site=self.site, layers=list(wanted.values())
        )
        for index, layer in wanted.items():
            lonely = reaches_scored_only(self.site, layer, n_layers=self.model.cfg.n_layers)
            reach: Any = "scored" if lonely else "before scored" if is_causal(self.model) else "everywhere"
            jobs = self.plan.find_jobs(find_changes(runs, layer), examples, only=self.only[index], reach=reach)
            for near in self._split(jobs.starts.contiguous()):

                def run(
                    rows: slice, index: int = index, layer: int = layer, jobs: Rows = jobs, first: int = near.start
                ) -> None:
                    chosen = slice(first + rows.start, first + rows.stop)
                    logits = runs.logits(layer, jobs.take(chosen, self.base.device)).float()
                    self._score(index, jobs.cell[chosen], examples[jobs.example[chosen]], logits)

                size = near.stop - near.start
                self.notes += for_each_batch(size, run, batch_size=split_evenly(size, at_most=self._affordable()))

    def _score(
        self, layer_index: int, cells: Int[Tensor, "row"], examples: Int[Tensor, "row"], logits: Float[Tensor, "row _"]
    ) -> None:
        """A metric gets whole batches, one a cell: logits of other examples are those of the unpatched run."""
        for cell in cells.unique().tolist():
            rows = (cells == cell).nonzero()[:, 0]
            mine = examples[rows].to(logits.device)
            batch = self.base_logits.clone()
            batch[mine] = logits[rows.to(logits.device)]
            place = (examples[rows].numpy(), layer_index, cell)
            for values, measure in zip(self.values, self.measures, strict=True):
                values[place] = to_numpy(measure(batch.clone(), self.clean_logits)[mine])
            self.was_run[place] = True

    def _group_examples(self) -> list[Int[Tensor, "group"]]:
        """Examples with the same scored position, where that lets runs end there."""
        if not self.skips:
            return [torch.arange(len(self.base))]
        return [(self.plan.scored == scored).nonzero()[:, 0] for scored in self.plan.scored.unique()]

    def _split(self, starts: Int[Tensor, "job"]) -> Iterator[slice]:
        """Patches that run together begin at the first position of any, so only neighbours should; `starts` ascend."""
        n_positions = self.base.shape[1]
        neighbours, enough = max(1, n_positions // 16), -(-_ENOUGH_TOKENS // n_positions)
        first = 0
        while first < len(starts):
            stop = len(starts)
            if self.skips and self.batch_size == "auto":
                beyond = int(torch.searchsorted(starts, int(starts[first]) + neighbours))
                stop = min(stop, max(beyond, first + enough))
            yield slice(first, stop)
            first = stop

    def _affordable(self) -> int:
        return choose_batch_size(self.model, self.base.shape[1]) if self.batch_size == "auto" else self.batch_size

    def _kept_bytes(self) -> int:
        """Bytes of one example's activations that both unpatched runs keep for the time of a sweep."""
        cfg, n_positions = self.model.cfg, self.base.shape[1]
        site = cfg.n_heads * n_positions if self.site == "pattern" else max(cfg.d_model, cfg.n_heads * cfg.d_head)
        stream = cfg.d_model + 2 * cfg.n_heads * cfg.d_head
        return 4 * n_positions * cfg.n_layers * (2 * site + stream)


def run_unpatched(
    model: Any, tokens: Int[Tensor, "example pos"], scored: Int[Tensor, "example"], batch_size: int, notes: list[str]
) -> Float[Tensor, "example d_vocab"]:
    """Logits at the scored positions of an unpatched run."""
    found: dict[int, Tensor] = {}
    marked = (torch.arange(tokens.shape[1]) == scored[:, None]).to(tokens.device)

    def run(rows: slice) -> None:
        found[rows.start] = logits_at(model, tokens[rows], marked[rows]).float()

    notes += for_each_batch(len(tokens), run, batch_size=min(len(tokens), batch_size))
    return torch.cat([found[start] for start in sorted(found)])


def to_numpy(values: Float[Tensor, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Double precision on the CPU."""
    return values.double().cpu().numpy()
