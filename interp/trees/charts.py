"""How little the states of each span depend on the rest of the sentence: its chart of similarities.

    chart[i, j] = cos(v~, v),  v = sum of h_t over the words t of span [i, j),  v~ the same from a run in which, in the
    layers from `threshold_layer` on, every query reads only the span's own words and the first token (BOS)

(Murty, Sharma, Andreas and Manning 2022, arXiv 2211.01288; 2023, arXiv 2305.18741.) h_t is the residual stream after a
layer (`hook_resid_post`), positions stay what they are in the sentence, and the sub-words of a word are summed. With
`distance="euclidean"` the chart has -|v~ - v|, of the same sums. Spans of one word and the whole sentence have entries
too; on a causal model those that begin the sentence have exactly 1 (0), since nothing outside them is ever read.

This is what the authors' code computes. The paper's span contextual invariance is the distance 1 - chart; its text calls
that the cosine similarity. Two things differ on purpose: the code drops words whose state is exactly zero, which shifts
the words after them, and it takes the last layer's own output, which in its post-norm models is already normalised.

Without a first token there is nothing that all spans read: the word that begins a span then has only itself to attend
to, as word 0 has in the whole sentence, and in models whose heads rest there this alone changes the states.

`interp.trees.causal` says how one pass for each word gives the charts of all spans and layers.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, seed=1, act_fn="gelu", device="cpu")
>>> charts = measure_charts(model, [[3, 4, 5], [(1, 2), 3]], bos=0)
>>> charts
Charts(2 sentences of 2 to 3 words, layers 0 to 1, cosine, masked from layer 0 on)
>>> charts[1][0].shape  # layer 1, sentence 0: [start, end]
torch.Size([3, 4])
>>> bool((charts[1][0][0, 1:] == 1).all())
True
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.interventions.select import choose_layers
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.tokens import Bos, resolve_bos
from interp.trees.causal import can_pack, pack_sentences, run_packed
from interp.trees.masks import run_masked
from interp.trees.similarity import Distance, score_spans
from interp.trees.words import Sentence, Words, read_sentences

_TOKENS_AT_ONCE = 4096
"""Beyond this a processor gains little; an accelerator gains from more."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Charts:
    """The similarities of all spans of some sentences. `charts[layer][sentence]` is Float[Tensor, "start end"]."""

    layers: tuple[int, ...]
    """The layers that were measured, ascending."""
    similarities: tuple[Float[Tensor, "layer _start _end"], ...]
    """Of each sentence of n words [layer, n, n + 1]: entry (i, j) is that of words i to j - 1, NaN unless i < j."""
    distance: Distance
    """`cosine`: a cosine, at most 1; `euclidean`: minus the distance, at most 0."""
    threshold_layer: int
    """The first layer in which words outside a span are masked."""
    bos: int | None
    """The token id that stood first, which every span reads, or None."""
    words: tuple[Words, ...]
    """The token ids of every word of every sentence."""

    @property
    def n_words(self) -> tuple[int, ...]:
        """The length of each sentence."""
        return tuple(len(words) for words in self.words)

    def __getitem__(self, layer: int) -> tuple[Float[Tensor, "_start _end"], ...]:
        """The chart of each sentence at a layer; raises `InputError` for one that was not measured."""
        if layer not in self.layers:
            measured = ", ".join(map(str, self.layers))
            raise InputError(f"There is no chart of layer {layer}: these charts have layers {measured}.")
        return tuple(charts[self.layers.index(layer)] for charts in self.similarities)

    def to_frame(self) -> pd.DataFrame:
        """One row for every sentence, layer and span (start, end), with its similarity."""
        parts = []
        for sentence, charts in enumerate(self.similarities):
            index, start, end = (~charts.isnan()).nonzero().unbind(1)
            parts.append(
                pd.DataFrame(
                    {
                        "sentence": sentence,
                        "layer": torch.tensor(self.layers)[index].numpy(),
                        "start": start.numpy(),
                        "end": end.numpy(),
                        "similarity": charts[index, start, end].numpy(),
                    }
                )
            )
        return pd.concat(parts, ignore_index=True)

    def __repr__(self) -> str:
        first, last = self.layers[0], self.layers[-1]
        if len(self.layers) == 1:
            layers = f"layer {first}"
        elif len(self.layers) == last - first + 1:
            layers = f"layers {first} to {last}"
        else:
            layers = f"layers {', '.join(map(str, self.layers))}"
        return (
            f"Charts({len(self.words)} sentences of {min(self.n_words)} to {max(self.n_words)} words, {layers}, "
            f"{self.distance}, masked from layer {self.threshold_layer} on)"
        )


