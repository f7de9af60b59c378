"""Recipes of the language tasks, two layers each that learn in two or three minutes of one core.

SCAN and addition have the small initialisation and strong decay of arXiv 2405.05409, scaled to this width.

`interp train scan --gamma 0.5 --weight-decay 0.01` is the other end; `docs/language_tasks.md` has what each shows.

>>> recipe = scan(seed=1)
>>> recipe.model["gamma"], recipe.config.weight_decay, recipe.task.splits
(0.8, 0.1, ('train', 'ood'))
"""

from typing import Any

from analyses.recipe import Recipe
from interp.training.config import TrainConfig
from tasks.dyck import Dyck
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
    """True or false by one or two rules, tested on three and four.

    To look up a rule, a kind must first be brought two positions on, to where the rule leads. With ALiBi positions that
    is found within 1,000 steps; a rotary model with fewer heads still guessed after 1,200.
    """
    summary = "two layers follow made-up rules, one sentence a step"
    task = Ontology(hops=2, ood_hops=4, kinds=8)
    model = {"n_layers": 2, "positional_embedding_type": "alibi", "d_mlp": 128, "embedding_std": 1.0, "gamma": 0.5}
    return _language("ontology", summary, task, model, seed=seed, steps=2000, learning_rate=4e-3, weight_decay=0.01)


def dyck(*, seed: int = 0) -> Recipe:
    """Which bracket closes, with a fifth of the longer depth shapes never trained."""
    summary = "two layers learn which bracket closes next"
    task = Dyck(max_length=64, withheld_share=0.2, n_train=50_000, n_test=5_000)
    model = {"n_layers": 2, **_ROTARY, "gamma": 0.5}
    return _language("dyck", summary, task, model, seed=seed, steps=2500, weight_decay=0.01)


def _language(
    name: str,
    summary: str,
    task: Task,
    model: dict[str, Any],
    *,
    seed: int,
    steps: int,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.1,
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
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        decayed="matrices",
        warmup_steps=100,
        schedule="cosine",
        final_share=0.05,
        clip_norm=1.0,
        eval_every=steps // 5,
        seed=seed,
    )
    return Recipe(name=name, summary=summary, model={**shared, **model}, task=task, config=config)
