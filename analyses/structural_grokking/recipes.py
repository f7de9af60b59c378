"""Every number of the grokking models: how they are built, trained and watched.

`small` is after measurements on two cores: width 64, and six layers take four minutes. What matters is the fixed table of
positions: with learned ones a model doesn't take over the linear rule first (docs/structural_grokking.md). `post_norm` is
the same with the published blocks, of Vaswani et al.: norms behind the sums and embeddings times the root of the width. Tense
inflection needs these, and more steps. `paper` has the sizes and the optimiser of Murty et al., arXiv 2305.18741: width 512,
4 heads, 300,000 steps of 8 lines, AdamW with eps 1e-7 and no decay, 10,000 steps of warm-up, clipping at 10.

>>> recipe = question_formation(n_layers=2, seed=1)
>>> recipe.model["n_layers"], recipe.model["seed"], recipe.config.seed, recipe.task.name
(2, 1, 1, 'question formation')
"""

from typing import Any, Literal

from analyses.recipe import Recipe
from analyses.structural_grokking.progress import GrammarTask, Progress
from interp.training.config import TrainConfig
from tasks.grammar import QuestionFormation, TenseInflection

TASKS: dict[str, type[GrammarTask]] = {
    "question formation": QuestionFormation,
    "tense inflection": TenseInflection,
}

SMALL_DEPTHS, TENSE_DEPTHS, SMALL_SEEDS = (2, 4, 6), (2, 4), 5
PAPER_DEPTHS, PAPER_SEEDS = (2, 4, 6, 8, 10), 10

Numbers = Literal["small", "post_norm", "tense", "paper"]

_PRE_NORM: dict[str, Any] = {
    "act_fn": "relu",
    "normalization_type": "LN",
    "positions": "sinusoidal",
    "embedding_std": 1.0,
    "gamma": 0.5,
}
_PUBLISHED: dict[str, Any] = {
    "act_fn": "relu",
    "normalization_type": "LN",
    "norm_placement": "post",
    "positions": "sinusoidal",
    "embedding_scale": "sqrt_d_model",
    "gamma": 0.5,
}
_WIDTH = {"d_model": 64, "n_heads": 4, "d_mlp": 256}
_SMALL: dict[str, dict[str, Any]] = {
    "task": {"train": 50_000, "batches": "one_length"},
    "model": {**_WIDTH, **_PRE_NORM},
    "config": {
        "steps": 10_000, "batch_size": 16, "learning_rate": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8,
        "weight_decay": 0.0, "warmup_steps": 500, "clip_norm": 1.0, "eval_every": 250, "eval_sequences": 400,
    },
    "watched": {"every": 1000, "n_lines": 400, "n_trees": 100},
}  # fmt: skip
_POST_NORM = {**_SMALL, "model": {**_WIDTH, **_PUBLISHED}}
_TENSE = {**_POST_NORM, "config": {**_SMALL["config"], "steps": 16_000}}
_PAPER: dict[str, dict[str, Any]] = {
    "task": {"proportions": "published_files"},
    "model": {"d_model": 512, "n_heads": 4, "d_mlp": 2048, **_PUBLISHED},
    "config": {
        "steps": 300_000, "batch_size": 8, "learning_rate": 1e-4, "betas": (0.9, 0.999), "eps": 1e-7,
        "weight_decay": 0.0, "warmup_steps": 10_000, "clip_norm": 10.0, "eval_every": 3000, "eval_sequences": 1000,
        "checkpoint_every": 50_000,
    },
    "watched": {"every": 3000, "n_lines": 1000, "n_trees": 300},
}  # fmt: skip
_NUMBERS = {"small": _SMALL, "post_norm": _POST_NORM, "tense": _TENSE, "paper": _PAPER}


def question_formation(*, n_layers: int = 6, seed: int = 0) -> Recipe:
    """Question formation: the first auxiliary moves, or the main clause's?"""
    return make_recipe("question formation", "small", n_layers=n_layers, seed=seed)


def tense_inflection(*, n_layers: int = 4, seed: int = 0) -> Recipe:
    """Tense inflection: the verb agrees with the last noun, or with its subject?"""
    return make_recipe("tense inflection", "tense", n_layers=n_layers, seed=seed)


def make_recipe(task: str, numbers: Numbers, *, n_layers: int, seed: int = 0) -> Recipe:
    """The recipe of a task at a depth; its setting is named after both."""
    chosen = _NUMBERS[numbers]
    drawn = TASKS[task](**chosen["task"])
    model = {"n_layers": n_layers, "d_vocab": drawn.d_vocab, "n_ctx": drawn.n_ctx, "seed": seed, **chosen["model"]}
    return Recipe(
        name=f"{task}, {n_layers} layers",
        summary=_SUMMARIES[task],
        model=model,
        task=drawn,
        config=TrainConfig(seed=seed, **chosen["config"]),
        observe=Progress(task=drawn, **chosen["watched"]),
    )


_SUMMARIES = {
    "question formation": "six layers form questions by a linear rule, and may come to one about trees",
    "tense inflection": "four layers put sentences into the present, where two rules agree",
}
