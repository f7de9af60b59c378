"""Random heads to compare chosen heads with: of the same layers, never chosen ones, every set a different one.

A control drawn over all layers is dominated by single heads of layer 0, whose removal breaks any model; so each draw
takes from every layer as many other heads as were chosen there. A layer without enough others borrows from the nearest
layer that has some, and the note says so.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from interp.errors import InputError
from interp.interventions.ablate import Head, group_heads
from tasks.seeding import derive_generator


def draw_control_heads(
    model: Any, chosen: Sequence[Head], *, n_draws: int, seed: int
) -> tuple[list[tuple[Head, ...]], tuple[str, ...]]:
    """Up to `n_draws` distinct sets of other heads, matched to `chosen` by layer, and notes on what was borrowed.

    Raises `InputError` where the model has fewer other heads than were chosen.
    """
    wanted = {layer: len(heads) for layer, heads in group_heads(model, chosen).items()}
    spare = {
        layer: [head for head in range(model.cfg.n_heads) if (layer, head) not in set(chosen)]
        for layer in range(model.cfg.n_layers)
    }
    total = sum(len(heads) for heads in spare.values())
    if total < sum(wanted.values()):
        raise InputError(
            f"{sum(wanted.values())} of the model's {model.cfg.n_layers * model.cfg.n_heads} heads were chosen, which leaves "
            f"{total} to compare with; choose fewer heads."
        )
    taken, notes = _share_out(wanted, spare)
    n_sets = math.prod(math.comb(len(spare[layer]), count) for layer, count in taken.items())
    if n_sets < n_draws:
        notes.append(
            "only 1 set of other heads exists" if n_sets == 1 else f"only {n_sets} different sets of other heads exist"
        )
    generator = derive_generator(seed, "control heads")
    sets: dict[tuple[Head, ...], None] = {}
    while len(sets) < min(n_draws, n_sets):
        sets[_draw(taken, spare, generator)] = None
    return list(sets), tuple(notes)


def _share_out(wanted: dict[int, int], spare: dict[int, list[int]]) -> tuple[Counter[int], list[str]]:
    """How many heads each layer gives: its own share first, then what its neighbours lack."""
    taken = Counter({layer: min(count, len(spare[layer])) for layer, count in wanted.items()})
    notes = []
    for layer, count in wanted.items():
        for _ in range(count - min(count, len(spare[layer]))):
            nearest = min(
                (other for other in spare if taken[other] < len(spare[other])), key=lambda other: abs(other - layer)
            )
            taken[nearest] += 1
            notes.append(f"layer {layer} has too few other heads, so its control borrows a head of layer {nearest}")
    return taken, notes


def _draw(taken: Counter[int], spare: dict[int, list[int]], generator: torch.Generator) -> tuple[Head, ...]:
    drawn = []
    for layer in sorted(taken):
        order = torch.randperm(len(spare[layer]), generator=generator)[: taken[layer]]
        drawn += [(layer, spare[layer][i]) for i in order.tolist()]
    return tuple(sorted(drawn))
