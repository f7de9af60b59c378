"""Indirect-object sentences as a choice between two people, called by names or by symbols.

    names     ... and John gave the key to      -> Mary, not John
    symbols   ... and && gave the key to        -> ##, not &&

Names may be looked up in what a model has read; symbols stand in no such sentence, so only the rule helps (the
symbolised form is that of Song, Xu & Zhong, arXiv 2408.09503; sentences and symbols are our own).

>>> class Words:
...     def __init__(self): self.words = []
...     def encode(self, text, add_special_tokens):
...         words = text.replace(",", " ,").replace(".", " .").split()
...         self.words += [word for word in words if word not in self.words]
...         return [self.words.index(word) for word in words]
...     def decode(self, ids): return " ".join(self.words[i] for i in ids)
>>> item = IOIChoices(Words(), "symbols").sample(1, seed=0)[0]
>>> item.text
'My neighbours !! and ~~ went to the castle together, and ~~ gave the ball to'
>>> item.choice_texts[item.answer]
' !!'
"""

from dataclasses import dataclass, field
from typing import Any

from tasks.prompts.ioi import IOI, People
from tasks.prompts.rules import ChoiceItem


@dataclass(frozen=True, eq=False)
class IOIChoices:
    """The task in the words of one tokenizer; raises `TaskError` as `IOI` does."""

    tokenizer: Any = field(repr=False)
    """`encode(text, add_special_tokens=False) -> ids` and `decode(ids) -> text`."""
    people: People = "names"
    """What the two people are called."""
    ioi: IOI = field(init=False, repr=False)
    """The sentences."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ioi", IOI(self.tokenizer, self.people))

    @property
    def name(self) -> str:
        """A short name for records."""
        return f"indirect object, {self.people}"

    @property
    def chance(self) -> float:
        """How often a guess is right."""
        return 1 / 2

    def sample(self, n: int, *, seed: int, bos: int | None = None) -> tuple[ChoiceItem, ...]:
        """`n` sentences with the receiver (right) and the giver; half of them name the receiver first."""
        prompts = self.ioi.sample(n, seed=seed, bos=bos)
        called = {token: name for name, token in self.ioi.names.items()}
        items = []
        for row, text in enumerate(prompts.texts):
            people = (int(prompts.io[row]), int(prompts.s[row]))
            items.append(
                ChoiceItem(
                    tokens=tuple(prompts.tokens[row, : int(prompts.roles["last"][row]) + 1].tolist()),
                    choices=tuple((person,) for person in people),
                    answer=0,
                    text=text,
                    choice_texts=tuple(f" {called[person]}" for person in people),
                )
            )
        return tuple(items)
