from pathlib import Path


def write_grid_page(grid, store, *, command, failed) -> Path:
    return store.folder / "report.html"
