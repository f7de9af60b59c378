"""The report on a grid: which solutions, by which circuits, an example of each, with which weights, learnt when; and a
section on every model, to which the phase diagram and the tables lead."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from analyses.report.page import ModelPart, Page, Section, write_page
from analyses.solutions.behaviour_section import draw_diagram, write_behaviour
from analyses.solutions.evidence_sections import write_mechanism, write_training, write_weights
from analyses.solutions.finished import Finished, read_finished
from analyses.solutions.grid import Grid
from analyses.solutions.models_section import write_models
from analyses.solutions.phases_section import write_phases
from analyses.versions import describe_versions
from interp.figures.svg import to_svg
from interp.records.store import Store, write_file

_SUMMARISED = ("behaviour", "mechanism", "weights", "nothing")


def write_grid_page(grid: Grid, store: Store, *, command: str, failed: Mapping[str, str] | None = None) -> Path:
    """`report.html` and `phase_diagram.svg` beside the records, on the models that are finished; returns the page's path."""
    finished = read_finished(grid, store)
    path = store.folder / "report.html"
    sections = _write_sections(grid, finished, failed or {})
    page = Page(
        title="Do they reason, use a symmetry, or memorise?",
        summary=tuple(
            f"{section.verdict} {section.control}".strip() for section in sections if section.anchor in _SUMMARISED
        ),
        parts=(
            ModelPart(
                name=f"{len(finished)} models" + (f" of {len(grid.cells)}" if len(finished) < len(grid.cells) else ""),
                line=_describe_models(grid, finished),
                sections=sections,
            ),
        ),
        command=command,
        versions=describe_versions(),
        created=time.strftime("%Y-%m-%d"),
    )
    write_page(page, path)
    if finished:
        write_file(store.folder / "phase_diagram.svg", to_svg(draw_diagram(finished)).encode())
    return path


def _write_sections(grid: Grid, finished: Sequence[Finished], failed: Mapping[str, str]) -> tuple[Section, ...]:
    if not finished:
        nothing = "No model of this grid is finished."
        return (Section(anchor="nothing", title="Nothing yet", question="What is done?", verdict=nothing),)
    notes = tuple(f"{name} is missing: {error}" for name, error in failed.items())
    sections = [
        write_behaviour(finished, notes),
        write_mechanism(finished),
        write_phases(finished),
        write_weights(finished),
        write_training(finished),
        write_models(finished),
    ]
    return tuple(section for section in sections if section is not None)


def _describe_models(grid: Grid, finished: Sequence[Finished]) -> str:
    if not finished:
        return ""
    cell = finished[0].cell
    model, config = cell.setting.model, cell.setting.config
    depths = sorted({one.cell.n_layers for one in finished})
    return (
        f"{len(grid.settings)} settings, {grid.seeds} seeds · {' or '.join(map(str, depths))} layers of width "
        f"{model['d_model']} · normalised in front of each layer · batches of {config.batch_size}, learning rate "
        f"{config.learning_rate:g}"
    )
