"""`interp dynamics`: train the models of a lab, resume it, or only estimate it.

>>> choose_lab("small", seeds=2).seeds
2
>>> choose_lab("smal")
Traceback (most recent call last):
interp.errors.InputError: There is no lab 'smal'; there are small, pools, published. Did you mean small?
"""

import difflib
import shlex
from dataclasses import replace
from pathlib import Path

from analyses.copying_dynamics.keep import keep_model
from analyses.copying_dynamics.lab import LABS, Lab
from analyses.copying_dynamics.page import write_lab_page
from analyses.grid_runs import PROCESSES, Estimate, estimate_cells, run_cells, take_shard, write_results
from analyses.runner import claim_folder
from interp.errors import InputError
from interp.models.build import check_device


def follow_copying(
    recipe: str = "small",
    *,
    seeds: int | None = None,
    steps: int | None = None,
    out: Path | None = None,
    shard: str = "1/1",
    device: str | None = None,
    dry_run: bool = False,
) -> Path | Estimate:
    """Run the lab in `out` (`runs/dynamics-RECIPE` when None) and give the folder, or an estimate alone."""
    lab = choose_lab(recipe, seeds=seeds, steps=steps)
    cells = take_shard(lab.cells, shard)
    check_device(device)
    folder = out or Path("runs") / f"dynamics-{recipe}"
    if dry_run:
        return estimate_cells(cells, folder, device=device)
    given = {"recipe": recipe, "seeds": seeds, "steps": steps, "device": device, "out": folder}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    run_lab(lab, folder, command=shlex.join(["interp", "dynamics", *words]), shard=shard, device=device)
    return folder


def choose_lab(recipe: str, *, seeds: int | None = None, steps: int | None = None) -> Lab:
    """The lab of that name, with other numbers of seeds or steps where they are given."""
    if recipe not in LABS:
        close = difflib.get_close_matches(recipe, LABS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InputError(f"There is no lab {recipe!r}; there are {', '.join(LABS)}.{hint}")
    lab = LABS[recipe]()
    if steps is not None:
        settings = tuple(
            replace(
                setting,
                config=replace(setting.config, steps=steps, warmup_steps=min(setting.config.warmup_steps, steps)),
            )
            for setting in lab.settings
        )
        lab = replace(lab, settings=settings)
    return lab if seeds is None else replace(lab, seeds=seeds)


def run_lab(
    lab: Lab, folder: Path, *, command: str, shard: str = "1/1", device: str | None = None, processes: int = PROCESSES
) -> Path:
    """Run what isn't finished of the shard and write the report on all that is; returns the report's path."""
    cells = take_shard(lab.cells, shard)
    store = claim_folder(folder, {"command": "dynamics", "device": device, **lab.describe()})
    failed = run_cells(cells, store, keep=keep_model, device=device, processes=processes)
    return write_results(store, lambda: write_lab_page(lab, store, command=command, failed=failed))
