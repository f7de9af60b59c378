"""Prompts with a few possible continuations, one of which follows the rule: the item that all rule tasks are made of.

An item is cut by tokens, never by characters: the ids of a choice are those that stand behind the prompt's ids when both
are written as one text. Decoding a generation and slicing it at the prompt's length in characters loses the answer
wherever decoding changes the prompt, as it does with symbols between spaces.

>>> class Letters:  # any tokenizer with `encode` and `decode`, such as `model.tokenizer`
...     def encode(self, text, add_special_tokens): return [ord(letter) for letter in text]
...     def decode(self, ids): return "".join(map(chr, ids))
>>> item = write_item(Letters(), "1 2 1", (" 2", " 1"), answer=0, bos=7)
>>> item.tokens, item.choices
((7, 49, 32, 50, 32, 49), ((32, 50), (32, 49)))
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tasks.task import TaskError

SYMBOLS = (
    "@", "#", "%", "&", "*", "+", "~", "^", "|", "<", ">", "$", "@@", "##", "%%", "&&", "**", "++", "~~", "^^", "||",
    "<<", ">>", "$$", "->", "=>", "<-", "<>", "!!", "??",
)  # fmt: skip
"""Signs that stand for names, labels or numbers; only those are used that a tokenizer writes as one token."""

_CARRIER = "Today"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceItem:
    """A prompt and its possible continuations; raises `TaskError` where they can't be told apart."""

    tokens: tuple[int, ...]
    """The prompt's token ids."""
    choices: tuple[tuple[int, ...], ...]
    """The token ids of each continuation."""
    answer: int
    """Which of them is right, from 0."""
    text: str
    """The prompt as text, without what stands first."""
    choice_texts: tuple[str, ...]
    """The continuations as text."""

    def __post_init__(self) -> None:
        if not self.tokens or len(self.choices) < 2 or not 0 <= self.answer < len(self.choices):
            raise TaskError(
                f"an item has a prompt of {len(self.tokens)} tokens, {len(self.choices)} choices and answer {self.answer}; "
                "give at least one token, two choices, and the number of one of them"
            )
        for i, one in enumerate(self.choices):
            if any(i != j and other[: len(one)] == one for j, other in enumerate(self.choices)):
                raise TaskError(
                    f"choice {self.choice_texts[i]!r} begins or equals another one of {self.choice_texts}, so it could "
                    "never be less likely; give choices that part"
                )


class RuleTask(Protocol):
    """A family of items; everything is drawn from one integer seed."""

    @property
    def name(self) -> str:
        """A short name for records."""

    @property
    def chance(self) -> float:
        """How often a guess is right."""

    def sample(self, n: int, *, seed: int, bos: int | None = None) -> tuple[ChoiceItem, ...]:
        """`n` items behind `bos` where given; the same seed gives the same items."""


def write_item(
    tokenizer: Any, text: str, choice_texts: Sequence[str], *, answer: int, bos: int | None = None
) -> ChoiceItem:
    """The item in the tokenizer's ids; raises `TaskError` where it joins the end of the prompt with a choice."""
    before = encode(tokenizer, text)
    choices = []
    for choice in choice_texts:
        whole = encode(tokenizer, text + choice)
        if whole[: len(before)] != before or len(whole) == len(before):
            raise TaskError(
                f"the tokenizer doesn't keep {choice!r} apart from the end of the prompt {text[-30:]!r}, so the item can't "
                "be cut by tokens; use a model whose tokenizer splits at spaces"
            )
        choices.append(tuple(whole[len(before) :]))
    front = () if bos is None else (bos,)
    return ChoiceItem(
        tokens=(*front, *before),
        choices=tuple(choices),
        answer=answer,
        text=text,
        choice_texts=tuple(choice_texts),
    )


def find_words(tokenizer: Any, words: Sequence[str], *, carrier: str = f"{_CARRIER} ") -> dict[str, int]:
    """The words that add one token of their own to `carrier`, with its id."""
    before = encode(tokenizer, carrier.rstrip(" "))
    found = {}
    for word in words:
        ids = encode(tokenizer, carrier + word)
        if len(ids) == len(before) + 1 and ids[:-1] == before and tokenizer.decode(ids[-1:]).strip() == word:
            found[word] = ids[-1]
    return found


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids without what the tokenizer puts first."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def require_words(tokenizer: Any) -> None:
    """Raises `TaskError` where the model has no tokenizer."""
    if tokenizer is None:
        raise TaskError("the model has no tokenizer, so no sentence can be put to it; give a model that comes with one")


def require_count(n: int) -> None:
    """Raises `TaskError` for a batch without prompts."""
    if n < 1:
        raise TaskError(f"a batch of {n} prompts cannot be drawn: give at least 1")


def in_rounds(n: int, n_choices: int, generator: torch.Generator) -> list[int]:
    """`n` choices in random order, each as often as any other or once more."""
    n_rounds = -(-n // n_choices)
    return torch.cat([torch.randperm(n_choices, generator=generator) for _ in range(n_rounds)])[:n].tolist()


def hash_items(items: Sequence[ChoiceItem]) -> str:
    """SHA-256 of all token ids and answers: two measurements with one hash were asked the same."""
    content = repr([(item.tokens, item.choices, item.answer) for item in items])
    return hashlib.sha256(content.encode()).hexdigest()
