"""Weighted context-free grammars: sentences with the binary tree that they were derived by.

    P(derivation) = prod over its rules of weight(rule) / sum of the weights of the rules with the same left side

A grammar without recursion has finitely many derivations down to the categories of words (`Det`, `N.sg`). All of them
are listed with their exact probabilities, so that drawing is one choice of a derivation and one of each word, for a
whole batch at once, and what holds on average can be computed instead of sampled.

A rule has one part or two; a rule with one part adds no node to the tree. The name of a constituent is that of its
symbol up to the first dot: `NP.subject.sg` is an NP.

>>> grammar = read_grammar('''
... S   : NP VP
... NP  : 2 * Det N | NP.base PP
... NP.base : Det N
... PP  : P NP.base
... VP  : V
... ''')
>>> for derivation in list_derivations(grammar):
...     print(derivation.probability, " ".join(derivation.categories), derivation.tree)
2/3 Det N V ((0, 1), 2)
1/3 Det N P Det N V (((0, 1), (2, (3, 4))), 5)
>>> lexicon = {"Det": ("the",), "N": ("yak", "newt"), "P": ("near",), "V": ("sleeps", "swims")}
>>> draw_sentences(grammar, lexicon, n=2, seed=0)[0]
Sentence(words=('the', 'yak', 'swims'), tree=((0, 1), 2), labels=...)
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from tasks.seeding import derive_seed
from tasks.task import TaskError
from tasks.trees import Tree

Span = tuple[int, int]
"""(start, end), the end not included."""


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """Rules with weights; a symbol without a rule is a category of words."""

    rules: Mapping[str, tuple[tuple[Fraction, tuple[str, ...]], ...]]
    """For each left side the right sides, of one part or two, with their weights."""
    start: str
    """The symbol of a whole sentence."""


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """One way to derive a sentence, down to the categories of its words."""

    probability: Fraction
    """How often the grammar derives it, exactly."""
    categories: tuple[str, ...]
    """The category of each word."""
    tree: Tree
    """The gold tree over the words' positions."""
    labels: Mapping[Span, str]
    """The constituent of each span of two or more words."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """Words with their gold tree."""

    words: tuple[str, ...]
    """The sentence."""
    tree: Tree
    """Its gold tree over the words' positions."""
    labels: Mapping[Span, str]
    """The constituent, such as NP, of each span of two or more words."""

    def __repr__(self) -> str:
        return f"Sentence(words={self.words}, tree={self.tree}, labels=...)"


def read_grammar(text: str) -> Grammar:
    """The grammar written one left side a line, `left : weight * part part | part`; the first is the start.

    Raises:
        TaskError: a line of another form.
    """
    rules: dict[str, tuple[tuple[Fraction, tuple[str, ...]], ...]] = {}
    for line in filter(str.strip, text.splitlines()):
        left, _, right = (part.strip() for part in line.partition(":"))
        sides = tuple(_read_side(side) for side in right.split("|"))
        if left in rules or not all(weight > 0 and 1 <= len(parts) <= 2 for weight, parts in sides):
            raise TaskError(
                f"{line.strip()!r} is no rule: write each left side once, as 'left : weight * part part | part', "
                "with one or two parts and weights above 0"
            )
        rules[left] = sides
    if not rules:
        raise TaskError("the grammar is empty: give at least one rule, such as 'S : NP VP'")
    return Grammar(rules=rules, start=next(iter(rules)))


def list_derivations(grammar: Grammar) -> tuple[Derivation, ...]:
    """Every derivation; the probabilities sum to 1.

    Raises:
        TaskError: a symbol that leads back to itself, which would give infinitely many.
    """
    return _derive(grammar, grammar.start, ())


def draw_sentences(grammar: Grammar, lexicon: Mapping[str, tuple[str, ...]], *, n: int, seed: int) -> list[Sentence]:
    """`n` sentences, the words of a category equally likely.

    Raises:
        TaskError: a category that has no words in the lexicon.
    """
    derivations = list_derivations(grammar)
    missing = {category for one in derivations for category in one.categories} - set(lexicon)
    if missing:
        raise TaskError(f"the lexicon has no words for {', '.join(sorted(missing))}: give each category its words")
    generator = random.Random(derive_seed(seed, "grammar"))
    weights = [float(one.probability) for one in derivations]
    return [
        Sentence(
            words=tuple(generator.choice(lexicon[category]) for category in one.categories),
            tree=one.tree,
            labels=one.labels,
        )
        for one in generator.choices(derivations, weights, k=n)
    ]


def _read_side(side: str) -> tuple[Fraction, tuple[str, ...]]:
    weight, star, parts = side.rpartition("*")
    return _read_weight(weight) if star else Fraction(1), tuple(parts.split())


def _read_weight(text: str) -> Fraction:
    """The number, or 0, which no weight can be."""
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        return Fraction(0)


def _derive(grammar: Grammar, symbol: str, above: tuple[str, ...]) -> tuple[Derivation, ...]:
    if symbol in above:
        raise TaskError(
            f"{symbol} leads back to itself: give a grammar without recursion, with one symbol for each depth"
        )
    if symbol not in grammar.rules:
        return (Derivation(probability=Fraction(1), categories=(symbol,), tree=0, labels={}),)
    total = sum(weight for weight, _ in grammar.rules[symbol])
    return tuple(
        _join(symbol, weight / total, parts)
        for weight, right in grammar.rules[symbol]
        for parts in product(*(_derive(grammar, part, (*above, symbol)) for part in right))
    )


def _join(symbol: str, probability: Fraction, parts: tuple[Derivation, ...]) -> Derivation:
    """The derivation of a symbol from those of its one or two parts."""
    tree, labels = parts[0].tree, dict(parts[0].labels)
    categories = parts[0].categories
    for part in parts[1:]:
        offset = len(categories)
        tree = (tree, _shift(part.tree, offset))
        labels |= {(start + offset, end + offset): label for (start, end), label in part.labels.items()}
        categories += part.categories
    for part in parts:
        probability *= part.probability
    if len(categories) > 1:
        labels[0, len(categories)] = symbol.partition(".")[0]
    return Derivation(probability=probability, categories=categories, tree=tree, labels=labels)


def _shift(tree: Tree, offset: int) -> Tree:
    if isinstance(tree, int):
        return tree + offset
    return _shift(tree[0], offset), _shift(tree[1], offset)
