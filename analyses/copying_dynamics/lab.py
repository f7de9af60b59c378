"""Which models the lab trains: the copying recipe by depth and by the pool of segments, each with several seeds.

- `small`: two layers and one, five seeds each. The question is when copying out of distribution appears, and with what.
- `pools`: two layers, segments from pools of 25 to 1,600 and without a pool. A small pool can be memorised, a large one
  asks for a rule (arXiv 2408.09503, the ablation of the pool).
- `published`: the published optimiser settings for 20,000 steps, for an accelerator.

>>> {name: len(lab().cells) for name, lab in LABS.items()}
{'small': 10, 'pools': 16, 'published': 10}
"""

from dataclasses import replace

from analyses.copying_dynamics.progress import Progress
from analyses.labs.lab import Lab, Labs
from analyses.recipe import Recipe
from analyses.recipes import RECIPES
from interp.training.config import TrainConfig
from tasks.copying import Copying

ANALYSIS = "copying_dynamics"


def small() -> Lab:
    """Two layers and one; minutes on two cores."""
    names = {"two layers": "copying", "one layer": "copying_one_layer"}
    settings = tuple(_setting(name, RECIPES[of]()) for name, of in names.items())
    return Lab(analysis=ANALYSIS, name="small", settings=settings, seeds=5)


def pools() -> Lab:
    """From a pool that is remembered to none."""
    sizes = (25, 50, 100, 200, 400, 800, 1600)
    recipe = RECIPES["copying"]()
    settings = [_setting(f"pool of {size}", replace(recipe, task=Copying(pool_size=size))) for size in sizes]
    return Lab(analysis=ANALYSIS, name="pools", settings=(*settings, _setting("no pool", recipe)), seeds=2)


def published() -> Lab:
    """Song et al.'s optimiser and number of steps."""
    config = TrainConfig(steps=20_000, learning_rate=1e-3, eval_every=200, checkpoint_every=2000)
    settings = [_setting(setting.name, replace(setting, config=config)) for setting in small().settings]
    return Lab(analysis=ANALYSIS, name="published", settings=tuple(settings), seeds=5)


LABS: Labs = {"small": small, "pools": pools, "published": published}


def _setting(name: str, recipe: Recipe) -> Recipe:
    """Evaluated every 50 steps, so that a jump is located that well, on so few sequences that it costs a twentieth."""
    assert isinstance(recipe.task, Copying)
    config = replace(recipe.config, eval_every=50, eval_sequences=100)
    return replace(recipe, name=name, summary=name, config=config, observe=Progress(task=recipe.task))
