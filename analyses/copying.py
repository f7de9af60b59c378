"""Did a model that was trained on copying learn the rule? Its errors in and out of distribution, over training.

Controls: a model trained alike that cannot form an induction head (one layer), and the model before it was trained.

    interp report runs/copying --analyses copying
"""

import numpy as np
import pandas as pd
import torch

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.report.page import Definition, Figure, Section
from interp.figures.curves import Curve, learning_curves
from interp.figures.svg import to_svg
from interp.models.provenance import Provenance
from interp.models.tokens import hash_tokens
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval
from interp.training.runs import read_config, read_history, read_task
from tasks.copying import Copying
from tasks.seeding import derive_seed

ONE_LAYER = "model of one layer"
CHANCE = "chance"
SPLITS = {"id": "in distribution", "ood": "out of distribution"}
BEFORE = 0.9
"""An error above this is before the transition, one below 1 - 0.9 after it."""


def _measure(subject: Subject, options: Options, cells: Cells) -> Outcome:
    assert subject.run is not None
    task = Copying(**read_task(subject.run)["settings"])
    rows: list[Measurement] = []
    arrays: dict[str, np.ndarray] = {}
    conditions = [(None, subject)] + ([(ONE_LAYER, subject.control)] if subject.control is not None else [])
    n = 20 * options.n_sequences
    for control, asked in conditions:
        prefix = "control_" if control else ""
        assert asked.run is not None
        history = read_history(asked.run)
        n_evaluated = read_config(asked.run)["eval_sequences"]
        for column in history.columns:
            arrays[f"{prefix}history_{column}"] = history[column].to_numpy(dtype=np.float64)
        for split, where in SPLITS.items():
            errors, data = _errors(asked, task, split, n=n, seed=options.seed)
            for name, values in errors.items():
                low, high = bootstrap_interval(values, seed=options.seed)
                rows.append(
                    Measurement(
                        analysis="copying", metric=f"{name.replace('_', ' ')}, {where}", value=float(values.mean()),
                        low=float(low), high=float(high), n=n, control=control, task=task.name, data_sha256=data,
                        step=asked.provenance.step, seed=options.seed,
                    )
                )  # fmt: skip
            rows += [
                Measurement(
                    analysis="copying", metric=f"error over training, {where}", value=float(value), control=control,
                    step=int(step), n=n_evaluated, task=task.name, note="on the evaluation sequences of the run",
                )
                for step, value in zip(history["step"], history[f"{split}_error"], strict=True)
            ]  # fmt: skip
    rows.append(
        Measurement(
            analysis="copying", metric="error, out of distribution", value=1 - 1 / task.d_vocab, control=CHANCE,
            task=task.name, note="exact: tokens out of distribution are uniform",
        )
    )  # fmt: skip
    return Outcome(measurements=rows, arrays=arrays, about={"task": task.name, "n": n})


@torch.inference_mode()
def _errors(subject: Subject, task: Copying, split: str, *, n: int, seed: int) -> tuple[dict[str, np.ndarray], str]:
    """Errors of each of `n` fresh sequences, under the corrected and the published metric."""
    batch = task.sample(n, split=split, seed=derive_seed(seed, "copying analysis"))
    logits = torch.cat([subject.model(rows.to(subject.model.cfg.device)).cpu() for rows in batch.tokens.split(100)])
    return {name: values.numpy() for name, values in task.score(logits, batch).items()}, hash_tokens(batch.tokens)


def _write_section(provenance: Provenance, cells: Cells) -> Section:
    cell = cells["copying/training"]
    frame, arrays = cell.frame, cell.arrays
    has_control = "control_history_step" in arrays
    return Section(
        anchor="copying",
        title="Learning to copy",
        question=COPYING.question,
        verdict=_verdict(frame, arrays),
        control=_control(frame),
        figures=(
            Figure(
                svg=to_svg(
                    learning_curves(
                        _curves(arrays),
                        label="copying error",
                        attention=_attention(arrays),
                        attention_label="strongest attention",
                        marked_steps=_find_transition(arrays),
                    )
                ),
                caption="Share of wrong predictions on the second copy, on sequences like the training ones and on longer "
                "segments of uniform tokens"
                + ("; dashed: the same training with one layer." if has_control else ".")
                + (" Below, the strongest previous-token and induction attention." if _attention(arrays) else ""),
            ),
        ),
        table=_table(frame),
        table_caption=f"Errors after training on {cell.about['n']:,} fresh sequences of each kind, with 95% intervals.",
        definitions=_DEFINITIONS,
        notes=(),
    )


