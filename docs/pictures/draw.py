"""Draw the pictures of these pages anew: `python docs/pictures/draw.py [colours | grokking RUNS | RUNS]`.

Without an argument the pictures of SmolLM2 and the colours; with `colours` only _static/pictures.css; with a folder that
holds the training runs `copying` and `copying_one_layer` and the lab `dynamics-small` their curves too; with `grokking` and a
folder that holds the labs `grokking-small`, `grokking-post_norm` and `grokking-tense` (or some of them) their curves alone, and
the tables of structural_grokking.md on the terminal. `kinds.svg` is drawn by hand.
"""

import sys
from pathlib import Path

import pandas as pd

import interp
from analyses.copying_dynamics.curves import draw_aligned
from analyses.copying_dynamics.curves import draw_curves as draw_curves_by_setting
from analyses.copying_dynamics.lab import LABS
from analyses.copying_dynamics.trained import TrainedCopying
from analyses.labs.trained import read_trained
from analyses.structural_grokking.curves import draw_depths, draw_measures, draw_seeds
from analyses.structural_grokking.lab import LABS as GROKKING_LABS
from analyses.structural_grokking.trained import TrainedGrammar
from analyses.structural_grokking.write_tables import write_tables
from interp.figures import Curve, css_variables, learning_curves, to_svg
from interp.records.store import Store

_HERE = Path(__file__).parent
_SPLITS = {"id": "in distribution", "ood": "out of distribution"}


def write_colours() -> None:
    """The colours of the figures as CSS variables that follow the theme of the page."""
    light, dark = (css_variables(theme).replace("\n", " ") for theme in ("light", "dark"))
    css = (
        "/* Written by docs/pictures/draw.py. */\n"
        f"body {{ {light} }}\n"
        f'body[data-theme="dark"] {{ {dark} }}\n'
        f'@media (prefers-color-scheme: dark) {{ body:not([data-theme="light"]) {{ {dark} }} }}\n'
        "svg[role=img] { display: block; max-width: 100%; height: auto; margin: 1.2rem auto; }\n"
        ".wrapped pre { white-space: pre-wrap; }\n"
        ".caption { color: var(--figure-muted); font-size: 0.9rem; max-width: 40rem; margin: 0 auto 2rem; }\n"
        "math[display=block] { margin: 1.1rem 0; font-size: 1.08rem; overflow-x: auto; overflow-y: hidden; }\n"
    )
    (_HERE.parent / "_static" / "pictures.css").write_text(css)


def draw_smollm2() -> None:
    """The induction scores of SmolLM2, and what removing its strongest induction heads does."""
    model = interp.load("smollm2")
    scores = interp.score_heads(model, seed=0)
    _write("smollm2_induction", scores.figure("induction"))
    result = interp.confirm_heads(model, scores, seed=0)
    _write("smollm2_confirm", result.figure())
    _write("smollm2_induction_table", interp.compare_induction(model).figure())
    _write("smollm2_pairs", interp.score_pairs(model, by="match").figure())
    sweep = interp.sweep_bridge(model, induction_heads=scores.top("induction", 10))
    _write("smollm2_bridge", sweep.figure())


def draw_curves(runs: Path) -> None:
    """The transition of the two-layer copying model beside the one-layer model."""
    curves = []
    for name, label in (("copying", "two layers"), ("copying_one_layer", "one layer")):
        history = pd.read_parquet(runs / name / "history.parquet")
        for series, (split, where) in enumerate(_SPLITS.items()):
            curves.append(
                Curve(
                    label=f"{where}, {label}",
                    steps=history["step"].to_numpy(dtype=float),
                    values=history[f"{split}_error"].to_numpy(dtype=float),
                    series=series,
                    control=label == "one layer",
                )
            )
    _write("copying_curves", learning_curves(curves, label="copying error"))


def draw_lab(folder: Path) -> None:
    """What comes first as models learn to copy."""
    trained = read_trained(LABS["small"](), Store(folder, mode="read"), TrainedCopying)
    _write("copying_dynamics", draw_curves_by_setting(trained))
    _write("copying_dynamics_aligned", draw_aligned([one for one in trained if one.composes]))


def draw_grokking(runs: Path) -> None:
    """How each seed comes to the tree's rule; of `small` also depth, trees and weights; tables as Markdown."""
    for name in ("small", "post_norm", "tense"):
        folder = runs / f"grokking-{name}"
        if not folder.is_dir():
            continue
        trained = read_trained(GROKKING_LABS[name](), Store(folder, mode="read"), TrainedGrammar)
        _write(f"grokking_{name}", draw_seeds(trained))
        if name == "small":
            _write("grokking_small_depth", draw_depths(trained))
            _write("grokking_small_measures", draw_measures(trained))
        sys.stdout.write(f"{folder}\n\n{write_tables(trained)}\n\n")


def _write(name: str, figure: object) -> None:
    (_HERE / f"{name}.svg").write_text(to_svg(figure) + "\n")  # type: ignore[arg-type]


if __name__ == "__main__":
    if sys.argv[1:2] == ["grokking"]:
        draw_grokking(Path(sys.argv[2]))
        sys.exit()
    write_colours()
    if sys.argv[1:] != ["colours"]:
        draw_smollm2()
    if sys.argv[1:] not in ([], ["colours"]):
        draw_curves(Path(sys.argv[1]))
        draw_lab(Path(sys.argv[1]) / "dynamics-small")
