"""One update: clip the gradient, decay the weights, AdamW's step.

    times_learning_rate     w <- (1 - rate_t lambda) w      AdamW's own decay (Loshchilov & Hutter, arXiv 1711.05101)
    outside_learning_rate   w <- (1 - lambda) w             critical windows (arXiv 2605.04396)

The two differ by the factor rate_t, which is small and changes along the schedule: at a rate of 3e-3, lambda = 1e-3
outside the rate is AdamW's 0.33. Either way the decay comes before AdamW's step and leaves its averages alone.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> config = TrainConfig(decayed="matrices_without_embeddings", weight_decay=0.1, decay_window=(10, 20))
>>> groups = make_optimizer(FlatParameters(model), config).param_groups
>>> [[len(stretch) for stretch in group["params"]] for group in groups]  # with decay, without
[[304], [80, 128]]
>>> [decay_at(step, config) for step in (9, 10, 19, 20)]
[0.0, 0.1, 0.1, 0.0]
"""

import torch
from torch import Tensor

from interp.training.config import TrainConfig
from interp.training.flat import FlatParameters, Stretch
from interp.training.schedule import learning_rate_at


def make_optimizer(parameters: FlatParameters, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over the stretches of the parameters, those that decay in a group of their own."""
    groups = [
        {
            "params": [
                vector for stretch, vector in parameters.stretches.items() if _decays(stretch, config) == decays
            ],
            "decays": decays,
        }
        for decays in (True, False)
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=0.0,
        fused=True,
    )


def read_state(optimizer: torch.optim.AdamW, parameters: FlatParameters) -> dict[int, dict[str, Tensor]]:
    """AdamW's averages and its count of steps for each parameter, those that decay first; empty before an update."""
    stretches = {stretch: vector for stretch, vector in parameters.stretches.items() if vector in optimizer.state}
    every: dict[str, dict[str, Tensor]] = {
        name: {} for name in parameters.named if parameters.places[name].stretch in stretches
    }
    for entry in ("exp_avg", "exp_avg_sq"):
        averages = {stretch: optimizer.state[vector][entry] for stretch, vector in stretches.items()}
        for name, view in parameters.split(averages).items():
            every[name][entry] = view
    for name, entries in every.items():
        entries["step"] = optimizer.state[stretches[parameters.places[name].stretch]]["step"]
    decaying = [id(vector) for group in optimizer.param_groups if group["decays"] for vector in group["params"]]
    ordered = sorted(every, key=lambda name: id(stretches[parameters.places[name].stretch]) not in decaying)
    return {index: every[name] for index, name in enumerate(ordered)}


def write_state(optimizer: torch.optim.AdamW, parameters: FlatParameters, state: dict[int, dict[str, Tensor]]) -> None:
    """Bring AdamW to a state that `read_state` gave."""
    if not state:
        return
    for vector in parameters.stretches.values():
        optimizer.state[vector] = {
            "step": state[0]["step"].to(vector.device, copy=True),
            "exp_avg": torch.zeros_like(vector),
            "exp_avg_sq": torch.zeros_like(vector),
        }
    for index, entries in read_state(optimizer, parameters).items():
        for entry in ("exp_avg", "exp_avg_sq"):
            entries[entry].copy_(state[index][entry])


def update(optimizer: torch.optim.AdamW, config: TrainConfig, *, step: int) -> None:
    """Lead the parameters from `step` to `step + 1`, with the gradients that they hold."""
    if config.clip_norm is not None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm)
    decay = decay_at(step, config)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, config)
        decays = group["decays"] and decay > 0
        group["weight_decay"] = decay if decays and config.decay == "times_learning_rate" else 0.0
        if decays and config.decay == "outside_learning_rate":
            with torch.no_grad():
                for parameter in group["params"]:
                    parameter.mul_(1 - decay)
    optimizer.step()


def decay_at(step: int, config: TrainConfig) -> float:
    """lambda in the update that leads from `step` to `step + 1`."""
    if config.decay_window is None or config.decay_window[0] <= step < config.decay_window[1]:
        return config.weight_decay
    return 0.0


def _decays(stretch: Stretch, config: TrainConfig) -> bool:
    return {
        "all": True,
        "matrices": stretch in ("matrix", "embedding"),
        "matrices_without_embeddings": stretch == "matrix",
    }[config.decayed]
