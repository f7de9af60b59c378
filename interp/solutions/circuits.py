"""Circuits between the roles of a composite task: cut one, or keep it alone.

A circuit names edges (query role <- key role) of two stages:

| circuit | first stage | second stage |
|---|---|---|
| `parallel` | anchor_1 <- key, anchor_2 <- key | last <- anchor_1, last <- anchor_2 |
| `serial` | anchor_2 <- key, anchor_2 <- anchor_1 | last <- anchor_2 |
| `symmetric` | last <- anchor_1, last <- anchor_2 | last <- key |

The first and the last are those of Zhang et al. 2024 (arXiv 2405.05409, figure 3): the anchors act on the key each in its
place, or are first brought together. A composition may also be done one anchor after the other, which is `serial`.
`hybrid` has the edges of all three. A position always keeps the edge to itself.

The second stage begins where the last token has to read other positions for the last time (see `stages`), which with two
layers is the last, and goes on to the end of the model. The first stage is every layer before it.

>>> CIRCUITS["symmetric"].last
(('last', 'key'),)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.knock_out import choose_edit
from interp.interventions.select import resolve_positions
from tasks.anchor.composite import Composite
from tasks.task import Batch

CutMode = Literal["mask", "zero"]
"""How edges are cut, as in `knock_out_attention`: before the softmax, so that the rest renormalises, or after it."""

RoleEdge = tuple[str, str]
"""(query role, key role)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Circuit:
    """Edges between roles in two stages."""

    first: tuple[RoleEdge, ...] = ()
    """In every layer of the first stage."""
    last: tuple[RoleEdge, ...] = ()
    """In every layer of the second stage."""

    def __or__(self, other: "Circuit") -> "Circuit":
        return Circuit(
            first=tuple(dict.fromkeys(self.first + other.first)), last=tuple(dict.fromkeys(self.last + other.last))
        )


_PARALLEL = Circuit(first=(("anchor_1", "key"), ("anchor_2", "key")), last=(("last", "anchor_1"), ("last", "anchor_2")))
_SERIAL = Circuit(first=(("anchor_2", "key"), ("anchor_2", "anchor_1")), last=(("last", "anchor_2"),))
_SYMMETRIC = Circuit(first=(("last", "anchor_1"), ("last", "anchor_2")), last=(("last", "key"),))
CIRCUITS: Mapping[str, Circuit] = {
    "parallel": _PARALLEL,
    "serial": _SERIAL,
    "symmetric": _SYMMETRIC,
    "hybrid": _PARALLEL | _SERIAL | _SYMMETRIC,
}


def find_edges(batch: Batch, edges: tuple[RoleEdge, ...]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """The edges between positions that edges between roles stand for; none leads forward or to itself."""
    n_rows, n_positions = batch.tokens.shape
    found = torch.zeros(n_rows, n_positions, n_positions, dtype=torch.bool)
    for query, key in edges:
        queries, keys = (
            resolve_positions(role, argument="edges", batch=batch)(n_rows, n_positions) for role in (query, key)
        )
        found |= queries[:, :, None] & keys[:, None, :]
    return found & torch.ones(n_positions, n_positions, dtype=torch.bool).tril(-1)


@contextmanager
def cut_edges(
    model: Any, edges: Mapping[int, Bool[Tensor, "batch query_pos key_pos"]], *, mode: CutMode
) -> Iterator[None]:
    """Cut `edges` of each layer, in all its heads; undone when the block ends. For the modes see `knock_out_attention`."""
    kind, replace = choose_edit(model, mode)

    def edit_layer(cut: Tensor) -> HookFunction:
        def edit(attention: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> Tensor:
            return replace(attention, cut[:, None].to(attention.device))

        return edit

    with add_hooks(model, [(f"blocks.{layer}.{kind}", edit_layer(cut)) for layer, cut in edges.items()]):
        yield


def spread_circuit(
    model: Any, batch: Batch, circuit: Circuit, *, second_stage: int | None = None
) -> dict[int, Bool[Tensor, "batch query_pos key_pos"]]:
    """{layer: the circuit's edges there}, without layers in which it has none.

    `second_stage` is the first layer of the second stage, None the last layer.
    """
    n_layers = model.cfg.n_layers
    begin = n_layers - 1 if second_stage is None else second_stage
    stages = {layer: circuit.first if layer < begin else circuit.last for layer in range(n_layers)}
    return {layer: find_edges(batch, edges) for layer, edges in stages.items() if edges}


def spread_complement(
    model: Any, batch: Batch, circuit: Circuit, *, second_stage: int | None = None
) -> dict[int, Bool[Tensor, "batch query_pos key_pos"]]:
    """{layer: every edge that is not the circuit's}: cutting these keeps the circuit alone."""
    kept = spread_circuit(model, batch, circuit, second_stage=second_stage)
    n_positions = batch.tokens.shape[1]
    others = torch.ones(len(batch.tokens), n_positions, n_positions, dtype=torch.bool).tril(-1)
    return {layer: others & ~kept[layer] if layer in kept else others for layer in range(model.cfg.n_layers)}


def list_layers(circuit: Circuit, *, n_layers: int, second_stage: int) -> range:
    """The layers in which the circuit has edges."""
    return range(0 if circuit.first else second_stage, n_layers if circuit.last else second_stage)


def leave_last_free(task: Composite, *, split: str, n: int, seed: int) -> Batch:
    """Up to `n` sequences of a split whose last token is noise: elsewhere one position would play two roles.

    They are chosen from the task's own, so that sequences of a fixed training set stay those that were trained on.
    """
    batch = task.sample(2 * n, split=split, seed=seed)
    anchors = [position for role, position in batch.roles.items() if role.startswith("anchor")]
    free = (torch.cat([*anchors, batch.roles["key"]], dim=1) < batch.tokens.shape[1] - 1).all(dim=1)
    if not free.any():
        raise InputError(
            f"In every sequence of {task.name!r} the last token is the key or an anchor, so that one position has two "
            "roles; give key_positions that leave a noise token behind the anchors."
        )
    return batch.take(free.nonzero()[:n, 0])


def check_circuit_task(model: Any, task: Composite, *, mode: str) -> None:
    """Raise `InputError` where the circuits have no meaning."""
    if mode not in get_args(CutMode):
        raise InputError(f"mode={mode!r} isn't known here; use one of {', '.join(get_args(CutMode))}.")
    if model.cfg.n_layers < 2:
        raise InputError("A circuit of two stages needs at least two layers, but this model has one.")
    if task.group_size != 2:
        raise InputError(
            f"The circuits are those of two anchors, but {task.name!r} has {task.group_size} in a sequence."
        )
    if task.key_offset >= 0:
        raise InputError(
            f"In {task.name!r} the key stands behind its anchors (key_offset={task.key_offset}), where no anchor can read "
            "it; the circuits are those of a key before its anchors, so give a negative key_offset."
        )
    if len(task.trained_pairs) < 2:
        raise InputError(f"{task.name!r} trains a single pair, so there are no other anchors to compare with.")


def check_fits(model: Any, task: Composite) -> None:
    """Raise `InputError` where the model can't read the task's sequences."""
    if model.cfg.d_vocab < task.d_vocab or model.cfg.n_ctx < task.n_ctx:
        raise InputError(
            f"{task.name!r} has {task.d_vocab} tokens and sequences of {task.n_ctx}, but the model has d_vocab="
            f"{model.cfg.d_vocab} and n_ctx={model.cfg.n_ctx}; give the model that was trained on this task."
        )
