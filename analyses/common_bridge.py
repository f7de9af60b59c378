"""Does the model compose a previous-token head and an induction head through a common bridge, and is copying carried by it?

From the weights alone: which heads compose (`interp.score_pairs`). Then by intervention: the bridge is taken out of what the
induction heads' keys read, and out of what the previous-token heads write, at many ranks, beside random subspaces and the
bridge of other heads (`interp.sweep_bridge`); and heads are shuffled among themselves (`interp.shuffle_heads`). After Song,
Xu and Zhong, arXiv 2408.09503, whose projections have no control.

    interp report smollm2 --analyses bridge
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.common_bridge_cells import pack_pairs, pack_shuffle, pack_sweep
from analyses.common_bridge_section import QUESTION, write_section
from analyses.heads import restore_scores
from interp.bridge.edit import Side, require_editable
from interp.bridge.find import find_bridge
from interp.bridge.overlap_parts import PartOverlaps, compare_part_bridges
from interp.bridge.result import BridgeSweep
from interp.bridge.shuffle import HeadShuffle, shuffle_heads
from interp.bridge.sweep import sweep_bridge
from interp.circuits.pair_result import By, PairScores
from interp.circuits.pairs import score_pairs
from interp.errors import InputError
from interp.heads.scores import HeadScores
from interp.interventions.select import Head
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval

N_DRAWS = 20
N_PAIRS = 1000
"""Pairs whose every score is kept; of the others one number each."""
_LISTED = 20

_row = partial(Measurement, analysis="bridge")


def choose_heads(scores: HeadScores) -> tuple[list[Head], list[Head]]:
    """(induction heads, previous-token heads): ten of each, in a small model one head in four, strongest first.

    Induction heads are not from the first layer, below which nothing is written.
    """
    n = min(10, max(1, scores.induction.size // 4))
    ranked = scores.top("induction", scores.induction.size)
    induction = [head for head in ranked if head[0] > 0][:n]
    highest = max((layer for layer, _ in induction), default=0)
    writers = [head for head in scores.top("previous_token", scores.previous_token.size) if head[0] < highest]
    return induction, writers[:n]


def _measure_pairs(subject: Subject, options: Options, cells: Cells, *, by: By) -> Outcome:
    result = score_pairs(subject.model, by=by, keep=N_PAIRS)
    arrays, about = pack_pairs(result)
    return Outcome(measurements=list(_pair_rows(result)), arrays=arrays, about={"result": about})


def _pair_rows(result: PairScores) -> Iterator[Measurement]:
    metric = {"diagonal": "Z", "match": "subspace match"}[result.by]
    for pair in result.to_frame().head(_LISTED).to_dict("records"):
        reader, writer = (f"{pair[f'{kind}_layer']}.{pair[f'{kind}_head']}" for kind in ("reader", "writer"))
        shared: dict[str, Any] = {"layer": pair["reader_layer"], "head": pair["reader_head"]}
        shared["note"] = f"reader {reader}, writer {writer}"
        yield _row(metric=metric, value=pair[result.by], **shared)
        yield _row(metric=f"q-value of {metric}", value=pair["q_value"], n=len(result.null), **shared)
    if len(result.null):
        largest = float(result.null.max())
        yield _row(metric=metric, value=largest, control="mirrored pairs", n=len(result.null), note="the largest")


def _measure_overlaps(subject: Subject, options: Options, cells: Cells) -> Outcome:
    """Have the layers' bridges directions in common?"""
    induction, _ = choose_heads(restore_scores(subject.provenance, cells["heads/repeated"]))
    layers = {layer for layer, _ in induction}
    if len(layers) < 2:
        return Outcome(measurements=[])
    rank = min(10, *(_cap(subject.model, [head for head in induction if head[0] == layer]) for layer in layers))
    result = compare_part_bridges(subject.model, induction, by="layer", rank=rank, n_draws=N_DRAWS, seed=options.seed)
    return Outcome(measurements=list(_overlap_rows(result)), about=_describe_overlaps(result))


def _cap(model: Any, heads: list[Head]) -> int:
    return find_bridge(model, heads, rank="cap").rank


def _describe_overlaps(result: PartOverlaps) -> dict[str, Any]:
    return {
        "rank": result.rank, "n_layers": len(result.parts), "overlap": result.mean, "null": result.null,
        "control": float(result.control.mean()), "p_value": result.p_value, "notes": list(result.notes),
    }  # fmt: skip


def _overlap_rows(result: PartOverlaps) -> Iterator[Measurement]:
    metric = f"overlap of the layers' bridges, rank {result.rank}"
    yield _row(metric=metric, value=result.mean, n=len(result.parts))
    for draw in result.control:
        yield _row(metric=metric, value=float(draw), control="other heads of the same layers")
    yield _row(metric=metric, value=result.null, control="random subspaces", note="exact")


