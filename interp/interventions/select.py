"""Which heads and which positions an intervention touches.

Heads are (layer, query head) pairs, or the same query heads in several layers. Positions count from 0 and are shared by
the batch, or differ from row to row: an index tensor, a mask (`find_tokens` gives that of token ids), or names that a
task's batch gives to positions, since in many tasks the interesting tokens move.

>>> import torch
>>> mark = resolve_positions(torch.tensor([[0], [2]]), argument="keys")
>>> mark(2, 3).int().tolist()
[[1, 0, 0], [0, 0, 1]]
>>> resolve_positions([1, 2], argument="keys")(2, 3).int().tolist()
[[0, 1, 1], [0, 1, 1]]
>>> find_tokens(torch.tensor([[7, 5, 7], [5, 9, 9]]), [5]).int().tolist()
[[0, 1, 0], [1, 0, 0]]
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InputError
from tasks.task import Batch

Head = tuple[int, int]
"""(layer, query head)."""

Positions = str | Sequence[str] | Sequence[int] | Int[Tensor, "_batch _width"] | Bool[Tensor, "_batch _pos"]
"""Role names, indices shared by the batch, indices of each row, or a mask."""

Marker = Callable[[int, int], Bool[Tensor, "batch pos"]]
"""Called with the size of the running batch and its number of positions; returns what is chosen there, on the CPU."""


def group_heads(model: Any, heads: Sequence[Head]) -> dict[int, list[int]]:
    """{layer: its heads}, in ascending order; raises `InputError` for a head that the model doesn't have."""
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    by_layer: dict[int, set[int]] = defaultdict(set)
    for layer, head in heads:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise InputError(
                f"Head {layer}.{head} doesn't exist: this model has layers 0 to {n_layers - 1} "
                f"with heads 0 to {n_heads - 1}."
            )
        by_layer[layer].add(head)
    return {layer: sorted(by_layer[layer]) for layer in sorted(by_layer)}


def choose_layers(model: Any, layers: Sequence[int] | None) -> list[int]:
    """The layers in ascending order, all of them for None."""
    n_layers = model.cfg.n_layers
    chosen = sorted(set(range(n_layers) if layers is None else layers))
    if not chosen:
        raise InputError("layers=[] chooses no layer; leave it out to choose every layer.")
    for layer in chosen:
        if not 0 <= layer < n_layers:
            raise InputError(f"Layer {layer} doesn't exist: this model has layers 0 to {n_layers - 1}.")
    return chosen


def choose_heads(
    model: Any, layers: Sequence[int] | None, heads: Sequence[int] | Sequence[Head] | None
) -> dict[int, list[int]]:
    """{layer: its heads}: pairs as they are, numbers in each of `layers`, everything for None."""
    if heads is not None and len(heads) == 0:
        raise InputError("heads=[] chooses no head; leave it out to choose every head.")
    pairs = [head for head in heads or () if not isinstance(head, int)]
    numbers = [head for head in heads or () if isinstance(head, int)]
    if pairs and (numbers or layers is not None):
        raise InputError(
            f"heads={list(heads or ())} names layers itself; give (layer, head) pairs alone, "
            "or numbers of heads together with `layers=`."
        )
    if pairs:
        return group_heads(model, pairs)
    numbers = list(range(model.cfg.n_heads)) if heads is None else numbers
    return group_heads(model, [(layer, head) for layer in choose_layers(model, layers) for head in numbers])


def find_tokens(tokens: Int[Tensor, "batch pos"], ids: int | Sequence[int]) -> Bool[Tensor, "batch pos"]:
    """Where these token ids stand: positions by token id, as an argument or as a role of a batch.

    Raises `InputError` for an id that none of the sequences has.
    """
    wanted = [ids] if isinstance(ids, int) else list(ids)
    absent = [token for token in wanted if not (tokens == token).any()]
    if absent or not wanted:
        raise InputError(
            f"The token ids {absent or wanted} stand nowhere in these {len(tokens)} sequences; give ids that occur, such as "
            f"{tokens.flatten()[:5].tolist()}."
        )
    return torch.isin(tokens, torch.tensor(wanted, device=tokens.device))


def resolve_positions(positions: Positions, *, argument: str, batch: Batch | None = None) -> Marker:
    """A function that marks these positions in the batch that runs; what can be wrong by itself is refused now.

    The function raises `InputError` where the running batch has another number of rows or too few positions.
    """
    parts = [_as_tensor(part, argument) for part in _look_up(positions, argument, batch)]

    def mark(n_rows: int, n_positions: int) -> Bool[Tensor, "batch pos"]:
        marked = torch.zeros(n_rows, n_positions, dtype=torch.bool)
        for part in parts:
            if part.dim() == 2 and len(part) != n_rows:
                raise InputError(
                    f"{argument} are given for {len(part)} sequences, but the batch that runs has {n_rows}; "
                    "give a list of positions that all sequences share, or run the batch that they belong to."
                )
            if part.dtype == torch.bool:
                if part.shape[1] != n_positions:
                    raise InputError(
                        f"The mask for {argument} has {part.shape[1]} positions, but the input has {n_positions}."
                    )
                marked |= part
            else:
                if part.numel() and part.max() >= n_positions:
                    raise InputError(
                        f"Position {part.max().item()} in {argument} doesn't exist: "
                        f"the input has positions 0 to {n_positions - 1}."
                    )
                marked.scatter_(1, part.expand(n_rows, -1), True)
        return marked

    return mark


def _look_up(positions: Positions, argument: str, batch: Batch | None) -> list[Any]:
    """Names replaced by what the batch gives for them."""
    names = [positions] if isinstance(positions, str) else positions
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        return [positions]
    if batch is None:
        raise InputError(f"{argument}={positions!r} names roles of a batch; give that batch as `batch=`.")
    for name in names:
        if name not in batch.roles:
            known = ", ".join(sorted(batch.roles)) or "none"
            raise InputError(f"The batch has no role {name!r}; its roles: {known}.")
    return [batch.roles[str(name)] for name in names]


def _as_tensor(part: Any, argument: str) -> Tensor:
    """Indices [width] that the batch shares, indices [batch, width], or a mask [batch, pos]; on the CPU."""
    if isinstance(part, Tensor):
        if part.dim() != 2 or part.dtype not in (torch.bool, torch.int32, torch.int64):
            raise InputError(
                f"{argument} is a tensor of shape {list(part.shape)} and {part.dtype}; give a list of positions that "
                "the batch shares, integers [batch, width], or a mask [batch, pos]."
            )
        tensor = part.cpu() if part.dtype == torch.bool else part.long().cpu()
    elif not isinstance(part, Sequence) or not all(isinstance(p, int) and not isinstance(p, bool) for p in part):
        raise InputError(
            f"{argument}={part!r} are no positions; give integers, a tensor [batch, width], a mask [batch, pos] "
            "or the names of roles."
        )
    else:
        tensor = torch.tensor(list(part), dtype=torch.long)
    if tensor.dtype == torch.long and tensor.numel() and tensor.min() < 0:
        raise InputError(f"Position {tensor.min().item()} in {argument} doesn't exist: positions count from 0.")
    return tensor
