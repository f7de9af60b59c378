"""Chains of made-up kinds: is what was asked true? In the style of PrOntoQA (Saparov & He 2023, arXiv 2210.01240).

    every wug is dax . every fip is not red . every dax is red . every kel is fip .     rules, in random order
    ada is wug . ? ada is not red :                                                     fact, question
    ada is wug . ada is dax . ada is red . false                                        chain of thought, answer

Each question has an ontology of its own. From the fact, `hops` rules lead to a property; the other branches lead just as
far, to the same property or its opposite, so that half of all branches end in `not`. Exchange the ends of two branches,
and the words stay the same, but the answer turns. Since both are equally likely, no bag of words tells the answer: one
must follow the rules. The chain begins with the fact, as the published ones do. Half of each batch
is true.

Splits: `train` with 1 to `hops` rules on the way; `id`, as many, but with an individual, a property and a chain of kinds
that never stand together in training, whatever is around them; `ood`, more rules than trained, up to `ood_hops`.

>>> from tasks.language.sequences import spell
>>> task = Ontology(hops=2, ood_hops=3)
>>> batch = task.sample(6, split="train", seed=0)
>>> spell(batch.tokens[1], task.vocabulary)
'every lum is old . every crev is not old . eve is crev . ? eve is old : eve is crev . eve is not old . false'
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.checks import check_number, check_split
from tasks.language.held_out import check_share, draw_until, is_held_out
from tasks.language.ontology_text import CONCEPTS, INDIVIDUALS, PROPERTIES, VOCABULARY, Questions, write
from tasks.language.sequences import assemble, mask_between, score_answers
from tasks.seeding import derive_generator, derive_seed
from tasks.task import Batch, TaskError

Targets = Literal["chain", "answer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ontology:
    """True or false, by rules that are given in random order beside others."""

    hops: int = 3
    """Most rules on the way to an answer in training."""
    ood_hops: int = 5
    """Most rules on the way out of distribution, where they are more than `hops`."""
    branches: int = 2
    """Chains of rules in an ontology: an even number, of which the fact begins one."""
    kinds: int = len(CONCEPTS)
    """Kinds that the language has; the fewer, the sooner a model can tell them all apart."""
    targets: Targets = "chain"
    """`chain`: each step is written, then the answer. `answer`: it is due at once, without a chain."""
    id_share: float = 0.1
    """Share of (individual, property, chain of kinds) kept for the test."""
    data_seed: int = 0
    """Which ones."""

    def __post_init__(self) -> None:
        if self.hops < 1 or self.ood_hops <= self.hops:
            raise TaskError(
                f"hops={self.hops} and ood_hops={self.ood_hops} leave a split without questions: "
                "give 1 <= hops < ood_hops"
            )
        if self.branches < 2 or self.branches % 2:
            raise TaskError(
                f"branches={self.branches} would let the count of 'not' tell the answer: give an even number from 2 up"
            )
        if self.kinds > len(CONCEPTS):
            raise TaskError(f"kinds={self.kinds} is more than there are words for: give at most {len(CONCEPTS)}")
        if self.branches * self.ood_hops > self.kinds:
            raise TaskError(
                f"{self.branches} branches of {self.ood_hops} rules need {self.branches * self.ood_hops} kinds, "
                f"but there are {self.kinds}: give fewer branches or a smaller ood_hops"
            )
        if self.targets not in get_args(Targets):
            raise TaskError(f"targets={self.targets!r} is unknown: give 'chain' or 'answer'")
        check_share("id_share", self.id_share)

    @property
    def name(self) -> str:
        """`ontology`, with the hops of training."""
        behind = "" if self.targets == "chain" else ", without a chain"
        return f"ontology of 1 to {self.hops} hops{behind}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token."""
        return VOCABULARY

    @property
    def d_vocab(self) -> int:
        """Padding, kinds, properties, individuals and the words between them."""
        return len(VOCABULARY)

    @property
    def n_ctx(self) -> int:
        """The longest question out of distribution, with its answer."""
        return self._width("ood")

    @property
    def splits(self) -> tuple[str, ...]:
        """Trained on, as long but kept for the test, longer."""
        return ("train", "id", "ood")

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` questions; roles `separator` and `answer` are [n, 1], the others masks.

        `own_rules` lead from the fact to the answer, `other_rules` don't; `fact`, `question`, `chain`. Rows are as long
        as the longest of the split.
        """
        check_split(split, self.splits, name=self.name)
        check_number(n)
        generator = derive_generator(seed, "ontology", split)
        text = write(self._draw(n, split, generator), targets=self.targets, generator=generator)
        width = self._width(split)
        tokens, regions = text.tokens[:, :width], {role: mask[:, :width] for role, mask in text.roles.items()}
        answer_at = text.lengths - 1
        separator = answer_at - regions["chain"].sum(1, keepdim=True) - 1
        answer = mask_between(separator + 1, text.lengths, width=width)
        return assemble(tokens, answer=answer, roles={**regions, "separator": separator, "answer": answer_at})

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`exact_match` of chain and answer, `token_accuracy`, and `answer`, chance 1/2, one value per sequence.

        `answer` is given behind the right chain. Whether the model gets there by itself is what `exact_match` says.
        """
        before = (batch.roles["answer"] - 1).to(logits.device)
        right = logits.argmax(-1) == batch.targets.to(logits.device)
        return {**score_answers(logits, batch), "answer": right.gather(1, before)[:, 0].float()}

    def _width(self, split: str) -> int:
        """Tokens of the longest row: rules, fact, question with its separator, chain, answer."""
        hops = self.ood_hops if split == "ood" else self.hops
        chain = 4 * (hops + 1) + 1 if self.targets == "chain" else 0
        return self.branches * 5 * hops + self.branches // 2 + 4 + 6 + chain + 1

    def _draw(self, n: int, split: str, generator: torch.Generator) -> Questions:
        least, most = (self.hops + 1, self.ood_hops) if split == "ood" else (1, self.hops)
        seed = derive_seed(self.data_seed, "ontology", "id")

        def draw(m: int) -> Int[Tensor, "m columns"]:
            individual = torch.randint(len(INDIVIDUALS), (m, 1), generator=generator)
            about = torch.randint(len(PROPERTIES), (m, 1), generator=generator)
            hops = torch.randint(least, most + 1, (m, 1), generator=generator)
            order = torch.rand((m, self.kinds), generator=generator)
            return torch.cat([individual, about, hops, order.topk(self.branches * most, dim=1).indices], dim=1)

        def keep(rows: Int[Tensor, "m columns"]) -> Bool[Tensor, " m"]:
            if split == "ood":
                return torch.ones(len(rows), dtype=torch.bool)
            own = rows[:, : 3 + most].clone()
            own[:, 3:][torch.arange(most) >= rows[:, 2:3]] = 0  # hops is in the row, so these can't be taken for kinds
            return is_held_out(own, share=self.id_share, seed=seed) == (split == "id")

        share = {"ood": 1.0, "id": self.id_share, "train": 1 - self.id_share}[split]
        rows = draw_until(n, draw, keep, share=share)
        true = torch.arange(n) % 2 == 0
        asked_not = torch.rand(n, generator=generator) < 0.5
        own_not = asked_not == true
        # The others are exchangeable, so it doesn't matter which of them end as the fact's own branch does.
        opposite = torch.arange(self.branches - 1) < self.branches // 2
        return Questions(
            individual=rows[:, 0],
            about=rows[:, 1],
            hops=rows[:, 2],
            concepts=rows[:, 3:].unflatten(1, (self.branches, most)),
            ends_not=torch.cat([own_not[:, None], own_not[:, None] ^ opposite], dim=1),
            asked_not=asked_not,
            true=true,
        )
