"""Which heads attend by induction, to the previous token, to a copy? Scores of every head beside their control.

Control of induction and duplicate-token attention: the same positions of sequences without repetition. Control of
previous-token attention: what uniform attention would give.

    interp report smollm2 --analyses heads
"""

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.report.page import Definition, Figure, Section
from interp.figures.heads import head_ranking
from interp.figures.svg import to_svg
from interp.heads.definitions import DEFINITIONS, Geometry
from interp.heads.scores import HeadScores, Sequences, score_heads
from interp.models.provenance import Provenance
from interp.records.schema import Measurement
from interp.records.store import Cell

N_RANKED = 12


class _Row(NamedTuple):
    """A row of `HeadScores.to_frame`."""

    kind: str
    definition: str
    layer: int
    head: int
    value: float
    low: float
    high: float
    n: int


CONTROLS = {"repeated": None, "unrepeated": "tokens not repeated"}


def _measure(subject: Subject, options: Options, sequences: Sequences) -> Outcome:
    segment = choose_segment(subject.model)
    scores = score_heads(
        subject.model,
        n_sequences=options.n_sequences,
        segment=segment,
        bos=options.bos,
        sequences=sequences,
        seed=options.seed,
    )
    rows = [
        Measurement(
            analysis="heads",
            metric=row.kind if row.definition == DEFINITIONS[row.kind][0] else f"{row.kind}/{row.definition}",
            value=row.value,
            low=row.low,
            high=row.high,
            n=row.n,
            control=CONTROLS[sequences],
            task=describe_task(scores),
            data_sha256=scores.data_sha256,
            layer=row.layer,
            head=row.head,
            seed=options.seed,
            note="; ".join(scores.notes) or None,
        )
        for row in map(_Row._make, scores.to_frame().itertuples(index=False))
    ]
    if sequences == "repeated":
        rows += _uniform_rows(scores, options)
    about = {
        "geometry": asdict(scores.geometry),
        "bos": scores.bos,
        "n_ids": scores.n_ids,
        "seed": scores.seed,
        "sequences": sequences,
        "data_sha256": scores.data_sha256,
        "notes": list(scores.notes),
    }
    return Outcome(measurements=rows, arrays=dict(scores.per_sequence), about=about)


