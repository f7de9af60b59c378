"""How much of a task goes with a model's strongest heads? They are removed in order, and random heads of the same layers.

For each count c the first c heads of a ranking are taken out (z = 0, as published: Song, Xu & Zhong, arXiv 2408.09503) and
all items are scored. The control is as many other heads of the same layers, drawn anew `n_draws` times. Each draw is scored
on a share of the items, the shares in turn, so that every item is scored under equally many draws, or one more: for
a fifth of the cost the mean over draws is known on all items.

>>> import interp
>>> from tasks.prompts.rules import ChoiceItem
>>> model = interp.build(n_layers=2, d_model=8, n_heads=4, d_vocab=5, n_ctx=8, seed=0)
>>> items = [ChoiceItem(tokens=(i, 2), choices=((3,), (4,)), answer=0, text="", choice_texts=("", "")) for i in (0, 1)]
>>> result = remove_ranked_heads(model, items, [(1, 0), (1, 2)], counts=[1, 2], n_draws=3)
>>> [(step.n_heads, step.n_draws) for step in result.steps]  # beside two of four heads there is one other pair
[(1, 3), (2, 1)]
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.errors import InputError
from interp.heads.control import draw_control_heads
from interp.interventions.select import Head
from interp.prompts.choices import ChoiceScores, score_choices
from interp.prompts.removal_result import RankedRemoval, RemovalStep
from interp.prompts.runs import ChoiceRuns
from tasks.prompts.rules import ChoiceItem
from tasks.seeding import derive_seed


def remove_ranked_heads(
    model: Any,
    items: Sequence[ChoiceItem],
    heads: Sequence[Head],
    *,
    counts: Sequence[int],
    n_draws: int = 20,
    n_shares: int = 5,
    whole: ChoiceScores | None = None,
    seed: int = 0,
) -> RankedRemoval:
    """Score `items` without the first `counts` of `heads`, and without as many random heads of the same layers.

    `heads` go from the strongest on, such as `scores.top("induction", 30)`. Each draw is scored on one of `n_shares` equal
    shares of the items; of fewer, where that doesn't divide them or exceeds the draws. Random heads are never among those
    removed at that count; where a layer has too few others they come from the nearest that has, which `notes` says.
    `whole` are the scores of the same items with all heads, where they are known.

    Raises `InputError` for counts that aren't ascending numbers of the given heads, for a head that doesn't exist, where
    the model has too few others, and for items that `score_choices` refuses.
    """
    if not counts or list(counts) != sorted(set(counts)) or not 1 <= counts[0] <= counts[-1] <= len(heads):
        raise InputError(
            f"counts={list(counts)} was given with {len(heads)} heads; give ascending numbers from 1 to {len(heads)}."
        )
    if n_draws < 1 or n_shares < 1:
        raise InputError(f"n_draws={n_draws} and n_shares={n_shares} were given; both are at least 1.")
    chosen = [tuple(heads[:count]) for count in counts]
    controls = [
        draw_control_heads(model, some, n_draws=n_draws, seed=derive_seed(seed, "removal", len(some)))
        for some in chosen
    ]
    lowest = min(layer for drawn, _ in controls for some in (*chosen, *drawn) for layer, _ in some)
    whole = whole or score_choices(model, items, seed=seed)
    everything = ChoiceRuns(model, items, lowest=lowest)
    n_parts = _divide(len(items), at_most=min(n_shares, *(len(drawn) for drawn, _ in controls)))
    parts = np.arange(len(items)).reshape(n_parts, -1)  # [part share]
    shares = [ChoiceRuns(model, [items[row] for row in part], lowest=lowest) for part in parts]
    steps = []
    for some, (drawn, notes) in zip(chosen, controls, strict=True):
        without = everything.run(some)
        found = [shares[draw % n_parts].run(random) for draw, random in enumerate(drawn)]
        steps.append(
            RemovalStep(
                whole=whole,
                heads=some,
                log_probability=without[0],
                likeliest=without[1],
                control_heads=tuple(drawn),
                control_items=parts[np.arange(len(drawn)) % n_parts],
                control_log_probability=np.stack([total for total, _ in found]),
                control_likeliest=np.stack([likely for _, likely in found]),
                notes=_count_alike(notes),
            )
        )
    return RankedRemoval(whole=whole, steps=tuple(steps), seed=seed)


def _count_alike(notes: Sequence[str]) -> tuple[str, ...]:
    """Each note once, with how often it was made."""
    return tuple(note if count == 1 else f"{note}, {count} times" for note, count in Counter(notes).items())


def _divide(n: int, *, at_most: int) -> int:
    """The largest number of equal parts."""
    return next(parts for parts in range(at_most, 0, -1) if n % parts == 0)
