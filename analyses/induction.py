"""Does copying depend on the induction heads? They are removed, and as many random heads of the same layers.

interp report smollm2 --analyses induction
"""

from functools import partial

import numpy as np
import pandas as pd

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.heads import describe_task, name_head, restore_scores
from analyses.report.page import Definition, Figure, Section
from interp.figures.svg import to_svg
from interp.heads.confirm import SIGNIFICANT, HeadConfirmation, confirm_heads
from interp.models.provenance import Provenance
from interp.records.schema import Measurement
from interp.records.store import Cell
from interp.statistics import bootstrap_interval

CONTROL = "random heads of the same layers"
UNIT = "nats per token"
N_DRAWS = 20


def _measure(subject: Subject, options: Options, cells: Cells) -> Outcome:
    scores = restore_scores(subject.provenance, cells["heads/repeated"])
    n_heads = _choose_count(scores.induction.size)
    result = confirm_heads(
        subject.model, scores, n_heads=n_heads, n_draws=N_DRAWS, n_sequences=options.n_sequences, seed=options.seed
    )
    arrays = {
        "loss": result.loss,
        "accuracy": result.accuracy,
        "ablated_loss": result.ablated_loss,
        "ablated_accuracy": result.ablated_accuracy,
        "control_loss": result.control_loss,
        "control_accuracy": result.control_accuracy,
        "heads": np.array(result.heads),
        "control_heads": np.array(result.control_heads),
    }
    about = {
        "mode": result.mode,
        "seed": result.seed,
        "data_sha256": result.data_sha256,
        "notes": list(result.notes),
    }
    return Outcome(measurements=_rows(result, describe_task(scores)), arrays=arrays, about=about)


