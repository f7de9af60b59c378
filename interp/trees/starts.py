"""The charts of a causal model: a row of tokens for each word that a span can start with, sentences batched by length.

`interp.trees.causal` says why one row from each word on has the masked states of every span, and runs the rows packed;
`interp.trees.masks` runs them through the model itself, where that is needed.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, act_fn="gelu", device="cpu")
>>> chart, = chart_starts(model, [((3,), (4,), (5,))], layers=[1], threshold_layer=0, distance="cosine", bos=0)
>>> chart.shape, chart[0, 0, 1:].tolist()  # [layer, start, end]; nothing outside the spans from word 0 on is ever read
(torch.Size([1, 3, 4]), [1.0, 1.0, 1.0])
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from interp.models.batching import choose_batch_size, for_each_batch
from interp.trees.causal import can_pack, pack_sentences, run_packed
from interp.trees.masks import run_masked
from interp.trees.similarity import TOKENS_AT_ONCE, Distance, score_spans
from interp.trees.words import Words


def chart_starts(
    model: Any,
    words: Sequence[Words],
    *,
    layers: Sequence[int],
    threshold_layer: int,
    distance: Distance,
    bos: int | None,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> list[Float[Tensor, "layer _start _end"]]:
    """The chart of each sentence at each of `layers`; batches have about `tokens_at_once` tokens, all rows counted."""
    similarities: dict[int, Float[Tensor, "layer _start _end"]] = {}
    packs = can_pack(model, max(sum(map(len, own)) for own in words) + (bos is not None))
    for batch in _split_into_batches(model, words, tokens_at_once, packs=packs):

        def measure(rows: slice, batch: list[int] = batch) -> None:
            chosen = batch[rows]
            found = _score_batch(
                model,
                [words[index] for index in chosen],
                layers=layers,
                threshold_layer=threshold_layer,
                distance=distance,
                bos=bos,
                packs=packs,
            )
            similarities.update(zip(chosen, found, strict=True))

        for_each_batch(len(batch), measure, batch_size=len(batch))
    return [similarities[index] for index in range(len(words))]


def _score_batch(
    model: Any,
    words: list[Words],
    *,
    layers: Sequence[int],
    threshold_layer: int,
    distance: Distance,
    bos: int | None,
    packs: bool,
) -> list[Float[Tensor, "layer _start _end"]]:
    ends = [torch.tensor([len(word) for word in own]).cumsum(0) for own in words]  # of each sentence [word], exclusive
    starts = [F.pad(own[:-1], (1, 0)) for own in ends]
    sentences = [[token for word in own for token in word] for own in words]
    packed = pack_sentences(sentences, [own.tolist() for own in starts], bos=bos)
    run = run_packed if packs else run_masked
    rows, unmasked = packed.rows, packed.unmasked
    scores = torch.stack(
        [
            score_spans(states, states[unmasked.to(states.device)], rows, distance)
            for _, states in run(model, packed, layers=layers, threshold_layer=threshold_layer)
        ]
    ).cpu()  # [layer packed]
    charts, row = [], 0
    for start, end in zip(starts, ends, strict=True):
        n = len(start)
        i, last = torch.triu_indices(n, n).unbind()
        chart = torch.full((len(layers), n, n + 1), torch.nan)
        chart[:, i, last + 1] = scores[:, rows.begin[row + i] + end[last] - 1 - start[i]]
        charts.append(chart)
        row += n
    return charts


def _split_into_batches(model: Any, words: Sequence[Words], tokens_at_once: int, *, packs: bool) -> Iterator[list[int]]:
    """Indices of sentences, the shortest first; of one length where the engine cannot pack."""
    lengths = [sum(map(len, own)) for own in words]
    batch: list[int] = []
    total = 0
    for index in sorted(range(len(words)), key=lambda index: lengths[index]):
        length = lengths[index]
        if packs:
            cost, budget = length * (len(words[index]) + 1) // 2, tokens_at_once
        else:
            cost, budget = length * len(words[index]), min(tokens_at_once, length * choose_batch_size(model, length))
        if batch and (total + cost > budget or not (packs or lengths[batch[0]] == length)):
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += cost
    if batch:
        yield batch
