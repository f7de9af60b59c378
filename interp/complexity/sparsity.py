"""How spread out attention is: its entropy, by layer and head.

For the pattern a of a query with m keys that it may attend to, in nats:

    H = -sum_k a_k log a_k,   normalised H / log m,

both averaged over the queries with at least two such keys: 0 is attention to one key, 1 is equal attention to all.

`published` is the attention sparsity of Murty et al. 2023 (arXiv:2305.18741) up to its sign: the entropy of the pattern
averaged over heads, summed over the queries of a sequence, averaged over layers and sequences. It grows with the length
of a sequence, and averaging heads first hides heads that attend sharply to different keys. The published program also feeds
the embeddings to every layer; `inputs="embeddings"` does so, to compare with its values, and is of no other use.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> _ = torch.nn.init.zeros_(model.blocks[0].attn.W_Q)
>>> attention_sparsity(model, torch.tensor([[0, 1, 2, 3]])).normalised
array([[1., 1.]])
>>> attention_sparsity(model, [[0, 1, 2], [3, 1]]).entropy_per_sequence.round(2).tolist()  # log 2 and log 3; log 2
[[[0.9, 0.9]], [[0.69, 0.69]]]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import run_until
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import hash_tokens
from interp.statistics import bootstrap_interval

if TYPE_CHECKING:
    from interp.figures.style import Picture

LayerInputs = Literal["own", "embeddings"]
"""Whether each layer reads what the one before wrote, or, as in the published program, all read the embeddings."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSparsity:
    """Entropy of attention, sequence by sequence; `.entropy` and `.normalised` are means [layer, head]."""

    entropy_per_sequence: Float[np.ndarray, "sequence layer head"]
    """Mean entropy over queries with at least two legal keys, in nats."""
    normalised_per_sequence: Float[np.ndarray, "sequence layer head"]
    """The same with each query's entropy divided by the log of its number of legal keys: 0 to 1."""
    published_per_sequence: Float[np.ndarray, "sequence"]
    """Entropy of the head-averaged pattern, summed over queries, averaged over layers, in nats."""
    inputs: LayerInputs
    """What each layer read: its `own` input, or the `embeddings`, as in the published program."""
    data_sha256: str
    """Hash of the token ids that were read."""
    provenance: Provenance
    """The model that was measured."""
    notes: tuple[str, ...] = ()
    """What happened on the way, such as a batch that was halved."""

    @property
    def entropy(self) -> Float[np.ndarray, "layer head"]:
        """Mean entropy in nats."""
        return self.entropy_per_sequence.mean(axis=0)

    @property
    def normalised(self) -> Float[np.ndarray, "layer head"]:
        """Mean entropy as a share of the largest possible."""
        return self.normalised_per_sequence.mean(axis=0)

    @property
    def published(self) -> tuple[float, float, float]:
        """(value, low, high) of the published measure, with its bootstrap interval over sequences."""
        low, high = bootstrap_interval(self.published_per_sequence)
        return float(self.published_per_sequence.mean()), float(low), float(high)

    def to_frame(self) -> pd.DataFrame:
        """One row a layer, head and measure (`entropy` in nats, `normalised`): value, low, high, n."""
        frames = []
        for measure, values in self._measures().items():
            low, high = bootstrap_interval(values)
            layers, heads = np.divmod(np.arange(low.size), low.shape[1])
            columns = {"value": values.mean(axis=0).ravel(), "low": low.ravel(), "high": high.ravel()}
            frames.append(
                pd.DataFrame({"layer": layers, "head": heads, "measure": measure, **columns, "n": len(values)})
            )
        return pd.concat(frames, ignore_index=True)

    def figure(self) -> "Picture":
        """Map of the normalised entropy over layers and heads, the sharpest heads marked."""
        from interp.figures.heads import head_map

        values = self.normalised
        sharpest = np.argsort(values, axis=None, kind="stable")[: min(3, values.size)]
        top = [(int(i // values.shape[1]), int(i % values.shape[1])) for i in sharpest]
        return head_map(values, label="entropy / log(number of keys)", top=top, title="Attention entropy")

    def _measures(self) -> dict[Literal["entropy", "normalised"], np.ndarray]:
        return {"entropy": self.entropy_per_sequence, "normalised": self.normalised_per_sequence}

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        over_heads = self.normalised_per_sequence.mean(axis=(1, 2))
        low, high = bootstrap_interval(over_heads)
        published, published_low, published_high = self.published
        read = "" if self.inputs == "own" else ", every layer reads the embeddings"
        return (
            f"AttentionSparsity({self.provenance.model}: entropy {self.entropy.mean():.2f} nats, "
            f"{over_heads.mean():.2f} [{low:.2f}, {high:.2f}] of the largest possible; published measure {published:.2f} "
            f"[{published_low:.2f}, {published_high:.2f}]{read}; n={len(over_heads)} sequences)"
        )


def attention_sparsity(
    model: Any,
    tokens: Int[Tensor, "sequence pos"] | Sequence[Int[Tensor, "_pos"] | Sequence[int]],
    *,
    inputs: LayerInputs = "own",
    batch_size: int | None = None,
) -> AttentionSparsity:
    """Entropy of attention on given sequences, all of whose tokens count; a list may hold sequences of different lengths.

    Sequences of one length run together, so that none is padded. Works on a HookedTransformer, a TransformerBridge and a
    HookedEncoder. Raises `InputError` for no sequence, sequences of one token, whose attention has no choice, or of more than
    the model reads, and where the model hides the attention of a layer.
    """
    if inputs not in get_args(LayerInputs):
        raise InputError(f"inputs={inputs!r} isn't known; use one of {', '.join(get_args(LayerInputs))}.")
    sequences = [torch.as_tensor(sequence, dtype=torch.long) for sequence in tokens]
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long)
    _check_lengths(lengths, n_ctx=model.cfg.n_ctx)
    n_layers = model.cfg.n_layers
    entropy = np.full((len(sequences), n_layers, model.cfg.n_heads), np.nan)
    normalised = np.full_like(entropy, np.nan)
    published = np.full((len(sequences), n_layers), np.nan)

    def run(rows: Int[np.ndarray, "row"]) -> None:
        batch = torch.stack([sequences[row] for row in rows]).to(model.cfg.device)
        reach = _Reach(like=batch, causal=model.cfg.attention_dir == "causal")
        hooks: list[tuple[str, HookFunction]] = []
        embeddings: dict[str, Tensor] = {}
        for layer in range(n_layers):
            if inputs == "embeddings":
                hooks.append((f"blocks.{layer}.hook_resid_pre", _read_embeddings(embeddings)))
            hooks.append((f"blocks.{layer}.attn.hook_attn_scores", reach.read))
            hooks.append((f"blocks.{layer}.attn.hook_pattern", reduce(rows, layer, reach)))
        with add_hooks(model, hooks):
            run_until(model, batch, f"blocks.{n_layers - 1}.attn.hook_z")

    def reduce(rows: Int[np.ndarray, "row"], layer: int, reach: "_Reach") -> HookFunction:
        def take(pattern: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> None:
            pattern = pattern.float()
            nats = torch.special.entr(pattern).sum(-1)  # [batch head_index query_pos]
            n_keys = reach.legal.sum(-1)  # [batch head_index query_pos]
            counted = n_keys > 1
            n_counted = counted.sum(-1).clamp_min(1)
            share = nats / n_keys.clamp_min(2).log()
            entropy[rows, layer] = ((nats * counted).sum(-1) / n_counted).cpu().numpy()
            normalised[rows, layer] = ((share * counted).sum(-1) / n_counted).cpu().numpy()
            together = torch.special.entr(pattern.mean(1)).sum(-1)  # [batch query_pos]
            published[rows, layer] = together.sum(-1).cpu().numpy()

        return take

    notes: list[str] = []
    for length in lengths.unique().tolist():
        alike = np.flatnonzero(lengths.numpy() == length)

        def run_some(rows: slice, alike: Int[np.ndarray, "row"] = alike) -> None:
            run(alike[rows])

        notes += for_each_batch(len(alike), run_some, batch_size=batch_size or choose_batch_size(model, length))
    unseen = np.flatnonzero(np.isnan(published).any(axis=0))
    if unseen.size:
        raise InputError(
            f"The attention of layers {', '.join(map(str, unseen))} can't be read: their hook_pattern gives no pattern in this "
            f"{type(model).__name__}; load the model as a HookedTransformer."
        )
    return AttentionSparsity(
        entropy_per_sequence=entropy,
        normalised_per_sequence=normalised,
        published_per_sequence=published.mean(axis=1),
        inputs=inputs,
        data_sha256=hash_tokens(tokens if isinstance(tokens, Tensor) else torch.cat([lengths, *sequences])[None]),
        provenance=get_provenance(model),
        notes=tuple(dict.fromkeys(notes)),
    )


def _check_lengths(lengths: Int[Tensor, "sequence"], *, n_ctx: int) -> None:
    if not len(lengths) or int(lengths.min()) < 2:
        given = f"a sequence of {int(lengths.min())} tokens" if len(lengths) else "no sequence"
        raise InputError(
            f"Attention sparsity was asked of {given}; give at least one sequence, each of at least two tokens."
        )
    if int(lengths.max()) > n_ctx:
        raise InputError(f"The sequences have {int(lengths.max())} tokens, but this model reads at most n_ctx={n_ctx}.")


def _read_embeddings(embeddings: dict[str, Tensor]) -> HookFunction:
    """A hook that gives every layer what the first one reads."""

    def read(residual: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Float[Tensor, "batch pos d_model"]:
        return embeddings.setdefault("first", residual)

    return read


class _Reach:
    """Which keys each query may attend to: read off each layer's masked scores, since windows differ by layer."""

    def __init__(self, *, like: Int[Tensor, "batch pos"], causal: bool) -> None:
        n = like.shape[1]
        self.within = torch.ones(n, n, dtype=torch.bool, device=like.device)
        if causal:
            self.within = self.within.tril()
        self.legal = self.within

    def read(self, scores: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> None:
        # A key out of reach has -inf in a HookedTransformer and the lowest finite number in a bridge.
        self.legal = (scores > torch.finfo(scores.dtype).min / 2) & self.within
