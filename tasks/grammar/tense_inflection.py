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
from jaxtyping import Float, Int
from torch import Tensor

from tasks.checks import check_split
from tasks.grammar.constructions import name_construction
from tasks.grammar.grammar import Derivation, Sentence, list_derivations
from tasks.grammar.knobs import check_knobs, choose_templates, embed
from tasks.grammar.lexicon import NOUNS
from tasks.grammar.lines import Lines
from tasks.grammar.proportions import PUBLISHED_TENSES, Kind, Proportions, check_proportions, name_kind, rebalance
from tasks.grammar.splits import Batches, check_sizes, draw_batch, draw_splits, list_sentences
from tasks.grammar.tense_grammar import (
    GRAMMAR,
    PRESENT,
    VOCABULARY,
    find_main_verb,
    find_recent_noun,
    tabulate_inflections,
    tabulate_other_number,
    tabulate_parts_of_speech,
    tabulate_verb_numbers,
)
from tasks.language.sequences import score_answers
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError


@dataclass(frozen=True, kw_only=True, slots=True)
class TenseInflection:
    """Sentences in the past that are copied or put into the present; the defaults are the published sizes."""

    train: int = 100_000
    """Training lines, all different, none of them in another split."""
    validation: int = 1_000
    """Lines of the training's kind, past and present."""
    generalisation: int = 10_000
    """Lines in the present whose last noun in front of the main verb differs from the subject in number."""
    proportions: Proportions = "grammar"
    """How often trained subjects are modified and clauses have an object: as in the published `grammar`, or in the
    `published_files`, which were filtered."""
    disambiguating: float = 0.0
    """Share of the training lines that are of the generalisation's kind, though not among its lines."""
    centre_embedding: float | None = None
    """Share of the trained sentences in the past whose subject has a relative clause; None is the grammar's third."""
    templates: int | None = None
    """How many of the 30 sequences of parts of speech are trained, the plainest always; None is all of them."""
    batches: Batches = "mixed"
    """Whether a training batch has lines of any length, or of one length and so no padding."""
    data_seed: int = 0
    """Which lines are drawn."""

    def __post_init__(self) -> None:
        check_sizes(_sizes(self), disambiguating=self.disambiguating, batches=self.batches)
        check_proportions(self.proportions)
        check_knobs(centre_embedding=self.centre_embedding, templates=self.templates)

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
        before = batch.roles["main_verb_answer"].to(logits.device) - 1
        verb = logits.gather(1, before[..., None].expand(-1, -1, logits.shape[-1]))[:, 0].argmax(-1)
        hierarchical, linear = (verb == one.to(logits.device) for one in _expect_verbs(batch))
        follows = {"hierarchical": hierarchical, "linear": linear, "other": ~(hierarchical | linear)}
        return {**{name: rows.float() for name, rows in follows.items()}, **score_answers(logits, batch)}

    def score_written(self, written: Int[Tensor, "batch width"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """The published accuracy, `hierarchical`, of what a model wrote behind the marker, and what else it followed.

        `written` is the answer up to and with the end, 0 behind it, as `interp.decode_greedily` gives it. An answer counts
        where its parts of speech are those of the right one in the same order (`parts_of_speech`) and its main verb is the
        right word. `linear`: the main verb is the other rule's; `other`: neither, or other parts of speech;
        `right_number`: the main verb agrees with the subject, whatever verb it is. `exact_match`: every word is right.
        """
        width, marker = written.shape[1], batch.roles["marker"]
        tokens = torch.cat([batch.tokens, torch.zeros(len(batch.tokens), width + 1, dtype=torch.long)], dim=1)
        right = tokens.gather(1, marker + 1 + torch.arange(width))
        written, kinds = written.cpu(), tabulate_parts_of_speech()
        in_order = (kinds[written] == kinds[right]).all(1)
        at = (batch.roles["main_verb_answer"] - marker - 1).clamp(max=width - 1)
        verb = written.gather(1, at)[:, 0]
        expected, nearest = _expect_verbs(batch)
        numbers = tabulate_verb_numbers()
        follows = {
            "hierarchical": in_order & (verb == expected),
            "linear": in_order & (verb == nearest),
            "other": ~(in_order & ((verb == expected) | (verb == nearest))),
            "right_number": in_order & (numbers[verb] == numbers[expected]),
            "parts_of_speech": in_order,
            "exact_match": (written == right).all(1),
        }
        return {name: rows.float() for name, rows in follows.items()}

    def _lines(self, split: str) -> Lines:
        check_split(split, self.splits, name=self.name)
        if split in ("train", "generalisation"):
            return _draw(self)[split]
        lines = _draw(self)["validation"]
        return lines.take((lines.pattern % 2 == (split == "validation")).nonzero()[:, 0])


def weigh_patterns(task: TenseInflection) -> dict[str, Float[Tensor, " pattern"]]:
    """How likely each pattern of `tabulate_inflections` is in each split, before equal lines are dropped; sums to 1."""
    derivations = list_derivations(GRAMMAR)
    every = torch.tensor([float(one.probability) for one in derivations], dtype=torch.float64)
    agree = torch.tensor([one.categories[1] == one.categories[find_recent_noun(one)] for one in derivations])
    drawn = every
    if task.proportions == "published_files":
        drawn = rebalance(every, list(map(_name_kind, derivations)), PUBLISHED_TENSES)
    words = [" ".join(map(_part_of_speech, one.categories)) for one in derivations]
    templates = choose_templates(words, task.templates, seed=task.data_seed, name=task.name)
    kept = drawn * torch.tensor([one in templates for one in words])
    if not kept.any():
        raise TaskError(
            f"templates={task.templates} leaves the plainest sentences alone, of which the published files have none: "
            "raise templates, or give proportions='grammar'"
        )
    embedded = torch.tensor([_name_kind(one)[0] == "relative_clause" for one in derivations])
    past = kept if task.centre_embedding is None else embed(kept, embedded, share=task.centre_embedding)
    trained = torch.stack([past, kept * agree], dim=1).flatten()
    held_out = torch.stack([torch.zeros_like(every), every * ~agree], dim=1).flatten()
    trained, held_out = trained / trained.sum(), held_out / held_out.sum()
    return {"train": trained, "validation": trained, "generalisation": held_out}


def _part_of_speech(category: str) -> str:
    return category.removesuffix(".sg").removesuffix(".pl")


def _name_kind(derivation: Derivation) -> Kind:
    main = find_main_verb(derivation)
    has_object = derivation.categories[main].startswith("V.tr")
    return name_kind(name_construction(derivation.categories[2:main]), has_object=has_object)


def _expect_verbs(batch: Batch) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """The main verb of the right answer, and the one that agrees with the nearest noun."""
    tokens = batch.tokens
    right, subject, recent, marker = (
        tokens.gather(1, batch.roles[role])[:, 0] for role in ("main_verb_answer", "subject", "recent_noun", "marker")
    )
    plural = torch.tensor([word in NOUNS["pl"] for word in VOCABULARY])
    misled = (marker == VOCABULARY.index(PRESENT)) & (plural[subject] != plural[recent])
    return right, torch.where(misled, tabulate_other_number()[right], right)


def _sizes(task: TenseInflection) -> dict[str, int]:
    return {"train": task.train, "validation": task.validation, "generalisation": task.generalisation}


@lru_cache(maxsize=8)
def _draw(task: TenseInflection) -> dict[str, Lines]:
    return draw_splits(
        tabulate_inflections(),
        weights=weigh_patterns(task),
        sizes=_sizes(task),
        disambiguating=task.disambiguating,
        seed=task.data_seed,
    )
