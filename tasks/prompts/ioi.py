"""Indirect-object identification: two people, one of them gives something, and the other one's name comes next.

    ABBA   After Mary and John had lunch, John gave the key to   -> Mary
    BABA   After John and Mary had lunch, John gave the key to   -> Mary

The name that occurs once, IO, is the answer; S, the giver, occurs twice (Wang et al. 2022, arXiv:2211.00593, from which
the form is taken; the sentences are our own). Whether a model tells them apart is its logit difference,
logit(IO) - logit(S). Each prompt has two counterparts, aligned token by token, whose difference from it says what is
tested:

- `swap`: the giver's second mention becomes IO, so the answer becomes S and the logit difference changes its sign;
- `unrelated`: all three mentions become three other names, so that nothing tells IO from S (the paper's p_ABC).

Names are used that the tokenizer writes as one token in the middle of a sentence. Their ids are found there, not by
encoding the bare word, and each prompt is checked: it has these tokens at these places, and with the answer behind it
becomes the prompt's tokens and that one. With `people="symbols"` signs such as `&&` stand for the names: the same rule, on
sentences that no model has read.

>>> class Words:  # any tokenizer with `encode` and `decode`, such as `model.tokenizer`
...     def __init__(self): self.words = []
...     def encode(self, text, add_special_tokens):
...         words = text.replace(",", " ,").replace(".", " .").split()
...         self.words += [word for word in words if word not in self.words]
...         return [self.words.index(word) for word in words]
...     def decode(self, ids): return " ".join(self.words[i] for i in ids)
>>> ioi = IOI(Words())
>>> prompts = ioi.sample(4, seed=0)
>>> prompts.texts[0]
'For the first time Victoria and Matt visited the river together. Before lunch Victoria gave the camera to'
>>> ioi.tokenizer.decode([int(prompts.io[0])])
'Matt'
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.prompts.names import NAMES
from tasks.prompts.rules import SYMBOLS, encode, find_words, in_rounds, require_count, require_words
from tasks.prompts.templates import OBJECTS, PLACES, TEMPLATES
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

Order = Literal["ABBA", "BABA"]
Corruption = Literal["swap", "unrelated"]
People = Literal["names", "symbols"]

FEWEST_NAMES = 10
_MENTIONS = ("{first}", "{second}", "{subject}")


@dataclass(frozen=True, kw_only=True)
class IOIBatch(Batch):
    """Prompts, right-padded, scored at their last token; roles: `IO`, `S1`, `S1+1`, `S2`, `last`, each [batch, 1]."""

    corrupted: Mapping[Corruption, Int[Tensor, "batch pos"]]
    """The counterparts, aligned token by token."""
    io: Int[Tensor, "batch"]
    """Token id of the answer."""
    s: Int[Tensor, "batch"]
    """Token id of the giver's name."""
    orders: tuple[Order, ...]
    """`ABBA` where IO is named first, else `BABA`."""
    templates: Int[Tensor, "batch"]
    """Which of `TEMPLATES`."""
    texts: tuple[str, ...]
    """The prompts as text, without what stands first."""

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: slice | Sequence[int]) -> "IOIBatch":
        """Some of the prompts, padded as they were."""
        chosen = list(range(len(self))[rows]) if isinstance(rows, slice) else list(rows)
        return IOIBatch(
            **{name: getattr(self, name)[chosen] for name in ("tokens", "targets", "trained", "scored", "io", "s")},
            roles={name: positions[chosen] for name, positions in self.roles.items()},
            corrupted={name: tokens[chosen] for name, tokens in self.corrupted.items()},
            orders=tuple(self.orders[i] for i in chosen),
            templates=self.templates[chosen],
            texts=tuple(self.texts[i] for i in chosen),
        )

    def choose_alike(self, n: int) -> "IOIBatch":
        """`n` of the prompts, of the commonest lengths, in their order: prompts of one length can be patched together."""
        lengths = self.roles["last"][:, 0]
        common = lengths.bincount()[lengths] * (int(lengths.max()) + 1) + lengths  # by count, then by length
        return self.select(sorted(common.argsort(descending=True, stable=True)[:n].tolist()))


