"""SCAN: commands in, actions out; does a model use a word where it never saw it? (Lake & Baroni, arXiv 1711.00350).

    jump around left twice : LTURN JUMP LTURN JUMP ... end

| split           | trained                                              | lines  | tested                      | lines |
|-----------------|------------------------------------------------------|--------|-----------------------------|-------|
| `simple`        | 80% of all commands                                  | 16,728 | the rest                    | 4,182 |
| `add_jump`      | the 13,203 without `jump`, and 1,467 times `jump`    | 14,670 | the others with `jump`      | 7,706 |
| `add_turn_left` | the 19,701 without `turn left`, and 2,189 times that | 21,890 | the others with `turn left` | 1,208 |
| `length`        | up to 22 actions                                     | 16,990 | 24 to 48 actions            | 3,920 |

The sizes are those of the published files. A primitive is repeated until it is a tenth of the lines: N + r with
r = N / 9. "With `turn left`" means the two words side by side; `turn opposite left` and `turn around left` are trained.
Which commands are held out is determined by the rule, except in `simple`, where `data_seed` draws them anew.

>>> from tasks.language.sequences import spell
>>> task = Scan(split="add_jump")
>>> batch = task.sample(64, split="ood", seed=0)
>>> spell(batch.tokens[1], task.vocabulary)
'jump opposite left thrice and walk thrice : LTURN LTURN JUMP LTURN LTURN JUMP LTURN LTURN JUMP WALK WALK WALK end'
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.checks import check_number, check_split
from tasks.language.scan_grammar import ACTIONS, REPETITIONS, TURNS, VERBS, WORDS, list_commands
from tasks.language.sequences import PAD, assemble, mask_between, score_answers
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

Split = Literal["simple", "add_jump", "add_turn_left", "length"]

SEPARATOR, END = ":", "end"
_VOCABULARY = ("pad", *WORDS, *ACTIONS, SEPARATOR, END)
_ROLES = {
    "verb": (*VERBS, "turn"),
    "side": tuple(TURNS),
    "manner": ("opposite", "around"),
    "repetition": tuple(REPETITIONS),
    "conjunction": ("and", "after"),
    "actions": ACTIONS,
}
_PRIMITIVES = {"add_jump": "jump", "add_turn_left": "turn left"}
_LONGEST_TRAINED = 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """All commands of the grammar, some of them kept for the test."""

    split: Split = "simple"
    """Which commands are kept for the test."""
    data_seed: int = 0
    """Which fifth is kept in `simple`; the others leave no choice."""

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise TaskError(f"split={self.split!r} is unknown: give one of {', '.join(get_args(Split))}")

    @property
    def name(self) -> str:
        """`SCAN`, with the split."""
        return f"SCAN, {self.split}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each token."""
        return _VOCABULARY

    @property
    def d_vocab(self) -> int:
        """Padding, 13 words, 6 actions, separator and end."""
        return len(_VOCABULARY)

    @property
    def n_ctx(self) -> int:
        """The longest command with its actions, whether it is trained or not."""
        return int(_tabulate().lengths.max())

    @property
    def splits(self) -> tuple[str, ...]:
        """`train`, and `id` for commands like those trained on, `ood` for others."""
        return ("train", "id" if self.split == "simple" else "ood")

    def commands(self, split: str) -> list[str]:
        """The lines of a split, as often as they are in it."""
        check_split(split, self.splits, name=self.name)
        every = list(list_commands())
        return [every[line] for line in _divide(self)[split].tolist()]

    def sample(self, n: int, *, split: str, seed: int) -> Batch:
        """`n` lines with replacement; roles `separator` [n, 1], and masks `command`, `actions` and the kinds of words.

        The kinds are `verb`, `side`, `manner` (opposite, around), `repetition` and `conjunction`. Rows are as long as
        the longest of the split.
        """
        check_split(split, self.splits, name=self.name)
        check_number(n)
        lines, table = _divide(self)[split], _tabulate()
        chosen = lines[torch.randint(len(lines), (n,), generator=derive_generator(seed, "scan", split))]
        width = int(table.lengths[lines].max())
        tokens, separator = table.tokens[chosen, :width], table.separators[chosen]
        roles = {role: torch.isin(tokens, ids) for role, ids in _ids_of_roles().items()}
        roles["command"] = mask_between(torch.zeros_like(separator), separator, width=width)
        answer = mask_between(separator + 1, table.lengths[chosen], width=width)
        return assemble(tokens, answer=answer, roles={**roles, "separator": separator})

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
        """`exact_match` of all actions and the end, and `token_accuracy`, one value per sequence."""
        return score_answers(logits, batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """Every command, one a row."""

    tokens: Int[Tensor, "line pos"]
    separators: Int[Tensor, "line 1"]
    lengths: Int[Tensor, "line 1"]


@lru_cache(maxsize=1)
def _tabulate() -> _Table:
    number = {word: token for token, word in enumerate(_VOCABULARY)}
    rows = [[*command.split(), SEPARATOR, *actions, END] for command, actions in list_commands().items()]
    width = max(map(len, rows))
    tokens = torch.tensor([[number[word] for word in row] + [PAD] * (width - len(row)) for row in rows])
    return _Table(
        tokens=tokens,
        separators=torch.tensor([[row.index(SEPARATOR)] for row in rows]),
        lengths=torch.tensor([[len(row)] for row in rows]),
    )


@lru_cache(maxsize=1)
def _ids_of_roles() -> dict[str, Int[Tensor, " ids"]]:
    return {role: torch.tensor([_VOCABULARY.index(word) for word in words]) for role, words in _ROLES.items()}


@lru_cache(maxsize=16)
def _divide(task: Scan) -> dict[str, Int[Tensor, " lines"]]:
    """The numbers of the lines of each split."""
    test = _choose_test(task)
    train = (~test).nonzero()[:, 0]
    if task.split in _PRIMITIVES:
        primitive = list(list_commands()).index(_PRIMITIVES[task.split])
        others = train[train != primitive]
        train = torch.cat([others, torch.full((len(others) // 9,), primitive)])
    return {"train": train, task.splits[1]: test.nonzero()[:, 0]}


def _choose_test(task: Scan) -> Bool[Tensor, " line"]:
    every = list_commands()
    if task.split == "length":
        return torch.tensor([len(actions) > _LONGEST_TRAINED for actions in every.values()])
    if task.split == "simple":
        order = torch.randperm(len(every), generator=derive_generator(task.data_seed, "scan", "simple"))
        return order < len(every) // 5
    primitive = _PRIMITIVES[task.split]
    # No word of the language ends or begins with another one, so a part of the text is a part of the command.
    return torch.tensor([primitive in command and primitive != command for command in every])
