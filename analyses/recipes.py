"""Complete training runs by name: a recipe is a function that returns the model, the task and the configuration.

`copying` is the two-layer model of Song, Xu and Zhong (arXiv 2408.09503), in which copying out of distribution appears
suddenly as a previous-token head and an induction head find a common subspace; `copying_one_layer` is its control,
which cannot compose two heads and never learns to. When the transition comes depends on the seed: with seeds 0 and 2 it
falls between steps 1,000 and 2,000, with seed 1 between 3,300 and 4,000.

What differs from the published setting: matrices start with `std = d_in ** -0.5` and biases at 0, there is a final norm
in front of the unembedding and no dropout, and the learning rate is 2e-3 after 100 steps of warm-up. With the published
1e-3 the plateau is longer for some seeds (seed 1 ends 5,000 steps at an error of 0.12). Embeddings start as N(0, 1) like
the published ones; at `std = d_in ** -0.5` seed 1 stays on the plateau for all 5,000 steps.

`anchor`, `anchor_altered` and `anchor_memorising` are small models of the composite anchor task (arXiv 2405.05409,
2501.08537), which tend to reason, to use a symmetry and to memorise; the share of seeds that do is on docs/phase_diagram.

To add a recipe, write a function of a seed and name it in `RECIPES`.

>>> recipe = RECIPES["copying"](seed=3)
>>> recipe.model["n_layers"], recipe.model["seed"], recipe.config.steps, recipe.task.name
(2, 3, 5000, 'copying')
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from transformer_lens import HookedTransformer

from analyses.heads import choose_segment
from analyses.language_recipes import addition, dyck, ontology, scan
from analyses.recipe import Recipe
from analyses.structural_grokking.recipes import question_formation, tense_inflection
from interp.heads.scores import score_heads
from interp.training.config import TrainConfig
from tasks.anchor.composite import Composite
from tasks.anchor.designs import altered_pair, dropped_pairs
from tasks.copying import Copying


def copying(*, seed: int = 0) -> Recipe:
    """Two attention-only layers with one head each: learns to copy out of distribution."""
    return _copying("copying", "two attention-only layers learn to copy, suddenly", n_layers=2, seed=seed)


def copying_one_layer(*, seed: int = 0) -> Recipe:
    """One attention-only layer: the control, which never copies out of distribution."""
    return _copying("copying_one_layer", "one attention-only layer, which never learns to copy", n_layers=1, seed=seed)


def anchor(*, seed: int = 0) -> Recipe:
    """Small initialisation, two pairs of anchors never trained: most seeds compose them."""
    task = dropped_pairs(n_sequences=200_000)
    return make_anchor("anchor", "composes anchors it never saw together", task, gamma=0.8, steps=1500, seed=seed)


def anchor_altered(*, seed: int = 0) -> Recipe:
    """Large initialisation, one pair trained on a wrong answer: some seeds give it in the other order too."""
    task = altered_pair(n_sequences=200_000)
    return make_anchor("anchor_altered", "often mirrors an altered pair", task, gamma=0.4, steps=2000, seed=seed)


def anchor_memorising(*, seed: int = 0) -> Recipe:
    """Large initialisation, 3,000 sequences: every one is remembered, and no rule is found."""
    task = dropped_pairs(n_sequences=3000)
    return make_anchor("anchor_memorising", "remembers 3,000 sequences", task, gamma=0.3, steps=2000, seed=seed)


def make_anchor(
    name: str,
    summary: str,
    task: Composite,
    *,
    gamma: float,
    steps: int,
    weight_decay: float = 0.01,
    n_layers: int = 2,
    seed: int = 0,
) -> Recipe:
    """The small model of the composite task; `seed` draws its weights, its training set and its batches."""
    model = {
        "n_layers": n_layers,
        "d_model": 64,
        "n_heads": 1,
        "d_vocab": task.d_vocab,
        "n_ctx": task.n_ctx,
        "d_mlp": 256,
        "act_fn": "gelu",
        "normalization_type": "LN",
        "gamma": gamma,
        "seed": seed,
    }
    config = TrainConfig(
        steps=steps,
        batch_size=256,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=weight_decay,
        decayed="matrices",
        warmup_steps=min(200, steps),
        schedule="cosine",
        final_share=0.05,
        clip_norm=1.0,
        seed=seed,
    )
    return Recipe(name=name, summary=summary, model=model, task=replace(task, data_seed=seed), config=config)


RECIPES: Mapping[str, Callable[..., Recipe]] = {
    "copying": copying,
    "copying_one_layer": copying_one_layer,
    "anchor": anchor,
    "anchor_altered": anchor_altered,
    "anchor_memorising": anchor_memorising,
    "scan": scan,
    "addition": addition,
    "ontology": ontology,
    "dyck": dyck,
    "question_formation": question_formation,
    "tense_inflection": tense_inflection,
}


def _copying(name: str, summary: str, *, n_layers: int, seed: int) -> Recipe:
    task = Copying()
    model = {
        "n_layers": n_layers,
        "d_model": 64,
        "n_heads": 1,
        "d_vocab": task.d_vocab,
        "n_ctx": task.n_ctx,
        "attn_only": True,
        "normalization_type": "LN",
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": True,
        "gamma": 0.5,
        "embedding_std": 1.0,
        "seed": seed,
    }
    config = TrainConfig(learning_rate=2e-3, warmup_steps=100, seed=seed)
    return Recipe(name=name, summary=summary, model=model, task=task, config=config, observe=_follow_attention)


def _follow_attention(model: HookedTransformer, step: int) -> dict[str, float]:
    """The strongest induction and previous-token attention of any head, for the history."""
    scores = score_heads(model, n_sequences=16, segment=choose_segment(model))
    return {"induction": float(scores.induction.max()), "previous_token": float(scores.previous_token.max())}
