"""Does copying go through the bridge? Remove it, or keep nothing else, at many ranks, and do the same with its controls.

The model repeats a random segment. On the QK side the keys of the induction heads lose the bridge (or all but the bridge); on
the OV side the outputs of the previous-token heads do (Song, Xu & Zhong, arXiv 2408.09503, projection experiment). What counts
is the error at the S - 1 positions of the second copy whose next token the first copy determines. The published experiment has no
control. Here the headline is the *cross-fitted* bridge: each layer loses a subspace that was found in the induction
heads of the other layers. Beside it stand the controls of `interp.bridge.subspaces`, and the loss on ordinary text under the
same edit: the rank at which the two part is the honest one.

>>> import interp
>>> model = interp.build(n_layers=3, d_model=16, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
>>> sweep = sweep_bridge(model, induction_heads=[(1, 0), (2, 3)], n_sequences=4, segment=8, n_draws=2, n_control_sequences=2)
>>> sweep.headline, sweep.ranks, sweep.plan
('cross_fitted', (1, 2, 4), SweepPlan(24 edits, 64 sequences through 2 blocks))
"""

import logging
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int
from torch import Tensor

from interp.bridge.copies import check_text, draw_copies
from interp.bridge.edit import SharedKeys, Side, edit_heads, list_collateral, require_editable, swap_weights
from interp.bridge.find import check_heads, check_rank
from interp.bridge.passages import tokenize_passages
from interp.bridge.plan import Step, plan_sweep
from interp.bridge.result import BridgeRun, BridgeSweep
from interp.bridge.score import Scorer
from interp.bridge.subspaces import CONTROLS, Fit, Subspaces
from interp.circuits.factors import Distance, Fold
from interp.errors import InputError
from interp.interventions.project import Part
from interp.interventions.select import Head
from interp.models.provenance import get_provenance
from interp.models.tokens import Bos, hash_tokens, resolve_bos

logger = logging.getLogger(__name__)

RANKS: tuple[int, ...] = (1, 2, 5, 10, 25, 50, 100)
CONTROL_RANKS: tuple[int, ...] = (1, 10, 50)


def sweep_bridge(
    model: Any,
    *,
    induction_heads: Sequence[Head],
    previous_token_heads: Sequence[Head] = (),
    side: Side = "QK",
    parts: Sequence[Part] = ("remove", "keep"),
    ranks: Sequence[int | Literal["cap"]] | None = None,
    control_ranks: Sequence[int] | None = None,
    n_draws: int = 20,
    n_sequences: int = 50,
    n_control_sequences: int = 5,
    segment: int = 25,
    bos: Bos = "auto",
    text: Int[Tensor, "passage pos"] | None = None,
    shared_keys: SharedKeys = "edited",
    distance: Distance = "none",
    fold: Fold = "norms",
    seed: int = 0,
) -> BridgeSweep:
    """Sweep the bridge of `induction_heads` over ranks, edited in their own keys (QK) or in `previous_token_heads` (OV).

    Ranks are 1, 2, 5, 10, 25, 50, 100 and the cap where not given, controls at 1, 10 and 50, as far as the cap allows. The
    headline is scored on all sequences and passages, all that stands beside it on the first `n_control_sequences`, on
    which they are compared; each control has `n_draws` draws. `text` are token ids for the loss on text: 16 short passages
    of the library when not given, none for a model without a tokenizer. `shared_keys="copied"` edits the chosen heads
    alone where heads share keys.

    The model keeps its own weights: edited copies take their place for a pass, and only blocks from the lowest edited one on
    are run. How many passes there will be is logged before the first one, and is `plan` of the result.
    Raises `InputError` for heads that don't exist, no previous-token head on the OV side, a rank above the cap, sequences
    that are longer than the model's context, and a model whose weights can't be exchanged.
    """
    _check_options(side, shared_keys, parts, n_draws=n_draws, n_control_sequences=n_control_sequences)
    heads = check_heads(model, induction_heads)
    edited = heads if side == "QK" else _check_writers(model, previous_token_heads)
    require_editable(model, edited, side=side, shared_keys=shared_keys)
    first = resolve_bos(model, bos)
    tokens, scored = draw_copies(model, n_sequences=n_sequences, segment=segment, bos=first, seed=seed)
    if text is None and getattr(model, "tokenizer", None) is not None:
        text = tokenize_passages(model, n_positions=tokens.shape[1], bos=first)
    subspaces = Subspaces(model, heads, edited, side=side, distance=distance, fold=fold, n_draws=n_draws, seed=seed)
    chosen_ranks, chosen_controls = _choose_ranks(subspaces, ranks, control_ranks)
    fits: list[Fit] = [subspaces.headline]
    if subspaces.headline == "cross_fitted" and not subspaces.is_cross_fitted:
        fits.append("own")
    copies = Scorer(model, tokens, scored, lowest=min(subspaces.layers))
    prose = None if text is None else Scorer(model, text, check_text(model, text), lowest=min(subspaces.layers))
    plan = plan_sweep(
        fits=fits,
        parts=tuple(dict.fromkeys(parts)),
        ranks=chosen_ranks,
        control_ranks=chosen_controls,
        n_draws={**dict.fromkeys(CONTROLS, n_draws), "other_heads": len(subspaces.control_heads)},
        n_sequences=n_sequences,
        n_control_sequences=min(n_control_sequences, n_sequences),
        n_passages=0 if text is None else len(text),
        n_blocks=copies.n_blocks,
    )
    logger.info("%r", plan)
    untouched = copies.measure()
    untouched_text = np.zeros(0) if prose is None else prose.measure().loss

    def run(step: Step) -> BridgeRun:
        bases = subspaces.find(step.fit, step.rank, step.draw)
        energy = subspaces.measure_energy(bases)
        edit = edit_heads(model, edited, bases, side=side, part=step.part, fold=fold, shared_keys=shared_keys)
        with swap_weights(model, edit):
            scores = copies.measure(step.n_sequences)
            text_loss = prose.measure(step.n_passages).loss if prose is not None and step.n_passages else np.zeros(0)
        return BridgeRun(
            fit=step.fit,
            part=step.part,
            rank=step.rank,
            dims=max(basis.shape[1] for basis in bases.values()),
            draw=step.draw,
            energy_weights=energy.weights,
            energy_stack=energy.stack,
            error=scores.error,
            probability=scores.probability,
            text_loss=text_loss,
        )

    return BridgeSweep(
        side=side,
        headline=subspaces.headline,
        bridge=subspaces.own,
        edited_heads=edited,
        collateral_heads=list_collateral(model, edited, side=side, shared_keys=shared_keys),
        shared_keys=shared_keys,
        control_heads=tuple(subspaces.control_heads),
        error=untouched.error,
        probability=untouched.probability,
        text_loss=untouched_text,
        runs=tuple(run(step) for step in plan.steps),
        ranks=chosen_ranks,
        control_ranks=chosen_controls,
        plan=plan,
        bos=first,
        seed=seed,
        data_sha256=hash_tokens(tokens),
        provenance=get_provenance(model),
        notes=(*_describe(subspaces), *copies.notes, *(prose.notes if prose is not None else ())),
    )


