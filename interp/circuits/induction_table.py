"""Which heads are induction heads? One table of every definition, head by head, and how far the definitions agree.

- `raw`, `sink_removed`, `prefix_matching`: attention from a token to the one after its earlier copy, see `interp.heads`. The
  last over four copies, as Olsson et al. 2022 (arXiv:2209.11895) have it.
- `value_share`: the head's values raise the token they were read at. `eigenvalues`: the same from the weights alone, see
  `interp.circuits.copying`.
- `diagonal`: Z / sqrt(d_head) with its best partner among the strongest previous-token heads of earlier layers, weights
  alone (Song, Xu & Zhong 2024, arXiv:2408.09503).
- `removal`: the loss on a second copy rises when this head alone is taken out. Measured for the heads that are first by any
  other definition, beside random others of the same layers.

Agreement of two definitions is Spearman's correlation of their ranks over all heads that have both, with its bootstrap
interval over heads, and how many heads are among the first `n_top` of both, beside n_top^2 / n, which chance gives.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=40, n_ctx=64, attn_only=True)
>>> table = compare_induction(model, n_sequences=4, segment=10, n_partners=2, n_removed=1)
>>> list(table.values)
['raw', 'sink_removed', 'prefix_matching', 'value_share', 'eigenvalues', 'diagonal', 'removal']
>>> table.to_frame().shape[0], table.agreement().shape[0]
(4, 21)
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from interp.circuits.composition import multiply, reading_circuit, writing_circuit
from interp.circuits.copying import copying_eigenvalues
from interp.circuits.diagonal import standardise
from interp.circuits.factors import read_factors
from interp.circuits.induction_result import InductionTable
from interp.circuits.remove_each import remove_each
from interp.errors import InputError
from interp.heads.scores import score_heads
from interp.interventions.select import Head, group_heads
from interp.models.provenance import get_provenance
from interp.models.tokens import Bos, usable_vocabulary
from interp.models.weights import unembedding
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator

_COPIES = 4
"""Copies of Olsson et al.'s prefix matching, or as many as the context holds."""


