"""Run the cells of a grid: two processes with a thread each on a CPU, models stacked in one computation elsewhere.

Every finished cell is in the store and is never run again; a model that was being trained goes on from its last
checkpoint. So a run that was killed is started again with the same command, and shards of one grid can share a folder.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from analyses.runner import claim_folder
from analyses.solutions.cells import build_model, keep_cell, model_folder, run_cell
from analyses.solutions.grid import Grid, GridCell, describe_setting, take_shard
from analyses.solutions.page import write_grid_page
from interp.errors import DivergedError
from interp.records.store import Store, write_file
from interp.training.many import train_many
from interp.training.trainee import Trainee

SETTINGS = "settings.json"
"""All settings of a grid by name, in a file beside its records."""

PROCESSES = 2
"""Cells at once on a CPU, with one thread each."""

_PARAMETERS_AT_ONCE = 200_000_000
_TIMED_STEPS, _UNTIMED_STEPS = 30, 5

Engine = Literal["processes", "stacked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run would do, and how long that may take."""

    cells: tuple[GridCell, ...]
    """The cells of this shard."""
    finished: int
    """How many of them are there already."""
    seconds_per_step: float
    """Measured on `measured`."""
    measured: str
    """The cell whose steps were timed."""
    engine: Engine
    """How they would be run."""
    processes: int
    """How many at once."""

    @property
    def seconds(self) -> float:
        """Training alone, at the speed of the cell that was timed."""
        steps = sum(cell.setting.config.steps for cell in self.cells[self.finished :])
        return steps * self.seconds_per_step / self.processes


def run_grid(
    grid: Grid, folder: Path, *, command: str, shard: str = "1/1", device: str | None = None, processes: int = PROCESSES
) -> Path:
    """Run what isn't finished of the shard and write the report on all that is; returns the report's path."""
    cells = take_shard(grid.cells, shard)
    store = claim_folder(folder, {"command": "solutions", "device": device, **grid.describe()})
    settings = {setting.name: describe_setting(setting) for setting in grid.settings}
    write_file(folder / SETTINGS, json.dumps(settings, indent=1).encode())
    waiting = [cell for cell in cells if cell.key not in store]
    engine = choose_engine(device)
    failed: dict[str, str] = {}
    with tqdm(total=len(cells), initial=len(cells) - len(waiting), disable=None, unit="model", smoothing=0) as progress:
        run = _run_in_processes if engine == "processes" else _run_stacked
        for cell, error in run(waiting, folder, device=device, processes=processes):
            if error is not None:
                failed[cell.name] = error
            progress.set_postfix_str(cell.name, refresh=False)
            progress.update()
    return _write_results(grid, store, command=command, failed=failed)


def _write_results(grid: Grid, store: Store, *, command: str, failed: dict[str, str]) -> Path:
    """Table and report on all cells; again where another shard finished one meanwhile, so that the last has them all."""
    while True:
        keys = list(store.keys())
        store.export(store.folder / "results.parquet")
        path = write_grid_page(grid, store, command=command, failed=failed)
        if list(store.keys()) == keys:
            return path


def estimate_grid(grid: Grid, folder: Path, *, shard: str = "1/1", device: str | None = None) -> Estimate:
    """Time some steps of the first cell that isn't finished; writes nothing."""
    cells = take_shard(grid.cells, shard)
    store = Store(folder, mode="read") if (folder / "cells").is_dir() else None
    ordered = sorted(cells, key=lambda cell: store is None or cell.key not in store)
    finished = sum(store is not None and cell.key in store for cell in cells)
    timed = ordered[min(finished, len(ordered) - 1)]
    engine = choose_engine(device)
    trainee = Trainee(model=build_model(timed, device=device), task=timed.task, config=timed.setting.config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            trainee.begin()
            steps = min(timed.setting.config.steps, _TIMED_STEPS + _UNTIMED_STEPS)
            for step in range(steps):
                if step == min(_UNTIMED_STEPS, steps - 1):
                    start = time.perf_counter()
                float(loss := trainee.backward())  # waits for an accelerator
                trainee.advance(loss)
        seconds = (time.perf_counter() - start) / max(1, steps - _UNTIMED_STEPS)
    finally:
        torch.set_num_threads(threads)
    return Estimate(
        cells=tuple(ordered),
        finished=finished,
        seconds_per_step=seconds,
        measured=timed.name,
        engine=engine,
        processes=PROCESSES if engine == "processes" else 1,
    )


def choose_engine(device: str | None) -> Engine:
    """Processes on a CPU, one stacked computation on an accelerator."""
    accelerated = torch.accelerator.is_available() if device is None else torch.device(device).type != "cpu"
    return "stacked" if accelerated else "processes"


def _run_in_processes(
    cells: Sequence[GridCell], folder: Path, *, device: str | None, processes: int
) -> Iterator[tuple[GridCell, str | None]]:
    if not cells:
        return
    pool = ProcessPoolExecutor(
        max_workers=min(processes, len(cells)),
        mp_context=get_context("spawn"),
        initializer=_begin_process,
        initargs=(os.getpid(),),
    )
    try:
        futures = {pool.submit(run_cell, cell, folder, device=device): cell for cell in cells}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, DivergedError):
                raise error
            yield futures[future], None if error is None else str(error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_process(parent: int) -> None:
    """One thread, and an end with the parent: an orphan would go on writing into the folder of the run after it."""
    torch.set_num_threads(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_stacked(
    cells: Sequence[GridCell], folder: Path, *, device: str | None, processes: int
) -> Iterator[tuple[GridCell, str | None]]:
    for group in _group(cells, device=device):
        start = time.perf_counter()
        try:
            runs = train_many(
                [model for _, model in group],
                [cell.task for cell, _ in group],
                [cell.setting.config for cell, _ in group],
                folders=[model_folder(cell, folder) for cell, _ in group],
            )
        except DivergedError:
            # One model ends the call for all: each by itself, and only that one is lost.
            yield from _run_alone([cell for cell, _ in group], folder, device=device)
            continue
        seconds = (time.perf_counter() - start) / len(group)
        for (cell, _), run in zip(group, runs, strict=True):
            keep_cell(cell, run, folder, seconds=seconds)
            yield cell, None


def _run_alone(cells: Sequence[GridCell], folder: Path, *, device: str | None) -> Iterator[tuple[GridCell, str | None]]:
    for cell in cells:
        try:
            run_cell(cell, folder, device=device)
        except DivergedError as error:
            yield cell, str(error)
        else:
            yield cell, None


def _group(cells: Sequence[GridCell], *, device: str | None) -> Iterator[list[tuple[GridCell, Any]]]:
    """As many models at a time as fit comfortably, those of one shape together."""
    group: list[tuple[GridCell, Any]] = []
    size = 0
    for cell in sorted(cells, key=lambda cell: cell.n_layers):
        model = build_model(cell, device=device)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        if group and size + n_parameters > _PARAMETERS_AT_ONCE:
            yield group
            group, size = [], 0
        group.append((cell, model))
        size += n_parameters
    if group:
        yield group
