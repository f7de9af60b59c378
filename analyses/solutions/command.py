"""`interp solutions`: a grid by name or by its axes, run, resumed, or only estimated.

>>> choose_grid(gamma="0.4,0.8", weight_decay="0.01", seeds=1).cells[1].gamma
0.8
>>> choose_grid(gamma="0.4,large", weight_decay="0.01")
Traceback (most recent call last):
interp.errors.InputError: 'large' in --gamma is no number; give numbers separated by commas, such as 0.4,0.8.
"""

import difflib
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyses.grid_runs import Estimate, estimate_cells, take_shard
from analyses.solutions.grid import Grid, make_grid
from analyses.solutions.recipes import GRIDS
from analyses.solutions.run import run_grid
from interp.errors import InputError
from interp.models.build import check_device


def solve(
    *,
    recipe: str | None = None,
    gamma: str | None = None,
    weight_decay: str | None = None,
    seeds: int | None = None,
    depth: str | None = None,
    design: str | None = None,
    steps: int | None = None,
    out: Path | None = None,
    shard: str = "1/1",
    device: str | None = None,
    dry_run: bool = False,
) -> Path | Estimate:
    """Run the grid in `out` (`runs/solutions-NAME` when None) and give the folder, or an estimate alone."""
    axes = {"gamma": gamma, "weight_decay": weight_decay, "depth": depth, "design": design}
    grid = choose_grid(recipe=recipe, seeds=seeds, steps=steps, **axes)
    cells = take_shard(grid.cells, shard)
    check_device(device)
    folder = out or Path("runs") / f"solutions-{recipe or 'grid'}"
    if dry_run:
        return estimate_cells(cells, folder, device=device)
    given = {"recipe": recipe, **axes, "seeds": seeds, "steps": steps, "device": device, "out": folder}
    words = [word for name, value in given.items() if value is not None for word in (_option(name), str(value))]
    run_grid(grid, folder, command=shlex.join(["interp", "solutions", *words]), shard=shard, device=device)
    return folder


def choose_grid(
    *,
    recipe: str | None = None,
    gamma: str | None = None,
    weight_decay: str | None = None,
    seeds: int | None = None,
    depth: str | None = None,
    design: str | None = None,
    steps: int | None = None,
) -> Grid:
    """The grid that the command's words name; `InputError` for words that don't go together."""
    axes = {"gamma": gamma, "weight_decay": weight_decay, "depth": depth, "design": design, "steps": steps}
    given = [_option(name) for name, value in axes.items() if value is not None]
    if recipe is not None:
        if given:
            raise InputError(
                f"The recipe {recipe!r} has its own settings; leave out {' and '.join(given)}, or --recipe."
            )
        if recipe not in GRIDS:
            close = difflib.get_close_matches(recipe, GRIDS, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InputError(f"There is no recipe {recipe!r}; there are {', '.join(GRIDS)}.{hint}")
        grid = GRIDS[recipe]()
        return grid if seeds is None else replace(grid, seeds=seeds)
    if gamma is None or weight_decay is None:
        raise InputError(
            "No grid was named; give --recipe small, or --gamma and --weight-decay, such as 0.4,0.8 and 0.01."
        )
    return make_grid(
        designs=_split(design if design is not None else "dropped", "--design", str, "dropped,altered"),
        gammas=_split(gamma, "--gamma", float, "0.4,0.8"),
        weight_decays=_split(weight_decay, "--weight-decay", float, "0.01,1.0"),
        depths=_split(depth if depth is not None else "2", "--depth", int, "2,3"),
        seeds=3 if seeds is None else seeds,
        steps=1500 if steps is None else steps,
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _split(text: str, option: str, kind: Callable[[str], Any], example: str) -> tuple[Any, ...]:
    found = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        try:
            found.append(kind(part))
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise InputError(
                f"{part!r} in {option} is no {what}; give {what}s separated by commas, such as {example}."
            ) from None
    return tuple(found)
