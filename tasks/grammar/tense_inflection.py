"""Tense inflection: does the verb agree with its subject, or with the noun nearest to it? (arXiv 2001.03632)

    my newt near your yak slept . PRESENT my newt near your yak sleeps .        trained: both rules say `sleeps`
    my newt near your yaks slept . PAST my newt near your yaks slept .          trained: no rule
    my newt near your yaks slept . PRESENT my newt near your yaks sleeps .      never: the rules differ

| rule         | the main verb agrees with    | validation | generalisation |
|--------------|------------------------------|------------|----------------|
| hierarchical | the subject                  | 100%       | 100%           |
| linear       | the last noun in front of it | 100%       | 0%             |

Settings and sizes are those of Murty et al. (arXiv 2305.18741).

>>> task = TenseInflection(train=1000)
>>> batch = task.sample(3, split="generalisation", seed=0)
>>> for role in ("subject", "recent_noun", "main_verb"):
...     print([task.vocabulary[token] for token in batch.tokens.gather(1, batch.roles[role]).flatten()])
['newt', 'peacock', 'newt']
['salamanders', 'unicorns', 'quails']
['moved', 'confused', 'accepted']
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.checks import check_split
from tasks.grammar.constructions import mark_construction, name_construction
from tasks.grammar.grammar import Derivation, Sentence, list_derivations, read_grammar
from tasks.grammar.lexicon import DETERMINERS, INTRANSITIVE, NOUNS, PREPOSITIONS, RELATIVISERS, TRANSITIVE
from tasks.grammar.lines import END, START, Lines, Pattern, Patterns, tabulate
from tasks.grammar.splits import Batches, check_sizes, draw_batch, draw_splits, list_sentences
from tasks.language.sequences import score_answers
from tasks.seeding import derive_generator
from tasks.task import Batch

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TenseInflection:
    """Sentences in the past that are copied or put into the present; the defaults are the published sizes."""

    train: int = 100_000
    """Training lines, all different, none of them in another split."""
    validation: int = 1_000
    """Lines of the training's kind, past and present."""
    generalisation: int = 10_000
    """Lines in the present whose last noun in front of the main verb differs from the subject in number."""
    disambiguating: float = 0.0
    """Share of the training lines that are of the generalisation's kind, though not among its lines."""
    batches: Batches = "mixed"
    """Whether a training batch has lines of any length, or of one length and so no padding."""
    data_seed: int = 0
    """Which lines are drawn."""

    def __post_init__(self) -> None:
        check_sizes(_sizes(self), disambiguating=self.disambiguating, batches=self.batches)

    @property
    def name(self) -> str:
        """`tense inflection`."""
        return "tense inflection"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token."""
        return VOCABULARY

    @property
    def d_vocab(self) -> int:
        """98 words, the start, the end and the padding."""
        return len(VOCABULARY)

    @property
    def n_ctx(self) -> int:
        """The longest line with its start and end."""
        return int(tabulate_inflections().lengths.max())

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`; `validation`, its lines in the present, and `past`, its others; `generalisation`."""
        return ("train", "validation", "generalisation", "past")

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` lines: of train with replacement, of a test split each at most once until all have been.

        Roles [n, 1]: `marker` (PAST or PRESENT), in the source `subject`, `recent_noun` and `main_verb`, and
        `main_verb_answer`. Masks: `source`, `answer`, and the words behind the subject's noun, under the name of their
        construction. Every word is trained; scored is the answer.
        """
        batches = self.batches if split == "train" else None
        generator = derive_generator(seed, self.name, split)
        return draw_batch(tabulate_inflections(), self._lines(split), n, batches=batches, generator=generator)

    def sentences(self, split: str) -> list[Sentence]:
        """The sources of a split with their gold trees, without the full stop and the marker."""
        return list_sentences(
            tabulate_inflections(), self._lines(split), list_derivations(GRAMMAR), vocabulary=VOCABULARY
        )

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """What the main verb of each answer follows: `hierarchical` (right), `linear`, or `other`, neither.

        It is the likeliest of all words behind the right words so far. In the past both rules are right.
        `exact_match` and `token_accuracy` are of the whole answer.
        """
        tokens, device = batch.tokens.to(logits.device), logits.device
        at = batch.roles["main_verb_answer"].to(device)
        right = tokens.gather(1, at)
        before = logits.gather(1, (at - 1)[..., None].expand(-1, -1, logits.shape[-1]))[:, 0]
        answer = before.argmax(-1, keepdim=True)
        plural = torch.tensor([word in NOUNS["pl"] for word in VOCABULARY], device=device)
        subject, recent = (
            plural[tokens.gather(1, batch.roles[role].to(device))] for role in ("subject", "recent_noun")
        )
        present = tokens.gather(1, batch.roles["marker"].to(device)) == VOCABULARY.index(PRESENT)
        other_number = _tabulate_other_number().to(device)
        nearest = torch.where(present & (subject != recent), other_number[right], right)
        follows = {"hierarchical": answer == right, "linear": answer == nearest}
        follows["other"] = ~(follows["hierarchical"] | follows["linear"])
        return {**{name: rows[:, 0].float() for name, rows in follows.items()}, **score_answers(logits, batch)}

    def _lines(self, split: str) -> Lines:
        check_split(split, self.splits, name=self.name)
        if split in ("train", "generalisation"):
            return _draw(self)[split]
        lines = _draw(self)["validation"]
        return lines.take((lines.pattern % 2 == (split == "validation")).nonzero()[:, 0])


@lru_cache(maxsize=1)
def tabulate_inflections() -> Patterns:
    """Two patterns for each derivation: 2 i is the past and 2 i + 1 the present of derivation i."""
    patterns = [_write_pattern(one, marker=marker) for one in list_derivations(GRAMMAR) for marker in (PAST, PRESENT)]
    return tabulate(patterns, lists=_LISTS, vocabulary=VOCABULARY)


def weigh_patterns() -> dict[str, Float[Tensor, " pattern"]]:
    """How likely each pattern of `tabulate_inflections` is in each split, before equal lines are dropped; sums to 1."""
    derivations = list_derivations(GRAMMAR)
    every = torch.tensor([float(one.probability) for one in derivations], dtype=torch.float64)
    agree = torch.tensor([one.categories[1] == one.categories[_find_recent_noun(one)] for one in derivations])
    trained = torch.stack([every, every * agree], dim=1).flatten()
    held_out = torch.stack([torch.zeros_like(every), every * ~agree], dim=1).flatten()
    trained, held_out = trained / trained.sum(), held_out / held_out.sum()
    return {"train": trained, "validation": trained, "generalisation": held_out}


def _find_main_verb(derivation: Derivation) -> int:
    # The subject is the longest constituent at the front but the sentence.
    return max(end for start, end in derivation.labels if start == 0 and end < len(derivation.categories))


def _find_recent_noun(derivation: Derivation) -> int:
    front = derivation.categories[: _find_main_verb(derivation)]
    return max(at for at, category in enumerate(front) if category.startswith("N."))


def _write_pattern(derivation: Derivation, *, marker: str) -> Pattern:
    categories, main, n = derivation.categories, _find_main_verb(derivation), len(derivation.categories)
    past = [_put_into_past(category) for category in categories]
    return Pattern(
        draws=(0, *range(n), 0, 0, *range(n), 0, 0),
        lists=(START, *past, ".", marker, *(past if marker == PAST else categories), ".", END),
        roles={
            "marker": n + 2,
            "subject": 2,
            "recent_noun": 1 + _find_recent_noun(derivation),
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
def _tabulate_other_number() -> Tensor:
    """For each token the same verb in the present of the other number, itself where it is no verb."""
    other = torch.arange(len(VOCABULARY))
    for verbs in (INTRANSITIVE, TRANSITIVE):
        singular, plural = ([VOCABULARY.index(word) for word in verbs[number]] for number in ("sg", "pl"))
        other[singular], other[plural] = torch.tensor(plural), torch.tensor(singular)
    return other


def _sizes(task: TenseInflection) -> dict[str, int]:
    return {"train": task.train, "validation": task.validation, "generalisation": task.generalisation}


@lru_cache(maxsize=8)
def _draw(task: TenseInflection) -> dict[str, Lines]:
    return draw_splits(
        tabulate_inflections(),
        weights=weigh_patterns(),
        sizes=_sizes(task),
        disambiguating=task.disambiguating,
        seed=task.data_seed,
    )
