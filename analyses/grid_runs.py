"""Train the models of a grid and keep what is measured of each: two processes with a thread each on a CPU, models stacked
in one computation elsewhere.

What a model is comes from its `Cell`, what is measured of it from `keep`, which writes the finished cell. A finished cell
is never run again; a model that was being trained goes on from its last checkpoint. So a run that was killed is started
again with the same command, and shards of one grid can share a folder.

>>> choose_engine("cpu")
'processes'
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from tqdm import tqdm

from analyses.recipe import Recipe
from interp.errors import DivergedError, InputError
from interp.models.build import build
from interp.records.store import Store
from interp.training.loop import train
from interp.training.many import train_many
from interp.training.trainee import Trainee

PROCESSES = 2
"""Cells at once on a CPU, with one thread each."""

_PARAMETERS_AT_ONCE = 200_000_000
_TIMED_STEPS, _UNTIMED_STEPS = 30, 5

Engine = Literal["processes", "stacked"]
T = TypeVar("T")


@runtime_checkable
class Cell(Protocol):
    """One model of a grid."""

    @property
    def name(self) -> str:
        """Its folder's name."""
        ...

    @property
    def key(self) -> str:
        """Hash of all that determines it."""
        ...

    @property
    def setting(self) -> Recipe:
        """How it is built and trained, its seed put in."""
        ...


Keep = Callable[..., None]
"""`keep(cell, run, folder, seconds=...)` measures a trained model and writes its cell; `seconds` is what training took. A
function of a module, so that processes can share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run would do, and how long that may take."""

    cells: tuple[Any, ...]
    """The cells of this shard, those that are finished first."""
    finished: int
    """How many of them are there already."""
    seconds_per_step: float
    """The mean over the steps of all cells that aren't finished, at the speed of `measured`."""
    measured: str
    """The cell whose steps were timed; where depths differ, one of each, with commas."""
    engine: Engine
    """How they would be run."""
    processes: int
    """How many at once."""

    @property
    def seconds(self) -> float:
        """Training alone, at the speed of the cells that were timed."""
        steps = sum(cell.setting.config.steps for cell in self.cells[self.finished :])
        return steps * self.seconds_per_step / self.processes


def take_shard(cells: Sequence[T], shard: str) -> tuple[T, ...]:
    """Every n-th cell from the i-th on, for `shard="i/n"`, i from 1 to n."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {shard} can't be used; give i/n with i from 1 to n, such as 1/4.")
    return tuple(cells[int(match[1]) - 1 :: int(match[2])])


def run_cells(
    cells: Sequence[Any], store: Store, *, keep: Keep, device: str | None = None, processes: int = PROCESSES
) -> dict[str, str]:
    """Run the cells that the store doesn't have; the names of those that diverged, with what happened."""
    waiting = [cell for cell in cells if cell.key not in store]
    failed: dict[str, str] = {}
    with tqdm(total=len(cells), initial=len(cells) - len(waiting), disable=None, unit="model", smoothing=0) as progress:
        if choose_engine(device) == "processes":
            run = _run_in_processes(waiting, store.folder, keep=keep, device=device, processes=processes)
        else:
            run = run_stacked(waiting, store.folder, keep=keep, device=device)
        for cell, error in run:
            if error is not None:
                failed[cell.name] = error
            progress.set_postfix_str(cell.name, refresh=False)
            progress.update()
    return failed


def write_results(store: Store, write_page: Callable[[], Path]) -> Path:
    """Table and page on all cells; again where another shard finished one meanwhile, so that the last has them all."""
    while True:
        keys = list(store.keys())
        store.export(store.folder / "results.parquet")
        path = write_page()
        if list(store.keys()) == keys:
            return path


def estimate_cells(cells: Sequence[Any], folder: Path, *, device: str | None = None) -> Estimate:
    """Time some steps of the first cell of each depth that isn't finished; writes nothing."""
    store = Store(folder, mode="read") if (folder / "cells").is_dir() else None
    ordered = sorted(cells, key=lambda cell: store is None or cell.key not in store)
    finished = sum(store is not None and cell.key in store for cell in cells)
    waiting = ordered[finished:] or ordered[-1:]
    timed = {cell.setting.model["n_layers"]: cell for cell in reversed(waiting)}  # the first of each depth
    per_step = {depth: _time_step(cell, device=device) for depth, cell in sorted(timed.items())}
    steps = [cell.setting.config.steps for cell in waiting]
    seconds = [n * per_step[cell.setting.model["n_layers"]] for n, cell in zip(steps, waiting, strict=True)]
    engine = choose_engine(device)
    return Estimate(
        cells=tuple(ordered),
        finished=finished,
        seconds_per_step=sum(seconds) / sum(steps),
        measured=", ".join(timed[depth].name for depth in per_step),
        engine=engine,
        processes=PROCESSES if engine == "processes" else 1,
    )


