"""Where a patch goes: the hook of each site, and how a row's piece of an activation is read and written.

>>> stream = torch.zeros(1, 3, 2)
>>> rows = Rows(example=torch.tensor([0]), head=None, position=torch.tensor([1]))
>>> write_rows(stream, torch.ones(1, 3, 2), rows)
>>> stream[0, :, 0].tolist()
[0.0, 1.0, 0.0]
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import HookFunction, add_hooks

HOOKS: dict[str, str] = {
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "z": "attn.hook_z",
    "result": "attn.hook_z",  # a head's output is z W_O, so patching the one is patching the other
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "pattern": "attn.hook_pattern",
}
STREAM_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
_READ_BY_LATER_POSITIONS = ("resid_pre", "k", "v")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Patches to run side by side: one row of the batch each."""

    example: Int[Tensor, "row"]
    """Whose tokens."""
    head: Int[Tensor, "row"] | None
    """Which head, or None where the site has no heads."""
    position: Int[Tensor, "row"] | None
    """Which position, or None for all of them at once."""


def reaches_scored_only(site: str, layer: int, *, n_layers: int) -> bool:
    """Whether a patch at a position has no way to another one: after it no position reads from another."""
    return layer == n_layers - 1 and site not in _READ_BY_LATER_POSITIONS


def by_position(activation: Float[Tensor, "..."], site: str) -> Float[Tensor, "..."]:
    """A view as [batch pos ...]: a pattern is kept as [batch head_index query_pos key_pos]."""
    return activation.transpose(1, 2) if site == "pattern" else activation


def write_rows(target: Float[Tensor, "..."], source: Float[Tensor, "..."], rows: Rows, *, start: int = 0) -> None:
    """Put each row's piece of `source` [example pos ...] into `target` [row suffix ...], which begins at `start`."""
    row = torch.arange(len(target), device=target.device)
    there: list[Any] = [row, slice(None) if rows.position is None else rows.position - start]
    here: list[Any] = [rows.example, slice(None) if rows.position is None else rows.position]
    if rows.head is not None:
        there.append(rows.head)
        here.append(rows.head)
    target[tuple(there)] = source[tuple(here)]


def record(model: Any, tokens: Int[Tensor, "example pos"], names: dict[int, str]) -> dict[int, Tensor]:
    """The activation at each named hook, by its key; nothing is unembedded on a HookedTransformer."""
    kept: dict[int, Tensor] = {}
    with add_hooks(model, [(name, keep(kept, key)) for key, name in names.items()]):
        model(tokens, return_type=None)
    return kept


def keep(kept: dict[int, Tensor], key: int) -> HookFunction:
    """A hook that stores the activation under `key`."""

    def store(activation: Tensor, hook: HookPoint) -> None:
        kept[key] = activation.detach().clone()

    return store
