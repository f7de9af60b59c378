"""Which heads and positions carry the answer of an indirect-object sentence? They are patched, then taken out.

Four steps. Does the model name the receiver at all (otherwise nothing is swept)? Which positions and which heads bring
the answer back when they are patched from a sentence into its `swap` counterpart? What do those heads look at? And, on
other sentences than they were chosen on, how much of the logit difference goes with them, against random heads?

    interp report smollm2 --analyses patching
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.patching_cells import choose_count, is_informative, pack_patch, pack_removal, rank_heads, restore_patch
from analyses.patching_heads import read_heads
from analyses.patching_removal import HeadRemoval, remove_heads
from analyses.patching_section import QUESTION, RANDOM_HEADS, UNRELATED, write_section
from interp.interventions.metrics import logit_difference
from interp.interventions.patch import patch
from interp.interventions.patch_result import PatchResult
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at
from interp.models.tokens import hash_tokens, resolve_bos
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval
from tasks.prompts.ioi import IOI, IOIBatch
from tasks.seeding import derive_seed
from tasks.task import TaskError

ROLES = ("IO", "S1", "S1+1", "S2", "last")
"""Positions of the residual stream that are patched."""
HEAD_ROLES = ("S2", "last")
"""Positions of the heads' outputs that are patched: where S is met again, and where the answer is given."""
N_DRAWS = 20
_ROOM = 48
"""Tokens that the longest sentence may take."""

_row = partial(Measurement, analysis="patching", task="indirect-object sentences")


def draw_prompts(subject: Subject, options: Options, purpose: Literal["finding", "testing"]) -> IOIBatch:
    """Sentences to find heads and positions on, alike in length so that many are patched at once, or others to test the
    model and the heads that were found."""
    bos = resolve_bos(subject.model, options.bos)
    sample = partial(IOI(subject.model.tokenizer).sample, seed=derive_seed(options.seed, "patching", purpose), bos=bos)
    if purpose == "testing":
        return sample(2 * options.n_sequences)
    n = 8 if options.quick else 16
    return sample(6 * n).choose_alike(n)


def _measure_behaviour(subject: Subject, options: Options, cells: Cells) -> Outcome:
    prompts = draw_prompts(subject, options, "testing")
    task = IOI(subject.model.tokenizer)
    arrays, rows = {}, []
    sha = hash_tokens(prompts.tokens)
    for control, tokens in ((None, prompts.tokens), (UNRELATED, prompts.corrupted["unrelated"])):
        logits = _answer(subject.model, tokens, prompts.scored)
        for metric, scores in task.score_last(logits, prompts).items():
            values = scores.double().numpy()
            arrays[f"{'unrelated' if control else 'whole'}/{metric}"] = values
            low, high = bootstrap_interval(values, seed=options.seed)
            rows.append(
                _row(metric=metric, value=values.mean(), low=float(low), high=float(high), n=len(values),
                     control=control, unit="logits" if metric == "logit_difference" else None, data_sha256=sha,
                     seed=options.seed)
            )  # fmt: skip
    chance = "exact: IO and S alike likely"
    rows.append(_row(metric="prefers_io", value=0.5, control="chance", note=chance))
    low, _ = bootstrap_interval(arrays["whole/prefers_io"], seed=options.seed)
    about = {"informative": bool(low > 0.5), "examples": list(prompts.texts[:3]), "n_names": len(task.names)}
    return Outcome(measurements=rows, arrays=arrays, about={**about, "seed": options.seed})


def _answer(model: Any, tokens: torch.Tensor, scored: torch.Tensor) -> Float[torch.Tensor, "prompt d_vocab"]:
    """Logits at the last token of every prompt, on the CPU."""
    found: dict[int, torch.Tensor] = {}

    def run(rows: slice) -> None:
        device = model.cfg.device
        found[rows.start] = logits_at(model, tokens[rows].to(device), scored[rows].to(device)).float().cpu()

    for_each_batch(len(tokens), run, batch_size=min(32, choose_batch_size(model, tokens.shape[1])))
    return torch.cat([found[start] for start in sorted(found)])


def _sweep(
    subject: Subject, options: Options, *, site: Literal["resid_pre", "z"], roles: tuple[str, ...]
) -> PatchResult:
    prompts = draw_prompts(subject, options, "finding")
    return patch(
        subject.model,
        prompts.tokens,
        prompts.corrupted["swap"],
        logit_difference(prompts.io, prompts.s),
        site=site,
        direction="denoise",
        positions=list(roles),
        scored="last",
        batch=prompts,
        seed=options.seed,
    )


def _measure_positions(subject: Subject, options: Options, cells: Cells) -> Outcome:
    if not is_informative(cells):
        return Outcome(measurements=[])
    result = _sweep(subject, options, site="resid_pre", roles=ROLES)
    arrays, about = pack_patch(result)
    return Outcome(measurements=list(_patch_rows(result)), arrays=arrays, about=about)


