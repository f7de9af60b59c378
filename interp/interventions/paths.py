"""Who sends and who receives along a path, checked against a model.

A *sender* writes into the residual stream: a head `(layer, head)` or an MLP `(layer, "mlp")`. A *receiver* reads from it:
the queries, keys or values of a head, `(layer, head, "q")`, or `"logits"`, the stream after the last block.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> group_receivers(model, [(1, 0, "k"), (1, 1, "k")])
({1: {'k': [0, 1]}}, False)
>>> choose_senders(model, "each", before=1)
((0, 0), (0, 1))
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.errors import InputError
from interp.models.check import require_hook
from interp.models.weights import n_key_value_heads

Sender = tuple[int, int | Literal["mlp"]]
"""(layer, query head) or (layer, "mlp")."""
Receiver = tuple[int, int, Literal["q", "k", "v"]]
"""(layer, head, what it reads): a query head for q, a key-value head for k and v."""
ReadKind = Literal["q", "k", "v"]
Reads = dict[int, dict[ReadKind, list[int]]]
"""{layer: {kind: heads}}."""


def group_receivers(model: Any, receivers: Sequence[Receiver | Literal["logits"]] | str) -> tuple[Reads, bool]:
    """({layer: {kind: heads}}, whether the logits are among them); `InputError` for a receiver that doesn't exist."""
    listed = [receivers] if isinstance(receivers, str) else list(receivers)
    if not listed or len(set(listed)) < len(listed):
        raise InputError(f"The receivers {listed} are none or name one twice; give each receiver once.")
    reads: Reads = {}
    for receiver in listed:
        if receiver == "logits":
            continue
        if isinstance(receiver, str) or len(receiver) != 3 or receiver[2] not in ("q", "k", "v"):
            raise InputError(
                f"{receiver!r} is no receiver; give (layer, head, 'q'), (layer, head, 'k'), (layer, head, 'v') or 'logits'."
            )
        layer, head, kind = receiver
        grouped = kind != "q" and not getattr(model.cfg, "ungroup_grouped_query_attention", False)
        n_heads = n_key_value_heads(model) if grouped else model.cfg.n_heads
        if not (0 <= layer < model.cfg.n_layers and 0 <= head < n_heads):
            shared = "key-value " if n_heads < model.cfg.n_heads else ""
            raise InputError(
                f"The receiver {receiver!r} doesn't exist: this model has layers 0 to {model.cfg.n_layers - 1} "
                f"with {shared}heads 0 to {n_heads - 1}."
            )
        require_hook(model, f"attn.hook_{kind}")
        reads.setdefault(layer, {}).setdefault(kind, []).append(head)
    return {layer: reads[layer] for layer in sorted(reads)}, "logits" in listed


def last_reader(model: Any, reads: Reads, logits: bool) -> int:
    """The layer before which a sender must come: that of the last receiver, one past the last block for the logits."""
    return model.cfg.n_layers if logits else max(reads)


def require_before(layers: Sequence[int], reader: int) -> None:
    """`InputError` where a sender comes in or after the layer of the last receiver, since it can't be read there."""
    late = [layer for layer in layers if layer >= reader]
    if late:
        raise InputError(
            f"A sender in layer {late[0]} isn't read by any of the receivers, the last of which is in layer {reader}; "
            "senders come in an earlier layer than a receiver."
        )


def choose_senders(
    model: Any, senders: Literal["each"] | Sequence[Sender | Sequence[Sender]], *, before: int
) -> tuple[Sender | tuple[Sender, ...], ...]:
    """What is patched in turn: every head before layer `before`, or the entries given, each one sender or a set of them."""
    cfg = model.cfg
    if isinstance(senders, str):
        if senders != "each":
            raise InputError(f"senders={senders!r} isn't known; use 'each' or a list of senders.")
        senders = [(layer, head) for layer in range(before) for head in range(cfg.n_heads)]
        if not senders:
            raise InputError("The receivers are in layer 0, before which no head writes; give later receivers.")
    if not senders:
        raise InputError("senders=[] names none; give at least one, or 'each'.")
    entries = tuple(_freeze(entry) for entry in senders)
    for entry in entries:
        for sender in members(entry):
            layer, place = sender
            if place == "mlp":
                if not getattr(cfg, "attn_only", False) and 0 <= layer < cfg.n_layers:
                    continue
                what = "has no MLP" if getattr(cfg, "attn_only", False) else f"has layers 0 to {cfg.n_layers - 1}"
                raise InputError(f"The sender {sender!r} doesn't exist: this model {what}.")
            if not isinstance(place, int) or not (0 <= layer < cfg.n_layers and 0 <= place < cfg.n_heads):
                raise InputError(
                    f"The sender {sender!r} doesn't exist: this model has layers 0 to {cfg.n_layers - 1} "
                    f"with heads 0 to {cfg.n_heads - 1}; an MLP is (layer, 'mlp')."
                )
        if not entry or len(set(members(entry))) < len(members(entry)):
            raise InputError(f"The set of senders {list(members(entry))} is empty or names one twice.")
        require_before([layer for layer, _ in members(entry)], before)
    return entries


def _freeze(entry: Any) -> Sender | tuple[Sender, ...]:
    return tuple(entry) if entry and isinstance(entry[0], int) else tuple(tuple(sender) for sender in entry)


def members(entry: Sender | tuple[Sender, ...]) -> tuple[Sender, ...]:
    """The senders that an entry patches together."""
    alone = bool(entry) and isinstance(entry[0], int)
    return cast(tuple[Sender, ...], (entry,) if alone else entry)


def mark_senders(
    model: Any, entries: Sequence[Sender | tuple[Sender, ...]]
) -> tuple[Bool[Tensor, "sender layer head"], Bool[Tensor, "sender layer"]]:
    """Which heads and which MLPs each entry patches."""
    heads = torch.zeros(len(entries), model.cfg.n_layers, model.cfg.n_heads, dtype=torch.bool)
    mlps = torch.zeros(len(entries), model.cfg.n_layers, dtype=torch.bool)
    for row, entry in enumerate(entries):
        for layer, place in members(entry):
            if isinstance(place, int):
                heads[row, layer, place] = True
            else:
                mlps[row, layer] = True
    return heads, mlps
