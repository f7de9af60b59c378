"""Every span of a sentence on its own, in an encoder: a row of its own tokens and the two ends, nothing else.

In an encoder a span's states depend on both sides, so each span needs a pass of its own, n(n+1)/2 of them. But with all
outside it masked, the states of [i, j) come from the keys i..j-1 and the two ends (CLS, SEP) alone, and theirs from the
same keys. So those tokens are gathered, with the positions that they have in the sentence, and nothing is masked.

Layers below the threshold see no mask: they run once for each sentence, and so do the queries, keys and values of the
threshold layer. Spans of equal length, of all sentences, are one batch without padding. The whole sentence is the span of
which nothing is masked, and gives the states that all others are compared with. Of the last layer only the spans' own
tokens are computed. Hence n words cost n(n+1)(n+8)/6 tokens a layer, where full passes cost (n+2)(n(n+1)/2 + 1).

>>> import interp
>>> shape = dict(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, act_fn="gelu", device="cpu")
>>> model = interp.build(**shape, attention_dir="bidirectional")
>>> spans = list_spans([((3,), (4,), (5,))], bos=0, eos=8)
>>> scores = score_gathered(model, spans, layers=[1], threshold_layer=0, distance="cosine")
>>> scores.shape, bool(scores[0, 2] == 1)  # [layer, span]; the third span is the whole sentence
(torch.Size([1, 6]), True)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedEncoder, HookedTransformer

from interp.models.batching import for_each_batch
from interp.models.suffix import add_attention, add_mlp, normalise, read_stream
from interp.models.weights import expand_kv
from interp.trees.causal import rotate_at
from interp.trees.similarity import TOKENS_AT_ONCE, Distance, compare_states
from interp.trees.words import Words

Projected = tuple[Float[Tensor, "*token _heads d_head"], ...]
"""Queries, keys and values."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """All spans of words of some sentences, whose tokens lie one sentence after the other, ends included; on the CPU."""

    tokens: Int[Tensor, "token"]
    position: Int[Tensor, "token"]
    """Where each token stands in its own sentence."""
    lead: int
    """1 where a first token stands before the words, else 0."""
    trail: int
    """1 where a last token stands after them, else 0."""
    sentences: Int[Tensor, "sentence 2"]
    """First token of each sentence, and the one after its last."""
    sentence: Int[Tensor, "span"]
    """Sentence by sentence, start by start, end by end."""
    begin: Int[Tensor, "span"]
    """The first of each span's tokens."""
    size: Int[Tensor, "span"]
    """How many they are."""

    @property
    def is_whole(self) -> Bool[Tensor, "span"]:
        """Which spans are whole sentences."""
        length = self.sentences[:, 1] - self.sentences[:, 0] - self.lead - self.trail
        return self.size == length[self.sentence]

    def gather(self, chosen: Int[Tensor, "row"]) -> Int[Tensor, "row pos"]:
        """The tokens of spans of one size, between the ends of their sentences."""
        first, after = self.sentences[self.sentence[chosen]].unbind(1)
        own = self.begin[chosen, None] + torch.arange(int(self.size[chosen[0]]))
        return torch.cat([first[:, None]] * self.lead + [own] + [after[:, None] - 1] * self.trail, dim=1)


def list_spans(words: Sequence[Words], *, bos: int | None, eos: int | None) -> Spans:
    """All spans of one word or more, by their tokens."""
    first, last = ([] if end is None else [end] for end in (bos, eos))
    tokens: list[int] = []
    sentences, spans = [], []
    for index, own in enumerate(words):
        offset = len(tokens)
        tokens += [*first, *(token for word in own for token in word), *last]
        sentences.append((offset, len(tokens)))
        ends = torch.tensor([len(word) for word in own]).cumsum(0)
        starts = F.pad(ends[:-1], (1, 0))
        i, j = torch.triu_indices(len(own), len(own)).unbind()
        spans.append(torch.stack([torch.full_like(i, index), offset + len(first) + starts[i], ends[j] - starts[i]]))
    sentence, begin, size = torch.cat(spans, dim=1).unbind()
    return Spans(
        tokens=torch.tensor(tokens),
        position=torch.cat([torch.arange(after - begin) for begin, after in sentences]),
        lead=len(first),
        trail=len(last),
        sentences=torch.tensor(sentences),
        sentence=sentence,
        begin=begin,
        size=size,
    )


def can_gather(model: Any, longest: int) -> bool:
    """Whether gathered rows give what the model's own masked pass of `longest` positions gives: usual parts, no hooks."""
    if not isinstance(model, HookedTransformer | HookedEncoder):
        return False
    cfg = model.cfg
    unusual = (
        cfg.use_attn_in
        or cfg.use_split_qkv_input
        or cfg.use_normalization_before_and_after
        or cfg.use_attention_sinks
        or cfg.use_local_attn
        or cfg.use_logn_attn
        or cfg.use_dynamic_ntk_rope
        or cfg.clip_qkv is not None
        or cfg.load_in_4bit
        or cfg.n_devices > 1
        or cfg.attn_scores_soft_cap > 0
        or str(cfg.original_architecture).startswith("Olmo")  # norms after the sublayers, or over all heads at once
    )
    placed = cfg.positional_embedding_type == "standard" or (
        cfg.positional_embedding_type == "rotary" and longest <= len(model.blocks[0].attn.rotary_cos)
    )
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return placed and not (unusual or hooked) and cfg.dtype in (torch.float32, torch.float64)


