"""`interp report`: measure models by name and write one report on all of them.

>>> from pathlib import Path
>>> default_folder(["smollm2", "EleutherAI/pythia-70m"]).as_posix()
'runs/smollm2+EleutherAI_pythia-70m'
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyses.analysis import Options, Subject
from analyses.registry import DEFAULT, choose_analyses
from analyses.runner import Ask, claim_folder, run_asks
from interp.errors import InputError
from interp.models.load import load
from interp.models.provenance import get_provenance
from interp.models.sources import find_source
from interp.models.tokens import Bos, resolve_bos
from interp.training.runs import find_run


def report_models(
    names: Sequence[str],
    *,
    analyses: Sequence[str] | None = None,
    out: Path | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    quick: bool = False,
    bos: Bos = "auto",
) -> Path:
    """Ask `analyses` (all when None) of every model; returns the folder with `report.html` and `results.parquet`.

    Raises `InputError` before anything is written where a name, an analysis or the folder can't be used.
    """
    if len(set(names)) < len(names):
        raise InputError(f"A model is named twice in {' '.join(names)}; name each once.")
    chosen = tuple(choose_analyses(DEFAULT if analyses is None else analyses))
    for name in names:
        find_source(name)
    folder = out if out is not None else default_folder(names)
    spec = {
        "models": list(names),
        "analyses": [analysis.name for analysis in chosen],
        "revision": revision,
        "device": device,
        "dtype": dtype,
        "seed": seed,
        "quick": quick,
        "bos": bos,
    }
    asks = [
        Ask(
            name=name,
            load=lambda name=name: open_subject(name, revision=revision, device=device, dtype=dtype),
            analyses=chosen,
        )
        for name in names
    ]
    first = asks[0].load()  # what can't be loaded or asked should leave no folder behind
    resolve_bos(first.model, bos)
    refusals = [analysis.applies(first) for analysis in chosen]
    if all(refusals):
        named = " and ".join(analysis.name for analysis in chosen)
        raise InputError(f"{named} can't be asked of {names[0]}: {refusals[0]}.")
    asks[0] = Ask(name=names[0], load=lambda: first, analyses=chosen)
    store = claim_folder(folder, spec)
    run_asks(
        asks,
        store,
        options=Options(seed=seed, quick=quick, bos=bos),
        command=describe_command(names, spec, folder),
        title=f"How {', '.join(names)} works" if len(names) == 1 else f"How {', '.join(names)} work",
    )
    return folder


def open_subject(
    name: str, *, revision: str | None = None, device: str | None = None, dtype: str | None = None
) -> Subject:
    """Load a model by name; a training run's folder gives its last model and keeps the run beside it."""
    model = load(name, revision=revision, device=device, dtype=dtype)
    return Subject(model=model, provenance=get_provenance(model), run=find_run(name))


def default_folder(names: Sequence[str]) -> Path:
    """`runs/` and the models' names; what lies in a folder of its own gets its last name, marked as a report."""
    return Path("runs") / "+".join(
        f"{Path(name).resolve().name}-report" if Path(name).exists() else re.sub(r"[^\w.-]+", "_", name)
        for name in names
    )


def describe_command(names: Sequence[str], spec: Mapping[str, Any], folder: Path) -> str:
    """The command that makes this report again."""
    words = ["interp", "report", *names, "--analyses", ",".join(spec["analyses"]), "--out", str(folder)]
    for option in ("revision", "device", "dtype"):
        if spec[option] is not None:
            words += [f"--{option}", str(spec[option])]
    words += ["--bos", str(spec["bos"]), "--seed", str(spec["seed"])]
    return shlex.join(words + (["--quick"] if spec["quick"] else []))
