"""Permutation anchors: the maps are random permutations of the keys, so that the order of two anchors matters.

    (k, a_i, a_j)  ->  pi_j(pi_i(k)),    K = 16 keys, M = 8 permutations, 45 of the 64 pairs trained

ArXiv 2605.04396 ("Critical windows of complexity control"): 720 data to train on, 304 out of distribution. Which pairs
are held out isn't published and is drawn by the seed here. A batch takes each datum equally likely, with replacement.

>>> task = permutation_anchors(seed=0)
>>> task.d_vocab, task.n_ctx, task.count_items("train"), task.count_items("held_out")
(24, 3, 720, 304)
"""

from typing import Any

import torch

from tasks.anchor.composite import Composite
from tasks.anchor.functions import AnchorFunction
from tasks.seeding import derive_generator
from tasks.task import TaskError


def permutation_anchors(
    *, n_keys: int = 16, n_anchors: int = 8, n_held_out: int = 19, seed: int = 0, **settings: Any
) -> Composite:
    """The composite task with `n_anchors` permutations of keys 0 to `n_keys` - 1; anchors are the tokens behind these.

    There are no noise tokens and no key split. `symmetric` says how often the model composes in the wrong order.
    """
    if n_keys < 2 or n_anchors < 1:
        raise TaskError(f"n_keys={n_keys} and n_anchors={n_anchors} are too few: give at least 2 keys and 1 anchor")
    if not 0 < n_held_out < n_anchors**2:
        raise TaskError(f"n_held_out={n_held_out} pairs of {n_anchors**2}: give from 1 to {n_anchors**2 - 1}")
    generator = derive_generator(seed, "permutation anchors")
    maps = {n_keys + i: torch.randperm(n_keys, generator=generator).tolist() for i in range(n_anchors)}
    function = AnchorFunction.from_maps(maps)
    pairs = function.pairs()
    held_out = [pairs[i] for i in torch.randperm(len(pairs), generator=generator)[:n_held_out].tolist()]
    fixed = {"first_key": 0, "last_key": n_keys - 1, "n_ctx": 3, "d_vocab": n_keys + n_anchors, "modulus": None}
    return Composite(function=function, held_out=held_out, title="permutation anchors", **{**fixed, **settings})