def choose_engine(device: str | None) -> Engine:
    """Processes on a CPU, one stacked computation on an accelerator."""
    accelerated = torch.accelerator.is_available() if device is None else torch.device(device).type != "cpu"
    return "stacked" if accelerated else "processes"


def model_folder(cell: Cell, folder: Path) -> Path:
    """Where the training run of a cell is kept; `interp report` takes it."""
    return folder / "models" / cell.name


def _time_step(cell: Cell, *, device: str | None) -> float:
    setting = cell.setting
    trainee = Trainee(model=build(**setting.model, device=device), task=setting.task, config=setting.config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            trainee.begin()
            steps = min(setting.config.steps, _TIMED_STEPS + _UNTIMED_STEPS)
            for step in range(steps):
                if step == min(_UNTIMED_STEPS, steps - 1):
                    start = time.perf_counter()
                float(loss := trainee.backward())  # waits for an accelerator
                trainee.advance(loss)
        return (time.perf_counter() - start) / max(1, steps - _UNTIMED_STEPS)
    finally:
        torch.set_num_threads(threads)


def run_cell(cell: Cell, folder: Path, *, keep: Keep, device: str | None = None) -> None:
    """Train the cell's model in `folder/models/NAME` and keep what is measured of it; a stopped training goes on."""
    start = time.perf_counter()
    run = train(
        build(**cell.setting.model, device=device),
        cell.setting.task,
        cell.setting.config,
        folder=model_folder(cell, folder),
        observe=cell.setting.observe,
        progress="off",
    )
    keep(cell, run, folder, seconds=time.perf_counter() - start)


def _run_in_processes(
    cells: Sequence[Any], folder: Path, *, keep: Keep, device: str | None, processes: int
) -> Iterator[tuple[Any, str | None]]:
    if not cells:
        return
    pool = ProcessPoolExecutor(
        max_workers=min(processes, len(cells)),
        mp_context=get_context("spawn"),
        initializer=_begin_process,
        initargs=(os.getpid(),),
    )
    try:
        futures = {pool.submit(run_cell, cell, folder, keep=keep, device=device): cell for cell in cells}
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


def run_stacked(
    cells: Sequence[Any], folder: Path, *, keep: Keep, device: str | None
) -> Iterator[tuple[Any, str | None]]:
    """Train the models together, group by group; each cell as it is finished, with what happened to one that diverged."""
    for group in _group(cells, device=device):
        start = time.perf_counter()
        settings = [cell.setting for cell, _ in group]
        try:
            runs = train_many(
                [model for _, model in group],
                [setting.task for setting in settings],
                [setting.config for setting in settings],
                folders=[model_folder(cell, folder) for cell, _ in group],
                observers=[setting.observe for setting in settings],
            )
        except DivergedError:
            # One model ends the call for all: each by itself, and only that one is lost.
            yield from _run_alone([cell for cell, _ in group], folder, keep=keep, device=device)
            continue
        seconds = (time.perf_counter() - start) / len(group)
        for (cell, _), run in zip(group, runs, strict=True):
            keep(cell, run, folder, seconds=seconds)
            yield cell, None


def _run_alone(
    cells: Sequence[Any], folder: Path, *, keep: Keep, device: str | None
) -> Iterator[tuple[Any, str | None]]:
    for cell in cells:
        try:
            run_cell(cell, folder, keep=keep, device=device)
        except DivergedError as error:
            yield cell, str(error)
        else:
            yield cell, None


def _group(cells: Sequence[Any], *, device: str | None) -> Iterator[list[tuple[Any, Any]]]:
    """As many models at a time as fit comfortably, those of one shape together."""
    group: list[tuple[Any, Any]] = []
    size = 0
    for cell in sorted(cells, key=lambda cell: cell.setting.model["n_layers"]):
        model = build(**cell.setting.model, device=device)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        if group and size + n_parameters > _PARAMETERS_AT_ONCE:
            yield group
            group, size = [], 0
        group.append((cell, model))
        size += n_parameters
    if group:
        yield group
