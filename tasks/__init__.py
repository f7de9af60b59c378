"""What a model is asked: synthetic tasks with known rules. Use it as `interp.tasks`."""

import importlib
from types import ModuleType

DISTRIBUTION = "interp-toolkit"
"""Marks this package as ours: `interp` compares it, since other projects also have a package called `tasks`."""


def __getattr__(name: str) -> ModuleType:
    if name in {"anchor", "copying", "dyck", "grammar", "language", "prompts", "seeding", "task", "trees"}:
        return importlib.import_module(f"tasks.{name}")
    raise AttributeError(f"module 'tasks' has no attribute {name!r}")
