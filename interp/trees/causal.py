"""Every span of a sentence on its own, in a causal model: one row for each word that a span can start with.

The states of span [i, j) with all outside it masked come from the keys i..j-1 and the first token. A causal model reads
no key from j on anyway, so one row from word i to the end has the masked states of every span that starts there: n
rows instead of n(n+1)/2, and row 0 is the unmasked run.

The tokens of all rows, of sentences of any lengths, lie end to end without padding [packed, d_model]. What works token
by token (norms, projections, MLPs) runs on all of them at once; rows of equal length attend together. The first token
(BOS) reads only itself, so it is computed once for all rows. Layers below the threshold see no mask: they run once
for each token, and so do the queries, keys and values of the threshold layer. Hence n words cost n(n+1)/2 tokens a
layer, where a pass for each span costs (n+1)(n(n+1)/2 + 1).

>>> rows = pack_rows(torch.tensor([0, 1, 2]), torch.tensor([3, 2, 1]))  # from each word of a sentence of three
>>> rows.source.tolist(), rows.groups
([2, 1, 2, 0, 1, 2], ((1, 1), (1, 2), (1, 3)))
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.interventions.patch_engine import has_usual_blocks
from interp.models.suffix import add_attention, add_mlp, read_stream
from interp.models.weights import expand_kv


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Rows of tokens end to end, the shortest first."""

    source: Int[Tensor, "packed"]
    """Which of the sentences' tokens, counted one sentence after the other, each packed token is."""
    row: Int[Tensor, "packed"]
    """The row of each packed token, in the order in which the rows were given."""
    begin: Int[Tensor, "row"]
    """Where each row, in that order, begins."""
    groups: tuple[tuple[int, int], ...]
    """(number of rows, their length), in packed order."""


@dataclass(frozen=True, kw_only=True)
class PackedSentences:
    """Sentences, the shortest first, and the rows from each word to the sentence's end; all on the CPU."""

    tokens: Int[Tensor, "token"]
    """The first token where there is one, then the sentences one after the other."""
    position: Int[Tensor, "token"]
    """Where each of `tokens` stands in its own sentence, the first token counted."""
    n_leading: int
    """1 where there is a first token, which every row reads, else 0."""
    rows: PackedRows
    """Sentence by sentence, start by start."""
    whole: PackedRows
    """Each sentence from its beginning; its packed order is that of the tokens."""
    unmasked: Int[Tensor, "packed"]
    """For each packed token of `rows`, the same token in the row from the sentence's beginning."""


def pack_rows(first: Int[Tensor, "row"], length: Int[Tensor, "row"]) -> PackedRows:
    """Rows of consecutive tokens, each from the token `first` on."""
    row = length.argsort(stable=True)
    size = length[row]
    begin = size.cumsum(0) - size
    sizes, counts = torch.unique_consecutive(size, return_counts=True)
    return PackedRows(
        source=torch.arange(int(size.sum())) + (first[row] - begin).repeat_interleave(size),
        row=row.repeat_interleave(size),
        begin=torch.empty_like(begin).index_copy_(0, row, begin),
        groups=tuple(zip(counts.tolist(), sizes.tolist(), strict=True)),
    )


def pack_sentences(
    sentences: Sequence[Sequence[int]], starts: Sequence[Sequence[int]], *, bos: int | None
) -> PackedSentences:
    """Rows from each of a sentence's `starts`, of which 0 is the first. `sentences` are token ids, the shortest first."""
    length = torch.tensor([len(sentence) for sentence in sentences])
    offset = length.cumsum(0) - length
    n_starts = torch.tensor([len(own) for own in starts])
    start = torch.tensor([token for own in starts for token in own])
    rows = pack_rows(start + offset.repeat_interleave(n_starts), length.repeat_interleave(n_starts) - start)
    n_leading = 0 if bos is None else 1
    leading = [] if bos is None else [bos]
    tokens = torch.tensor(leading + [token for sentence in sentences for token in sentence])
    offset_of_token = offset.repeat_interleave(length)
    beginning = rows.begin[n_starts.cumsum(0) - n_starts].repeat_interleave(length) - offset_of_token
    return PackedSentences(
        tokens=tokens,
        position=torch.arange(len(tokens)) - F.pad(offset_of_token, (n_leading, 0)),
        n_leading=n_leading,
        rows=rows,
        whole=pack_rows(offset, length),
        unmasked=beginning[rows.source] + rows.source,
    )


