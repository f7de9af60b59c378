"""What a lab trains: settings, each with several seeds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

from analyses.recipe import Recipe
from interp import __version__
from interp.errors import InputError
from interp.records.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LabCell:
    """One model of a lab."""

    analysis: str
    """The question it belongs to, as its records name it."""
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
        return Store.key(analysis=self.analysis, seed=self.seed, **describe_setting(self.setting), version=__version__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """Settings, each trained with several seeds."""

    analysis: str
    """The question it belongs to, as its records name it."""
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
            LabCell(analysis=self.analysis, setting=_sow(setting, seed), seed=seed)
            for seed in range(self.seeds)
            for setting in self.settings
        )

    def describe(self) -> dict[str, Any]:
        """As plain JSON, what makes two labs the same lab: short, since a refusal shows it."""
        settings = {setting.name: describe_setting(setting) for setting in self.settings}
        return {"lab": self.name, "seeds": self.seeds, "settings": Store.key(settings=settings)[:12]}

    def take_steps(self, steps: int) -> "Lab":
        """The same lab with models of so many updates."""
        settings = tuple(
            replace(
                setting,
                config=replace(setting.config, steps=steps, warmup_steps=min(setting.config.warmup_steps, steps)),
            )
            for setting in self.settings
        )
        return replace(self, settings=settings)


Labs = Mapping[str, Callable[[], Lab]]


def describe_setting(setting: Recipe) -> dict[str, Any]:
    """As plain JSON, all that determines a model."""
    return {
        "model": dict(setting.model),
        "task": _list_fields(setting.task),
        "config": asdict(setting.config),
        "watched": _list_fields(setting.observe),
    }


def _list_fields(what: Any) -> dict[str, Any] | None:
    return asdict(what) if is_dataclass(what) and not isinstance(what, type) else None


def _sow(setting: Recipe, seed: int) -> Recipe:
    return replace(setting, model={**setting.model, "seed": seed}, config=replace(setting.config, seed=seed))
