"""One update: clip the gradient, decay the weights, AdamW's step.

    times_learning_rate     w <- (1 - rate_t lambda) w      AdamW's own decay (Loshchilov & Hutter, arXiv 1711.05101)
    outside_learning_rate   w <- (1 - lambda) w             critical windows (arXiv 2605.04396)

The two differ by the factor rate_t, which is small and changes along the schedule: at a rate of 3e-3, lambda = 1e-3
outside the rate is AdamW's 0.33. Either way the decay comes before AdamW's step and leaves its averages alone.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> config = TrainConfig(decayed="matrices_without_embeddings", weight_decay=0.1, decay_window=(10, 20))
>>> [len(group["params"]) for group in make_optimizer(model, config).param_groups]  # with decay, without
[5, 11]
>>> [decay_at(step, config) for step in (9, 10, 19, 20)]
[0.0, 0.1, 0.1, 0.0]
"""

import torch
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.models.initialise import part_of
from interp.training.config import Decayed, TrainConfig
from interp.training.schedule import learning_rate_at


def make_optimizer(model: HookedTransformer, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that require a gradient, those that decay in a group of their own."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("no parameter of this model requires a gradient: call model.requires_grad_(True) first")
    groups = [
        {
            "params": [parameter for name, parameter in trained if _decays(name, config.decayed) == decays],
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


def _decays(name: str, decayed: Decayed) -> bool:
    part = part_of(name)
    return decayed == "all" or (part is not None and (decayed == "matrices" or part != "embedding"))