def compare_induction(
    model: Any,
    *,
    n_sequences: int = 50,
    segment: int = 25,
    bos: Bos = "auto",
    n_partners: int = 10,
    n_removed: int = 5,
    n_controls: int = 20,
    n_removal_sequences: int = 16,
    seed: int = 0,
) -> InductionTable:
    """Every definition of an induction head for all heads of a HookedTransformer or TransformerBridge.

    `n_partners` previous-token heads are tried as writers. The first `n_removed` heads by each definition are taken out,
    each alone, on `n_removal_sequences` fresh sequences, and so are `n_controls` other heads of their layers; 0 leaves
    `removal` out. A model whose answers aren't the tokens that it reads has no `eigenvalues`. Raises `InputError` as
    `score_heads` and `read_factors` do, and for counts that make no table.
    """
    if n_partners < 1 or n_removed < 0 or n_controls < 0 or n_removal_sequences < 1:
        raise InputError(
            "compare_induction needs at least 1 partner, 0 removed heads, 0 controls and 1 sequence to remove them on, but "
            f"was given n_partners={n_partners}, n_removed={n_removed}, n_controls={n_controls}, "
            f"n_removal_sequences={n_removal_sequences}."
        )
    scores = score_heads(model, n_sequences=n_sequences, segment=segment, bos=bos, seed=seed)
    n_heads = scores.induction.size
    copies = min(_COPIES, (model.cfg.n_ctx - scores.geometry.offset) // segment)
    longer = scores
    if copies > 2:
        longer = score_heads(model, n_sequences=n_sequences, segment=segment, copies=copies, bos=bos, seed=seed)
    per_sequence = {
        "raw": scores.per_sequence["induction/raw"],
        "sink_removed": scores.per_sequence["induction/sink_removed"],
        "prefix_matching": longer.per_sequence["induction/prefix_matching"],
        "value_share": scores.per_sequence["copying/value_share"],
    }
    values = {name: found.mean(axis=0, dtype=np.float64) for name, found in per_sequence.items()}
    writers = tuple(scores.top("previous_token", min(n_partners, n_heads)))
    if len(model.W_E) == unembedding(model).shape[1]:  # a task's model may answer in other tokens than it reads
        values["eigenvalues"] = copying_eigenvalues(model, seed=seed).scores
    values["diagonal"], partners = _match_partners(model, writers)
    removed, controls = _choose_heads(values, n_removed=n_removed, n_controls=n_controls, seed=seed)
    tokens = repeated_tokens(
        n=n_removal_sequences,
        segment=segment,
        copies=2,
        vocabulary=usable_vocabulary(model),
        bos=scores.bos,
        generator=derive_generator(seed, "compare_induction"),
    )
    whole, losses = np.zeros(0), np.zeros((0, 0))
    if removed:
        whole, losses = remove_each(
            model, tokens, (*removed, *controls), start=scores.geometry.offset + scores.geometry.segment
        )
        values["removal"] = np.full(scores.induction.shape, np.nan)
        for head, loss in zip(removed, losses, strict=False):
            values["removal"][head] = (loss - whole).mean()
    notes = []
    if copies < _COPIES:
        notes.append(f"prefix_matching has {copies} copies, as many as n_ctx={model.cfg.n_ctx} holds")
    if len(controls) < n_controls and removed:
        notes.append(f"the layers of the removed heads have only {len(controls)} other heads to compare with")
    return InductionTable(
        values=values,
        per_sequence=per_sequence,
        partners=partners,
        previous_token_heads=writers,
        removed=removed,
        whole_loss=whole,
        removed_loss=losses[: len(removed)],
        controls=controls,
        control_loss=losses[len(removed) :],
        copies=copies,
        bos=scores.bos,
        seed=seed,
        provenance=get_provenance(model),
        notes=(*scores.notes, *notes),
    )


def _match_partners(
    model: Any, writers: tuple[Head, ...]
) -> tuple[Float[np.ndarray, "layer head"], Int[np.ndarray, "layer head 2"]]:
    """Z / sqrt(d_head) of each head with the best of `writers` in an earlier layer, and which one that is."""
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    best = np.full((n_layers, n_heads), np.nan)
    partners = np.full((n_layers, n_heads, 2), -1)
    by_layer = group_heads(model, writers)
    writing = {layer: writing_circuit(read_factors(model, layer).select(heads)) for layer, heads in by_layer.items()}
    for layer in range(min(by_layer) + 1, n_layers):
        reading = reading_circuit(read_factors(model, layer))
        for earlier, heads in by_layer.items():
            if earlier >= layer:
                break
            products = multiply(reading, writing[earlier])
            found = standardise(products, d_model=reading.inner.shape[-1], dtype=reading.inner.dtype)
            scores = found.cpu().numpy() / reading.inner.shape[1] ** 0.5  # [reader head, writer head]
            better = ~(best[layer] >= scores.max(axis=1))
            best[layer] = np.where(better, scores.max(axis=1), best[layer])
            partners[layer, better, 0] = earlier
            partners[layer, better, 1] = np.array(heads)[scores.argmax(axis=1)[better]]
    return best, partners


def _choose_heads(
    values: dict[str, Float[np.ndarray, "layer head"]], *, n_removed: int, n_controls: int, seed: int
) -> tuple[tuple[Head, ...], tuple[Head, ...]]:
    """The first heads by any definition that has been measured, and random others of the same layers."""
    chosen: dict[Head, None] = {}
    for found in values.values():
        n_known = int(np.isfinite(found).sum())
        for place in np.argsort(-found, axis=None, kind="stable")[: min(n_removed, n_known)].tolist():
            chosen[divmod(place, found.shape[1])] = None
    layers = sorted({layer for layer, _ in chosen})
    n_heads = values["raw"].shape[1]
    others = [(layer, head) for layer in layers for head in range(n_heads) if (layer, head) not in chosen]
    order = torch.randperm(len(others), generator=derive_generator(seed, "removal controls"))[:n_controls]
    return tuple(chosen), tuple(others[i] for i in order.tolist())