def _measure_heads(subject: Subject, options: Options, cells: Cells) -> Outcome:
    if not is_informative(cells):
        return Outcome(measurements=[])
    result = _sweep(subject, options, site="z", roles=HEAD_ROLES)
    arrays, about = pack_patch(result)
    reads = read_heads(subject.model, draw_prompts(subject, options, "finding"))
    rows = [*_patch_rows(result), *_read_rows(result, reads)]
    return Outcome(measurements=rows, arrays={**arrays, **{f"reads/{n}": v for n, v in reads.items()}}, about=about)


def _patch_rows(result: PatchResult) -> Iterator[Measurement]:
    """One row a cell."""
    for cell in result.to_frame().to_dict("records"):
        yield _row(
            metric=f"recovery, {result.site} at {cell['position']}",
            value=cell["recovery"],
            low=cell["recovery_low"],
            high=cell["recovery_high"],
            n=cell["n"],
            layer=cell["layer"],
            head=cell.get("head"),
            data_sha256=result.data_sha256,
            seed=result.seed,
            note=f"p = {cell['p_value']:.4f}, corrected for all cells",
        )


def _read_rows(result: PatchResult, reads: dict[str, np.ndarray]) -> Iterator[Measurement]:
    """Attention and direct effect of the strongest heads."""
    for layer, head in rank_heads(result, choose_count(result.recovery[..., 0].size)):
        for name, values in reads.items():
            mine = values[:, layer, head].astype(np.float64)
            low, high = bootstrap_interval(mine, seed=result.seed)
            yield _row(metric=name if name == "direct effect" else f"attention, {name}",
                       unit="logits" if name == "direct effect" else None, value=float(mine.mean()), low=float(low),
                       high=float(high), n=len(mine), layer=layer, head=head, data_sha256=result.data_sha256,
                       seed=result.seed)  # fmt: skip


def _measure_removal(subject: Subject, options: Options, cells: Cells) -> Outcome:
    if not is_informative(cells):
        return Outcome(measurements=[])
    found = restore_patch(subject.provenance, cells["patching/heads"])
    heads = rank_heads(found, choose_count(found.recovery[..., 0].size))
    prompts = draw_prompts(subject, options, "testing").select(slice(options.n_sequences))
    result = remove_heads(subject.model, prompts, heads, n_draws=N_DRAWS, seed=options.seed)
    arrays, about = pack_removal(result)
    return Outcome(measurements=_removal_rows(result, hash_tokens(prompts.tokens)), arrays=arrays, about=about)


def _removal_rows(result: HeadRemoval, data_sha256: str) -> list[Measurement]:
    n, note = len(result.whole), "; ".join(result.notes) or None
    row = partial(_row, seed=result.seed, data_sha256=data_sha256, note=note)
    rows = []
    differences = (
        ("whole model", None, result.whole),
        ("top heads replaced", None, result.removed),
        ("top heads replaced", RANDOM_HEADS, result.control.mean(axis=0)),
    )
    for condition, control, values in differences:
        low, high = bootstrap_interval(values, seed=result.seed)
        rows.append(row(metric=f"logit difference, {condition}", unit="logits", value=float(values.mean()),
                        low=float(low), high=float(high), n=n, control=control))  # fmt: skip
    for metric, control, (value, least, most) in (
        ("share of the logit difference", None, result.share),
        ("share of the logit difference", RANDOM_HEADS, result.control_share),
        (f"share beyond {RANDOM_HEADS}", None, result.difference),
    ):
        rows.append(row(metric=metric, value=value, low=least, high=most, n=n, control=control))
    rows.append(_row(metric=f"p-value, share beyond {RANDOM_HEADS}", value=result.p_value, n=result.n_draws,
                     note="n counts draws"))  # fmt: skip
    return rows


def _refuse(subject: Subject) -> str | None:
    cfg = subject.model.cfg
    if cfg.n_layers * cfg.n_heads < 2:
        return "the model has one head, which leaves none to compare with"
    if cfg.n_ctx < _ROOM:
        return f"the model reads {cfg.n_ctx} tokens at most, and a sentence may take {_ROOM}"
    try:
        IOI(subject.model.tokenizer)
    except TaskError as error:
        return str(error)
    return None


PATCHING = Analysis(
    name="patching",
    question=QUESTION,
    parts=(
        Part(name="behaviour", measure=_measure_behaviour),
        Part(name="positions", measure=_measure_positions),
        Part(name="heads", measure=_measure_heads),
        Part(name="removal", measure=_measure_removal),
    ),
    write_section=write_section,
    applies=_refuse,
)
