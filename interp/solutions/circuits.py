"""Circuits between the roles of a composite task: cut one, or keep it alone.

A circuit names edges (query role <- key role) of two stages, the last layer and all layers before it:

| circuit | before the last layer | in the last layer |
|---|---|---|
| `parallel` | anchor_1 <- key, anchor_2 <- key | last <- anchor_1, last <- anchor_2 |
| `serial` | anchor_2 <- key, anchor_2 <- anchor_1 | last <- anchor_2 |
| `symmetric` | last <- anchor_1, last <- anchor_2 | last <- key |

The first and the last are those of Zhang et al. 2024 (arXiv 2405.05409, figure 3): the anchors act on the key each in its
place, or are first brought together. A composition may also be done one anchor after the other, which is `serial`.
`hybrid` has the edges of all three. A position always keeps the edge to itself.

>>> CIRCUITS["symmetric"].last
(('last', 'key'),)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.knock_out import KnockOutMode, choose_edit
from interp.interventions.select import resolve_positions
from tasks.task import Batch

RoleEdge = tuple[str, str]
"""(query role, key role)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Circuit:
    """Edges between roles in two stages."""

    first: tuple[RoleEdge, ...] = ()
    """In every layer before the last."""
    last: tuple[RoleEdge, ...] = ()
    """In the last layer."""

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
    model: Any, edges: Mapping[int, Bool[Tensor, "batch query_pos key_pos"]], *, mode: KnockOutMode
) -> Iterator[None]:
    """Cut `edges` of each layer, in all its heads; undone when the block ends. For the modes see `knock_out_attention`."""
    kind, replace = choose_edit(model, mode)

    def edit_layer(cut: Tensor) -> HookFunction:
        def edit(attention: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> Tensor:
            return replace(attention, cut[:, None].to(attention.device))

        return edit

    with add_hooks(model, [(f"blocks.{layer}.{kind}", edit_layer(cut)) for layer, cut in edges.items()]):
        yield


def spread_circuit(model: Any, batch: Batch, circuit: Circuit) -> dict[int, Bool[Tensor, "batch query_pos key_pos"]]:
    """{layer: the circuit's edges there}, without layers in which it has none."""
    last = model.cfg.n_layers - 1
    stages = dict.fromkeys(range(last), circuit.first) | {last: circuit.last}
    return {layer: find_edges(batch, edges) for layer, edges in stages.items() if edges}


def spread_complement(model: Any, batch: Batch, circuit: Circuit) -> dict[int, Bool[Tensor, "batch query_pos key_pos"]]:
    """{layer: every edge that is not the circuit's}: cutting these keeps the circuit alone."""
    kept = spread_circuit(model, batch, circuit)
    n_positions = batch.tokens.shape[1]
    others = torch.ones(len(batch.tokens), n_positions, n_positions, dtype=torch.bool).tril(-1)
    return {layer: others & ~kept[layer] if layer in kept else others for layer in range(model.cfg.n_layers)}