def _check_options(
    side: str, shared_keys: str, parts: Sequence[str], *, n_draws: int, n_control_sequences: int
) -> None:
    for name, value, known in (("side", side, get_args(Side)), ("shared_keys", shared_keys, get_args(SharedKeys))):
        if value not in known:
            raise InputError(f"{name}={value!r} isn't known; use one of {', '.join(known)}.")
    if not parts or any(part not in get_args(Part) for part in parts):
        raise InputError(f"parts={parts!r} was given; name 'remove', 'keep' or both.")
    if n_draws < 1 or n_control_sequences < 2:
        raise InputError(
            f"n_draws={n_draws} and n_control_sequences={n_control_sequences} were given, but without at least 1 draw on 2 "
            "sequences a bridge has no control."
        )


def _check_writers(model: Any, heads: Sequence[Head]) -> tuple[Head, ...]:
    if not heads:
        raise InputError(
            "side='OV' edits what previous-token heads write, but none was given; give `previous_token_heads=`, such as "
            "`scores.top('previous_token', 10)`, or use side='QK'."
        )
    return check_heads(model, heads)


def _choose_ranks(
    subspaces: Subspaces, ranks: Sequence[int | Literal["cap"]] | None, control_ranks: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    cap = subspaces.cap
    asked = [*(rank for rank in RANKS if rank < cap), cap] if ranks is None else ranks
    numbers = sorted({cap if rank == "cap" else rank for rank in asked})
    if not numbers:
        raise InputError("ranks=[] asks for no rank; leave it out for 1, 2, 5, 10, 25, 50, 100 and the cap.")
    for rank in numbers:
        check_rank(rank, subspaces.own)
        if rank > cap:
            raise InputError(
                f"rank={rank} is above the cap of the cross-fitted bridge: without the heads of one edited layer the rank is at "
                f"most {cap}; give at most that, or 'cap'."
            )
    controls = [rank for rank in CONTROL_RANKS if rank in numbers] if control_ranks is None else [*control_ranks]
    controls = controls or numbers[:1]
    missing = [rank for rank in controls if rank not in numbers]
    if missing:
        raise InputError(
            f"control_ranks={list(controls)} has {missing[0]}, which isn't among the ranks {numbers}; a control needs the "
            "bridge of its rank beside it."
        )
    return tuple(numbers), tuple(sorted(set(controls)))


def _describe(subspaces: Subspaces) -> list[str]:
    notes = list(subspaces.notes)
    if not subspaces.can_cross_fit:
        notes.append(
            "all induction heads lie in one layer, which is edited itself, so the bridge can't be cross-fitted"
        )
    elif subspaces.is_cross_fitted:
        notes.append("no edited layer has an induction head, so the bridge is cross-fitted as it is")
    return notes