def choose_segment(model: Any) -> int:
    """25 tokens as published, fewer where two copies or their distinct ids would not fit."""
    return min(25, (model.cfg.n_ctx - 1) // 2, model.cfg.d_vocab // 2)


def describe_task(scores: HeadScores) -> str:
    """What the model read, for the records."""
    behind = "" if scores.bos is None else f" behind token {scores.bos}"
    return f"{scores.geometry.copies} x {scores.geometry.segment} random tokens{behind}"


def _uniform_rows(scores: HeadScores, options: Options) -> list[Measurement]:
    """What a head would score that attends to every legal key alike: exact, so it has no interval."""
    return [
        Measurement(
            analysis="heads", metric=kind, value=value, control="uniform attention", seed=options.seed,
            note="exact: the mean of 1 / number of legal keys",
        )
        for kind, value in uniform_attention(scores.geometry).items()
    ]  # fmt: skip


def uniform_attention(geometry: Geometry) -> dict[str, float]:
    """The raw score of a head whose attention is uniform over the legal keys."""
    later = geometry.later_copies.numpy()
    repeated = float(np.mean(1 / (later + 1)))
    previous = float(np.mean(1 / (np.arange(2, geometry.n_positions) + 1)))
    return {"induction": repeated, "duplicate_token": repeated, "previous_token": previous}


def restore_scores(provenance: Provenance, cell: Cell) -> HeadScores:
    """The `HeadScores` that a cell was written from."""
    about = cell.about
    return HeadScores(
        per_sequence=cell.arrays,
        geometry=Geometry(**about["geometry"]),
        sequences=about["sequences"],
        bos=about["bos"],
        n_ids=about["n_ids"],
        seed=about["seed"],
        data_sha256=about["data_sha256"],
        provenance=provenance,
        notes=tuple(about["notes"]),
    )


def _write_section(provenance: Provenance, cells: Cells) -> Section:
    scores = restore_scores(provenance, cells["heads/repeated"])
    control = restore_scores(provenance, cells["heads/unrepeated"])
    uniform = uniform_attention(scores.geometry)
    n_ranked = min(N_RANKED, scores.induction.size)
    induction, previous = scores.top("induction", n_ranked), scores.top("previous_token", n_ranked)
    low, high = scores.interval("induction")
    at = tuple(np.array(induction).T)
    figures = (
        Figure(
            svg=to_svg(scores.figure("induction")),
            caption="Attention from each token of the second copy to the token that followed it in the first.",
        ),
        Figure(
            svg=to_svg(scores.figure("previous_token")),
            caption=f"Attention to the token before; uniform attention would give {uniform['previous_token']:.3f}.",
        ),
        Figure(
            svg=to_svg(
                head_ranking(
                    induction,
                    scores.induction[at],
                    low=low[at],
                    high=high[at],
                    control=control.induction[at],
                    label="induction score",
                    control_label="same head, tokens not repeated",
                )
            ),
            caption=f"The {n_ranked} strongest heads with 95% intervals over {scores.n_sequences} sequences; "
            "open dots are the same heads on sequences without repetition.",
        ),
    )
    return Section(
        anchor="heads",
        title="Heads that copy by induction",
        question=HEADS.question,
        verdict=_verdict(scores, control, uniform),
        control=_control(scores, control, uniform),
        figures=figures,
        table=_table(scores, control, list(dict.fromkeys([*induction, *previous[:5]]))),
        table_caption="The strongest induction heads and the strongest previous-token heads under every definition.",
        definitions=_DEFINITIONS,
        notes=_notes(scores),
    )


def _verdict(scores: HeadScores, control: HeadScores, uniform: dict[str, float]) -> str:
    low, high = scores.interval("induction")
    strongest = scores.top("induction", min(3, scores.induction.size))
    found = [head for head in strongest if low[head] > 2 * max(control.induction[head], uniform["induction"])]
    best = strongest[0]
    share = f"puts {scores.induction[best]:.0%} of its attention on the token that followed the same token earlier"
    interval = f"[{low[best]:.0%}, {high[best]:.0%}]"
    if found:
        others = ", ".join(f"{name_head(head)} ({scores.induction[head]:.0%})" for head in found[1:])
        induction = f"Head {name_head(best)} {share} {interval}" + (f"; next are {others}" if others else "")
    else:
        induction = f"No head attends by induction: the best, {name_head(best)}, {share} {interval}"
    previous = scores.top("previous_token", 1)[0]
    return (
        f"{induction}. The strongest previous-token head is {name_head(previous)} with "
        f"{scores.previous_token[previous]:.0%} of its attention."
    )


def _control(scores: HeadScores, control: HeadScores, uniform: dict[str, float]) -> str:
    best = scores.top("induction", 1)[0]
    return (
        f"On sequences without repetition head {name_head(best)} puts {control.induction[best]:.1%} there; uniform attention "
        f"would give induction {uniform['induction']:.1%} and the previous token {uniform['previous_token']:.1%}. "
        f"n\u00a0=\u00a0{scores.n_sequences} sequences."
    )


def name_head(head: tuple[int, int]) -> str:
    """`18.6` for head 6 of layer 18."""
    return f"{head[0]}.{head[1]}"


def _table(scores: HeadScores, control: HeadScores, heads: list[tuple[int, int]]) -> pd.DataFrame:
    at = tuple(np.array(heads).T)
    low, high = scores.interval("induction")
    columns = {
        "head": [name_head(head) for head in heads],
        "induction": scores.induction[at],
        "low": low[at],
        "high": high[at],
        "not repeated": control.induction[at],
        "sink removed": scores.mean("induction", "sink_removed")[at],
        "prefix matching": scores.mean("induction", "prefix_matching")[at],
        "previous token": scores.previous_token[at],
        "duplicate token": scores.duplicate_token[at],
        "copying": scores.copying[at],
    }
    return pd.DataFrame(columns)


def _notes(scores: HeadScores) -> tuple[str, ...]:
    first = "no token stands first" if scores.bos is None else f"token {scores.bos} stands first"
    raw, removed = scores.top("induction", 1)[0], scores.top("induction", 1, definition="sink_removed")[0]
    notes = [
        f"Sequences are {scores.geometry.copies} copies of {scores.geometry.segment} random token ids out of {scores.n_ids}; "
        f"{first}."
    ]
    if raw != removed:
        notes.append(
            f"By the sink-removed score the strongest head is {name_head(removed)} instead: that score ignores how much "
            "attention rests on the first position."
        )
    return (*notes, *scores.notes)


_DEFINITIONS = (
    Definition(
        name="induction (raw)",
        formula="mean of A[i, i − S + 1] over the positions i of the later copies; S is the segment's length. At most 1.",
        source="attention itself; the positions of Song, Xu & Zhong, arXiv 2408.09503",
        docs="heads",
    ),
    Definition(
        name="sink removed",
        formula="A[i, j] / Σ over j' ≥ 1 of (A[i, j'] + 1e-6), at the same positions",
        source="Song, Xu & Zhong, arXiv 2408.09503",
        docs="heads",
    ),
    Definition(
        name="prefix matching",
        formula="the sum over all earlier copies; with two copies it equals the raw score",
        source="Olsson et al. 2022, arXiv 2209.11895",
        docs="heads",
    ),
    Definition(
        name="copying",
        formula="share of the rise in the segment's logits, by a head's value at a token, that goes to that token; "
        "0 is chance, 1 is that token alone",
        source="after Olsson et al. 2022",
        docs="heads",
    ),
)

HEADS = Analysis(
    name="heads",
    question="Which heads attend by induction, and which to the previous token?",
    parts=(
        Part(name="repeated", measure=lambda subject, options, _: _measure(subject, options, "repeated")),
        Part(name="unrepeated", measure=lambda subject, options, _: _measure(subject, options, "unrepeated")),
    ),
    write_section=_write_section,
)
