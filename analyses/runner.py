"""Ask analyses of models, keep what was measured, write the report: resumable, part by part.

Each part of an analysis on a model is one cell of the store, keyed by everything that determines it: the weights' hash,
dtype and device, the analysis, the options and the library's version. A run that was killed is started again with the
same command; finished cells are read, not run.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analyses.analysis import Analysis, Options, Part, Subject
from analyses.report.page import ModelPart, Page, Section, write_page
from analyses.versions import describe_versions
from interp import __version__
from interp.errors import InputError
from interp.models.provenance import Provenance
from interp.records.schema import Measurement
from interp.records.store import Cell, Store, write_file_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A model to be loaded and the analyses to ask of it."""

    name: str
    """How the model is called in records and in the report."""
    load: Callable[[], Subject]
    """Loads it; called when its turn comes, so that one model is in memory at a time."""
    analyses: tuple[Analysis, ...]
    """The questions, in order."""


def claim_folder(folder: Path, spec: dict[str, Any]) -> Store:
    """The store in `folder`, which belongs to one run: a folder with another run's records is refused."""
    wanted = json.dumps({"version": __version__, **spec}, indent=1, sort_keys=True)
    marker = folder / "run.json"
    if not marker.exists():
        _refuse_strangers(folder, marker)
        write_file_once(marker, wanted.encode())  # before all else: shards that start together find whose folder it is
    if marker.read_text() != wanted:
        raise InputError(
            f"{folder} holds another run ({_describe_difference(marker.read_text(), wanted)}); "
            "give another folder with --out, or delete this one."
        )
    return Store(folder)


def _refuse_strangers(folder: Path, marker: Path) -> None:
    """A folder with anything but a marker that another shard is just writing isn't ours."""
    if not folder.exists():
        return
    strange = not folder.is_dir() or any(not path.name.startswith(f".{marker.name}.") for path in folder.iterdir())
    if strange and not marker.exists():
        raise InputError(f"{folder} is there already and isn't a report's folder; give a new folder with --out.")


def run_asks(asks: Sequence[Ask], store: Store, *, options: Options, command: str, title: str) -> Path:
    """Measure what is not measured yet, then write `results.parquet` and `report.html`; returns the report's path."""
    parts = []
    total = sum(len(analysis.parts) for ask in asks for analysis in ask.analyses)
    with tqdm(total=total, disable=None, unit="part", leave=False) as progress:
        for ask in asks:
            parts.append(_run_ask(ask, store, options=options, progress=progress))
    store.export(store.folder / "results.parquet")
    page = Page(
        title=title,
        summary=tuple(
            f"{part.name}: {section.verdict} {section.control}" for part in parts for section in part.sections
        ),
        parts=tuple(parts),
        command=command,
        versions=describe_versions(),
        created=time.strftime("%Y-%m-%d"),
    )
    path = store.folder / "report.html"
    write_page(page, path)
    return path


def _run_ask(ask: Ask, store: Store, *, options: Options, progress: Any) -> ModelPart:
    progress.set_description(f"{ask.name}: loading")
    subject = ask.load()
    sections: list[Section] = []
    cells: dict[str, Cell] = {}
    for analysis in ask.analyses:
        refusal = analysis.applies(subject)
        if refusal is not None:
            logger.info("%s is left out for %s: %s", analysis.name, ask.name, refusal)
            progress.update(len(analysis.parts))
            continue
        for part in analysis.parts:
            progress.set_description(f"{ask.name}: {analysis.name}, {part.name}")
            cells[f"{analysis.name}/{part.name}"] = run_part(subject, analysis, part, store, options, cells)
            progress.update()
        sections.append(analysis.write_section(subject.provenance, cells))
    return ModelPart(
        name=ask.name,
        line=_describe_model(subject),
        facts=describe_provenance(subject.provenance),
        sections=tuple(sections),
    )


def run_part(
    subject: Subject, analysis: Analysis, part: Part, store: Store, options: Options, cells: dict[str, Cell]
) -> Cell:
    """The cell of one part: read where it is finished, else measured and written whole."""
    provenance = subject.provenance
    key = Store.key(
        analysis=analysis.name,
        part=part.name,
        model=provenance.model,
        weights=provenance.weights_sha256,
        control=subject.control.provenance.weights_sha256 if subject.control else None,
        model_class=provenance.model_class,
        dtype=provenance.dtype,
        device=provenance.device,
        options=asdict(options),
        version=__version__,
    )
    if key not in store:
        start = time.perf_counter()
        outcome = part.measure(subject, options, cells)
        seconds = time.perf_counter() - start
        rows = [_complete(row, provenance, seconds) for row in outcome.measurements]
        about = {"analysis": analysis.name, "part": part.name, "provenance": asdict(provenance), **outcome.about}
        store.write(key, rows, arrays=outcome.arrays, about=about)
    return store.read(key)


def _complete(row: Measurement, provenance: Provenance, seconds: float) -> Measurement:
    """Fills in what every row of a part shares; what the part has said itself stays."""
    return replace(
        row,
        model=row.model or provenance.model,
        revision=row.revision or provenance.revision,
        weights_sha256=row.weights_sha256 or provenance.weights_sha256,
        step=provenance.step if row.step is None else row.step,
        dtype=provenance.dtype,
        device=provenance.device,
        seconds=seconds,
        version=__version__,
    )


def _describe_model(subject: Subject) -> str:
    cfg, provenance = subject.model.cfg, subject.provenance
    counts = [(cfg.n_layers, "layer"), (cfg.n_heads, "head")]
    layers, heads = (f"{n} {what}{'s' if n > 1 else ''}" for n, what in counts)
    return (
        f"{layers} of {heads} · {provenance.n_parameters:,} parameters · {provenance.model_class} · {provenance.dtype}"
    )


def describe_provenance(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    """The lines under a model's name in the report."""
    difference = provenance.max_logit_difference
    facts = [
        ("parameters", f"{provenance.n_parameters:,}"),
        ("class", f"{provenance.model_class}: {provenance.reason}"),
        ("largest logit difference from Hugging Face", "no reference" if difference is None else f"{difference:.1e}"),
        ("weights", provenance.processing),
        ("dtype and device", f"{provenance.dtype}, {provenance.device}"),
        ("source", provenance.source + (f", revision {provenance.revision}" if provenance.revision else "")),
        ("weights sha256", provenance.weights_sha256),
    ]
    if provenance.step is not None:
        facts.insert(1, ("training step", f"{provenance.step:,}"))
    return (*facts, *(("note", note) for note in provenance.notes))


def _describe_difference(found: str, wanted: str) -> str:
    try:
        old, new = json.loads(found), json.loads(wanted)
        differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        return "; ".join(f"its {name} is {old.get(name)}, not {new.get(name)}" for name in differing)
    except (ValueError, AttributeError):
        return "its run.json can't be read"
