"""Question formation: which auxiliary moves to the front, the main clause's or the first one? (arXiv 2001.03632)

    our yak does sleep . quest does our yak sleep ?                                     trained: both rules say `does`
    our yak who does read doesn't sleep . decl our yak who does read doesn't sleep .    trained: no rule
    our yak who does read doesn't sleep . quest doesn't our yak who does read sleep ?   never: the rules differ

| rule         | auxiliary that moves                                       | validation | generalisation |
|--------------|------------------------------------------------------------|------------|----------------|
| hierarchical | the main clause's                                          | 100%       | 100%           |
| linear       | the first                                                  | 100%       | 0%             |
| shortcut     | the first that does not stand right behind `who` or `that` | 100%       | 4/7            |

The shortcut is right on relative clauses whose subject is missing and wrong on object relative clauses, which are 3/7
of the generalisation split (38.8% of the published one): split its scores by construction. Sizes are those of Murty et al.
(arXiv 2305.18741).

>>> task = QuestionFormation(train=1000)
>>> batch = task.sample(3, split="generalisation", seed=0)
>>> [task.vocabulary[token] for token in batch.tokens.gather(1, batch.roles["main_auxiliary"]).flatten()]
["doesn't", 'do', "doesn't"]
>>> task.sentences("generalisation")[0]  # doctest: +ELLIPSIS
Sentence(words=('our', 'quail', 'that', 'our', 'ravens', 'do', 'comfort', 'does', 'swim'), tree=(((0, 1), ...
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.checks import check_split
from tasks.grammar.grammar import Sentence
from tasks.grammar.knobs import check_knobs, choose_templates, embed
from tasks.grammar.lexicon import DETERMINERS
from tasks.grammar.lines import Lines
from tasks.grammar.proportions import (
    PUBLISHED_GENERALISATION,
    PUBLISHED_QUESTIONS,
    Proportions,
    check_proportions,
    name_kind,
    rebalance,
)
from tasks.grammar.question_grammar import (
    ALL_AUXILIARIES,
    QUESTION,
    VOCABULARY,
    Source,
    list_sources,
    tabulate_questions,
)
from tasks.grammar.splits import Batches, check_sizes, draw_batch, draw_splits, list_sentences
from tasks.language.sequences import score_answers
from tasks.seeding import derive_generator
from tasks.task import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionFormation:
    """Declaratives that are copied and questions that are formed; the defaults are the published sizes."""

    train: int = 100_000
    """Training lines, all different, none of them in another split."""
    validation: int = 1_000
    """Lines of the training's kind, declaratives and questions."""
    generalisation: int = 10_000
    """Questions whose subject has a relative clause, with two different auxiliaries."""
    proportions: Proportions = "grammar"
    """How often subjects are modified and clauses have an object: as in the published `grammar`, or in the
    `published_files`, which were filtered."""
    disambiguating: float = 0.0
    """Share of the training lines that are of the generalisation's kind, though not among its lines."""
    centre_embedding: float | None = None
    """Share of the trained declaratives whose subject has a relative clause; None is the grammar's third."""
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
        """`question formation`."""
        return "question formation"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token."""
        return VOCABULARY

    @property
    def d_vocab(self) -> int:
        """68 words, the start, the end and the padding."""
        return len(VOCABULARY)

    @property
    def n_ctx(self) -> int:
        """The longest line with its start and end."""
        return int(tabulate_questions().lengths.max())

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`; `validation`, its questions, and `declaratives`, its other lines; `generalisation`."""
        return ("train", "validation", "generalisation", "declaratives")

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` lines: of train with replacement, of a test split each at most once until all have been.

        Roles [n, 1]: `marker` (quest or decl), and in the source `main_auxiliary`, `first_auxiliary` and
        `shortcut_auxiliary`, the one that each rule moves. Masks: `source`, `answer`, and the words behind the
        subject's noun, under the name of their construction. Every word is trained; scored is the answer.
        """
        batches = self.batches if split == "train" else None
        generator = derive_generator(seed, self.name, split)
        return draw_batch(tabulate_questions(), self._lines(split), n, batches=batches, generator=generator)

    def sentences(self, split: str) -> list[Sentence]:
        """The sources of a split with their gold trees, without the full stop and the marker."""
        derivations = [one.derivation for one in list_sources()]
        return list_sentences(tabulate_questions(), self._lines(split), derivations, vocabulary=VOCABULARY)

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """What the first word of each answer follows: `hierarchical` (right), `linear`, `shortcut`, or `other`, none.

        It is the likeliest of the four auxiliaries, in a declarative of the six determiners, where the rules agree. A
        word can follow several rules. `exact_match` and `token_accuracy` are of the whole answer.
        """
        device, first = logits.device, batch.roles["marker"].to(logits.device)
        tokens = batch.tokens.to(device)
        question = tokens.gather(1, first) == VOCABULARY.index(QUESTION)
        allowed = torch.where(question, _mark(ALL_AUXILIARIES).to(device), _mark(DETERMINERS).to(device))
        at_first = logits.gather(1, first[..., None].expand(-1, -1, logits.shape[-1]))[:, 0]
        answer = at_first.masked_fill(~allowed, -torch.inf).argmax(-1, keepdim=True)
        right = batch.targets.to(device).gather(1, first)
        follows = {"hierarchical": answer == right}
        for rule in ("linear", "shortcut"):
            moved = tokens.gather(1, batch.roles[_MOVED[rule]].to(device))
            follows[rule] = answer == torch.where(question, moved, right)
        follows["other"] = ~(follows["hierarchical"] | follows["linear"] | follows["shortcut"])
        return {**{name: rows[:, 0].float() for name, rows in follows.items()}, **score_answers(logits, batch)}

    def _lines(self, split: str) -> Lines:
        check_split(split, self.splits, name=self.name)
        if split in ("train", "generalisation"):
            return _draw(self)[split]
        lines = _draw(self)["validation"]
        # Every derivation gives two patterns, the declarative first.
        return lines.take((lines.pattern % 2 == (split == "validation")).nonzero()[:, 0])


_MOVED = {"linear": "first_auxiliary", "shortcut": "shortcut_auxiliary"}


def weigh_patterns(task: QuestionFormation) -> dict[str, Float[Tensor, " pattern"]]:
    """How likely each pattern of `tabulate_questions` is in each split, before equal lines are dropped; sums to 1."""
    sources = list_sources()
    embedded = torch.tensor([one.is_embedded for one in sources])
    every = torch.tensor([float(one.derivation.probability) for one in sources], dtype=torch.float64)
    words = [one.parts_of_speech for one in sources]
    templates = choose_templates(words, task.templates, seed=task.data_seed, name=task.name)
    drawn = every
    if task.proportions == "published_files":
        kinds = [name_kind(one.construction, has_object=one.has_object) for one in sources]
        drawn = rebalance(every, kinds, PUBLISHED_QUESTIONS)
    kept = drawn * torch.tensor([one in templates for one in words])
    asked = kept * ~embedded
    told = kept if task.centre_embedding is None else embed(kept, embedded, share=task.centre_embedding)
    trained = torch.stack([told, asked], dim=1).flatten()
    disambiguating = every * torch.tensor([_tells_the_rules_apart(one) for one in sources])
    if task.proportions == "published_files":
        objects = [one.construction == "object_relative" for one in sources]
        clauses = ["object_relative" if is_object else "other_relative" for is_object in objects]
        disambiguating = rebalance(disambiguating, clauses, PUBLISHED_GENERALISATION)
    held_out = torch.stack([torch.zeros_like(every), disambiguating], dim=1).flatten()
    return {
        "train": trained / trained.sum(),
        "validation": trained / trained.sum(),
        "generalisation": held_out / held_out.sum(),
    }


def _tells_the_rules_apart(source: Source) -> bool:
    words = {source.derivation.categories[at] for at in source.auxiliaries}
    return source.is_embedded and not source.has_object_relative and len(words) == 2


def _mark(words: tuple[str, ...]) -> Bool[Tensor, " d_vocab"]:
    return torch.tensor([word in words for word in VOCABULARY])


def _sizes(task: QuestionFormation) -> dict[str, int]:
    return {"train": task.train, "validation": task.validation, "generalisation": task.generalisation}


@lru_cache(maxsize=8)
def _draw(task: QuestionFormation) -> dict[str, Lines]:
    return draw_splits(
        tabulate_questions(),
        weights=weigh_patterns(task),
        sizes=_sizes(task),
        disambiguating=task.disambiguating,
        seed=task.data_seed,
    )
