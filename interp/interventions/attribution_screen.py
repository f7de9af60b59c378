"""The runs of attribution patching: activations of both prompts, and gradients of the metric at every layer of a site.

Gradients are those of activations alone, by hooks that begin a graph where no parameter has begun one; the caller's grad
mode and hooks, and the parameters' `.grad` and `requires_grad`, stay as they are.

>>> import interp
>>> from interp.interventions.patch_plan import make_plan
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
>>> tokens = {"clean": torch.tensor([[0, 1]]), "corrupted": torch.tensor([[2, 1]])}
>>> plan = make_plan(model, *tokens.values(), site="z", positions="all", layers=None, heads=None, scored=-1)
>>> screen = Screen(model, tokens, "z", "denoise", plan, interp.logit_difference(1, 3), steps=0)
>>> screen.run(slice(0, 1))
>>> screen.estimates.shape, screen.can_act.all()  # [example, layer, cell of the layer]
((1, 1, 1), np.True_)
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.metrics import Metric
from interp.interventions.patch_plan import Plan, is_causal
from interp.interventions.patch_result import Direction, Site
from interp.interventions.patch_sites import HOOKS, by_position, keep, reaches_scored_only


class Screen:
    """Runs both prompts of every example, and fills in the estimate of every cell, and whether a patch of it can act."""

    def __init__(
        self,
        model: Any,
        tokens: dict[str, Int[Tensor, "example pos"]],
        site: Site,
        direction: Direction,
        plan: Plan,
        measure: Metric,
        steps: int,
    ) -> None:
        self.model, self.site, self.plan, self.measure, self.steps = model, site, plan, measure, steps
        self.tokens, self.scored = tokens, plan.scored.clone()
        self.base, self.source = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
        n_examples = len(plan.scored)
        # An edit of a bridge's `hook_resid_mid` misses the residual stream beside the MLP. What the attention writes
        # reaches both, so the gradient is the same there, and only the difference between the runs isn't.
        self.summed = site == "resid_mid" and not isinstance(model, HookedTransformer)
        kind = HOOKS["attn_out" if self.summed else site]
        self.names = {layer: f"blocks.{layer}.{kind}" for layer in plan.layers}
        self.estimates = np.zeros((n_examples, len(plan.layers), plan.n_columns))
        self.can_act = np.zeros((len(plan.layers), plan.n_columns), dtype=bool)
        self.baselines = {name: np.zeros(n_examples) for name in tokens}

    def run(self, rows: slice) -> None:
        """The estimates of some examples."""
        activations, logits = {}, {}
        for name in (self.base, self.source):
            activations[name], logits[name] = self._record(name, rows)
        with torch.no_grad():
            for name in logits:
                values = self._measure(logits[name], logits["clean"], rows)
                self.baselines[name][rows] = values.double().cpu().numpy()
        change = {layer: activations[self.source][layer] - activations[self.base][layer] for layer in self.plan.layers}
        gradients = self._find_gradients(activations[self.base], change, logits["clean"], rows)
        examples = torch.arange(len(self.plan.scored))[rows]
        for index, layer in enumerate(self.plan.layers):
            moved = by_position(change[layer], self.site).float()
            slope = by_position(gradients[layer], self.site).float()
            self.estimates[rows, index] = self._add_up((moved * slope).sum(-1).double().cpu(), examples)
            self.can_act[index, self._find_acting((moved != 0).any(-1), examples, layer)] = True

    def _record(self, name: str, rows: slice) -> tuple[dict[int, Tensor], Float[Tensor, "batch d_vocab"]]:
        """Activations by layer, and logits, of an unpatched run."""
        kept: dict[int, Tensor] = {}
        before: dict[int, Tensor] = {}
        hooks = [(hook_name, keep(kept, layer)) for layer, hook_name in self.names.items()]
        if self.summed:
            hooks += [(f"blocks.{layer}.hook_resid_pre", keep(before, layer)) for layer in self.names]
        with torch.no_grad(), add_hooks(self.model, hooks):
            logits = self._run_to_logits(name, rows)
        return {layer: kept[layer] + before.get(layer, 0) for layer in self.names}, logits

    def _find_gradients(
        self, base: dict[int, Tensor], change: dict[int, Tensor], clean: Float[Tensor, "batch d_vocab"], rows: slice
    ) -> dict[int, Tensor]:
        """By layer, the gradient of the examples' metrics in the base run, or its mean over the steps."""
        if not self.steps:
            return self._differentiate({layer: 0 for layer in self.names}, clean, rows)
        total = {layer: torch.zeros_like(change[layer]) for layer in self.names}
        for layer in self.names:
            for step in range(self.steps):
                shift = (step + 0.5) / self.steps * change[layer]  # midpoints: the error falls with steps squared
                total[layer] += self._differentiate({layer: shift}, clean, rows)[layer]
        return {layer: summed / self.steps for layer, summed in total.items()}

    def _differentiate(
        self, shifts: dict[int, Any], clean: Float[Tensor, "batch d_vocab"], rows: slice
    ) -> dict[int, Tensor]:
        """Gradient at the activation of each layer, moved by its shift, in one run. Parameters get none."""
        followed: dict[int, Tensor] = {}

        def follow(layer: int) -> HookFunction:
            def track(activation: Tensor, hook: HookPoint) -> Tensor:
                shifted = activation + shifts[layer]
                # Where no parameter before it has a gradient, the graph begins here.
                followed[layer] = shifted if shifted.requires_grad else shifted.detach().requires_grad_()
                return followed[layer]

            return track

        with torch.enable_grad():
            with add_hooks(self.model, [(self.names[layer], follow(layer)) for layer in shifts]):
                values = self._measure(self._run_to_logits(self.base, rows), clean, rows)
            if not values.requires_grad:
                raise InputError(
                    f"The metric {self.measure.name} has no gradient, so no effect can be estimated from one; "
                    "compute it from the logits by differentiable operations, or use interp.patch."
                )
            found = torch.autograd.grad(
                values.sum(), [followed[layer] for layer in shifts], allow_unused=True, materialize_grads=True
            )
        return dict(zip(shifts, found, strict=True))

    def _run_to_logits(self, name: str, rows: slice) -> Float[Tensor, "batch d_vocab"]:
        """Logits at the scored positions, like `logits_at`, but with a gradient where the caller wants one."""
        tokens = self.tokens[name][rows]
        at = (torch.arange(len(tokens)), self.scored[rows])
        if not isinstance(self.model, HookedTransformer):
            return self.model(tokens, return_type="logits")[at].float()
        cfg = self.model.cfg
        residual = self.model(tokens, stop_at_layer=cfg.n_layers)[at][None]  # [1 batch d_model]
        if cfg.normalization_type is not None:
            residual = self.model.ln_final(residual)
        logits = self.model.unembed(residual)[0].float()
        cap = cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap > 0 else logits

    def _measure(
        self, logits: Float[Tensor, "batch d_vocab"], clean: Float[Tensor, "batch d_vocab"], rows: slice
    ) -> Float[Tensor, "batch"]:
        """The metric gets all examples, since its answers are theirs: the first of these stands in for the absent."""
        place = torch.zeros(len(self.plan.scored), dtype=torch.long)
        place[rows] = torch.arange(len(logits))
        return self.measure(logits[place], clean[place])[rows]

    def _add_up(
        self, products: Float[Tensor, "batch pos *head"], examples: Int[Tensor, "batch"]
    ) -> Float[np.ndarray, "batch cell"]:
        """Contributions of single positions and heads, added up to cells."""
        at = self.plan.places.at[examples]  # [batch entry width]
        picked = products[torch.arange(len(at))[:, None, None], at.clamp(min=0)]  # [batch entry width (head)]
        picked = picked.reshape(*at.shape, -1).masked_fill((at < 0)[..., None], 0).sum(dim=2)  # [batch entry head]
        if self.plan.heads is not None:
            picked = picked[..., list(self.plan.heads)]
        return picked.transpose(1, 2).flatten(1).numpy()

    def _find_acting(
        self, changes: Bool[Tensor, "batch pos *head"], examples: Int[Tensor, "batch"], layer: int
    ) -> Int[np.ndarray, "cell"]:
        """Cells in which a patch of any of these examples can do something."""
        lonely = reaches_scored_only(self.site, layer, n_layers=self.model.cfg.n_layers)
        reach: Any = "scored" if lonely else "before scored" if is_causal(self.model) else "everywhere"
        return self.plan.find_jobs(changes, examples, reach=reach).cell.unique().numpy()
