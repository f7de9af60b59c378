"""The charts of an encoder, by gathered spans where its parts are usual and by masked passes through the model elsewhere.

>>> import interp
>>> shape = dict(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, act_fn="gelu", device="cpu")
>>> model = interp.build(**shape, attention_dir="bidirectional")
>>> chart, = chart_spans(model, [((3,), (4,), (5,))], layers=[1], threshold_layer=0, distance="cosine", bos=0, eos=8)
>>> chart.shape, bool(chart[0, 0, 3] == 1)  # [layer, start, end]; of the whole sentence nothing is masked
(torch.Size([1, 3, 4]), True)
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.trees.masks import score_masked
from interp.trees.similarity import TOKENS_AT_ONCE, Distance
from interp.trees.spans import can_gather, list_spans, score_gathered
from interp.trees.words import Words


def chart_spans(
    model: Any,
    words: Sequence[Words],
    *,
    layers: Sequence[int],
    threshold_layer: int,
    distance: Distance,
    bos: int | None,
    eos: int | None,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> list[Float[Tensor, "layer _start _end"]]:
    """The chart of each sentence at each of `layers`, none of them below the threshold."""
    longest = max(sum(map(len, own)) for own in words) + (bos is not None) + (eos is not None)
    score = score_gathered if can_gather(model, longest) else score_masked
    charts = []
    for batch in _split_into_batches(words, tokens_at_once):
        scores = score(
            model,
            list_spans(batch, bos=bos, eos=eos),
            layers=layers,
            threshold_layer=threshold_layer,
            distance=distance,
            tokens_at_once=tokens_at_once,
        )
        n_spans = [len(own) * (len(own) + 1) // 2 for own in batch]
        for own, at_spans in zip(batch, scores.split(n_spans, dim=1), strict=True):
            start, last = torch.triu_indices(len(own), len(own)).unbind()
            chart = torch.full((len(layers), len(own), len(own) + 1), torch.nan)
            chart[:, start, last + 1] = at_spans
            charts.append(chart)
    return charts


def _split_into_batches(words: Sequence[Words], tokens_at_once: int) -> Iterator[list[Words]]:
    """As many sentences as have about `tokens_at_once` tokens, so that every length of span has many of them."""
    batch: list[Words] = []
    total = 0
    for own in words:
        batch.append(own)
        total += sum(map(len, own))
        if total >= tokens_at_once:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
