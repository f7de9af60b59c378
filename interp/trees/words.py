"""Sentences as words, and words as token ids: what a tree's leaves are, and what the model reads.

A sentence is a sequence of words: each a token id, the ids of its sub-words, or a string. Words that are strings, and texts
with spaces between their words, are looked up in a vocabulary, such as a task's, or read by the model's tokenizer.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=9, n_ctx=8, attn_only=True, device="cpu")
>>> read_sentences(model, [[3, 4, 5], [(1, 2), 3]], bos=None)
(((3,), (4,), (5,)), ((1, 2), (3,)))
>>> read_sentences(model, ["the cat sleeps"], bos=None, vocabulary=["pad", "the", "cat", "sleeps"])
(((1,), (2,), (3,)),)
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError

Sentence = str | Sequence[int | str | Sequence[int]] | Int[Tensor, "_words"]
"""Text, or its words: strings, one token id a word, or the ids of each word's sub-words."""

Words = tuple[tuple[int, ...], ...]
"""The token ids of each word."""


def read_sentences(
    model: Any,
    sentences: Sequence[Sentence],
    *,
    bos: int | None,
    eos: int | None = None,
    vocabulary: Sequence[str] | None = None,
) -> tuple[Words, ...]:
    """The words of each sentence, checked: two at least, with ids that the model has, and not beyond its context.

    `vocabulary` has the word of each token id; `bos` stands before the words and `eos` after them. Raises `InputError` for
    what isn't so, for a word that isn't in the vocabulary, and for text that can't be read word by word.
    """
    if isinstance(sentences, str):
        raise InputError("The sentences are one text; give a list of sentences, each a text or a list of words.")
    read = tuple(
        _read(model, sentence, f"Sentence {index}", vocabulary=vocabulary) for index, sentence in enumerate(sentences)
    )
    if not read:
        raise InputError("There are no sentences to measure; give at least one.")
    for index, words in enumerate(read):
        _check_words(model, words, f"Sentence {index}", n_ends=(bos is not None) + (eos is not None))
    return read


def spell_words(model: Any, words: Words, *, vocabulary: Sequence[str] | None = None) -> tuple[str, ...]:
    """The words as they are drawn: from the vocabulary or the tokenizer, else their token ids."""
    tokenizer = getattr(model, "tokenizer", None)
    if vocabulary is not None:
        return tuple(
            "+".join(vocabulary[token] if token < len(vocabulary) else str(token) for token in word) for word in words
        )
    if tokenizer is None:
        return tuple("+".join(map(str, word)) for word in words)
    return tuple(tokenizer.decode(list(word)).strip() for word in words)


def _read(model: Any, sentence: Sentence, name: str, *, vocabulary: Sequence[str] | None) -> Words:
    listed = sentence.tolist() if isinstance(sentence, Tensor) else sentence
    if isinstance(listed, str):
        spelled = listed.split()
    elif any(isinstance(word, str) for word in listed):
        spelled = [word for word in listed if isinstance(word, str)]
        if len(spelled) < len(listed):
            raise InputError(f"{name} has both strings and token ids; give all its words in one way.")
    else:
        return tuple((word,) if isinstance(word, int) else tuple(word) for word in listed)
    return _look_up(spelled, name, vocabulary) if vocabulary is not None else _tokenize(model, spelled, name)


def _look_up(spelled: Sequence[str], name: str, vocabulary: Sequence[str]) -> Words:
    ids = {word: token for token, word in enumerate(vocabulary)}
    unknown = next((word for word in spelled if word not in ids), None)
    if unknown is not None:
        raise InputError(f"{name} has the word {unknown!r}, which isn't among the {len(vocabulary)} of the vocabulary.")
    return tuple((ids[word],) for word in spelled)


def _tokenize(model: Any, spelled: Sequence[str], name: str) -> Words:
    """The ids of each word, which the whole text must have too."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            f"{name} is text, but this model has no tokenizer; give token ids, or the word of each id as `vocabulary=`, "
            "such as a task's."
        )
    # Growing texts, since some tokenizers read a word by itself in another way than behind a blank.
    texts = [" ".join(spelled[: n + 1]) for n in range(len(spelled))]
    ids = [[], *(tokenizer.encode(text, add_special_tokens=False) for text in texts)]
    if any(longer[: len(shorter)] != shorter for shorter, longer in pairwise(ids)):
        raise InputError(
            f"The tokenizer joins words of {texts[-1]!r} or reads them in another way before the next; give the token ids of "
            "each word."
        )
    words = tuple(tuple(longer[len(shorter) :]) for shorter, longer in pairwise(ids))
    unknown = next((word for word, own in zip(spelled, words, strict=True) if _is_unknown(tokenizer, word, own)), None)
    if unknown is not None:
        raise InputError(f"{name} has the word {unknown!r}, which the model's tokenizer doesn't know.")
    return words


def _is_unknown(tokenizer: Any, word: str, ids: Sequence[int]) -> bool:
    return tokenizer.unk_token_id in ids and tokenizer.unk_token not in word


def _check_words(model: Any, words: Words, name: str, *, n_ends: int) -> None:
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
    length = len(tokens) + n_ends
    if length > n_ctx:
        counted = ("", ", the first one counted", ", first and last one counted")[n_ends]
        raise InputError(
            f"{name} has {length} tokens{counted}, but this model reads at most {n_ctx}; give shorter sentences."
        )