def _curves(arrays: dict[str, np.ndarray]) -> list[Curve]:
    curves = []
    for series, (split, where) in enumerate(SPLITS.items()):
        for prefix, control in (("", False), ("control_", True)):
            if f"{prefix}history_step" in arrays:
                curves.append(
                    Curve(
                        label=where + (", one layer" if control else ""),
                        steps=arrays[f"{prefix}history_step"],
                        values=arrays[f"{prefix}history_{split}_error"],
                        series=series,
                        control=control,
                    )
                )
    return curves


def _attention(arrays: dict[str, np.ndarray]) -> list[Curve]:
    return [
        Curve(
            label=kind.replace("_", " "), steps=arrays["history_step"], values=arrays[f"history_{kind}"], series=series
        )
        for series, kind in enumerate(("induction", "previous_token"))
        if f"history_{kind}" in arrays
    ]


def _final(frame: pd.DataFrame, where: str, control: str | None) -> pd.Series:
    """The error after training, or an empty row where there is none."""
    rows = frame[frame["metric"] == f"error, {where}"]
    rows = rows[rows["control"].isna()] if control is None else rows[rows["control"] == control]
    return rows.iloc[0] if len(rows) else pd.Series(dtype=float)


def _find_transition(arrays: dict[str, np.ndarray]) -> tuple[int, int] | None:
    """The evaluations between which the error out of distribution fell from above 0.9 to below 0.1, None where it did not."""
    steps, errors = arrays["history_step"].astype(int), arrays["history_ood_error"]
    after = steps[errors < 1 - BEFORE]
    if not len(after):
        return None
    before = steps[(errors > BEFORE) & (steps < after[0])]
    return (int(before[-1]), int(after[0])) if len(before) else None


def _verdict(frame: pd.DataFrame, arrays: dict[str, np.ndarray]) -> str:
    ood, inside = _final(frame, SPLITS["ood"], None), _final(frame, SPLITS["id"], None)
    opening = "It copies by a rule" if ood["high"] < 1 - BEFORE else "It did not learn to copy by a rule"
    text = (
        f"{opening}: on longer segments of other tokens than it was trained on its error is {ood['value']:.3f} "
        f"[{ood['low']:.3f}, {ood['high']:.3f}], in distribution {inside['value']:.3f}."
    )
    transition = _find_transition(arrays)
    if transition is not None:
        text += (
            f" The error out of distribution fell from above {BEFORE} to below {1 - BEFORE:.1f} between steps "
            f"{transition[0]:,} and {transition[1]:,}."
        )
    return text


def _control(frame: pd.DataFrame) -> str:
    rows = {control: _final(frame, SPLITS["ood"], control) for control in (None, ONE_LAYER, CHANCE)}
    one = rows[ONE_LAYER]
    text = f"Chance is an error of {rows[CHANCE]['value']:.3f}."
    if len(one):
        text = (
            f"A model of one layer, trained alike, stays at {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]; "
            f"chance is {rows[CHANCE]['value']:.3f}."
        )
    return f"{text} n\u00a0=\u00a0{int(rows[None]['n']):,} sequences."


def _table(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame[frame["metric"].str.contains("error, ")]
    table = pd.DataFrame(
        {
            "what": rows["metric"],
            "model": rows["control"].fillna("this model"),
            "error": rows["value"],
            "low": rows["low"],
            "high": rows["high"],
            "n": rows["n"],
        }
    )
    return table.reset_index(drop=True)


def _refuse(subject: Subject) -> str | None:
    if subject.run is None:
        return "it doesn't come from a training run on the copying task"
    task = read_task(subject.run)
    if not task["name"].startswith("copying") or not task.get("settings"):
        return f"it was trained on {task['name']}"
    return None


_DEFINITIONS = (
    Definition(
        name="error",
        formula="share of wrong argmax predictions at t in [s₂ + 4, s₂ + L − 1), the part of the second copy that the first "
        "determines; a perfect copier scores 0",
        source="Song, Xu & Zhong, arXiv 2408.09503, corrected",
        docs="copying",
    ),
    Definition(
        name="published error",
        formula="the same with t up to s₂ + L − 1, which predicts the random token after the copy; a perfect copier scores "
        "0.094 in and 0.047 out of distribution",
        source="Song, Xu & Zhong, arXiv 2408.09503, public code",
        docs="copying",
    ),
)

COPYING = Analysis(
    name="copying",
    question="Does it copy by a rule that holds out of distribution, and since when?",
    parts=(Part(name="training", measure=_measure),),
    write_section=_write_section,
    applies=_refuse,
)
