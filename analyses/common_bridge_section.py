"""What the report says about the common bridge: the pairs, what both sides lose without it, and the verdict."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.analysis import Cells
from analyses.common_bridge_cells import restore_pairs, restore_shuffle, restore_sweep
from analyses.heads import name_head
from analyses.report.page import Definition, Figure, Section
from interp.bridge.result import NAMES, BridgeSweep, Contrast
from interp.bridge.shuffle import HeadShuffle
from interp.bridge.subspaces import CONTROLS
from interp.circuits.pair_result import CALLED, PairScores
from interp.figures.svg import to_svg
from interp.heads.confirm import SIGNIFICANT
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval

QUESTION = "Do heads compose through a common subspace, and does copying go through it?"

_SIDES = {
    "QK": "what the keys of the induction heads read",
    "OV": "what the previous-token heads write",
}


def write_section(provenance: Provenance, cells: Cells) -> Section:
    """From the cells of the bridge analysis."""
    pairs, matches = (restore_pairs(provenance, cells[f"bridge/{part}"]) for part in ("pairs", "matches"))
    sweeps = [restore_sweep(provenance, cells[f"bridge/{part}"]) for part in ("keys", "outputs")]
    shuffle = (
        restore_shuffle(provenance, cells["bridge/shuffle"]) if cells["bridge/shuffle"].about.get("result") else None
    )
    figures = [
        Figure(
            svg=to_svg(matches.figure()),
            caption="Of each two layers the pair that meets most nearly in the same directions. Below the diagonal the mirrored "
            "pairs, which can't compose.",
            verdict=f"{_tell_pairs(matches)} {_tell_pairs(pairs)}",
        )
    ]
    figures += [
        Figure(
            svg=to_svg(sweep.figure()),
            caption=f"Error of copying against the rank of what is taken out of {_SIDES[sweep.side]}, or of what alone is left.",
            verdict=_tell_sweep(sweep),
        )
        for sweep in sweeps
    ]
    if shuffle is not None:
        figures.append(
            Figure(
                svg=to_svg(shuffle.figure()),
                caption="Queries and keys of the induction heads, permuted among themselves; open: other heads of the same "
                "layers in their places.",
                verdict=_tell_shuffle(shuffle),
            )
        )
    overlap = cells["bridge/overlaps"].about
    return Section(
        anchor="bridge",
        title="A common bridge",
        question=QUESTION,
        verdict=_verdict(sweeps[0], overlap),
        control=_control(sweeps[0]),
        figures=tuple(figures),
        table=_tabulate(sweeps),
        table_caption="The cross-fitted bridge against each control, on the sequences that both were scored on: error of "
        "copying, difference with its paired 95% interval.",
        definitions=_DEFINITIONS,
        notes=tuple(dict.fromkeys([*_list_heads(sweeps), *(note for sweep in sweeps for note in sweep.notes)])),
    )


def _verdict(sweep: BridgeSweep, overlap: dict) -> str:
    rank = sweep.headline_rank
    run = sweep.find(sweep.headline, rank)[0]
    low, high = bootstrap_interval(run.error, seed=sweep.seed)
    contrasts = _compare(sweep, rank)
    carried = all(one.p_value <= SIGNIFICANT and one.low > 0 for one in contrasts)
    some = any(one.p_value <= SIGNIFICANT and one.low > 0 for one in contrasts)
    opening = (
        "Copying goes through a common bridge"
        if carried and sweep.headline == "cross_fitted"
        else "Copying depends on the subspace that these heads read"
        if carried
        else "Copying depends on the bridge, though not beyond every control"
        if some
        else "Copying is not shown to go through a common bridge"
    )
    fitted = (
        "that the induction heads of other layers read"
        if sweep.headline == "cross_fitted"
        else "that the same induction heads read"
    )
    common = ""
    if overlap.get("rank"):
        common = (
            f" The bridges of {overlap['n_layers']} layers overlap by {overlap['overlap']:.2f} at rank {overlap['rank']}, "
            f"those of other heads of the same layers by {overlap['control']:.2f} (p\u00a0=\u00a0{overlap['p_value']:.3f}), "
            f"random ones by {overlap['null']:.2f}."
        )
    return (
        f"{opening}: without the {rank} direction{'s' if rank > 1 else ''} {fitted}, of {sweep.bridge.d_model}, "
        f"the error of copying goes from {sweep.error.mean():.2f} to {run.error.mean():.2f} [{float(low):.2f}, {float(high):.2f}]"
        f"{_tell_text(sweep, rank)}.{common}"
    )


def _control(sweep: BridgeSweep) -> str:
    contrasts = _compare(sweep, sweep.headline_rank)
    told = "; ".join(
        f"{NAMES[one.control]}{_tell_size(sweep, one)} {one.controls.mean():.2f} "
        f"({one.controls.min():.2f} to {one.controls.max():.2f}, p\u00a0=\u00a0{one.p_value:.3f})"
        for one in contrasts
    )
    n = contrasts[0].n_sequences if contrasts else 0
    return f"On the same {n} sequences: {told}. n\u00a0=\u00a0{len(sweep.error)} sequences for the bridge."


def _tell_size(sweep: BridgeSweep, one: Contrast) -> str:
    """How many dimensions the control has, where that isn't the bridge's rank."""
    dims = np.mean([run.dims for run in sweep.find(one.control, one.rank)])
    return "" if round(dims) == one.rank else f", {dims:.0f} dimensions:"


def _compare(sweep: BridgeSweep, rank: int) -> list[Contrast]:
    there = {run.fit for run in sweep.runs if run.rank == rank and run.part == "remove"}
    return [sweep.compare(control, rank) for control in CONTROLS if control in there]


def _tell_text(sweep: BridgeSweep, rank: int) -> str:
    if not sweep.text_loss.size:
        return ""
    value, low, high = sweep.text_rise(rank)
    return f", while the loss on text rises by {value:.2f} [{low:.2f}, {high:.2f}] nats"


def _tell_pairs(result: PairScores) -> str:
    writer, reader = result.top(1)[0]
    null = f", the largest of {len(result.null):,} mirrored pairs {result.null.max():.2f}" if len(result.null) else ""
    score = {"diagonal": "Z", "match": "the match"}[result.by]
    value = {"diagonal": result.diagonal, "match": result.match}[result.by][0]
    share = f" ({result.normalised[0]:.2f} of √d_head)" if result.by == "diagonal" else ""
    return (
        f"By {score} {name_head(reader)} reads what {name_head(writer)} writes most of all, {value:.2f}{share}{null}; "
        f"{result.n_called} of {result.n_pairs:,} pairs have q ≤ {CALLED}."
    )


def _tell_sweep(sweep: BridgeSweep) -> str:
    kept = [run for run in sweep.runs if run.fit == sweep.headline and run.part == "keep"]
    removed = [run for run in sweep.runs if run.fit == sweep.headline and run.part == "remove"]
    whole = float(sweep.error.mean())
    half = [run.rank for run in removed if run.error.mean() > (1 + whole) / 2]
    text = (
        f"Removing {half[0]} of its directions undoes more than half of copying."
        if half
        else "No rank undoes half of copying."
    )
    if kept:
        best = min(kept, key=lambda run: float(run.error.mean()))
        text += f" Kept alone, rank {best.rank} leaves an error of {best.error.mean():.2f} (untouched {whole:.2f})."
    return text


def _tell_shuffle(result: HeadShuffle) -> str:
    value, low, high = result.difference
    return (
        f"Shuffled the error is {result.shuffled_error.mean():.2f}, with other heads {result.control_error.mean():.2f}: "
        f"difference {value:.2f} [{low:.2f}, {high:.2f}], p\u00a0=\u00a0{result.p_value:.3f}."
    )


def _list_heads(sweeps: Sequence[BridgeSweep]) -> list[str]:
    induction, previous = sweeps[0].edited_heads, sweeps[1].edited_heads
    notes = [f"Induction heads: {_join(induction)}. Previous-token heads: {_join(previous)}."]
    if sweeps[0].collateral_heads:
        notes.append(f"They share keys with {_join(sweeps[0].collateral_heads)}, which are edited with them.")
    return notes


def _join(heads: Sequence[Head]) -> str:
    return ", ".join(name_head(head) for head in heads)


def _tabulate(sweeps: Sequence[BridgeSweep]) -> pd.DataFrame:
    frames = [sweep.contrasts().assign(side=sweep.side) for sweep in sweeps]
    frame = pd.concat(frames, ignore_index=True)
    frame["control"] = [NAMES[control] for control in frame["control"]]
    frame["dims"] = np.round(frame["dims"]).astype(int)
    names = [
        "side",
        "part",
        "rank",
        "control",
        "dims",
        "bridge_error",
        "control_error",
        "difference",
        "low",
        "high",
        "p",
    ]
    return frame[[*names, "n_draws", "n"]].rename(
        columns={"bridge_error": "bridge", "control_error": "control's error"}
    )


_PAPER = "Song, Xu & Zhong, arXiv 2408.09503"
_DEFINITIONS = (
    Definition(
        name="match",
        formula="largest σ of VᵀU: V the top 10 directions that the reader's keys look at, U those that the writer writes",
        source=f"{_PAPER}, public code",
        docs="composition",
    ),
    Definition(
        name="q",
        formula="mirrored pairs / pairs with at least this score: the reader's and the writer's roles exchanged",
        source="Benjamini & Hochberg 1995, with an empirical null",
        docs="composition",
    ),
    Definition(
        name="Z",
        formula="(mean diag W − mean W) / std W of W = W_QK of the reader times W_OV of the writer",
        source=f"{_PAPER}, public code",
        docs="composition",
    ),
    Definition(
        name="bridge of rank r",
        formula="top r right singular vectors of the stacked W_QK of the induction heads",
        source=_PAPER,
        docs="bridge",
    ),
    Definition(
        name="cross-fitted",
        formula="each edited layer loses a bridge that was found in the induction heads of all other layers",
        source="this library; the published bridge is fitted on the heads that are edited",
        docs="bridge",
    ),
    Definition(
        name="error of copying",
        formula="share of wrong argmax predictions over the S − 1 positions of the second copy that the first determines",
        source=f"{_PAPER}, without the position after the copy",
        docs="bridge",
    ),
)
