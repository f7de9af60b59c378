"""Grids by name: `small` for two cores, `paper_b` and `paper_c` at published sizes for an accelerator.

`small` has five settings of the model of width 64 in `analyses.recipes`, with five seeds each. Which solution a seed finds
is not fixed by a setting; the settings were chosen by measuring shares (docs/phase_diagram).

`paper_b` is arXiv 2405.05409: gamma against depth, the altered pair. `paper_c` is arXiv 2501.08537: gamma against weight
decay at ten layers, both pairs dropped. What differs from the papers: a layer's input is normalised (pre-norm), also where
2405.05409 normalises the sum behind it and 2501.08537 the queries' input alone; W_out has its true fan-in; batches take
from the fixed set with replacement. So shapes of diagrams can be compared, not single cells.

>>> {name: len(grid().cells) for name, grid in GRIDS.items()}
{'small': 25, 'paper_b': 75, 'paper_c': 108}
"""

from collections.abc import Callable, Mapping
from itertools import product

from analyses.recipe import Recipe
from analyses.recipes import make_anchor
from analyses.solutions.grid import N_SEQUENCES, Grid
from interp.training.config import TrainConfig
from tasks.anchor.composite import Composite
from tasks.anchor.designs import altered_pair, dropped_pairs


def small() -> Grid:
    """Memorising, large and small initialisation, with pairs dropped and with one altered; minutes on two cores."""
    dropped, altered = dropped_pairs(n_sequences=N_SEQUENCES), altered_pair(n_sequences=N_SEQUENCES)
    rarely = altered_pair(n_sequences=N_SEQUENCES, weight=0.3)
    settings = (
        ("memorising", "3,000 sequences, two pairs dropped", dropped_pairs(n_sequences=3000), 0.3, 2000),
        ("large initialisation", "two pairs dropped", dropped, 0.4, 1500),
        ("small initialisation", "two pairs dropped", dropped, 0.8, 1500),
        ("altered pair, large initialisation", "one pair altered", altered, 0.4, 2000),
        ("altered pair, small initialisation", "one pair altered, seldom trained", rarely, 0.8, 2000),
    )
    return Grid(
        name="small",
        settings=tuple(
            make_anchor(name, summary, task, gamma=gamma, steps=steps) for name, summary, task, gamma, steps in settings
        ),
        seeds=5,
    )


def paper_b() -> Grid:
    """2405.05409, figure 2: gamma 0.3 ... 0.7 by depth 2 ... 6, the altered pair, three seeds, 77,910 steps a model."""
    config = TrainConfig(
        steps=77_910, batch_size=2048, learning_rate=2.5e-4, initial_share=1 / 25, final_share=1 / 25, warmup_steps=3710,
        schedule="cosine", betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, clip_norm=1.0, autocast="bfloat16",
        eval_every=3710, checkpoint_every=7420,
    )  # fmt: skip
    shape = {"d_model": 400, "n_heads": 1, "d_head": 200, "d_mlp": 1200, "act_fn": "relu", "normalization_type": "LN"}
    task = altered_pair(n_sequences=759_375, modulus=7, d_vocab=201)
    settings = tuple(
        _setting(f"{depth} layers, gamma {gamma:g}", task, config, {**shape, "n_layers": depth, "gamma": gamma})
        for gamma, depth in product((0.3, 0.4, 0.5, 0.6, 0.7), (2, 3, 4, 5, 6))
    )
    return Grid(name="paper_b", settings=settings, seeds=3, n=1000, n_controls=20)


def paper_c() -> Grid:
    """2501.08537, figure 3: nine gammas by four decays of all parameters, ten layers, three seeds, 79,800 steps a model."""
    shape = {
        "n_layers": 10, "d_model": 640, "n_heads": 10, "d_head": 64, "d_mlp": 1280, "act_fn": "gelu",
        "normalization_type": "LN", "residual_scale": "one_over_sqrt_2L",
    }  # fmt: skip
    task = dropped_pairs(n_sequences=157_500, d_vocab=201)
    settings = []
    for gamma, decay in product((0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8), (0.0, 0.01, 0.1, 1.0)):
        config = TrainConfig(
            steps=79_800, batch_size=2048, learning_rate=3e-5, initial_share=1 / 3, final_share=1 / 3, warmup_steps=3800,
            schedule="cosine", betas=(0.9, 0.999), eps=1e-8, weight_decay=decay, clip_norm=1.0, autocast="bfloat16",
            eval_every=3800, checkpoint_every=7600,
        )  # fmt: skip
        settings.append(_setting(f"gamma {gamma:g}, decay {decay:g}", task, config, {**shape, "gamma": gamma}))
    return Grid(name="paper_c", settings=tuple(settings), seeds=3, n=1000, n_controls=20)


GRIDS: Mapping[str, Callable[[], Grid]] = {"small": small, "paper_b": paper_b, "paper_c": paper_c}


def _setting(name: str, task: Composite, config: TrainConfig, model: Mapping[str, object]) -> Recipe:
    sizes = {"d_vocab": task.d_vocab, "n_ctx": task.n_ctx, "seed": 0}
    return Recipe(name=name, summary=name, model={**model, **sizes}, task=task, config=config)
