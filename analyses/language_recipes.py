"""Recipes of the language tasks: small initialisation and strong decay, those of arXiv 2405.05409 scaled to this width.

`docs/language_tasks.md` has what each shows; `interp train scan --gamma 0.5 --weight-decay 0.01` is the other end.

>>> recipe = scan(seed=1)
>>> recipe.model["gamma"], recipe.config.weight_decay, recipe.task.splits
(0.8, 0.1, ('train', 'ood'))
"""

from typing import Any

from analyses.recipe import Recipe
from interp.training.config import TrainConfig
from tasks.language import Addition, Ontology, Scan
from tasks.task import Task

_ROTARY = {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": True}


def scan(*, seed: int = 0) -> Recipe:
    """SCAN with `turn left` trained alone: is it used in combination?"""
    summary = "two layers learn SCAN's commands, and turn left by itself alone"
    return _language("scan", summary, Scan(split="add_turn_left"), {"n_layers": 2, **_ROTARY}, seed=seed, steps=2500)


def addition(*, seed: int = 0) -> Recipe:
    """Sums of three digits without the block [400, 600] x [400, 600]."""
    summary = "two layers learn to add, with a block of operands left out"
    model = {"n_layers": 2, "positional_embedding_type": "standard"}
    return _language("addition", summary, Addition(), model, seed=seed, steps=2500, batch_size=256)


def ontology(*, seed: int = 0) -> Recipe:
    """True or false by one to three rules, tested on four and five."""
    summary = "three layers at made-up kinds, one sentence a step; not learnt in so few steps"
    return _language("ontology", summary, Ontology(), {"n_layers": 3, **_ROTARY}, seed=seed, steps=1600)


def _language(
    name: str, summary: str, task: Task, model: dict[str, Any], *, seed: int, steps: int, batch_size: int = 64
) -> Recipe:
    shared = {
        "d_model": 64,
        "n_heads": 4,
        "d_vocab": task.d_vocab,
        "n_ctx": task.n_ctx,
        "act_fn": "gelu",
        "normalization_type": "LN",
        "gamma": 0.8,
        "seed": seed,
    }
    config = TrainConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=2e-3,
        weight_decay=0.1,
        decayed="matrices",
        warmup_steps=100,
        schedule="cosine",
        final_share=0.05,
        clip_norm=1.0,
        eval_every=steps // 5,
        seed=seed,
    )
    return Recipe(name=name, summary=summary, model={**shared, **model}, task=task, config=config)
