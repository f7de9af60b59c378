"""Which models are trained: question formation and tense inflection by depth, each depth with several seeds.

- `small`: question formation; two, four and six layers, five seeds each.
- `post_norm`: the same with norms behind the sums, as published.
- `tense`: tense inflection; two layers and four, for more steps, since generalisation comes later.
- `paper`: both tasks at the published size, depths 2 to 10 with ten seeds each, for an accelerator.

>>> {name: len(lab().cells) for name, lab in LABS.items()}
{'small': 15, 'post_norm': 15, 'tense': 10, 'paper': 100}
"""

from analyses.labs.lab import Lab, Labs
from analyses.structural_grokking.recipes import (
    PAPER_DEPTHS,
    PAPER_SEEDS,
    SMALL_DEPTHS,
    SMALL_SEEDS,
    TASKS,
    TENSE_DEPTHS,
    Numbers,
    make_recipe,
)

ANALYSIS = "structural_grokking"


def small() -> Lab:
    """Question formation, minutes a model on one core."""
    return _grid("small", "question formation", SMALL_DEPTHS)


def post_norm() -> Lab:
    """Question formation with the published blocks."""
    return _grid("post_norm", "question formation", SMALL_DEPTHS)


def tense() -> Lab:
    """Tense inflection, minutes a model on one core."""
    return _grid("tense", "tense inflection", TENSE_DEPTHS)


def paper() -> Lab:
    """Both tasks as published."""
    settings = tuple(make_recipe(task, "paper", n_layers=depth) for task in TASKS for depth in PAPER_DEPTHS)
    return Lab(analysis=ANALYSIS, name="paper", settings=settings, seeds=PAPER_SEEDS)


LABS: Labs = {"small": small, "post_norm": post_norm, "tense": tense, "paper": paper}


def _grid(name: Numbers, task: str, depths: tuple[int, ...]) -> Lab:
    settings = tuple(make_recipe(task, name, n_layers=depth) for depth in depths)
    return Lab(analysis=ANALYSIS, name=name, settings=settings, seeds=SMALL_SEEDS)
