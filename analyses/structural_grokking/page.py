"""The report of a lab, task by task: whether and when models come to generalise, by which rule, what depth and trees have to do
with it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from analyses.labs.lab import Lab
from analyses.labs.trained import read_trained
from analyses.report.page import ModelPart, Page, Section, write_page
from analyses.structural_grokking.sections import write_curves, write_depths, write_rules
from analyses.structural_grokking.trained import TrainedGrammar
from analyses.structural_grokking.tree_sections import write_measures, write_trees
from analyses.versions import describe_versions
from interp.records.store import Store


def write_lab_page(lab: Lab, store: Store, *, command: str, failed: Mapping[str, str] | None = None) -> Path:
    """`report.html` beside the records, on the models that are finished; returns its path."""
    trained = read_trained(lab, store, TrainedGrammar)
    parts = [
        _write_part(task, lab, [one for one in trained if one.task == task], failed or {})
        for task in dict.fromkeys(setting.task.name for setting in lab.settings)
    ]
    several = len(parts) > 1
    page = Page(
        title="Do they come to compute along the tree, and since when?",
        summary=tuple(
            f"{f'{_upper(part.name)}. ' if several else ''}{section.verdict} {section.control}".strip()
            for part in parts
            for section in part.sections
            if section.anchor != "trees"
        ),
        parts=tuple(parts),
        command=command,
        versions=describe_versions(),
        created=time.strftime("%Y-%m-%d"),
    )
    path = store.folder / "report.html"
    write_page(page, path)
    return path


def _write_part(task: str, lab: Lab, trained: Sequence[TrainedGrammar], failed: Mapping[str, str]) -> ModelPart:
    cells = [cell for cell in lab.cells if cell.setting.task.name == task]
    lost = {cell.name: failed[cell.name] for cell in cells if cell.name in failed}
    return ModelPart(
        name=task,
        line=_describe(lab, task, len(trained), len(cells)),
        sections=_write_sections(trained, lost),
    )


def _write_sections(trained: Sequence[TrainedGrammar], failed: Mapping[str, str]) -> tuple[Section, ...]:
    if not trained:
        return (
            Section(anchor="nothing", title="Nothing yet", question="What is done?", verdict="No model is finished."),
        )
    sections = (
        write_curves(trained, failed),
        write_rules(trained),
        write_depths(trained),
        write_measures(trained),
        write_trees(trained),
    )
    return tuple(section for section in sections if section is not None)


def _describe(lab: Lab, task: str, done: int, of: int) -> str:
    settings = [setting for setting in lab.settings if setting.task.name == task]
    model, config = settings[0].model, settings[0].config
    depths = ", ".join(str(setting.model["n_layers"]) for setting in settings)
    models = f"{done} models" + (f" of {of}" if done < of else "")
    return (
        f"{models} · {depths} layers, {lab.seeds} seeds each · width {model['d_model']}, {model['n_heads']} heads · "
        f"{config.steps:,} steps of {config.batch_size} lines"
    )


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
