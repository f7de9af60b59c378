"""Run a grid of small models, or what isn't finished of it, and write its report."""

import json
from pathlib import Path

from analyses.grid_runs import PROCESSES, run_cells, take_shard, write_results
from analyses.runner import claim_folder
from analyses.solutions.cells import keep_cell
from analyses.solutions.grid import Grid, describe_setting
from analyses.solutions.page import write_grid_page
from interp.records.store import write_file

SETTINGS = "settings.json"
"""All settings of a grid by name, in a file beside its records."""


def run_grid(
    grid: Grid, folder: Path, *, command: str, shard: str = "1/1", device: str | None = None, processes: int = PROCESSES
) -> Path:
    """Run what isn't finished of the shard and write the report on all that is; returns the report's path."""
    cells = take_shard(grid.cells, shard)
    store = claim_folder(folder, {"command": "solutions", "device": device, **grid.describe()})
    settings = {setting.name: describe_setting(setting) for setting in grid.settings}
    write_file(folder / SETTINGS, json.dumps(settings, indent=1).encode())
    failed = run_cells(cells, store, keep=keep_cell, device=device, processes=processes)
    return write_results(store, lambda: write_grid_page(grid, store, command=command, failed=failed))