def score_gathered(
    model: Any,
    spans: Spans,
    *,
    layers: Sequence[int],
    threshold_layer: int,
    distance: Distance,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> Float[Tensor, "layer span"]:
    """The similarity of each span at each of `layers`, none of them below the threshold."""
    device = next(model.parameters()).device
    position = spans.position.to(device)
    embedded = _embed(model, spans.tokens.to(device), position)
    below = threshold_layer - 1
    full = _run_sentences(model, embedded, position, spans, kept={below, *layers} - {-1}, at_once=tokens_at_once)
    stream = embedded if threshold_layer == 0 else full[below]
    projected = _project(model.blocks[threshold_layer], stream, position)
    masked = range(threshold_layer, max(layers) + 1)

    # Nothing is masked of a whole sentence, so it has the similarity of equal states.
    scores = torch.full((len(layers), len(spans.size)), 1.0 if distance == "cosine" else 0.0)
    partial = ~spans.is_whole
    for size in spans.size[partial].unique().tolist():
        chosen = (partial & (spans.size == size)).nonzero()[:, 0]
        own = slice(spans.lead, spans.lead + size)

        def measure(rows: slice, chosen: Int[Tensor, "row"] = chosen, own: slice = own) -> None:
            source = spans.gather(chosen[rows]).to(device)
            at_rows = tuple(one[source] for one in projected)
            for layer, states in _run_rows(model, stream[source], position[source], masked, own=own, projected=at_rows):
                if layer in layers:
                    unmasked = full[layer][source[:, own]]
                    found = compare_states(states.float().sum(1), unmasked.float().sum(1), distance)
                    scores[list(layers).index(layer), chosen[rows]] = found.cpu()

        for_each_batch(len(chosen), measure, batch_size=max(1, tokens_at_once // (size + spans.lead + spans.trail)))
    return scores


def _embed(model: Any, tokens: Int[Tensor, "token"], position: Int[Tensor, "token"]) -> Float[Tensor, "token d_model"]:
    """What enters the first layer."""
    if isinstance(model, HookedEncoder):
        embed = model.embed
        summed = embed.embed(tokens) + embed.pos_embed.W_pos[position] + embed.token_type_embed.W_token_type[0]
        return normalise(embed.ln, summed[None])[0]
    embedded = model.embed(tokens[None])[0]
    return embedded if model.cfg.positional_embedding_type == "rotary" else embedded + model.pos_embed.W_pos[position]


def _run_sentences(
    model: Any,
    embedded: Float[Tensor, "token d_model"],
    position: Int[Tensor, "token"],
    spans: Spans,
    *,
    kept: set[int],
    at_once: int,
) -> dict[int, Float[Tensor, "token d_model"]]:
    """The residual stream after each of the layers `kept`, with nothing masked; sentences of one length go together."""
    full = {layer: torch.empty_like(embedded) for layer in kept}
    lengths = spans.sentences[:, 1] - spans.sentences[:, 0]
    for length in lengths.unique().tolist():
        source = spans.sentences[lengths == length, :1] + torch.arange(length)

        def measure(rows: slice, source: Int[Tensor, "row pos"] = source) -> None:
            here = source[rows].to(embedded.device)
            every = slice(0, here.shape[1])
            for layer, states in _run_rows(model, embedded[here], position[here], range(max(kept) + 1), own=every):
                if layer in kept:
                    full[layer][here] = states

        for_each_batch(len(source), measure, batch_size=max(1, at_once // length))
    return full


def _run_rows(
    model: Any,
    x: Float[Tensor, "row pos d_model"],
    position: Int[Tensor, "row pos"],
    layers: range,
    *,
    own: slice,
    projected: Projected | None = None,
) -> Iterator[tuple[int, Float[Tensor, "row own d_model"]]]:
    """Each layer's output at the positions `own`; `projected` are the first layer's queries, keys and values."""
    for layer in layers:
        block = model.blocks[layer]
        q, k, v = _project(block, x, position) if projected is None else projected
        projected = None
        if layer == layers[-1]:
            q, x, own = q[:, own], x[:, own], slice(None)
        x = _finish(block, x, _attend(block.attn, q, k, v))
        yield layer, x[:, own]


def _project(block: Any, x: Float[Tensor, "*row d_model"], position: Int[Tensor, "*row"]) -> Projected:
    flat = x.reshape(1, -1, x.shape[-1])
    read = read_stream(block, flat)
    q, k, v = (one[0] for one in block.attn.calculate_qkv_matrices(read, read, read))
    if block.attn.cfg.positional_embedding_type == "rotary":
        q, k = (rotate_at(block.attn, one, position.flatten()) for one in (q, k))
    return tuple(one.unflatten(0, x.shape[:-1]) for one in (q, k, v))


def _attend(
    attention: Any,
    q: Float[Tensor, "row own head_index d_head"],
    k: Float[Tensor, "row pos kv_head_index d_head"],
    v: Float[Tensor, "row pos kv_head_index d_head"],
) -> Float[Tensor, "row own d_model"]:
    k, v = (expand_kv(shared, attention.cfg.n_heads, axis=2) for shared in (k, v))
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, scale=1 / float(attention.attn_scale))
    return F.linear(z.transpose(1, 2).flatten(2), attention.W_O.flatten(0, 1).T, attention.b_O)


def _finish(
    block: Any, x: Float[Tensor, "row own d_model"], attended: Float[Tensor, "row own d_model"]
) -> Float[Tensor, "row own d_model"]:
    """The block's output from what it read and what its attention wrote."""
    if block.cfg.parallel_attn_mlp:
        return add_mlp(block, x) + attended
    middle = add_attention(block, x, attended)
    return middle if block.cfg.attn_only else add_mlp(block, middle)
