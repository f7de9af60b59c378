"""Sentences as words, and words as token ids: what a tree's leaves are, and what the model reads.

A sentence is a sequence of words, each a token id or the ids of its sub-words; or text with spaces between its words,
which the model's tokenizer reads.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=9, n_ctx=8, attn_only=True, device="cpu")
>>> read_sentences(model, [[3, 4, 5], [(1, 2), 3]], bos=None)
(((3,), (4,), (5,)), ((1, 2), (3,)))
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.models.check import require_tokenizer

Sentence = str | Sequence[int | Sequence[int]] | Int[Tensor, "_words"]
"""Text, or one token id a word, or the ids of each word's sub-words."""

Words = tuple[tuple[int, ...], ...]
"""The token ids of each word."""


def read_sentences(model: Any, sentences: Sequence[Sentence], *, bos: int | None) -> tuple[Words, ...]:
    """The words of each sentence, checked: two at least, with ids that the model has, not beyond its context with `bos`.

    Raises `InputError` for what isn't so, and for text where there is no tokenizer or a word's ids depend on the words
    around it.
    """
    if isinstance(sentences, str):
        raise InputError("The sentences are one text; give a list of sentences, each a text or a list of words.")
    read = tuple(_split_text(model, one) if isinstance(one, str) else _list_words(one) for one in sentences)
    if not read:
        raise InputError("There are no sentences to measure; give at least one.")
    for index, words in enumerate(read):
        _check_words(model, words, f"Sentence {index}", bos)
    return read


def _list_words(sentence: Sequence[int | Sequence[int]] | Tensor) -> Words:
    words = sentence.tolist() if isinstance(sentence, Tensor) else sentence
    return tuple((word,) if isinstance(word, int) else tuple(word) for word in words)


def _split_text(model: Any, text: str) -> Words:
    """The ids of each word between spaces, which the whole text must have too."""
    tokenizer = require_tokenizer(model)
    spaced = [word if index == 0 else f" {word}" for index, word in enumerate(text.split())]
    words = tuple(tuple(tokenizer.encode(word, add_special_tokens=False)) for word in spaced)
    whole = tokenizer.encode("".join(spaced), add_special_tokens=False)
    if [token for word in words for token in word] != whole:
        raise InputError(
            f"The tokenizer reads the words of {text!r} differently one by one and together; give the token ids of each word."
        )
    return words


def _check_words(model: Any, words: Words, name: str, bos: int | None) -> None:
    if not words:
        raise InputError(f"{name} is empty; give two words or more.")
    if len(words) == 1:
        raise InputError(f"{name} has one word, so there is nothing to split; give two words or more.")
    d_vocab, n_ctx = model.cfg.d_vocab, model.cfg.n_ctx
    tokens = [token for word in words for token in word]
    if not all(words):
        raise InputError(
            f"Word {words.index(())} of {name[0].lower()}{name[1:]} has no tokens; give each word one or more."
        )
    wrong = next((token for token in tokens if not 0 <= token < d_vocab), None)
    if wrong is not None:
        raise InputError(f"{name} has the token id {wrong}, but this model's ids go from 0 to {d_vocab - 1}.")
    length = len(tokens) + (bos is not None)
    if length > n_ctx:
        raise InputError(
            f"{name} has {length} tokens{', the first one counted' if bos is not None else ''}, but this model reads at "
            f"most {n_ctx}; give shorter sentences."
        )