def can_pack(model: Any, longest: int) -> bool:
    """Whether packed rows give what the model's own pass of `longest` positions gives: usual attention and no hooks."""
    if not has_usual_blocks(model):
        return False
    cfg, positions = model.cfg, model.cfg.positional_embedding_type
    return (
        cfg.dtype in (torch.float32, torch.float64)
        and not (cfg.use_attention_sinks or cfg.use_local_attn or cfg.use_dynamic_ntk_rope)
        and cfg.attn_scores_soft_cap <= 0
        and (positions == "standard" or (positions == "rotary" and longest <= len(model.blocks[0].attn.rotary_cos)))
    )


def run_packed(
    model: Any, packed: PackedSentences, *, layers: Sequence[int], threshold_layer: int
) -> Iterator[tuple[int, Float[Tensor, "packed d_model"]]]:
    """Each of `layers`, none of them below the threshold, with the residual stream after it at the packed tokens."""
    device = model.W_E.device
    lead = packed.n_leading
    position = packed.position.to(device)
    spread = F.pad(packed.rows.source + lead, (lead, 0)).to(device)
    residual = model.embed(packed.tokens.to(device)[None])  # [1 token d_model]: one long sequence
    if model.cfg.positional_embedding_type == "standard":
        residual = residual + model.pos_embed.W_pos[position]
    for block in model.blocks[:threshold_layer]:
        residual = _run_block(block, residual, packed.whole, position, lead=lead)
    residual = _run_block(model.blocks[threshold_layer], residual, packed.rows, position, lead=lead, spread=spread)
    position = position[spread]
    for layer in range(threshold_layer, max(layers) + 1):
        if layer > threshold_layer:
            residual = _run_block(model.blocks[layer], residual, packed.rows, position, lead=lead)
        if layer in layers:
            yield layer, residual[0, lead:]


def _run_block(
    block: Any,
    x: Float[Tensor, "1 token d_model"],
    rows: PackedRows,
    position: Int[Tensor, "token"],
    *,
    lead: int,
    spread: Int[Tensor, "packed"] | None = None,
) -> Float[Tensor, "1 packed d_model"]:
    """The block's output; `spread` says which token of `x` each packed token is, where they aren't one to one."""
    attended = _attend(block.attn, read_stream(block, x), rows, position, lead=lead, spread=spread)
    if spread is not None:
        x = x[:, spread]
    if block.cfg.parallel_attn_mlp:
        return add_mlp(block, x) + attended
    middle = add_attention(block, x, attended)
    return middle if block.cfg.attn_only else add_mlp(block, middle)


def _attend(
    attention: Any,
    x: Float[Tensor, "1 token d_model"],
    rows: PackedRows,
    position: Int[Tensor, "token"],
    *,
    lead: int,
    spread: Int[Tensor, "packed"] | None,
) -> Float[Tensor, "1 packed d_model"]:
    q, k, v = (one[0] for one in attention.calculate_qkv_matrices(x, x, x))
    if attention.cfg.positional_embedding_type == "rotary":
        q, k = rotate_at(attention, q, position), rotate_at(attention, k, position)
    if spread is not None:
        q, k, v = q[spread], k[spread], v[spread]
    k, v = (expand_kv(shared, attention.cfg.n_heads, axis=1) for shared in (k, v))  # [packed head_index d_head]
    z = torch.empty_like(q)
    z[:lead] = v[:lead]  # the first token reads only itself
    begin = lead
    for count, size in rows.groups:
        here = slice(begin, begin + count * size)
        begin += count * size
        query, key, value = (one[here].unflatten(0, (count, size)) for one in (q, k, v))
        if lead:
            key, value = (
                torch.cat([one[:1].expand(count, 1, -1, -1), own], dim=1) for one, own in ((k, key), (v, value))
            )
        legal = torch.ones(size, size + lead, dtype=torch.bool, device=q.device).tril(lead)
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))  # [row head_index pos d_head]
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask=legal, scale=1 / float(attention.attn_scale)
        )
        z[here] = found.transpose(1, 2).flatten(0, 1)
    return F.linear(z.flatten(1)[None], attention.W_O.flatten(0, 1).T, attention.b_O)


def rotate_at(
    attention: Any, x: Float[Tensor, "token head_index d_head"], position: Int[Tensor, "token"]
) -> Float[Tensor, "token head_index d_head"]:
    """Rotary embedding where each token has a position of its own."""
    turned, rest = x[..., : attention.cfg.rotary_dim], x[..., attention.cfg.rotary_dim :]
    cos, sin = attention.rotary_cos[position][:, None], attention.rotary_sin[position][:, None]
    return torch.cat([turned * cos + attention.rotate_every_two(turned) * sin, rest], dim=-1)
