"""Cut attention edges: keep chosen queries from reading chosen keys, in chosen layers and heads.

A query i of a head attends with A_ij = softmax_j(s_ij) to the keys j <= i. With K the keys that are cut from query i:

- `mask`: s_ij = -inf for j in K, before the softmax, so the rest renormalises: A_ij / (1 - sum_K A_ik). The head behaves
  as if those tokens were not in its context (attention knockout: Geva et al. 2023, arXiv 2304.14767).
- `zero`: A_ij = 0 for j in K, after the softmax; nothing renormalises, the row sums to 1 - sum_K A_ik. What the other
  keys give stays exactly as it was, and the head writes less.
- `bos`: as `zero`, and the first token gets the weight, A_i0 + sum_K A_ik, where heads that have nothing to do rest
  (attention sinks: Xiao et al. 2024, arXiv 2309.17453).

A forward pass's own `attention_mask` is none of these: it is meant for padding and moves the later positions.

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> with interp.knock_out_attention(model, queries=[3], keys=[1], mode="mask"):
...     logits = model(torch.tensor([[0, 1, 2, 3]]))
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.select import Head, Marker, Positions, choose_heads, resolve_positions
from interp.models.check import acting_hooks, require_hook
from tasks.task import Batch

KnockOutMode = Literal["mask", "zero", "bos"]
FromWhom = Literal["everyone", "last"]

_BuildEdges = Callable[[int, int, int], Bool[Tensor, "batch query_pos key_pos"]]
"""(rows, queries, keys) of the running batch -> the edges that are cut."""


@contextmanager
def knock_out_attention(
    model: Any,
    *,
    queries: Positions,
    keys: Positions,
    mode: KnockOutMode,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[Head] | None = None,
    batch: Batch | None = None,
) -> Iterator[None]:
    """Cut every edge from a position in `queries` to one in `keys`; undone when the block ends, also by an exception.

    Positions are indices that the batch shares, indices of each row [batch, width], a mask [batch, pos], or names of
    `batch.roles`. `heads` are query heads of each of `layers`, or (layer, head) pairs. With a key-value cache,
    positions count from the start of the sequence.

    Raises `InputError` for what doesn't exist, and inside the forward pass where positions don't fit the batch that
    runs, no key comes before its query, `mask` would leave a query without a key, or `bos` would cut the first token.
    """
    mark_queries = resolve_positions(queries, argument="queries", batch=batch)
    mark_keys = resolve_positions(keys, argument="keys", batch=batch)
    with _cut(model, _edges_between(mark_queries, mark_keys, mode=mode), mode=mode, layers=layers, heads=heads):
        yield


@contextmanager
def mask_tokens(
    model: Any,
    tokens: Positions,
    *,
    from_whom: FromWhom = "everyone",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[Head] | None = None,
    batch: Batch | None = None,
) -> Iterator[None]:
    """Hide the positions `tokens` from everyone after them, or from the last position only.

    Attention is knocked out with mode `mask`. A hidden token still sees itself, so that every query keeps a key.
    `last` is the role of that name where `batch` has it, else the last position of the input. For the other arguments
    and errors see `knock_out_attention`.
    """
    if from_whom not in get_args(FromWhom):
        raise InputError(f"from_whom={from_whom!r} isn't known; use one of {', '.join(get_args(FromWhom))}.")
    if from_whom == "everyone":
        mark_queries: Marker = _mark_all
    elif batch is not None and "last" in batch.roles:
        mark_queries = resolve_positions("last", argument="from_whom", batch=batch)
    else:
        mark_queries = _mark_last
    mark_tokens = resolve_positions(tokens, argument="tokens", batch=batch)
    edges = _edges_between(mark_queries, mark_tokens, mode="mask", own="kept")
    with _cut(model, edges, mode="mask", layers=layers, heads=heads):
        yield


def _mark_all(n_rows: int, n_positions: int) -> Bool[Tensor, "batch pos"]:
    return torch.ones(n_rows, n_positions, dtype=torch.bool)


def _mark_last(n_rows: int, n_positions: int) -> Bool[Tensor, "batch pos"]:
    return (torch.arange(n_positions) == n_positions - 1).expand(n_rows, -1)


def _edges_between(
    queries: Marker, keys: Marker, *, mode: KnockOutMode, own: Literal["cut", "kept"] = "cut"
) -> _BuildEdges:
    """`own` says what becomes of the edge from a position to itself."""

    def build(n_rows: int, n_queries: int, n_keys: int) -> Bool[Tensor, "batch query_pos key_pos"]:
        cached = n_keys - n_queries  # keys before the first query come from a key-value cache
        legal = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(cached - (own == "kept"))
        edges = queries(n_rows, n_keys)[:, cached:, None] & keys(n_rows, n_keys)[:, None, :] & legal
        if not cached and not edges.any():
            raise InputError(
                "There is no attention to cut: no chosen key comes before a chosen query; attention reads backwards."
            )
        if mode == "bos" and edges[..., 0].any():
            raise InputError(
                "mode='bos' moves the weight to the first token, which is itself among the keys to be cut; leave it out."
            )
        return edges

    return build


@contextmanager
def _cut(
    model: Any,
    build: _BuildEdges,
    *,
    mode: KnockOutMode,
    layers: Sequence[int] | None,
    heads: Sequence[int] | Sequence[Head] | None,
) -> Iterator[None]:
    kind, replace = choose_edit(model, mode)
    by_layer = choose_heads(model, layers, heads)
    latest: dict[Any, Tensor] = {}

    def find_edges(like: Tensor) -> Bool[Tensor, "batch 1 query_pos key_pos"]:
        n_rows, _, n_queries, n_keys = like.shape
        key = (n_rows, n_queries, n_keys, like.device)
        if key not in latest:  # every layer of a pass asks for the same
            latest.clear()
            latest[key] = build(n_rows, n_queries, n_keys)[:, None].to(like.device)
        return latest[key]

    def edit_layer(chosen: list[int]) -> HookFunction:
        def edit(attention: Float[Tensor, "batch head_index query_pos key_pos"], hook: HookPoint) -> Tensor:
            touched = torch.zeros(attention.shape[1], 1, 1, dtype=torch.bool, device=attention.device)
            touched[chosen] = True
            return replace(attention, find_edges(attention) & touched)

        return edit

    with add_hooks(model, [(f"blocks.{layer}.{kind}", edit_layer(chosen)) for layer, chosen in by_layer.items()]):
        yield


def choose_edit(model: Any, mode: KnockOutMode) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """The hook of a block at which `mode` acts in this model, and its edit.

    The edit takes what the hook has [batch head_index query_pos key_pos] and a mask of the edges to cut that fits it.
    """
    if mode not in get_args(KnockOutMode):
        raise InputError(f"mode={mode!r} isn't known; use one of {', '.join(get_args(KnockOutMode))}.")
    # A HookedTransformer computes from its scores by construction; a probe may miss that where a softmax is saturated.
    by_construction = isinstance(model, HookedTransformer)
    before_softmax = mode == "mask" and (by_construction or "attn.hook_attn_scores" in acting_hooks(model))
    kind = "attn.hook_attn_scores" if before_softmax else "attn.hook_pattern"
    if not by_construction:
        require_hook(model, kind)
    return kind, _mask_scores if before_softmax else _REPLACEMENTS[mode]


def find_reach(scores: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Scores of keys within reach: one out of it (later, padding, beyond a window) has -inf or the lowest number."""
    return scores > torch.finfo(scores.dtype).min / 2


