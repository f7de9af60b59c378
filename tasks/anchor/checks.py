"""What makes an anchor task impossible: one sentence for each way, raised when the task is made.

>>> check_keys(20, 99, anchors=(3, 20), d_vocab=120)
Traceback (most recent call last):
tasks.task.TaskError: keys from 20 to 99 overlap the anchors 20: give keys and anchors that are different tokens
"""

import math
from collections.abc import Mapping, Sequence

from tasks.anchor.functions import Pair
from tasks.task import TaskError


def check_keys(first: int, last: int, *, anchors: Sequence[int], d_vocab: int) -> None:
    """Keys and anchors are different tokens of the vocabulary."""
    if not 0 <= first <= last:
        raise TaskError(f"there is no key from {first} to {last}: give first_key and last_key with 0 <= first <= last")
    overlap = [str(anchor) for anchor in anchors if first <= anchor <= last]
    if overlap:
        raise TaskError(
            f"keys from {first} to {last} overlap the anchors {', '.join(overlap)}: "
            "give keys and anchors that are different tokens"
        )
    highest = max(last, *anchors)
    if highest >= d_vocab:
        raise TaskError(f"token {highest} is outside d_vocab={d_vocab}: give a d_vocab of at least {highest + 1}")


def check_places(n_ctx: int, *, fits: range, positions: Sequence[int], group_size: int, key_offset: int) -> None:
    """The key and its anchors have room; `fits` are the key positions with room for the anchors."""
    if group_size < 1:
        raise TaskError(f"group_size={group_size} leaves no anchor: give at least 1")
    if 0 <= key_offset < group_size:
        raise TaskError(
            f"key_offset={key_offset} puts the key on one of the {group_size} anchors: "
            f"give a negative one, or at least {group_size}"
        )
    if not fits:
        raise TaskError(
            f"n_ctx={n_ctx} is too short for a key and {group_size} anchors with key_offset={key_offset}: "
            f"give at least {fits.start + 1 + n_ctx - fits.stop}"
        )
    outside = [p for p in positions if p not in fits]
    if outside:
        raise TaskError(
            f"a key at position {outside[0]} leaves no room for its {group_size} anchors in n_ctx={n_ctx}: "
            f"give key_positions from {fits.start} to {fits.stop - 1}"
        )


def check_pairs(
    pairs: Sequence[Pair], *, altered: Mapping[Pair, int], held_out: Sequence[Pair], weights: Mapping[Pair, float]
) -> None:
    """Every pair that is named exists, none is both held out and trained, and some are trained."""
    for field, named in {"altered": altered, "held_out": held_out, "weights": weights}.items():
        for pair in named:
            if pair not in pairs:
                raise TaskError(
                    f"{field} names {pair}, which is no pair of the anchors: pairs are {spell(pairs[:3])}, ..."
                )
    for pair in held_out:
        if pair in altered or weights.get(pair, 0.0) > 0:
            how = "altered" if pair in altered else f"given the weight {weights[pair]}"
            raise TaskError(f"{pair} is held out and also {how}, that is trained: leave it out of one of the two")
    for pair, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise TaskError(f"the weight {weight} of {pair} is no share of the data: give a number of at least 0")
        if weight == 0 and pair in altered:
            raise TaskError(f"{pair} is altered and has the weight 0, so it is never trained: give it a weight above 0")
    if not any(weights.get(pair, 1.0) > 0 for pair in pairs if pair not in held_out):
        raise TaskError("no pair is left to train on: hold out fewer, or give one a weight above 0")


def check_targets(keys: Sequence[int], pair: Pair, targets: Sequence[int], *, d_vocab: int) -> None:
    """The target of each key with a pair is a token of the vocabulary."""
    for key, target in zip(keys, targets, strict=True):
        if not 0 <= target < d_vocab:
            raise TaskError(
                f"the target {target} of key {key} with {pair} is outside d_vocab={d_vocab}: "
                "give a larger vocabulary or other keys"
            )


def check_size(n_sequences: int | None) -> None:
    """A training set has at least one sequence, where it is fixed."""
    if n_sequences is not None and n_sequences < 1:
        raise TaskError(f"n_sequences={n_sequences} leaves no sequence: give at least 1, or None for fresh ones")


def spell(pairs: Sequence[Pair]) -> str:
    """`(3, 4) and (4, 3)`, or their number where they are many."""
    return " and ".join(map(str, pairs)) if len(pairs) <= 3 else f"{len(pairs)} pairs"
