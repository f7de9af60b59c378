"""A grid of small models: settings times seeds, in an order in which every setting is seen early.

A setting is a `Recipe`; a cell of the grid is a setting with one seed, which draws the weights, the training set and the
batches. `make_grid` crosses designs, gamma, weight decay and depth.

>>> grid = make_grid(gammas=(0.4, 0.8), weight_decays=(0.01, 1.0), seeds=2)
>>> len(grid.cells), [cell.name for cell in grid.cells[:2]]
(8, ['gamma_0.4_decay_0.01-seed_0', 'gamma_0.4_decay_1-seed_0'])
>>> make_grid(gammas=(), weight_decays=(0.01,))
Traceback (most recent call last):
interp.errors.InputError: The grid has no cells, since no gamma was given; give at least one, such as 0.8.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from analyses.recipe import Recipe
from analyses.recipes import make_anchor
from analyses.solutions.ranks import observe_rank
from interp import __version__
from interp.errors import InputError
from interp.records.store import Store
from tasks.anchor.composite import Composite
from tasks.anchor.designs import altered_pair, dropped_pairs

Design = Literal["dropped", "altered"]

N_SEQUENCES = 200_000
"""Size of the training set of a grid that names none: a model of 1,500 steps sees it about twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridCell:
    """One model of the grid."""

    setting: Recipe
    """The setting, with the seed put in."""
    seed: int
    """The seed."""
    n: int
    """Sequences of each split on which it is classified."""
    n_controls: int
    """Random circuits that each cut is compared with."""

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{re.sub(r'[^a-zA-Z0-9.]+', '_', self.setting.name).strip('_')}-seed_{self.seed}"

    @property
    def gamma(self) -> float:
        """The exponent of its initialisation: larger is smaller weights."""
        return float(self.setting.model["gamma"])

    @property
    def weight_decay(self) -> float:
        """AdamW's decay."""
        return float(self.setting.config.weight_decay)

    @property
    def n_layers(self) -> int:
        """Its depth."""
        return int(self.setting.model["n_layers"])

    @property
    def task(self) -> Composite:
        """What it is trained on."""
        assert isinstance(self.setting.task, Composite)
        return self.setting.task

    @property
    def key(self) -> str:
        """Hash of all that determines it."""
        return Store.key(
            analysis="solutions",
            **describe_setting(self.setting),
            n=self.n,
            n_controls=self.n_controls,
            version=__version__,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Settings, each trained with several seeds; `InputError` for one without cells or with a setting twice."""

    name: str
    """What a user calls it: a recipe's name, or its axes."""
    settings: tuple[Recipe, ...]
    """The settings, in the order of the report."""
    seeds: int = 5
    """Seeds 0, 1, ... of each setting."""
    n: int = 500
    """Sequences of each split on which a model is classified."""
    n_controls: int = 10
    """Random circuits that each cut is compared with."""

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("n", self.n), ("n_controls", self.n_controls)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if not self.settings:
            raise InputError("The grid has no cells, since it has no setting; give at least one.")
        described = [describe_setting(setting) for setting in self.settings]
        names = [setting.name for setting in self.settings]
        for i, name in enumerate(names):
            if name in names[:i] or described[i] in described[:i]:
                raise InputError(f"The setting {name!r} is in the grid twice; give every value once.")

    @property
    def cells(self) -> tuple[GridCell, ...]:
        """Every model: the first seed of all settings, then the second, and so on."""
        return tuple(
            GridCell(setting=_sow(setting, seed), seed=seed, n=self.n, n_controls=self.n_controls)
            for seed in range(self.seeds)
            for setting in self.settings
        )

    def describe(self) -> dict[str, Any]:
        """As plain JSON, what makes two grids the same grid: short, since a refusal shows it."""
        settings = {setting.name: describe_setting(setting) for setting in self.settings}
        sizes = {"seeds": self.seeds, "n": self.n, "n_controls": self.n_controls}
        return {"grid": self.name, **sizes, "settings": Store.key(settings=settings)[:12]}


def make_grid(
    *,
    designs: Sequence[Design] = ("dropped",),
    gammas: Sequence[float],
    weight_decays: Sequence[float],
    depths: Sequence[int] = (2,),
    seeds: int = 3,
    steps: int = 1500,
) -> Grid:
    """Every design with every gamma, decay and depth, at the small size of `analyses.recipes.make_anchor`."""
    axes: Mapping[str, tuple[Sequence[Any], str]] = {
        "design": (designs, "dropped"),
        "gamma": (gammas, "0.8"),
        "weight decay": (weight_decays, "0.01"),
        "depth": (depths, "2"),
    }
    for axis, (values, example) in axes.items():
        if not values:
            raise InputError(f"The grid has no cells, since no {axis} was given; give at least one, such as {example}.")
    for axis in ("gamma", "weight decay"):
        for value in axes[axis][0]:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InputError(f"A {axis} of {value!r} is no finite number; give one such as {axes[axis][1]}.")
    for design in designs:
        if design not in get_args(Design):
            raise InputError(f"There is no design {design!r}; there are {' and '.join(get_args(Design))}.")
    for depth in depths:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 2:
            raise InputError(f"A depth of {depth!r} has no room for a circuit of two stages; give 2 layers or more.")
    settings = tuple(
        make_anchor(
            _name_setting(design, gamma, decay, depth, designs=designs, depths=depths),
            f"{design} pairs, gamma {gamma:g}, weight decay {decay:g}, {depth} layers",
            design_task(design),
            gamma=gamma,
            weight_decay=decay,
            n_layers=depth,
            steps=steps,
        )
        for design, depth, decay, gamma in product(designs, depths, weight_decays, gammas)
    )
    # Gamma is the slowest of the two that a diagram shows, so that a run that was stopped has whole columns.
    ordered = sorted(settings, key=lambda setting: gammas.index(setting.model["gamma"]))
    axes_told = [f"{axis} {', '.join(f'{value:g}' for value in axes[axis][0])}" for axis in ("gamma", "weight decay")]
    name = "; ".join(
        [" and ".join(designs), *axes_told, f"{' and '.join(map(str, depths))} layers", f"{steps:,} steps"]
    )
    return Grid(name=name, settings=tuple(ordered), seeds=seeds)


def design_task(design: Design) -> Composite:
    """The composite task of a design, with a fixed set of 200,000 sequences."""
    return (dropped_pairs if design == "dropped" else altered_pair)(n_sequences=N_SEQUENCES)


def describe_setting(setting: Recipe) -> dict[str, Any]:
    """As plain JSON, all that determines a model besides what measures it."""
    assert isinstance(setting.task, Composite)
    return {"model": dict(setting.model), "task": asdict(setting.task), "config": asdict(setting.config)}


def _sow(setting: Recipe, seed: int) -> Recipe:
    assert isinstance(setting.task, Composite)
    return replace(
        setting,
        model={**setting.model, "seed": seed},
        task=replace(setting.task, data_seed=seed),
        config=replace(setting.config, seed=seed),
        observe=observe_rank,
    )


def _name_setting(
    design: str, gamma: float, decay: float, depth: int, *, designs: Sequence[str], depths: Sequence[int]
) -> str:
    parts = [design] if len(designs) > 1 else []
    parts += [f"{depth} layers"] if len(depths) > 1 else []
    return ", ".join([*parts, f"gamma {gamma:g}", f"decay {decay:g}"])