@torch.no_grad()
def measure_charts(
    model: Any,
    sentences: Sequence[Sentence],
    *,
    layers: Literal["all", "last"] | Sequence[int] = "all",
    threshold_layer: int = 0,
    distance: Distance = "cosine",
    bos: Bos = "auto",
    tokens_at_once: int = _TOKENS_AT_ONCE,
) -> Charts:
    """The chart of each sentence at each of `layers`, on a causal HookedTransformer or TransformerBridge.

    `layers="all"` means those from `threshold_layer` on: below it nothing is masked. All cost little more than the
    last one alone. `bos` stands first and is never masked. Batches have about `tokens_at_once` tokens, all rows counted;
    a longer sentence is a batch of its own. Hooks that the model carries act, at the price of a slower engine.

    Raises `InputError` for a model that reads later words, a layer or threshold that doesn't exist, and a sentence
    that is empty, has one word, a token id that the model doesn't have, or more tokens than the model's context.
    """
    if getattr(model.cfg, "attention_dir", "causal") != "causal":
        raise InputError(
            "This model reads later words too (attention_dir='bidirectional'), and its charts would need a pass for every "
            "span, which is not offered; give a causal model."
        )
    if distance not in get_args(Distance):
        raise InputError(f"distance={distance!r} isn't known; use one of {', '.join(get_args(Distance))}.")
    measured = _choose_layers(model, layers, threshold_layer)
    first = resolve_bos(model, bos)
    words = read_sentences(model, sentences, bos=first)

    similarities: dict[int, Float[Tensor, "layer _start _end"]] = {}
    lengths = [sum(map(len, own)) for own in words]
    packs = can_pack(model, max(lengths) + (first is not None))
    for batch in _split_into_batches(model, words, tokens_at_once, packs=packs):

        def measure(rows: slice, batch: list[int] = batch) -> None:
            chosen = batch[rows]
            found = _measure_batch(
                model,
                [words[index] for index in chosen],
                layers=measured,
                threshold_layer=threshold_layer,
                distance=distance,
                bos=first,
                packs=packs,
            )
            similarities.update(zip(chosen, found, strict=True))

        for_each_batch(len(batch), measure, batch_size=len(batch))
    return Charts(
        layers=tuple(measured),
        similarities=tuple(similarities[index] for index in range(len(words))),
        distance=distance,
        threshold_layer=threshold_layer,
        bos=first,
        words=words,
    )


def _measure_batch(
    model: Any,
    words: list[Words],
    *,
    layers: list[int],
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


def _choose_layers(model: Any, layers: Literal["all", "last"] | Sequence[int], threshold_layer: int) -> list[int]:
    n_layers = model.cfg.n_layers
    if not 0 <= threshold_layer < n_layers:
        raise InputError(
            f"threshold_layer={threshold_layer} doesn't exist: this model has layers 0 to {n_layers - 1}, and words are "
            "masked from the threshold on."
        )
    if isinstance(layers, str):
        if layers not in ("all", "last"):
            raise InputError(f"layers={layers!r} isn't known; use 'all', 'last' or a list of layers.")
        return list(range(threshold_layer, n_layers)) if layers == "all" else [n_layers - 1]
    chosen = choose_layers(model, layers)
    if chosen[0] < threshold_layer:
        raise InputError(
            f"Layer {chosen[0]} comes before threshold_layer={threshold_layer}, where nothing is masked and every "
            "similarity is 1; ask for layers from the threshold on."
        )
    return chosen
