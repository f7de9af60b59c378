"""In-context classification: examples with their labels, then a word without; which label comes next?

    original   list: horse: animal ; bread: food ; tiger:        -> animal
    permuted   list: horse: food ; bread: vehicle ; tiger:       -> food
    symbols    list: horse: && ; bread: ## ; tiger:              -> &&

`original` labels can be known by heart. `permuted` ones are the same words, each standing for the next class, so what is
known by heart is wrong. `symbols` mean nothing outside the prompt. Only the last two need the rule that the examples
show (the three labelings are those of Song, Xu & Zhong, arXiv 2408.09503; words and layout are our own). The same seed
gives the same examples and the same word under every labeling. A space stands before the semicolon, since tokenizers join
a symbol with a mark or a line break behind it.

>>> class Lines:
...     def __init__(self): self.words = []
...     def encode(self, text, add_special_tokens):
...         words = text.replace(":", " :").split()
...         self.words += [word for word in words if word not in self.words]
...         return [self.words.index(word) for word in words]
...     def decode(self, ids): return " ".join(self.words[i] for i in ids)
>>> item = ICLClassification(Lines(), "permuted", n_examples=3).sample(1, seed=0)[0]
>>> item.text
'list: pig: food ; van: animal ; bean: vehicle ; soup:'
>>> item.choice_texts[item.answer]
' vehicle'
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from tasks.prompts.rules import SYMBOLS, ChoiceItem, find_words, in_rounds, require_count, require_words, write_item
from tasks.seeding import derive_generator
from tasks.task import TaskError

Labels = Literal["original", "permuted", "symbols"]

CLASSES = {
    "animal": "horse cow dog cat sheep wolf bear tiger rabbit mouse monkey snake fox duck goat pig eagle whale shark deer",
    "food": "bread rice cheese apple soup butter honey pasta salad pizza corn bean cake cookie sugar egg meat tomato onion",
    "vehicle": "car bus train truck boat ship plane bike van taxi tractor helicopter bicycle tank jet wagon canoe yacht tram",
}
"""Label: its words."""

_FEWEST_SYMBOLS = 6


@dataclass(frozen=True, eq=False)
class ICLClassification:
    """The task in the words of one tokenizer; raises `TaskError` where that has too few words of one token."""

    tokenizer: Any = field(repr=False)
    """`encode(text, add_special_tokens=False) -> ids` and `decode(ids) -> text`."""
    labels: Labels = "original"
    """What stands for the classes."""
    n_examples: int = 18
    """Examples before the word that is asked; a multiple of 3, as many of each class."""
    words: dict[str, tuple[str, ...]] = field(init=False, repr=False)
    """Label: the words in use, which are one token each."""
    symbols: tuple[str, ...] = field(init=False, repr=False)
    """The symbols in use."""

    def __post_init__(self) -> None:
        if self.labels not in get_args(Labels):
            raise TaskError(f"labels={self.labels!r} isn't known; use one of {', '.join(get_args(Labels))}")
        if self.n_examples < 3 or self.n_examples % 3:
            raise TaskError(f"{self.n_examples} examples can't be shared out evenly: give a multiple of 3")
        require_words(self.tokenizer)
        words = {
            label: tuple(find_words(self.tokenizer, known.split(), carrier="list: "))
            for label, known in CLASSES.items()
        }
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "symbols", tuple(find_words(self.tokenizer, SYMBOLS, carrier="list: ")))
        fewest, needed = min(map(len, words.values())), self.n_examples // 3 + 1
        if fewest < needed:
            raise TaskError(
                f"the tokenizer writes {fewest} words of a class as one token each, but {self.n_examples} examples and a new "
                f"word need {needed}; use a model with a larger vocabulary, or fewer examples"
            )
        if self.labels == "symbols" and len(self.symbols) < _FEWEST_SYMBOLS:
            raise TaskError(
                f"the tokenizer writes {len(self.symbols)} of {len(SYMBOLS)} symbols as one token, but labels are drawn from "
                f"at least {_FEWEST_SYMBOLS}; use a model with a larger vocabulary"
            )

    @property
    def name(self) -> str:
        """A short name for records."""
        return (
            f"classification, {self.labels} labels" if self.labels != "symbols" else "classification, symbols as labels"
        )

    @property
    def chance(self) -> float:
        """How often a guess is right."""
        return 1 / len(CLASSES)

    def sample(self, n: int, *, seed: int, bos: int | None = None) -> tuple[ChoiceItem, ...]:
        """`n` prompts; each class is asked for as often as any other or once more, by a word that no example shows.

        The first three examples are one of each class. Each symbol stands for each class about as often.
        """
        require_count(n)
        generator, symbol_generator = (derive_generator(seed, "classification", part) for part in ("words", "symbols"))
        asked = in_rounds(n, len(CLASSES), generator)
        names = list(CLASSES)
        items = []
        for wanted in asked:
            drawn = [torch.randperm(len(words), generator=generator).tolist() for words in self.words.values()]
            query = self.words[names[wanted]][drawn[wanted].pop()]
            examples = self._arrange(drawn, generator)
            labels = self._choose_labels(symbol_generator)
            lines = [f"{self.words[names[kind]][word]}: {labels[kind]}" for kind, word in examples]
            text = "list: " + " ; ".join([*lines, f"{query}:"])
            items.append(write_item(self.tokenizer, text, [f" {label}" for label in labels], answer=wanted, bos=bos))
        return tuple(items)

    def _arrange(self, drawn: list[list[int]], generator: torch.Generator) -> list[tuple[int, int]]:
        """(class, word) of every example."""
        first = [(kind, drawn[kind][0]) for kind in torch.randperm(len(drawn), generator=generator).tolist()]
        rest = [(kind, word) for kind in range(len(drawn)) for word in drawn[kind][1 : self.n_examples // 3]]
        return first + [rest[i] for i in torch.randperm(len(rest), generator=generator).tolist()]

    def _choose_labels(self, generator: torch.Generator) -> list[str]:
        """What stands for each class, in their order."""
        names = list(CLASSES)
        if self.labels == "original":
            return names
        if self.labels == "permuted":
            return names[1:] + names[:1]
        return [self.symbols[i] for i in torch.randperm(len(self.symbols), generator=generator)[:3].tolist()]
