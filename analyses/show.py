"""What the commands print: numbers beside their controls and the files that hold them, as tables or as JSON."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from analyses.headlines import Headline, pick_headlines
from interp.errors import InputError

if TYPE_CHECKING:
    from interp.models.tokens import Bos


def print_results(folder: Path, *, as_json: bool) -> None:
    """The headline numbers of a run's folder, and its files."""
    table = folder / "results.parquet"
    if not table.is_file():
        raise InputError(
            f"{folder} holds no finished run: there is no {table.name} in it; give a folder that a report wrote."
        )
    try:
        frame = pd.read_parquet(table)
    except (OSError, ValueError) as error:
        raise InputError(f"{table} can't be read ({error}); run the command that wrote it again.") from error
    if _is_grid(folder):
        print_shares(folder, as_json=as_json)
        return
    headlines = pick_headlines(frame)
    files = {"report": str(folder / "report.html"), "results": str(table)}
    if as_json:
        _print_json({"headlines": [asdict(headline) for headline in headlines], "files": files})
        return
    console = _console()
    for model in dict.fromkeys(headline.model for headline in headlines):
        console.print(_table(model, [headline for headline in headlines if headline.model == model]))
    console.print(
        f"wrote  {files['report']}  (opens offline)\n       {files['results']}  ({len(frame):,} rows)", highlight=False
    )


def print_shares(folder: Path, *, as_json: bool) -> None:
    """What the models of a grid found, setting by setting, and the grid's files."""
    from analyses.solutions.shares import Share
    from interp.records.store import Store

    names = list(json.loads((folder / "settings.json").read_text()))
    store = Store(folder, mode="read")
    found = [store.read(key).about for key in sorted(store.keys())]
    settings = []
    for name in names:
        here = [about for about in found if about["setting"] == name]
        told: dict[str, Any] = {"setting": name, "models": len(here)}
        for what in ("behaviour", "mechanism"):
            counts = Counter(about[what] for about in here)
            shares = {kind: Share(found=count, n=len(here)) for kind, count in counts.most_common()}
            told[what] = {kind: {"models": share.found, "interval": share.interval} for kind, share in shares.items()}
        settings.append(told)
    files = {"report": str(folder / "report.html"), "results": str(folder / "results.parquet")}
    if as_json:
        _print_json({"settings": settings, "files": files})
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("setting", "models", "behaviour, share of seeds with its 95% interval", "mechanism"):
        table.add_column(column, justify="right" if column == "models" else "left", overflow="fold")
    for told in settings:
        behaviour = ", ".join(
            rf"{kind} {share['models']} \[{share['interval'][0]:.0%}, {share['interval'][1]:.0%}]"
            for kind, share in told["behaviour"].items()
        )
        mechanism = ", ".join(f"{kind} {share['models']}" for kind, share in told["mechanism"].items())
        table.add_row(told["setting"], str(told["models"]), behaviour or "–", mechanism or "–")
    console = _console()
    console.print(table)
    console.print(f"wrote  {files['report']}  (opens offline)\n       {files['results']}", highlight=False)


def print_estimate(estimate: Any, *, as_json: bool) -> None:
    """The models of a grid, and how long those that aren't finished may take."""
    if as_json:
        _print_json(
            {
                "models": [cell.name for cell in estimate.cells],
                "finished": estimate.finished,
                "seconds": estimate.seconds,
                "seconds_per_step": estimate.seconds_per_step,
                "measured": estimate.measured,
                "engine": estimate.engine,
            }
        )
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("model", "gamma", "decay", "layers", "steps", ""):
        table.add_column(column, justify="left" if column in ("model", "") else "right", overflow="fold")
    for i, cell in enumerate(estimate.cells):
        state = "finished" if i < estimate.finished else ""
        model, config = cell.setting.model, cell.setting.config
        numbers = (f"{model['gamma']:g}", f"{config.weight_decay:g}", str(model["n_layers"]), f"{config.steps:,}")
        table.add_row(cell.name, *numbers, state)
    how = f"{estimate.processes} at a time" if estimate.engine == "processes" else "stacked in one computation"
    console = _console()
    console.print(table)
    console.print(
        f"{len(estimate.cells) - estimate.finished} models to train, {how}: about {max(1, round(estimate.seconds / 60))} min "
        f"of training, at the {1000 * estimate.seconds_per_step:.0f} ms a step measured on {estimate.measured}; measuring "
        "them comes on top.",
        highlight=False,
    )


