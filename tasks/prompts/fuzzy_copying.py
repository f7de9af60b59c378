"""Fuzzy copying: a list of words, then its beginning IN CAPITALS; the next word in capitals is the answer.

    list: river candle tiger lemon
    LIST: RIVER CANDLE                  -> TIGER

To a model the capitals are other tokens, often several for one word, so repeating what was read gives nothing: the
place has to be found again under another form (Song, Xu & Zhong, arXiv 2408.09503; words and layout are our own). All
words of the list, in capitals, are the choices. It has no memorised variant: the lists are random. The words take equally
many tokens in capitals, the number that most words of ours take in this tokenizer.

>>> class Words:  # any tokenizer with `encode` and `decode`, such as `model.tokenizer`
...     def __init__(self): self.words = []
...     def encode(self, text, add_special_tokens):
...         self.words += [word for word in text.split() if word not in self.words]
...         return [self.words.index(word) for word in text.split()]
...     def decode(self, ids): return " ".join(self.words[i] for i in ids)
>>> item = FuzzyCopying(Words()).sample(1, seed=0)[0]
>>> print(item.text)
list: rope ball candle island dance circle
LIST: ROPE BALL
>>> item.choice_texts[item.answer]
' CANDLE'
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from tasks.prompts.rules import ChoiceItem, encode, find_words, in_rounds, require_count, require_words, write_item
from tasks.seeding import derive_generator
from tasks.task import TaskError

_WRITTEN_OUT = """
anchor angel apple arrow ball barn bat beach bean bear bell belt bird boat bowl bread brick bridge brush butter button
cake camera candle castle cave chain chair circle clock cloth cloud coach coat coffee copper cow crown dance deer desert
doctor dragon dress drum dust eagle engine farm fence fire fish flag flower forest fork garden ghost glass glove grass
guitar hammer hat honey horse island jacket king knife lake lamp leaf lemon lion market milk monkey moon mouse nail
needle oak onion orange paint pearl pen pillow pine pirate planet plate pond pot queen rabbit rain rice ring river road
rope salt ship silver snow soup spider spring statue stone storm sugar table tea tiger tower train tree truck twin
valley violin wagon wheel wind wine witch wolf
"""
WORDS = tuple(_WRITTEN_OUT.split())
"""Their order means nothing."""


@dataclass(frozen=True, eq=False)
class FuzzyCopying:
    """The task in the words of one tokenizer; raises `TaskError` where that has too few words of one token."""

    tokenizer: Any = field(repr=False)
    """`encode(text, add_special_tokens=False) -> ids` and `decode(ids) -> text`."""
    n_words: int = 6
    """Words in a list, which is also the number of choices."""
    words: tuple[str, ...] = field(init=False, repr=False)
    """The words in use: one token each in small letters, and equally many in capitals."""

    def __post_init__(self) -> None:
        require_words(self.tokenizer)
        if self.n_words < 4:
            raise TaskError(
                f"a list of {self.n_words} words leaves too little to begin and to go on with: give at least 4"
            )
        single = find_words(self.tokenizer, WORDS)
        object.__setattr__(self, "words", self._keep_alike(single))
        if len(self.words) < 2 * self.n_words:
            raise TaskError(
                f"the tokenizer writes {len(single)} of {len(WORDS)} words as one token each, but lists of {self.n_words} "
                f"words need {2 * self.n_words} with equally many in capitals; use a model with a larger vocabulary"
            )

    @property
    def name(self) -> str:
        """A short name for records."""
        return "fuzzy copying"

    @property
    def chance(self) -> float:
        """How often a guess is right."""
        return 1 / self.n_words

    def sample(self, n: int, *, seed: int, bos: int | None = None) -> tuple[ChoiceItem, ...]:
        """`n` lists; no word is the answer more than once more often than another, nor is a place of the answer.

        The places are the middle ones: with 6 words the answer is the third, the fourth or the fifth.
        """
        require_count(n)
        generator = derive_generator(seed, "fuzzy copying")
        answers = in_rounds(n, len(self.words), generator)
        middle = self.n_words // 2
        places = [middle - 1 + place for place in in_rounds(n, 3, generator)]
        items = []
        for answer, place in zip(answers, places, strict=True):
            others = [i for i in torch.randperm(len(self.words), generator=generator).tolist() if i != answer]
            chosen = others[: self.n_words - 1]
            chosen.insert(place, answer)
            items.append(self._write([self.words[i] for i in chosen], place, bos))
        return tuple(items)

    def _write(self, words: list[str], place: int, bos: int | None) -> ChoiceItem:
        capitals = [word.upper() for word in words]
        text = f"list: {' '.join(words)}\nLIST: {' '.join(capitals[:place])}"
        return write_item(self.tokenizer, text, [f" {word}" for word in capitals], answer=place, bos=bos)

    def _keep_alike(self, words: dict[str, int]) -> tuple[str, ...]:
        """Those of the commonest number of tokens in capitals: then length favours none, and none begins another one."""
        before = encode(self.tokenizer, "LIST:")
        by_length: dict[int, dict[tuple[int, ...], str]] = defaultdict(dict)
        for word in words:
            capitals = encode(self.tokenizer, f"LIST: {word.upper()}")[len(before) :]
            by_length[len(capitals)].setdefault(tuple(capitals), word)
        return tuple(max(by_length.values(), key=len).values()) if by_length else ()
