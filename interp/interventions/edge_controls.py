"""Random sets of attention edges that carry a given attention mass: the control for cutting chosen edges.

Edges differ in what they carry, so a control of as many edges is no control. From a pool of edges e with masses m_e
(attention summed over the heads that are cut) in random order, edges are taken while the mass taken so far is below the
target M; the edge that would pass it is taken with probability (what is missing) / m_e. The expected mass is then M
exactly, wherever the pool holds that much; otherwise the whole pool is taken.

>>> mass = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
>>> pool = torch.tensor([[[[True, False], [True, True]]]])
>>> random = torch.rand(1, 1, 500, 5, generator=torch.Generator().manual_seed(0))
>>> sets = draw_edges(mass, pool, torch.tensor([[0.5]]), random)
>>> round((mass * sets).sum((-1, -2)).mean().item(), 1)
0.5
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def draw_edges(
    mass: Float[Tensor, "example query_pos key_pos"],
    pool: Bool[Tensor, "example pair query_pos key_pos"],
    target: Float[Tensor, "example pair"],
    random: Float[Tensor, "example pair draw edges_and_one"],
    *,
    reach: Bool[Tensor, "example query_pos key_pos"] | None = None,
) -> Bool[Tensor, "example pair draw query_pos key_pos"]:
    """For each example, pair and draw a subset of `pool` whose expected mass is `target`.

    `random` has uniform numbers, one for the order of each edge and one for the last edge taken. With `reach` (the keys
    that each query can see) no query is left without a key: the one that comes last in its order stays.
    """
    n_positions = mass.shape[-1]
    order, coin = random[..., :-1].unflatten(-1, (n_positions, n_positions)), random[..., -1:]
    eligible = pool[:, :, None]
    if reach is not None:
        seen = reach[:, None, None]
        latest = order.where(seen, -1).argmax(dim=-1, keepdim=True) == torch.arange(n_positions, device=mass.device)
        bare = ~(seen & ~eligible).any(dim=-1, keepdim=True)
        eligible = eligible & ~(bare & latest)
    eligible = eligible.expand(order.shape).flatten(-2)
    edges = eligible.flatten(0, -2).any(dim=0).nonzero()[:, 0]  # the others need no place in the order
    eligible = eligible[..., edges]
    ranking = order.flatten(-2)[..., edges].where(eligible, 2).argsort(dim=-1)
    ranked_mass = (mass.flatten(-2)[:, None, None, edges] * eligible).double().gather(-1, ranking)
    before = ranked_mass.cumsum(dim=-1) - ranked_mass
    # One rule for whole edges and the last one: below the target by more than the coin's share of the edge.
    taken = before + coin * ranked_mass < target[..., None, None]
    chosen = torch.zeros_like(order, dtype=torch.bool).flatten(-2)
    chosen[..., edges] = torch.zeros_like(taken).scatter(-1, ranking, taken) & eligible
    return chosen.unflatten(-1, (n_positions, n_positions))