def _mask_scores(scores: Tensor, edges: Tensor) -> Tensor:
    edited = scores.masked_fill(edges, -torch.inf)
    _refuse_undefined(find_reach(scores.amax(-1)) & ~find_reach(edited.amax(-1)))
    return edited


def _mask_pattern(pattern: Tensor, edges: Tensor) -> Tensor:
    """What masked scores would give, from the pattern: the rest, scaled to the sum that the row had."""
    rest = pattern.masked_fill(edges, 0)
    total, kept = pattern.sum(-1, keepdim=True), rest.sum(-1, keepdim=True)
    _refuse_undefined(((total > 0) & (kept == 0))[..., 0])
    scale = total / kept.clamp_min(torch.finfo(pattern.dtype).tiny)  # a row of padding may be all zero
    return torch.where(edges.any(-1, keepdim=True), rest * scale, pattern)


def _zero_pattern(pattern: Tensor, edges: Tensor) -> Tensor:
    return pattern.masked_fill(edges, 0)


def _move_to_first(pattern: Tensor, edges: Tensor) -> Tensor:
    removed = pattern.masked_fill(~edges, 0).sum(-1, keepdim=True)
    rest = pattern.masked_fill(edges, 0)
    return torch.cat([rest[..., :1] + removed, rest[..., 1:]], dim=-1)


_REPLACEMENTS = {"mask": _mask_pattern, "zero": _zero_pattern, "bos": _move_to_first}


def _refuse_undefined(undefined: Bool[Tensor, "batch head_index query_pos"]) -> None:
    if undefined.any():
        row, head, query = undefined.nonzero()[0].tolist()
        raise InputError(
            f"mode='mask' would leave query {query} of sequence {row} without any key in head {head}, and its pattern "
            "would be undefined; leave it a key, or use mode='zero'."
        )
