"""Score every attention head on repeated random tokens: does it attend by induction, to the previous token, to a copy?

The definitions, with their papers and the maximum that each can reach, are in `interp.heads.definitions`. The tokens are
ids, so no tokenizer is needed. Patterns are reduced to scores layer by layer while the pass runs, and the pass ends
inside the last layer: memory doesn't grow with the layers and no logit is computed.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=40, n_ctx=64, attn_only=True)
>>> scores = interp.score_heads(model, n_sequences=8, segment=10)
>>> scores.mean("induction", "sink_removed").shape
(2, 2)
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.heads.definitions import DEFINITIONS, Definition, Geometry, Kind, score_pattern, score_values
from interp.interventions.hooks import HookFunction, add_hooks
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import run_until
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import Bos, hash_tokens, resolve_bos, usable_vocabulary
from interp.models.weights import expand_kv, gain_to_logits, output_weights, unembedding
from interp.statistics import bootstrap_interval
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator

if TYPE_CHECKING:
    from interp.figures.style import Picture

Sequences = Literal["repeated", "unrepeated"]


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """Scores of all heads, sequence by sequence. `.induction`, `.previous_token`, ... are means [layer, head]."""

    per_sequence: Mapping[str, Float[np.ndarray, "sequence layer head"]]
    """One array for each "kind/definition"."""
    geometry: Geometry
    """Where the copies lie."""
    sequences: Sequences
    """`repeated`, or `unrepeated` for the control at the same positions."""
    bos: int | None
    """The id that stood first, or None."""
    n_ids: int
    """Number of token ids that the sequences were drawn from."""
    seed: int
    """The seed of the sequences."""
    data_sha256: str
    """Hash of the token ids that were read."""
    provenance: Provenance
    """The model that was measured."""
    notes: tuple[str, ...] = ()
    """What happened on the way, such as a batch that was halved."""

    @property
    def n_sequences(self) -> int:
        return len(next(iter(self.per_sequence.values())))

    @property
    def induction(self) -> Float[np.ndarray, "layer head"]:
        """Mean attention to the token after the same token one copy earlier."""
        return self.mean("induction")

    @property
    def previous_token(self) -> Float[np.ndarray, "layer head"]:
        """Mean attention to the token before."""
        return self.mean("previous_token")

    @property
    def duplicate_token(self) -> Float[np.ndarray, "layer head"]:
        """Mean attention to the same token one copy earlier."""
        return self.mean("duplicate_token")

    @property
    def copying(self) -> Float[np.ndarray, "layer head"]:
        """How much of what a head's values raise is the token they were read at: 1 all, 0 chance."""
        return self.mean("copying")

    def mean(self, kind: Kind, definition: Definition | None = None) -> Float[np.ndarray, "layer head"]:
        """The score of each head, averaged over sequences; a kind's first definition when none is named."""
        return self._values(kind, definition).mean(axis=0)

    def interval(
        self, kind: Kind, definition: Definition | None = None, *, level: float = 0.95
    ) -> tuple[Float[np.ndarray, "layer head"], Float[np.ndarray, "layer head"]]:
        """Bootstrap interval of `mean` over sequences: (low, high)."""
        return bootstrap_interval(self._values(kind, definition), level=level, seed=self.seed)

    def top(self, kind: Kind, n: int, *, definition: Definition | None = None) -> list[tuple[int, int]]:
        """The `n` strongest heads as (layer, head), strongest first."""
        values = self.mean(kind, definition)
        if not 0 < n <= values.size:
            raise InputError(f"The top {n} heads were asked for, but this model has 1 to {values.size} of them.")
        order = np.argsort(-values, axis=None, kind="stable")[:n]
        return [(int(i // values.shape[1]), int(i % values.shape[1])) for i in order]

    def to_frame(self) -> pd.DataFrame:
        """One row a kind, definition, layer and head: value, low, high, n."""
        return self._frame.copy()

    @cached_property
    def _frame(self) -> pd.DataFrame:
        frames = []
        for name in self.per_sequence:
            kind, definition = cast(tuple[Kind, Definition], name.split("/"))
            value = self.mean(kind, definition)
            low, high = self.interval(kind, definition)
            layers, heads = np.divmod(np.arange(value.size), value.shape[1])
            columns = {"value": value.ravel(), "low": low.ravel(), "high": high.ravel()}
            frame = pd.DataFrame({"layer": layers, "head": heads, **columns})
            frames.append(frame.assign(kind=kind, definition=definition, n=self.n_sequences))
        order = ["kind", "definition", "layer", "head", "value", "low", "high", "n"]
        return pd.concat(frames, ignore_index=True)[order]

    def figure(self, kind: Kind = "induction", *, definition: Definition | None = None, n_marked: int = 5) -> "Picture":
        """Heat map over layers and heads, the strongest heads marked."""
        from interp.figures.heads import head_map

        values = self.mean(kind, definition)
        top = self.top(kind, min(n_marked, values.size), definition=definition)
        shown = kind.replace("_", "-")
        label = f"{shown} score, {(definition or DEFINITIONS[kind][0]).replace('_', ' ')}"
        return head_map(values, label=label, top=top, title=shown.capitalize())

    def _values(self, kind: str, definition: str | None) -> Float[np.ndarray, "sequence layer head"]:
        if kind not in DEFINITIONS:
            raise InputError(f"There is no head score {kind!r}; the scores are {', '.join(DEFINITIONS)}.")
        definition = definition or DEFINITIONS[kind][0]
        if definition not in DEFINITIONS[kind]:
            raise InputError(f"{kind} has no definition {definition!r}; it has {', '.join(DEFINITIONS[kind])}.")
        return self.per_sequence[f"{kind}/{definition}"]

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        parts = []
        for kind in ("induction", "previous_token"):
            layer, head = self.top(kind, 1)[0]
            low, high = self.interval(kind)
            value = self.mean(kind)[layer, head]
            interval = f"[{low[layer, head]:.2f}, {high[layer, head]:.2f}]"
            parts.append(f"strongest {kind.replace('_', '-')} head {layer}.{head} {value:.2f} {interval}")
        return f"HeadScores({self.provenance.model}: {'; '.join(parts)}; n={self.n_sequences} sequences)"


def score_heads(
    model: Any,
    *,
    n_sequences: int = 50,
    segment: int = 25,
    copies: int = 2,
    bos: Bos = "auto",
    vocabulary: Int[Tensor, "ids"] | None = None,
    sequences: Sequences = "repeated",
    seed: int = 0,
    batch_size: int | None = None,
) -> HeadScores:
    """Score all heads of a HookedTransformer or TransformerBridge on `copies` copies of a random segment.

    `vocabulary` are the ids to draw from (all but special and unused ones when not given). `sequences="unrepeated"` is
    the control: every token is drawn anew, and the same positions are scored. Raises `InputError` where the sequence is
    longer than the model's context, or the vocabulary smaller than a segment.
    """
    if n_sequences < 1 or segment < 2 or copies < 2:
        raise InputError(
            f"score_heads needs at least 1 sequence, a segment of 2 tokens and 2 copies, but was given "
            f"n_sequences={n_sequences}, segment={segment}, copies={copies}."
        )
    first = resolve_bos(model, bos)
    geometry = Geometry(offset=int(first is not None), segment=segment, copies=copies)
    if geometry.n_positions > model.cfg.n_ctx:
        raise InputError(
            f"{copies} copies of {segment} tokens make a sequence of {geometry.n_positions}, but this model reads at most "
            f"n_ctx={model.cfg.n_ctx}; give a smaller `segment` or fewer `copies`."
        )
    ids = usable_vocabulary(model) if vocabulary is None else vocabulary
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < model.cfg.d_vocab:
        raise InputError(
            f"The vocabulary has ids from {int(ids.min())} to {int(ids.max())}, but this model's go from 0 to "
            f"{model.cfg.d_vocab - 1}."
        )
    if len(ids) - (first in ids.tolist()) < segment:  # the first token stands in no segment
        raise InputError(
            f"A segment of {segment} distinct tokens needs as many ids, but the vocabulary has {len(ids)}; "
            "give a smaller `segment`."
        )
    tokens = repeated_tokens(
        n=n_sequences,
        segment=segment,
        copies=copies,
        vocabulary=ids,
        bos=first,
        sequences=sequences,
        generator=derive_generator(seed, "score_heads", sequences),
    )
    per_sequence, notes = _measure(
        model, tokens, geometry, batch_size=batch_size or choose_batch_size(model, geometry.n_positions)
    )
    return HeadScores(
        per_sequence=per_sequence,
        geometry=geometry,
        sequences=sequences,
        bos=first,
        n_ids=len(ids),
        seed=seed,
        data_sha256=hash_tokens(tokens),
        provenance=get_provenance(model),
        notes=tuple(notes),
    )


def _measure(
    model: Any, tokens: Int[Tensor, "sequence pos"], geometry: Geometry, *, batch_size: int
) -> tuple[dict[str, Float[np.ndarray, "sequence layer head"]], list[str]]:
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    shape = (len(tokens), n_layers, n_heads)
    scores: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(shape, dtype=np.float32))
    columns = unembedding(model).detach()

    def run(rows: slice) -> None:
        batch = tokens[rows].to(model.cfg.device)
        first_copy = batch[:, geometry.offset : geometry.offset + geometry.segment]
        unembedded = columns[:, first_copy].float().movedim(1, 0)  # [batch d_model pos]
        hooks: list[tuple[str, HookFunction]] = []
        for layer in range(n_layers):
            hooks.append(
                (f"blocks.{layer}.attn.hook_v", _reduce_values(model, scores, rows, layer, geometry, unembedded))
            )
            hooks.append((f"blocks.{layer}.attn.hook_pattern", _reduce_pattern(scores, rows, layer, geometry)))
        with add_hooks(model, hooks):
            run_until(model, batch, f"blocks.{n_layers - 1}.attn.hook_z")

    notes = for_each_batch(len(tokens), run, batch_size=batch_size)
    return dict(scores), notes


def _reduce_pattern(scores: dict[str, np.ndarray], rows: slice, layer: int, geometry: Geometry) -> HookFunction:
    def reduce(pattern: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> None:
        for name, values in score_pattern(pattern.float(), geometry).items():
            scores[name][rows, layer] = values.cpu().numpy()

    return reduce


def _reduce_values(
    model: Any, scores: dict[str, np.ndarray], rows: slice, layer: int, geometry: Geometry, unembedded: Tensor
) -> HookFunction:
    gain = gain_to_logits(model, layer).float()

    def reduce(values: Float[Tensor, "batch pos kv_head d_head"], hook: HookPoint) -> None:
        read = expand_kv(
            values[:, geometry.offset : geometry.offset + geometry.segment].float(), model.cfg.n_heads, axis=2
        )
        share = score_values(read, output_weights(model, layer).detach().float(), unembedded * gain[:, None])
        scores["copying/value_share"][rows, layer] = share.cpu().numpy()

    return reduce