def print_heads(
    name: str,
    *,
    kind: str,
    definition: str | None,
    top: int,
    revision: str | None,
    device: str | None,
    dtype: str | None,
    seed: int,
    n_sequences: int,
    bos: "Bos",
    as_json: bool,
) -> None:
    """The strongest heads of a model with their intervals and the same heads on unrepeated tokens."""
    from analyses.heads import choose_segment
    from interp.heads.scores import score_heads
    from interp.models.load import load

    model = load(name, revision=revision, device=device, dtype=dtype)
    segment = choose_segment(model)
    settings: dict[str, Any] = {"segment": segment, "n_sequences": n_sequences, "bos": bos, "seed": seed}
    scores = score_heads(model, **settings)
    strongest = scores.top(kind, top, definition=definition)  # type: ignore[arg-type]
    control = score_heads(model, **settings, sequences="unrepeated")
    mean, (low, high) = scores.mean(kind, definition), scores.interval(kind, definition)  # type: ignore[arg-type]
    base = control.mean(kind, definition)  # type: ignore[arg-type]
    headlines = [
        Headline(
            model=name,
            what=f"{layer}.{head}",
            value=float(mean[layer, head]),
            low=float(low[layer, head]),
            high=float(high[layer, head]),
            n=n_sequences,
            control_value=float(base[layer, head]),
            control="tokens not repeated",
        )
        for layer, head in strongest
    ]
    if as_json:
        _print_json({"kind": kind, "definition": definition, "heads": [asdict(headline) for headline in headlines]})
        return
    _console().print(_table(f"{name}: strongest heads by {kind.replace('_', ' ')}", headlines))


def print_training(run: Any, *, as_json: bool) -> None:
    """First, last and a few rows between of a run's history, and its folder."""
    if as_json:
        _print_json({"history": json.loads(run.history.to_json(orient="records")), "folder": str(run.folder)})
        return
    shown = run.history.iloc[_spread(len(run.history), 12)]
    shown = shown.drop(columns=[column for column in shown if _is_detail(column)])
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown.columns:
        table.add_column(column.replace("_", " "), justify="right")
    for _, row in shown.iterrows():
        table.add_row(*(_cell(column, value) for column, value in row.items()))
    console = _console()
    console.print(table)
    console.print(f"wrote  {run.folder}\nnext   interp report {run.folder}", highlight=False)


def print_models(*, as_json: bool) -> None:
    """The catalogue."""
    from interp.models.catalogue import CATALOGUE

    if as_json:
        _print_json([asdict(entry) for entry in CATALOGUE])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, justify in (
        ("name", "left"),
        ("parameters", "right"),
        ("download", "right"),
        ("licence", "left"),
        ("needs", "left"),
    ):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for entry in CATALOGUE:
        size = "?" if entry.download is None else f"{entry.download:.3g} GB" if entry.download else "installed"
        table.add_row(entry.name, f"{entry.parameters:,.0f} M", size, entry.licence, entry.needs)
    console = _console()
    console.print(table)
    console.print(
        "Any decoder-only Hugging Face model can be named, or a folder, a .gguf file, or a folder that interp.save wrote.",
        highlight=False,
    )


def _table(title: str, headlines: list[Headline]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    table.add_column("", overflow="fold")
    for column in ("value", "95% interval", "n", "control"):
        table.add_column(column, justify="right")
    table.add_column("", style="dim", overflow="fold")
    for headline in headlines:
        interval = "" if headline.low is None else f"[{headline.low:.3f}, {headline.high:.3f}]"
        table.add_row(
            headline.what,
            f"{headline.value:.3f}",
            interval.replace("[", r"\["),
            "" if headline.n is None else str(headline.n),
            "" if headline.control_value is None else f"{headline.control_value:.3f}",
            headline.control or "",
        )
    return table


def _is_grid(folder: Path) -> bool:
    """Whether `interp solutions` wrote it."""
    try:
        return bool(json.loads((folder / "run.json").read_text())["command"] == "solutions")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_detail(column: str) -> bool:
    """Columns of a history that a first look can do without; on trained pairs the rules of an anchor task coincide."""
    rule = column.endswith(("_reasoning", "_symmetric")) and not column.startswith("held_out")
    by_construction = column.endswith(("_relative", "_phrase")) and "object" not in column
    beside = column.endswith(("_other", "_linear", "_shortcut", "_token_accuracy"))
    prefixed = column.startswith(("declaratives_", "past_", "norm", "t_catalan"))
    named = column in ("learning_rate", "held_out_accuracy") or "published" in column
    return named or beside or prefixed or by_construction or rule


def _cell(column: Any, value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if column in ("step", "seconds") else f"{value:.3g}"


def _spread(length: int, n: int) -> list[int]:
    """About `n` indices from first to last."""
    return sorted({round(i * (length - 1) / (n - 1)) for i in range(n)})


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 132)


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
