"""Where a patch goes: the hook of each site, and how a row's piece of an activation is read and written.

>>> stream = torch.zeros(1, 3, 2)
>>> rows = Rows(cell=torch.tensor([0]), example=torch.tensor([0]), head=None, position=torch.tensor([[1, 2, -1]]))
>>> write_rows(stream, torch.ones(1, 3, 2), rows)
>>> stream[0, :, 0].tolist()
[0.0, 1.0, 1.0]
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

    cell: Int[Tensor, "row"]
    """Which cell of its layer."""
    example: Int[Tensor, "row"]
    """Whose tokens."""
    head: Int[Tensor, "row"] | None
    """Which head, or None where the site has no heads."""
    position: Int[Tensor, "row width"]
    """Which positions, ascending; -1 fills up rows that have fewer."""

    def __len__(self) -> int:
        return len(self.example)

    def take(self, rows: slice, device: torch.device) -> "Rows":
        """Some of them, on a device."""
        return Rows(
            cell=self.cell[rows].to(device),
            example=self.example[rows].to(device),
            head=None if self.head is None else self.head[rows].to(device),
            position=self.position[rows].to(device),
        )

    @property
    def starts(self) -> Int[Tensor, "row"]:
        """The first patched position of each."""
        return self.position[:, 0]

    def list_patched(self) -> tuple[Int[Tensor, "patched"], Int[Tensor, "patched"]]:
        """(row, place in its list of positions) of every patched position."""
        row, slot = (self.position >= 0).nonzero().unbind(1)
        return row, slot


def reaches_scored_only(site: str, layer: int, *, n_layers: int) -> bool:
    """Whether a patch at a position has no way to another one: after it no position reads from another."""
    return layer == n_layers - 1 and site not in _READ_BY_LATER_POSITIONS


def by_position(activation: Float[Tensor, "..."], site: str) -> Float[Tensor, "..."]:
    """A view as [batch pos ...]: a pattern is kept as [batch head_index query_pos key_pos]."""
    return activation.transpose(1, 2) if site == "pattern" else activation


def write_rows(target: Float[Tensor, "..."], source: Float[Tensor, "..."], rows: Rows, *, start: int = 0) -> None:
    """Put each row's piece of `source` [example pos ...] into `target` [row suffix ...], which begins at `start`."""
    row, slot = rows.list_patched()
    place = rows.position[row, slot]
    there: list[Tensor] = [row, place - start]
    here: list[Tensor] = [rows.example[row], place]
    if rows.head is not None:
        there.append(rows.head[row])
        here.append(rows.head[row])
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
