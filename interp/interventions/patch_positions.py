"""Which positions a sweep patches, the same in every example or each example's own, and where examples are scored.

>>> places = find_places([0, -1], batch=None, scored=torch.tensor([2, 2]), n_positions=3, causal=True)
>>> places.at.tolist(), places.shared  # [example, entry, width]
([[[0], [2]], [[0], [2]]], (0, 2))
>>> own = find_places(torch.tensor([[1], [2]]), batch=None, scored=torch.tensor([2, 2]), n_positions=3, causal=True)
>>> own.at.tolist(), own.shared, own.labels
([[[1]], [[2]]], None, ('column 0',))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.select import resolve_positions
from tasks.task import Batch

PatchPositions = Literal["each", "all"] | Sequence[int] | Sequence[str] | Int[Tensor, "example width"]
"""Every position by itself, all at once, positions shared by the examples, roles, or positions for each example."""

Scored = int | str | Sequence[int] | Int[Tensor, "example"]
"""One position for all examples, a role with one position in each, or a position for each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """The entries of the position axis; positions of one entry are patched together."""

    at: Int[Tensor, "example entry width"]
    """Positions of each entry; -1 fills up entries that have fewer."""
    shared: tuple[int, ...] | None = None
    """The position of each entry, where it is the same in every example."""
    labels: tuple[str, ...] | None = None
    """What each entry is called, where every example has its own position."""


def find_places(
    positions: PatchPositions, *, batch: Batch | None, scored: Int[Tensor, "example"], n_positions: int, causal: bool
) -> Places:
    """The entries that `positions` asks for; one `InputError` for each way in which they can't be patched."""
    n_examples = len(scored)
    if isinstance(positions, str):
        if positions == "all":
            return Places(at=torch.arange(n_positions).expand(n_examples, 1, -1))
        if positions != "each":
            raise InputError(
                f"positions={positions!r} isn't known; use 'each', 'all' or a list of positions or of roles."
            )
        positions = range(n_positions)
    if isinstance(positions, Tensor):
        if positions.dim() != 2 or positions.dtype not in (torch.int32, torch.int64) or not positions.numel():
            raise InputError(
                f"positions is a tensor of shape {list(positions.shape)} and {positions.dtype}; give integers "
                "[example, width], a position of every example in each column."
            )
        resolve_positions(positions, argument="positions")(n_examples, n_positions)  # refuses what doesn't exist
        names = [f"column {column}" for column in range(positions.shape[1])]
        return _own_places(positions.long().cpu()[..., None], names, scored, causal=causal)
    if positions and all(isinstance(position, str) for position in positions):
        names = [str(position) for position in positions]
        if len(set(names)) < len(names):
            raise InputError(f"positions={names} names a role twice; give each role once.")
        _require_size(batch, n_examples)
        marked = [_mark_role(name, "positions", batch, n_examples, n_positions) for name in names]
        return _own_places(_list_marked(torch.stack(marked, dim=1)), names, scored, causal=causal)
    shared = _count_from_front(positions, n_positions)
    return Places(at=torch.tensor(shared).view(1, -1, 1).expand(n_examples, -1, -1), shared=shared)


def find_scored(scored: Scored, *, batch: Batch | None, n_examples: int, n_positions: int) -> Int[Tensor, "example"]:
    """The scored position of each example, counted from the front."""
    if isinstance(scored, str):
        _require_size(batch, n_examples)
        marked = _mark_role(scored, "scored", batch, n_examples, n_positions)
        odd = (marked.sum(dim=1) != 1).nonzero()[:, 0]
        if len(odd):
            raise InputError(
                f"The role {scored!r} has {int(marked[odd[0]].sum())} positions in example {int(odd[0])}; "
                "scored needs a role with exactly one position in every example."
            )
        return marked.int().argmax(dim=1)
    each = torch.as_tensor(scored)
    if each.dim() > 1 or (each.dim() == 1 and len(each) != n_examples):
        raise InputError(
            f"scored has shape {tuple(each.shape)} for {n_examples} examples; "
            "give one position, or one for each example."
        )
    return torch.tensor(_count_from_front(each.reshape(-1).tolist(), n_positions)).expand(n_examples)


def _own_places(
    at: Int[Tensor, "example entry width"], names: list[str], scored: Int[Tensor, "example"], *, causal: bool
) -> Places:
    """Entries that differ from example to example, unless one of them can do nothing."""
    first = torch.where(at >= 0, at, at.max() + 1).amin(dim=-1)  # [example entry]
    late = ((at >= 0).any(dim=-1) & (first > scored[:, None])).nonzero()
    if causal and len(late):
        example, entry = late[0].tolist()
        raise InputError(
            f"{names[entry]!r} is at position {int(first[example, entry])} in example {example}, which is scored at "
            f"position {int(scored[example])}: a patch after the scored position does nothing; give an earlier one."
        )
    return Places(at=at, labels=tuple(names))


def _mark_role(
    name: str, argument: str, batch: Batch | None, n_examples: int, n_positions: int
) -> Bool[Tensor, "example pos"]:
    marked = resolve_positions(name, argument=argument, batch=batch)(n_examples, n_positions)
    if not marked.any():
        raise InputError(
            f"The role {name!r} has no position in any example, so there is nothing to patch; leave it out."
        )
    return marked


def _require_size(batch: Batch | None, n_examples: int) -> None:
    if batch is not None and len(batch.tokens) != n_examples:
        raise InputError(
            f"batch= has {len(batch.tokens)} examples, but {n_examples} are patched; "
            "give the batch that the clean tokens come from."
        )


def _list_marked(marked: Bool[Tensor, "example entry pos"]) -> Int[Tensor, "example entry width"]:
    """The marked positions in ascending order, filled up with -1."""
    n_positions = marked.shape[-1]
    at = torch.where(marked, torch.arange(n_positions), n_positions).sort(dim=-1).values
    at = at[..., : int(marked.sum(dim=-1).max())]
    return torch.where(at < n_positions, at, -1)


def _count_from_front(given: Any, n: int) -> tuple[int, ...]:
    wrong = [i for i in given if isinstance(i, str) or not -n <= i < n]
    if wrong and isinstance(wrong[0], str):
        raise InputError(f"positions={list(given)} mixes roles with positions; give either.")
    if wrong:
        raise InputError(f"The position {wrong[0]} doesn't exist: the examples have positions 0 to {n - 1}.")
    if not len(given):
        raise InputError("positions=[] names none; give at least one, or 'each' or 'all'.")
    return tuple(int(i) % n for i in given)
