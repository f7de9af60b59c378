"""What the measures of representations share: checked states, labels as columns, shuffles, bootstrap counts.

>>> import torch
>>> one_hot(torch.tensor([7, 3, 7]), 3).tolist()
[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from tasks.seeding import derive_seed


def as_states(states: Float[Tensor, "state d_model"]) -> Float[np.ndarray, "state d_model"]:
    """In float64 on the CPU; `InputError` unless finite and at least two."""
    if states.dim() != 2 or len(states) < 2:
        raise InputError(
            f"States of shape {tuple(states.shape)} were given; give [state, d_model] with at least two states."
        )
    if not states.isfinite().all():
        raise InputError("The states have a NaN or an infinity; give finite ones.")
    return states.detach().double().cpu().numpy()


def normalise(states: Float[np.ndarray, "state d_model"]) -> Float[np.ndarray, "state d_model"]:
    """Scaled to length 1; `InputError` for a state that is zero."""
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    if not lengths.all():
        raise InputError(f"State {int(lengths[:, 0].argmin())} is zero and has no direction; leave it out.")
    return states / lengths


def one_hot(labels: Int[Tensor, "state"], n: int) -> Float[np.ndarray, "state label"]:
    """A column for each label; `InputError` unless two labels differ and two states agree."""
    given, index = np.unique(labels.detach().cpu().numpy(), return_inverse=True)
    if len(labels) != n or not 1 < len(given) < n:
        raise InputError(
            f"{len(labels)} labels with {len(given)} different ones were given for {n} states; give one for each state, at "
            "least two different ones, and one of them twice."
        )
    return np.eye(len(given))[index]


def shuffles(n: int, n_shuffles: int, seed: int) -> Iterator[Int[np.ndarray, "n"]]:
    """Random permutations."""
    if n_shuffles < 1:
        raise InputError(f"n_shuffles={n_shuffles} leaves no control; give at least 1.")
    generator = np.random.default_rng(derive_seed(seed, "shuffles"))
    return (generator.permutation(n) for _ in range(n_shuffles))


def resample(n: int, seed: int, *, n_resamples: int = 2000) -> Int[np.ndarray, "resample n"]:
    """How often each of `n` is drawn in each bootstrap sample."""
    generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
    return generator.multinomial(n, np.full(n, 1 / n), size=n_resamples)