def _measure_sweep(subject: Subject, options: Options, cells: Cells, *, side: Side) -> Outcome:
    induction, previous = choose_heads(restore_scores(subject.provenance, cells["heads/repeated"]))
    # Writers lie low, so that a pass runs most of the model: fewer ranks there, and controls at one.
    ranks, control_ranks = (None, None) if side == "QK" else _choose_ranks(subject.model, induction, previous)
    result = sweep_bridge(
        subject.model,
        induction_heads=induction,
        previous_token_heads=previous,
        side=side,
        ranks=ranks,
        control_ranks=control_ranks,
        n_draws=N_DRAWS,
        n_sequences=options.n_sequences,
        bos=options.bos,
        seed=options.seed,
    )
    arrays, about = pack_sweep(result)
    return Outcome(measurements=list(_sweep_rows(result)), arrays=arrays, about={"result": about})


def _choose_ranks(
    model: Any, induction: list[Head], edited: list[Head]
) -> tuple[list[int | Literal["cap"]], list[int] | None]:
    """(ranks, ranks with controls), as far as the bridge without the heads of one edited layer allows."""
    left = [[head for head in induction if head[0] != layer] for layer in {layer for layer, _ in edited}]
    cap = min(_cap(model, heads or induction) for heads in left)
    ranks = [rank for rank in (1, 10, 50) if rank < cap]
    return [*ranks, "cap"], [10] if 10 in ranks else None


def _sweep_rows(result: BridgeSweep) -> Iterator[Measurement]:
    shared: dict[str, Any] = {"data_sha256": result.data_sha256, "seed": result.seed}
    low, high = bootstrap_interval(result.error, seed=result.seed)
    whole = f"error of copying, {result.side}"
    yield _row(
        metric=f"{whole}, untouched", value=float(result.error.mean()), low=float(low), high=float(high),
        n=len(result.error), **shared,
    )  # fmt: skip
    for run in result.runs:
        low, high = bootstrap_interval(run.error, seed=result.seed)
        done = {"remove": "removed", "keep": "kept alone"}[run.part]
        yield _row(
            metric=f"{whole}, rank {run.rank} {done}", value=float(run.error.mean()), low=float(low), high=float(high),
            n=len(run.error), control=None if run.fit == result.headline else run.fit,
            note=f"draw {run.draw}, {run.dims} dimensions", **shared,
        )  # fmt: skip
        if len(run.text_loss):
            low, high = bootstrap_interval(run.text_loss - result.text_loss, seed=result.seed)
            yield _row(
                metric=f"rise of the loss on text, {result.side}, rank {run.rank} {done}", unit="nats per token",
                value=float((run.text_loss - result.text_loss).mean()), low=float(low), high=float(high),
                n=len(run.text_loss), **shared,
            )  # fmt: skip


def _measure_shuffle(subject: Subject, options: Options, cells: Cells) -> Outcome:
    induction, _ = choose_heads(restore_scores(subject.provenance, cells["heads/repeated"]))
    if len(induction) < 2:
        return Outcome(measurements=[])
    result = shuffle_heads(
        subject.model, induction, side="QK", n_repetitions=N_DRAWS, n_sequences=8, bos=options.bos, seed=options.seed
    )
    arrays, about = pack_shuffle(result)
    return Outcome(measurements=list(_shuffle_rows(result)), arrays=arrays, about={"result": about})


def _shuffle_rows(result: HeadShuffle) -> Iterator[Measurement]:
    for row in result.to_frame().to_dict("records"):
        yield _row(
            metric="error of copying, heads shuffled" if row["condition"] != "untouched" else "error of copying, untouched",
            value=row["error"], low=row["error_low"], high=row["error_high"], n=row["n"], seed=result.seed,
            control="other heads of the same layers" if row["condition"] == "other heads" else None,
            note=None if row["condition"] == "untouched" else f"draw {row['draw']}",
        )  # fmt: skip


def _refuse(subject: Subject) -> str | None:
    if subject.model.cfg.n_layers < 2:
        return "the model has one layer, so no head can feed another"
    try:
        heads = [(layer, 0) for layer in range(1, subject.model.cfg.n_layers)]
        require_editable(subject.model, heads, side="QK", shared_keys="edited")
    except InputError as error:
        return str(error).rstrip(".")
    return None


BRIDGE = Analysis(
    name="bridge",
    question=QUESTION,
    parts=(
        Part(name="pairs", measure=partial(_measure_pairs, by="diagonal")),
        Part(name="matches", measure=partial(_measure_pairs, by="match")),
        Part(name="overlaps", measure=_measure_overlaps),
        Part(name="keys", measure=partial(_measure_sweep, side="QK")),
        Part(name="outputs", measure=partial(_measure_sweep, side="OV")),
        Part(name="shuffle", measure=_measure_shuffle),
    ),
    write_section=write_section,
    needs=("heads",),
    applies=_refuse,
)
