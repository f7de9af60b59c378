"""The grammar of question formation, what stands where in its sentences, and the patterns of its lines.

    S   : NP VP             subject and verb agree          the | some ... newt | yak ...
    NP  : Det N | NP PP | NP RC
    RC  : 2 * Rel VP        who does sleep, 2 * who does admire the yak
        | 2 * Rel S.gap     who the yak does admire, its verb agreeing with the yak
    VP  : Aux V | Aux (V NP)

Nothing leads back to itself. All nodes are binary: ((our yak) (doesn't (comfort ((my newts) (who (do sleep)))))).
Weights and words are those of McCoy, Frank & Linzen (arXiv 2001.03632), trees those of Murty et al. (arXiv 2305.18741).

>>> source = list_sources()[0]
>>> source.derivation.categories, source.derivation.tree, source.main
(('Det', 'N.sg', 'does', 'V.intr'), ((0, 1), (2, 3)), 2)
"""

from dataclasses import dataclass
from functools import lru_cache

from tasks.grammar.constructions import Construction, mark_construction, name_construction
from tasks.grammar.grammar import Derivation, list_derivations, read_grammar
from tasks.grammar.lexicon import AUXILIARIES, DETERMINERS, INTRANSITIVE, NOUNS, PREPOSITIONS, RELATIVISERS, TRANSITIVE
from tasks.grammar.lines import END, START, Pattern, Patterns, tabulate

_RULES = """
S         : NP.subject.sg VP.sg | NP.subject.pl VP.pl
NP.object : NP.sg | NP.pl | NP.pp.sg | NP.pp.pl | NP.rc.sg | NP.rc.pl
NP.any    : NP.sg | NP.pl
PP        : P NP.any
VP.object : V.tr NP.object
VP.any    : V.tr NP.any
Aux.sg    : does | doesn't
Aux.pl    : do | don't
"""
_RULES_OF_A_NUMBER = """
NP.subject.# : NP.# | NP.pp.# | NP.rc.#
NP.#      : Det N.#
NP.pp.#   : NP.# PP
NP.rc.#   : NP.# RC.#
RC.#      : 2 * Rel VP.intr.# | Rel S.gap.sg | Rel S.gap.pl | 2 * Rel VP.any.#
S.gap.#   : NP.# VP.gap.#
VP.#      : VP.intr.# | Aux.# VP.object
VP.intr.# : Aux.# V.intr
VP.any.#  : Aux.# VP.any
VP.gap.#  : Aux.# V.tr
"""
GRAMMAR = read_grammar(_RULES + "".join(_RULES_OF_A_NUMBER.replace("#", number) for number in AUXILIARIES))
"""The published grammar, with the binary trees of Murty et al.; each auxiliary is a category of its own."""

QUESTION, DECLARATIVE = "quest", "decl"
ALL_AUXILIARIES = (*AUXILIARIES["sg"], *AUXILIARIES["pl"])
_LISTS = {
    "Det": DETERMINERS,
    "N.sg": NOUNS["sg"],
    "N.pl": NOUNS["pl"],
    "V.intr": INTRANSITIVE["pl"],
    "V.tr": TRANSITIVE["pl"],
    "P": PREPOSITIONS,
    "Rel": RELATIVISERS,
    **{word: (word,) for word in (*ALL_AUXILIARIES, ".", "?", QUESTION, DECLARATIVE, START, END)},
}
VOCABULARY = ("pad", *(word for words in _LISTS.values() for word in words))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A derivation, and where what the rules speak of stands in it."""

    derivation: Derivation
    """The sentence down to the categories of its words."""
    construction: Construction
    """What stands behind the subject's noun."""
    main: int
    """The position of the main clause's auxiliary, right behind the subject."""
    auxiliaries: tuple[int, ...]
    """The positions of all auxiliaries."""
    shortcut: int
    """The first of them that does not stand right behind a relativiser."""
    parts_of_speech: str
    """The categories without number and with one name for all auxiliaries."""

    @property
    def is_embedded(self) -> bool:
        """Whether the subject has a relative clause."""
        return self.construction.endswith("relative")

    @property
    def has_object(self) -> bool:
        """Whether the main clause has an object."""
        return self.derivation.categories[self.main + 1] == "V.tr"

    @property
    def has_object_relative(self) -> bool:
        """Whether what follows the main auxiliary has a relative clause."""
        return "Rel" in self.derivation.categories[self.main :]


@lru_cache(maxsize=1)
def list_sources() -> tuple[Source, ...]:
    """Every derivation of the grammar, described."""
    return tuple(map(_describe, list_derivations(GRAMMAR)))


@lru_cache(maxsize=1)
def tabulate_questions() -> Patterns:
    """Two patterns for each source: 2 i is the declarative and 2 i + 1 the question of source i."""
    patterns = [_write_pattern(one, question=question) for one in list_sources() for question in (False, True)]
    return tabulate(patterns, lists=_LISTS, vocabulary=VOCABULARY)


def _describe(derivation: Derivation) -> Source:
    categories = derivation.categories
    # The subject is the longest constituent at the front but the sentence.
    main = max(end for start, end in derivation.labels if start == 0 and end < len(categories))
    auxiliaries = tuple(at for at, category in enumerate(categories) if category in ALL_AUXILIARIES)
    return Source(
        derivation=derivation,
        construction=name_construction(categories[2:main]),
        main=main,
        auxiliaries=auxiliaries,
        shortcut=next(at for at in auxiliaries if categories[at - 1] != "Rel"),
        parts_of_speech=" ".join(map(_part_of_speech, categories)),
    )


def _part_of_speech(category: str) -> str:
    return "Aux" if category in ALL_AUXILIARIES else category.removesuffix(".sg").removesuffix(".pl")


def _write_pattern(source: Source, *, question: bool) -> Pattern:
    categories = source.derivation.categories
    n = len(categories)
    order = [*range(n)]
    if question:
        order.remove(source.main)
        order.insert(0, source.main)
    marker = n + 2
    return Pattern(
        draws=(0, *range(n), 0, 0, *order, 0, 0),
        lists=(
            *(START, *categories, ".", QUESTION if question else DECLARATIVE),
            *(*(categories[at] for at in order), "?" if question else ".", END),
        ),
        roles={
            "marker": marker,
            "main_auxiliary": 1 + source.main,
            "first_auxiliary": 1 + source.auxiliaries[0],
            "shortcut_auxiliary": 1 + source.shortcut,
            "source": (1, n + 1),
            "answer": (marker + 1, marker + n + 2),
            **mark_construction(source.construction, (3, 1 + source.main)),
        },
    )
