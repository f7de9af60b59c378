"""Which models the lab trains: the copying recipe by depth and by the pool of segments, each with several seeds.

- `small`: two layers and one, five seeds each. The question is when copying out of distribution appears, and with what.
- `pools`: two layers, segments from pools of 25 to 1,600 and without a pool. A small pool can be memorised, a large one
  asks for a rule (arXiv 2408.09503, the ablation of the pool).
- `published`: the published optimiser settings for 20,000 steps, for an accelerator.

>>> {name: len(lab().cells) for name, lab in LABS.items()}
{'small': 10, 'pools': 16, 'published': 10}
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from analyses.copying_dynamics.progress import Progress
from analyses.recipe import Recipe
from analyses.recipes import RECIPES
from interp import __version__
from interp.errors import InputError
from interp.records.store import Store
from interp.training.config import TrainConfig
from tasks.copying import Copying


@dataclass(frozen=True, kw_only=True, slots=True)
class LabCell:
    """One model of the lab."""

    setting: Recipe
    """The setting, with the seed put in."""
    seed: int
    """The seed."""

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{self.setting.name.replace(' ', '_').replace(',', '')}-seed_{self.seed}"

    @property
    def key(self) -> str:
        """Hash of all that determines it."""
        return Store.key(
            analysis="copying_dynamics", seed=self.seed, **describe_setting(self.setting), version=__version__
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """Settings, each trained with several seeds."""

    name: str
    """What a user calls it."""
    settings: tuple[Recipe, ...]
    """The settings, in the order of the report."""
    seeds: int
    """Seeds 0, 1, ... of each setting."""

    def __post_init__(self) -> None:
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < 1:
            raise InputError(f"seeds must be a whole number of at least 1, not {self.seeds!r}.")

    @property
    def cells(self) -> tuple[LabCell, ...]:
        """Every model: the first seed of all settings, then the second, and so on."""
        return tuple(
            LabCell(setting=_sow(setting, seed), seed=seed) for seed in range(self.seeds) for setting in self.settings
        )

    def describe(self) -> dict[str, Any]:
        """As plain JSON, what makes two labs the same lab: short, since a refusal shows it."""
        settings = {setting.name: describe_setting(setting) for setting in self.settings}
        return {"lab": self.name, "seeds": self.seeds, "settings": Store.key(settings=settings)[:12]}


def small() -> Lab:
    """Two layers and one; minutes on two cores."""
    names = {"two layers": "copying", "one layer": "copying_one_layer"}
    return Lab(name="small", settings=tuple(_setting(name, RECIPES[of]()) for name, of in names.items()), seeds=5)


def pools() -> Lab:
    """From a pool that is remembered to none."""
    sizes = (25, 50, 100, 200, 400, 800, 1600)
    recipe = RECIPES["copying"]()
    settings = [_setting(f"pool of {size}", replace(recipe, task=Copying(pool_size=size))) for size in sizes]
    return Lab(name="pools", settings=(*settings, _setting("no pool", recipe)), seeds=2)


def published() -> Lab:
    """Song et al.'s optimiser and number of steps."""
    config = TrainConfig(steps=20_000, learning_rate=1e-3, eval_every=200, checkpoint_every=2000)
    settings = [_setting(setting.name, replace(setting, config=config)) for setting in small().settings]
    return Lab(name="published", settings=tuple(settings), seeds=5)


LABS: Mapping[str, Callable[[], Lab]] = {"small": small, "pools": pools, "published": published}


def describe_setting(setting: Recipe) -> dict[str, Any]:
    """As plain JSON, all that determines a model."""
    assert isinstance(setting.task, Copying)
    watched = asdict(setting.observe) if isinstance(setting.observe, Progress) else None
    return {
        "model": dict(setting.model),
        "task": asdict(setting.task),
        "config": asdict(setting.config),
        "watched": watched,
    }


def _setting(name: str, recipe: Recipe) -> Recipe:
    """Evaluated every 50 steps, so that a jump is located that well, on so few sequences that it costs a twentieth."""
    assert isinstance(recipe.task, Copying)
    config = replace(recipe.config, eval_every=50, eval_sequences=100)
    return replace(recipe, name=name, summary=name, config=config, observe=Progress(task=recipe.task))


def _sow(setting: Recipe, seed: int) -> Recipe:
    return replace(setting, model={**setting.model, "seed": seed}, config=replace(setting.config, seed=seed))