def _choose_count(n_heads: int) -> int:
    """Ten heads as published; in a small model one in four, and at least one."""
    return min(10, max(1, n_heads // 4))


def _rows(result: HeadConfirmation, task: str) -> list[Measurement]:
    note = "; ".join(result.notes)
    row = partial(Measurement, analysis="induction", task=task, seed=result.seed, data_sha256=result.data_sha256)
    rows = []
    conditions = (
        ("second copy, whole model", None, result.loss, result.accuracy),
        ("second copy, induction heads removed", None, result.ablated_loss, result.ablated_accuracy),
        ("second copy, induction heads removed", CONTROL, result.control_loss.mean(1), result.control_accuracy.mean(1)),
    )
    for condition, control, loss, accuracy in conditions:
        for metric, unit, values in (("loss", UNIT, loss), ("accuracy", None, accuracy)):
            ends = bootstrap_interval(values, seed=result.seed)
            rows.append(
                row(
                    metric=f"{metric}, {condition}",
                    unit=unit,
                    value=float(values.mean()),
                    low=float(ends[0]),
                    high=float(ends[1]),
                    n=len(values),
                    control=control,
                    note="; ".join(filter(None, ["n counts draws" if control else "", note])) or None,
                )
            )
    n = len(result.loss)
    value, low, high = result.difference
    beyond = f"loss beyond {CONTROL}"
    rows.append(row(metric=beyond, unit=UNIT, value=value, low=low, high=high, n=n, note=note or None))
    rows.append(row(metric=f"p-value, {beyond}", value=result.p_value, n=result.n_draws, note="n counts draws"))
    for draw, effect in enumerate(result.control_effects):
        heads = " ".join(f"{layer}.{head}" for layer, head in result.control_heads[draw])
        rows.append(
            row(
                metric="rise of the loss, one draw",
                unit=UNIT,
                value=float(effect),
                n=n,
                control=CONTROL,
                note=f"draw {draw}: {heads}",
            )
        )
    return rows


def restore_confirmation(provenance: Provenance, cell: Cell) -> HeadConfirmation:
    """The `HeadConfirmation` that a cell was written from."""
    arrays = dict(cell.arrays)
    heads, controls = arrays.pop("heads"), arrays.pop("control_heads")
    return HeadConfirmation(
        heads=tuple((int(layer), int(head)) for layer, head in heads),
        control_heads=tuple(tuple((int(layer), int(head)) for layer, head in draw) for draw in controls),
        mode=cell.about["mode"],
        seed=cell.about["seed"],
        data_sha256=cell.about["data_sha256"],
        notes=tuple(cell.about["notes"]),
        provenance=provenance,
        **arrays,
    )


def _write_section(provenance: Provenance, cells: Cells) -> Section:
    result = restore_confirmation(provenance, cells["induction/removal"])
    heads = ", ".join(f"{layer}.{head}" for layer, head in result.heads)
    return Section(
        anchor="induction",
        title="Copying without them",
        question=INDUCTION.question,
        verdict=_verdict(result),
        control=_control(result),
        figures=(
            Figure(
                svg=to_svg(result.figure()),
                caption=f"Loss and accuracy on the second copy. Removed: {heads}. "
                + ("Every small dot is one draw of random heads of the same layers; " if result.n_draws > 1 else "")
                + f"lines are 95% intervals, over {len(result.loss)} sequences for the chosen heads.",
            ),
        ),
        table=_table(result),
        table_caption="Loss (nats per token) and accuracy on the second copy of a random segment, with 95% intervals.",
        definitions=_DEFINITIONS,
        notes=(f"Heads were chosen on other sequences than these. Removal: {result.mode}.", *result.notes),
    )


def _verdict(result: HeadConfirmation) -> str:
    n_heads = len(result.heads)
    removed = f"the {n_heads} strongest induction heads" if n_heads > 1 else f"head {name_head(result.heads[0])}"
    if result.confirmed:
        opening = "Copying depends on these heads: without"
    elif result.n_draws < 1 / SIGNIFICANT - 1:
        opening = "The model has too few other heads for a test. Without"
    else:
        opening = "These heads are not shown to carry copying: without"
    return (
        f"{opening} {removed} the loss on the second copy goes from {result.loss.mean():.2f} to "
        f"{result.ablated_loss.mean():.2f} nats and accuracy from {result.accuracy.mean():.0%} to "
        f"{result.ablated_accuracy.mean():.0%}."
    )


def _control(result: HeadConfirmation) -> str:
    value, low, high = result.difference
    if result.n_draws == 1:
        others = "head" + ("s " if len(result.control_heads[0]) > 1 else " ")
        others += ", ".join(name_head(head) for head in result.control_heads[0]) + ", the only other choice,"
    else:
        others = "as many random heads of the same layers"
    return (
        f"Without {others} it goes to {result.control_loss.mean():.2f} nats and {result.control_accuracy.mean():.0%}. "
        f"The difference is {value:.2f} nats [{low:.2f}, {high:.2f}], p\u00a0=\u00a0{result.p_value:.3f}; "
        f"n\u00a0=\u00a0{len(result.loss)} sequences, {result.n_draws} draw{'s' if result.n_draws > 1 else ''}."
    )


def _table(result: HeadConfirmation) -> pd.DataFrame:
    frame = result.to_frame()
    names = [
        f"random draw {draw + 1}: " + " ".join(f"{layer}.{head}" for layer, head in result.control_heads[draw])
        if condition == "random heads removed"
        else condition
        for condition, draw in zip(frame["condition"], frame["draw"], strict=True)
    ]
    return frame.drop(columns=["draw", "n"]).assign(condition=names)


_DEFINITIONS = (
    Definition(
        name="loss and accuracy on the second copy",
        formula="cross-entropy (nats) and argmax accuracy over the S − 1 positions whose next token is known from the first copy",
        source="Song, Xu & Zhong, arXiv 2408.09503; the position after the copy, which nothing predicts, is left out",
        docs="confirm",
    ),
    Definition(
        name="removal",
        formula="the head's output z is set to 0 before W_O",
        source="Song, Xu & Zhong, arXiv 2408.09503",
        docs="confirm",
    ),
    Definition(
        name="p",
        formula="(1 + number of draws with at least this effect) / (1 + number of draws)",
        source="Phipson & Smyth 2010",
        docs="confirm",
    ),
)

INDUCTION = Analysis(
    name="induction",
    question="Does copying depend on the induction heads?",
    parts=(Part(name="removal", measure=_measure),),
    write_section=_write_section,
    needs=("heads",),
    applies=lambda subject: (
        None
        if subject.model.cfg.n_layers * subject.model.cfg.n_heads > 1
        else "the model has one head, which leaves none to compare with"
    ),
)