@dataclass(frozen=True, eq=False)
class IOI:
    """The task in the words of one tokenizer; raises `TaskError` where that has too few names of one token."""

    tokenizer: Any = field(repr=False)
    """`encode(text, add_special_tokens=False) -> ids` and `decode(ids) -> text`, as Hugging Face's tokenizers have."""
    people: People = "names"
    """What the two people are called."""
    names: Mapping[str, int] = field(init=False, repr=False)
    """The names or symbols in use, with their token ids."""

    def __post_init__(self) -> None:
        if self.people not in get_args(People):
            raise TaskError(f"people={self.people!r} isn't known; use one of {', '.join(get_args(People))}")
        require_words(self.tokenizer)
        known, what = (NAMES, "first names") if self.people == "names" else (SYMBOLS, "symbols")
        object.__setattr__(self, "names", find_words(self.tokenizer, known))
        if len(self.names) < FEWEST_NAMES:
            raise TaskError(
                f"the tokenizer writes {len(self.names)} of {len(known)} {what} as one token, but these sentences "
                f"need {FEWEST_NAMES}; use a model with a larger vocabulary"
            )

    @property
    def name(self) -> str:
        """A short name for records."""
        return "indirect-object identification" + (" with symbols" if self.people == "symbols" else "")

    def sample(self, n: int, *, seed: int, bos: int | None = None) -> IOIBatch:
        """`n` prompts behind `bos` where given; the same seed gives the same prompts.

        Half are ABBA; no template is used more than once more often than another, and no name as IO, or as S.
        """
        require_count(n)
        generator = derive_generator(seed, "ioi")
        cast = self._cast(n, generator)
        usable = self._find_templates()
        templates = [usable[i] for i in in_rounds(n, len(usable), generator)]
        places, objects = in_rounds(n, len(PLACES), generator), in_rounds(n, len(OBJECTS), generator)
        abba = (torch.arange(n)[torch.randperm(n, generator=generator)] % 2 == 0).tolist()
        prompts = [
            self._write(
                TEMPLATES[templates[i]], PLACES[places[i]], OBJECTS[objects[i]], cast[i], "ABBA" if abba[i] else "BABA"
            )
            for i in range(n)
        ]
        return _stack(prompts, torch.tensor(templates), bos=bos, padding=self._padding())

    def score(self, logits: Float[Tensor, "batch pos d_vocab"], batch: IOIBatch) -> dict[str, Float[Tensor, "batch"]]:
        """The scores of `score_last`, from the logits at every position."""
        last = batch.roles["last"][:, 0].to(logits.device)
        return self.score_last(logits[torch.arange(len(last), device=last.device), last], batch)

    def score_last(self, logits: Float[Tensor, "batch d_vocab"], batch: IOIBatch) -> dict[str, Float[Tensor, "batch"]]:
        """`accuracy`: IO is the likeliest token of all; `prefers_io`: likelier than S; `logit_difference`."""
        io, s = (ids.to(logits.device) for ids in (batch.io, batch.s))
        difference = (logits.gather(1, io[:, None]) - logits.gather(1, s[:, None]))[:, 0]
        return {
            "accuracy": (logits.argmax(-1) == io).float(),
            "prefers_io": (difference > 0).float(),
            "logit_difference": difference.float(),
        }

    def _find_templates(self) -> list[int]:
        """A tokenizer joins a symbol with the comma behind it, so symbols stand only where a space follows."""
        return [
            number
            for number, template in enumerate(TEMPLATES)
            if self.people == "names" or all(f" {mention} " in template for mention in _MENTIONS)
        ]

    def _cast(self, n: int, generator: torch.Generator) -> list[tuple[str, ...]]:
        """For each prompt IO, S and three strangers, all different; in a round each name has each part once."""
        cast: list[tuple[str, ...]] = []
        while len(cast) < n:
            order = [list(self.names)[i] for i in torch.randperm(len(self.names), generator=generator)]
            shifts = torch.randperm(len(order), generator=generator)[:5].tolist()
            cast += zip(*(order[shift:] + order[:shift] for shift in shifts), strict=True)
        return cast[:n]

    def _write(self, template: str, place: str, thing: str, cast: Sequence[str], order: Order) -> "_Prompt":
        io, s, *strangers = cast
        filled = template.replace("{place}", place).replace("{object}", thing)
        mentions = (io, s, s) if order == "ABBA" else (s, io, s)
        tokens, places, text = self._place(filled, mentions)
        if self._encode(f"{text} {io}") != [*tokens, self.names[io]]:
            raise TaskError(_misaligned(text))
        corrupted: dict[Corruption, list[int]] = {}
        others: dict[Corruption, tuple[str, ...]] = {"swap": (*mentions[:2], io), "unrelated": tuple(strangers)}
        for kind, names in others.items():
            corrupted[kind], found, _ = self._place(filled, names)
            if found != places or len(corrupted[kind]) != len(tokens):
                raise TaskError(_misaligned(text))
        first, second, s2 = places
        at_io, s1 = (first, second) if order == "ABBA" else (second, first)
        return _Prompt(
            tokens=tokens,
            corrupted=corrupted,
            roles={"IO": at_io, "S1": s1, "S1+1": s1 + 1, "S2": s2, "last": len(tokens) - 1},
            io=self.names[io],
            s=self.names[s],
            order=order,
            text=text,
        )

    def _place(self, filled: str, mentions: Sequence[str]) -> tuple[list[int], tuple[int, ...], str]:
        """The sentence's tokens, the place of each mention, and its text."""
        pieces, text = [], filled
        for slot, name in zip(_MENTIONS, mentions, strict=True):
            before, after = text.split(f" {slot}")
            pieces.append((before, name))
            text = f"{before} {name}{after}"
        tokens = self._encode(text)
        places = []
        for before, name in pieces:
            prefix = self._encode(before)
            if tokens[: len(prefix) + 1] != [*prefix, self.names[name]]:
                raise TaskError(_misaligned(text))
            places.append(len(prefix))
        return tokens, tuple(places), text

    def _encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, text)

    def _padding(self) -> int:
        known = (getattr(self.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
        return next((token_id for token_id in known if token_id is not None), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prompt:
    """One prompt before it is padded."""

    tokens: list[int]
    corrupted: dict[Corruption, list[int]]
    roles: dict[str, int]
    io: int
    s: int
    order: Order
    text: str


def _stack(prompts: Sequence[_Prompt], templates: Int[Tensor, "batch"], *, bos: int | None, padding: int) -> IOIBatch:
    front = [] if bos is None else [bos]
    longest = max(len(prompt.tokens) for prompt in prompts)

    def pad(rows: list[list[int]]) -> Int[Tensor, "batch pos"]:
        return torch.tensor([front + row + [padding] * (longest - len(row)) for row in rows])

    roles = {role: torch.tensor([[len(front) + prompt.roles[role]] for prompt in prompts]) for role in prompts[0].roles}
    tokens = pad([prompt.tokens for prompt in prompts])
    scored = torch.arange(tokens.shape[1]) == roles["last"]
    io = torch.tensor([prompt.io for prompt in prompts])
    return IOIBatch(
        tokens=tokens,
        targets=torch.where(scored, io[:, None], tokens.roll(-1, dims=1)),
        trained=scored,
        scored=scored,
        roles=roles,
        corrupted={kind: pad([prompt.corrupted[kind] for prompt in prompts]) for kind in prompts[0].corrupted},
        io=io,
        s=torch.tensor([prompt.s for prompt in prompts]),
        orders=tuple(prompt.order for prompt in prompts),
        templates=templates,
        texts=tuple(prompt.text for prompt in prompts),
    )


def _misaligned(text: str) -> str:
    return (
        f"the tokenizer doesn't keep the names of {text!r} apart from the words around them, so the prompt can't be "
        "aligned; use a model whose tokenizer splits at spaces"
    )
