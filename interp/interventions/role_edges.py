"""Attention edges between roles: which positions play which role, and which edges lead from one role to another.

An edge (query <- key) belongs to the pair (role of the query, role of the key), so each edge belongs to one pair. Edges
that can't matter are left out: a query reaches a scored position only if it stands at or before the row's last one, and
in the last layer only if it is one.

>>> tokens = torch.tensor([[7, 8, 9]])
>>> scored = torch.tensor([[False, False, True]])
>>> roles = {"key": torch.tensor([[0]]), "last": torch.tensor([[2]])}
>>> batch = Batch(tokens=tokens, targets=tokens, trained=scored, scored=scored, roles=roles)
>>> names, where = assign_roles(batch, None)
>>> names, where.int().tolist()
(('rest', 'key', 'last'), [[[0, 1, 0], [1, 0, 0], [0, 0, 1]]])
>>> find_live_edges(scored, last_layer=True).int().tolist()
[[[0, 0, 0], [0, 0, 0], [1, 1, 1]]]
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.errors import InputError
from interp.interventions.select import resolve_positions
from tasks.task import Batch

REST = "rest"
"""The role of the positions that no chosen role has."""


def assign_roles(batch: Batch, roles: Sequence[str] | None) -> tuple[tuple[str, ...], Bool[Tensor, "example role pos"]]:
    """The names and the positions of the roles, up to the last scored position of the batch; `rest` stands first.

    For None all roles of the batch, left to right by their mean position. Raises `InputError` for a role that the batch
    doesn't have, one without a position that can matter, and two that share a position.
    """
    n_rows, n_positions = batch.tokens.shape
    names = sorted(batch.roles) if roles is None else [roles] if isinstance(roles, str) else list(roles)
    if not names:
        raise InputError(
            "There is no role to look at: give a batch that has roles, and in `roles=` at least one of them."
        )
    length = int(batch.scored.any(dim=0).nonzero().max()) + 1
    where = {}
    for name in dict.fromkeys(names):
        where[name] = resolve_positions([name], argument="roles", batch=batch)(n_rows, n_positions)[:, :length]
        if not where[name].any():
            raise InputError(
                f"The role {name!r} has no position at or before the last scored one, so nothing can come from it; "
                "leave it out by naming the others in `roles=`."
            )
    for one, other in combinations(where, 2):
        both = (where[one] & where[other]).nonzero()
        if len(both):
            row, position = both[0].tolist()
            raise InputError(
                f"The roles {one!r} and {other!r} share position {position} of sequence {row}, but an edge belongs to "
                "one pair of roles; leave one of them out by naming the others in `roles=`, or leave out such sequences."
            )
    if roles is None:
        names = sorted(where, key=lambda name: where[name].nonzero()[:, 1].double().mean().item())
    masks = torch.stack([where[name] for name in dict.fromkeys(names)], dim=1)
    rest = ~masks.any(dim=1, keepdim=True)
    if not rest.any():
        return tuple(dict.fromkeys(names)), masks
    if REST in where:
        raise InputError(
            f"Some positions have no role and would be called {REST!r}, but the batch has a role of that name; rename it."
        )
    return (REST, *dict.fromkeys(names)), torch.cat([rest, masks], dim=1)


def find_live_edges(
    scored: Bool[Tensor, "example pos"], *, last_layer: bool
) -> Bool[Tensor, "example query_pos key_pos"]:
    """Edges (key at or before query) through which something can come to a scored position."""
    until_scored = scored.flip(1).cummax(dim=1).values.flip(1)
    queries = scored if last_layer else until_scored
    causal = torch.ones(scored.shape[1], scored.shape[1], dtype=torch.bool, device=scored.device).tril()
    return queries[:, :, None] & causal


def keep_own_edge(
    cut: Bool[Tensor, "*sets query_pos key_pos"], reach: Bool[Tensor, "*#sets query_pos key_pos"]
) -> Bool[Tensor, "*sets query_pos key_pos"]:
    """`cut` without the edges to itself of a query that would be left without a key within reach."""
    bare = ~(reach & ~cut).any(dim=-1)
    return cut & ~torch.diag_embed(bare)
