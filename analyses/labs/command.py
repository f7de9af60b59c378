"""Run the models of a lab in a folder, resume it, or only estimate it: what the commands of labs share."""

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from analyses.grid_runs import PROCESSES, Estimate, Keep, estimate_cells, run_cells, take_shard, write_results
from analyses.labs.lab import Lab, Labs
from analyses.runner import claim_folder
from interp.errors import InputError
from interp.models.build import check_device
from interp.records.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LabCommand:
    """One command of `interp`."""

    name: str
    """What a user types."""
    labs: Labs
    """The labs that it knows, by name."""
    keep: Keep
    """Measures a trained model and writes its cell."""
    write_page: Callable[..., Path]
    """`write_page(lab, store, command=..., failed=...)` writes the report on all models that are done; gives its path."""

    def follow(
        self,
        recipe: str,
        *,
        seeds: int | None = None,
        steps: int | None = None,
        out: Path | None = None,
        shard: str = "1/1",
        device: str | None = None,
        dry_run: bool = False,
    ) -> Path | Estimate:
        """Run the lab in `out` (`runs/NAME-RECIPE` when None) and give the folder, or an estimate alone."""
        lab = self.choose(recipe, seeds=seeds, steps=steps)
        cells = take_shard(lab.cells, shard)
        check_device(device)
        folder = out or Path("runs") / f"{self.name}-{recipe}"
        if dry_run:
            return estimate_cells(cells, folder, device=device)
        given = {"recipe": recipe, "seeds": seeds, "steps": steps, "device": device, "out": folder}
        words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
        self.run(lab, folder, command=shlex.join(["interp", self.name, *words]), shard=shard, device=device)
        return folder

    def choose(self, recipe: str, *, seeds: int | None = None, steps: int | None = None) -> Lab:
        """The lab of that name, with other numbers of seeds or steps where they are given."""
        if recipe not in self.labs:
            close = difflib.get_close_matches(recipe, self.labs, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise InputError(f"There is no lab {recipe!r}; there are {', '.join(self.labs)}.{hint}")
        lab = self.labs[recipe]()
        lab = lab if steps is None else lab.take_steps(steps)
        return lab if seeds is None else replace(lab, seeds=seeds)

    def run(
        self,
        lab: Lab,
        folder: Path,
        *,
        command: str,
        shard: str = "1/1",
        device: str | None = None,
        processes: int = PROCESSES,
    ) -> Path:
        """Run what isn't finished of the shard and write the report on all that is; returns the report's path."""
        cells = take_shard(lab.cells, shard)
        store: Store = claim_folder(folder, {"command": self.name, "device": device, **lab.describe()})
        failed = run_cells(cells, store, keep=self.keep, device=device, processes=processes)
        return write_results(store, lambda: self.write_page(lab, store, command=command, failed=failed))
