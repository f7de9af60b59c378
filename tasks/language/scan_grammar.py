"""SCAN's commands and what they mean: 20,910 pairs from five rules (Lake & Baroni, ICML 2018, arXiv 1711.00350).

    C -> S and S | S after S | S          x and y = x y,   x after y = y x
    S -> V twice | V thrice | V           two or three times
    V -> D[1] opposite D[2] | D[1] around D[2] | D | U
    D -> U left | U right | turn left | turn right
    U -> walk | look | run | jump

With T the turn to the named side and u the verb's action, none for `turn`:

    u left = T u,     u opposite left = T T u,     u around left = T u T u T u T u

>>> interpret_command("jump opposite left after walk thrice")
('WALK', 'WALK', 'WALK', 'LTURN', 'LTURN', 'JUMP')
>>> len(list_commands())
20910
"""

from functools import lru_cache
from types import MappingProxyType

from tasks.task import TaskError

VERBS = ("walk", "look", "run", "jump")
TURNS = {"left": "LTURN", "right": "RTURN"}
REPETITIONS = {"twice": 2, "thrice": 3}

WORDS = (*VERBS, "turn", *TURNS, "opposite", "around", *REPETITIONS, "and", "after")
"""The words of commands."""
ACTIONS = (*(verb.upper() for verb in VERBS), *TURNS.values())
"""The words of answers."""

Meanings = dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def list_commands() -> MappingProxyType[str, tuple[str, ...]]:
    """Every command with its actions, in the grammar's order."""
    sentences = _repeat(_act())
    joined: Meanings = dict(sentences)
    for first, one in sentences.items():
        for second, other in sentences.items():
            joined[f"{first} and {second}"] = one + other
            joined[f"{first} after {second}"] = other + one
    return MappingProxyType(joined)


def interpret_command(command: str) -> tuple[str, ...]:
    """The actions that a command asks for; TaskError where it is none."""
    actions = list_commands().get(command)
    if actions is None:
        raise TaskError(f"{command!r} is no command of SCAN: give one such as 'jump around left twice and walk'")
    return actions


def _act() -> Meanings:
    """V: 4 verbs, and 5 of them, `turn` being one, with a side in 3 manners."""
    single: Meanings = {verb: (verb.upper(),) for verb in VERBS}
    aside: Meanings = {}
    for verb, actions in (single | {"turn": ()}).items():
        for side, turn in TURNS.items():
            aside[f"{verb} {side}"] = (turn, *actions)
            aside[f"{verb} opposite {side}"] = (turn, turn, *actions)
            aside[f"{verb} around {side}"] = (turn, *actions) * 4
    return single | aside


def _repeat(acts: Meanings) -> Meanings:
    repeated: Meanings = dict(acts)
    for act, actions in acts.items():
        for word, times in REPETITIONS.items():
            repeated[f"{act} {word}"] = actions * times
    return repeated
