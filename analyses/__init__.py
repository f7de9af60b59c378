"""The questions: each analysis ties tasks and measurements into one result. Use it as `interp.analyses`."""

import importlib
from types import ModuleType

DISTRIBUTION = "interp-toolkit"
"""Marks this package as ours: `interp` compares it, since other projects also have a package called `analyses`."""

_MODULES = frozenset(
    {
        "analysis",
        "common_bridge",
        "copying",
        "copying_dynamics",
        "heads",
        "induction",
        "labs",
        "patching",
        "patching_removal",
        "recipes",
        "registry",
        "report",
        "report_models",
        "rule_tasks",
        "runner",
        "solutions",
        "structural_grokking",
        "tree_projections",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"analyses.{name}")
    raise AttributeError(f"module 'analyses' has no attribute {name!r}")
