"""The grammar of tense inflection, the patterns of its lines, and what its verbs are to each other.

    S   : NP VP                 subject and verb agree          the | some ... newt | yak ...
    NP  : Det N | NP PP | NP RC
    RC  : 2 * Rel V             who sleeps, 2 * who admires the yak
        | 2 * Rel S.gap         who the yak admires, its verb agreeing with the yak
    VP  : V | V NP

Weights and words are those of McCoy, Frank & Linzen (arXiv 2001.03632). The source of every line is in the past.

>>> pattern = tabulate_inflections()
>>> int(pattern.lengths.min()), int(pattern.lengths.max())  # with start and end
(11, 31)
"""

from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from tasks.grammar.constructions import mark_construction, name_construction
from tasks.grammar.grammar import Derivation, list_derivations, read_grammar
from tasks.grammar.lexicon import DETERMINERS, INTRANSITIVE, NOUNS, PREPOSITIONS, RELATIVISERS, TRANSITIVE
from tasks.grammar.lines import END, START, Pattern, Patterns, tabulate

_RULES = """
S         : NP.subject.sg VP.sg | NP.subject.pl VP.pl
NP.any    : NP.sg | NP.pl
NP.object : NP.subject.sg | NP.subject.pl
PP        : P NP.any
"""
_RULES_OF_A_NUMBER = """
NP.subject.# : NP.# | NP.# PP | NP.# RC.#
NP.#      : Det N.#
RC.#      : 2 * Rel V.intr.# | Rel S.gap.sg | Rel S.gap.pl | 2 * Rel VP.any.#
S.gap.#   : NP.# V.tr.#
VP.#      : V.intr.# | V.tr.# NP.object
VP.any.#  : V.tr.# NP.any
"""
GRAMMAR = read_grammar(_RULES + "".join(_RULES_OF_A_NUMBER.replace("#", number) for number in NOUNS))
"""The published grammar; a verb's category is its number, whatever its tense."""

PAST, PRESENT = "PAST", "PRESENT"
_LISTS = {
    "Det": DETERMINERS,
    **{f"N.{number}": words for number, words in NOUNS.items()},
    **{f"V.intr.{form}": words for form, words in INTRANSITIVE.items()},
    **{f"V.tr.{form}": words for form, words in TRANSITIVE.items()},
    "P": PREPOSITIONS,
    "Rel": RELATIVISERS,
    **{word: (word,) for word in (".", PAST, PRESENT, START, END)},
}
# `read` is both past and present.
VOCABULARY = ("pad", *dict.fromkeys(word for words in _LISTS.values() for word in words))


@lru_cache(maxsize=1)
def tabulate_inflections() -> Patterns:
    """Two patterns for each derivation: 2 i is the past and 2 i + 1 the present of derivation i."""
    patterns = [_write_pattern(one, marker=marker) for one in list_derivations(GRAMMAR) for marker in (PAST, PRESENT)]
    return tabulate(patterns, lists=_LISTS, vocabulary=VOCABULARY)


def find_main_verb(derivation: Derivation) -> int:
    """The position of the main clause's verb."""
    # The subject is the longest constituent at the front but the sentence.
    return max(end for start, end in derivation.labels if start == 0 and end < len(derivation.categories))


def find_recent_noun(derivation: Derivation) -> int:
    """The position of the last noun in front of the main verb."""
    front = derivation.categories[: find_main_verb(derivation)]
    return max(at for at, category in enumerate(front) if category.startswith("N."))


def _write_pattern(derivation: Derivation, *, marker: str) -> Pattern:
    categories, main, n = derivation.categories, find_main_verb(derivation), len(derivation.categories)
    past = [_put_into_past(category) for category in categories]
    return Pattern(
        draws=(0, *range(n), 0, 0, *range(n), 0, 0),
        lists=(START, *past, ".", marker, *(past if marker == PAST else categories), ".", END),
        roles={
            "marker": n + 2,
            "subject": 2,
            "recent_noun": 1 + find_recent_noun(derivation),
            "main_verb": 1 + main,
            "main_verb_answer": n + 3 + main,
            "source": (1, n + 1),
            "answer": (n + 3, 2 * n + 4),
            **mark_construction(name_construction(categories[2:main]), (3, 1 + main)),
        },
    )


def _put_into_past(category: str) -> str:
    return f"{category.rpartition('.')[0]}.past" if category.startswith("V.") else category


@lru_cache(maxsize=1)
def tabulate_other_number() -> Int[Tensor, " d_vocab"]:
    """For each token the same verb in the present of the other number, itself where it is no verb."""
    other = torch.arange(len(VOCABULARY))
    for verbs in (INTRANSITIVE, TRANSITIVE):
        singular, plural = ([VOCABULARY.index(word) for word in verbs[number]] for number in ("sg", "pl"))
        other[singular], other[plural] = torch.tensor(plural), torch.tensor(singular)
    return other


@lru_cache(maxsize=1)
def tabulate_verb_numbers() -> Int[Tensor, " d_vocab"]:
    """1 for a singular verb, 2 for a plural one, 0 for every other token; `read`, past and plural, is plural."""
    numbers = torch.zeros(len(VOCABULARY), dtype=torch.long)
    for verbs in (INTRANSITIVE, TRANSITIVE):
        for number, forms in enumerate((verbs["sg"], verbs["pl"]), start=1):
            numbers[[VOCABULARY.index(word) for word in forms]] = number
    return numbers


@lru_cache(maxsize=1)
def tabulate_parts_of_speech() -> Int[Tensor, " d_vocab"]:
    """For each token the first one of its part of speech: nouns and verbs of every number and tense are alike."""
    parts = torch.arange(len(VOCABULARY))
    first: dict[str, int] = {}
    for name, words in _LISTS.items():
        tokens = [VOCABULARY.index(word) for word in words]
        parts[tokens] = first.setdefault(name.partition(".")[0] or name, tokens[0])
    return parts
