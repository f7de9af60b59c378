"""Which sentences the tree analysis asks of a model, and how the model reads them.

Sentences of both grammars of `interp.tasks.grammar`, half of the kind that is trained and half of the kind that is held out,
all different and of five words or more, with the gold trees that they were derived by. Those are of the source without
its full stop; a causal model's states don't depend on what comes after, so leaving it out changes no other word. A model
with a tokenizer reads text, a training run on one of the grammars its own words behind their start.

>>> one = draw_gold_sentences([TenseInflection(train=1)], 2, seed=0)[0]
>>> write_text(one).split()[0] == one.words[0]
True
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from analyses.analysis import Options, Subject
from interp.errors import InputError
from interp.models.tokens import resolve_bos
from interp.training.runs import read_task
from interp.trees.words import Sentence as Readable
from interp.trees.words import read_sentences
from tasks.grammar import Construction, QuestionFormation, Sentence, TenseInflection
from tasks.grammar.constructions import name_construction
from tasks.grammar.lexicon import DETERMINERS, INTRANSITIVE, PREPOSITIONS
from tasks.grammar.lines import START
from tasks.seeding import derive_generator
from tasks.trees import Tree

Task = QuestionFormation | TenseInflection
Span = tuple[int, int]
_OWN: dict[str, type[Task]] = {one().name: one for one in (QuestionFormation, TenseInflection)}
TEXT_TASKS: tuple[Task, ...] = (QuestionFormation(train=1), TenseInflection(train=1))
"""What a model with a tokenizer reads; nothing of them is trained here."""
_HELD_OUT = "generalisation"
_SHORTEST = 5
"""Shorter ones have next to nothing to find."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldSentence:
    """A sentence with what the grammar says of it."""

    words: tuple[str, ...]
    """Its words, without the full stop."""
    tree: Tree
    """Its gold tree over their positions."""
    labels: dict[Span, str]
    """The constituent type of each gold bracket."""
    construction: Construction
    """What stands behind the subject's noun."""


def find_own_task(subject: Subject) -> Task | None:
    """The grammar that the training run of this model is on, if any; held-out lines are the same however many are trained."""
    if subject.run is None:
        return None
    description = read_task(subject.run)
    make = _OWN.get(description["name"])
    return None if make is None else replace(make(**description["settings"]), train=1, disambiguating=0.0)


def draw_gold_sentences(tasks: Sequence[Task], n: int, *, seed: int) -> list[GoldSentence]:
    """About `n` sentences: of each task equally many, of its generalisation split as many as of its other held-out lines."""
    return [one for task in tasks for one in _draw_of_task(task, n // (2 * len(tasks)), seed)]


def shuffle_words(sentence: GoldSentence, *, seed: int, place: int) -> GoldSentence:
    """The same words in random order under the same tree, which then is no longer theirs."""
    order = torch.randperm(len(sentence.words), generator=derive_generator(seed, "shuffled words", place)).tolist()
    return replace(sentence, words=tuple(sentence.words[at] for at in order))


def write_text(sentence: GoldSentence) -> str:
    """Words with blanks between them; `high_five` is written as in books."""
    return " ".join(sentence.words).replace("_", "-")


def prepare_sentences(
    subject: Subject, options: Options, *, n: int
) -> tuple[list[GoldSentence], list[Readable], list[Readable], int | None]:
    """(sentences, how the model reads them, how it reads their words in random order, the id that stands first).

    Raises `InputError` for a model that can't read them.
    """
    own = find_own_task(subject)
    if own is None and getattr(subject.model, "tokenizer", None) is None:
        raise InputError(
            "It has no tokenizer to read sentences with, and is no training run on question formation or tense inflection."
        )
    gold = draw_gold_sentences(TEXT_TASKS if own is None else [own], n, seed=options.seed)
    shuffled = [shuffle_words(one, seed=options.seed, place=place) for place, one in enumerate(gold)]
    number = {} if own is None else {word: token for token, word in enumerate(own.vocabulary)}
    bos = number[START] if own is not None and options.bos == "auto" else resolve_bos(subject.model, options.bos)

    def write(sentences: Sequence[GoldSentence]) -> list[Readable]:
        return [write_text(one) if own is None else [number[word] for word in one.words] for one in sentences]

    for sentences in (gold, shuffled):
        read_sentences(subject.model, write(sentences), bos=bos)
    return gold, write(gold), write(shuffled), bos


def describe_first_token(model: Any, bos: int | None, own: Task | None) -> str:
    """What stands first, in words."""
    if bos is None:
        return "Nothing stands in front of a sentence"
    if own is not None:
        return f"`{own.vocabulary[bos]}` stands in front of each sentence"
    return f"Token {bos} (`{model.tokenizer.decode([bos])}`) stands in front of each sentence"


@lru_cache(maxsize=8)
def _draw_of_task(task: Task, share: int, seed: int) -> tuple[GoldSentence, ...]:
    others = [split for split in task.splits if split not in ("train", _HELD_OUT)]
    found: dict[tuple[str, ...], Sentence] = {}
    for pool, kind in ((others, "like trained ones"), ([_HELD_OUT], "not trained")):
        fresh = {
            one.words: one
            for split in pool
            for one in task.sentences(split)
            if len(one.words) >= _SHORTEST and one.words not in found
        }
        generator = derive_generator(seed, "trees", task.name, kind)
        order = torch.randperm(len(fresh), generator=generator).tolist()[:share]
        listed = list(fresh.values())
        found |= {listed[place].words: listed[place] for place in order}
    return tuple(map(_describe, found.values()))


def _describe(sentence: Sentence) -> GoldSentence:
    # The subject is the longest constituent at the front but the sentence.
    subject = max(end for start, end in sentence.labels if start == 0 and end < len(sentence.words))
    return GoldSentence(
        words=sentence.words,
        tree=sentence.tree,
        labels=dict(sentence.labels),
        construction=name_construction(tuple(map(_categorise, sentence.words[2:subject]))),
    )


def _categorise(word: str) -> str:
    """As far as constructions are told by it."""
    if word in PREPOSITIONS:
        return "P"
    if word in DETERMINERS:
        return "Det"
    return "V.intr" if any(word in verbs for verbs in INTRANSITIVE.values()) else "other"
