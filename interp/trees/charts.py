"""How little the states of each span depend on the rest of the sentence: its chart of similarities.

    chart[i, j] = cos(v~, v),  v = sum of h_t over the words t of span [i, j),  v~ the same from a run in which, in the
    layers from `threshold_layer` on, every query reads only the span's own words, the first token (BOS), and in an
    encoder the last one (EOS)

(Murty, Sharma, Andreas and Manning 2022, arXiv 2211.01288; 2023, arXiv 2305.18741.) h_t is the residual stream after a
layer (`hook_resid_post`, in a HookedEncoder `hook_normalized_resid_post`), positions stay what they are in the sentence,
and the sub-words of a word are summed. With `distance="euclidean"` the chart has -|v~ - v|, of the same sums. Spans of one
word and the whole sentence have entries too; on a causal model those that begin the sentence have exactly 1 (0), since
nothing outside them is ever read.

This is what the authors' code computes. The paper's span contextual invariance is the distance 1 - chart; its text calls
that the cosine similarity. Two things differ on purpose: the code drops words whose state is exactly zero, which shifts
the words after them, and it takes the last layer's own output, which in its post-norm models is already normalised.

Without a first token there is nothing that all spans read: the word that begins a span then has only itself to attend
to, as word 0 has in the whole sentence, and in models whose heads rest there this alone changes the states.

`interp.trees.causal` says how one pass for each word gives the charts of all spans and layers in a causal model, and
`interp.trees.spans` what an encoder needs.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.interventions.select import choose_layers
from interp.models.tokens import Bos
from interp.trees.encoders import chart_spans
from interp.trees.ends import Direction, Eos, find_direction, resolve_ends
from interp.trees.similarity import TOKENS_AT_ONCE, Distance
from interp.trees.starts import chart_starts
from interp.trees.words import Sentence, Words, read_sentences


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
    direction: Direction
    """Whether the model reads the words before a token (`causal`) or all of them (`bidirectional`)."""
    bos: int | None
    """The token id that stood first, which every span reads, or None."""
    eos: int | None
    """The token id that stood last, which every span of an encoder reads, or None."""
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
    eos: Eos = "auto",
    vocabulary: Sequence[str] | None = None,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> Charts:
    """The chart of each sentence at each of `layers`, on a causal model or an encoder.

    `layers="all"` means those from `threshold_layer` on: below it nothing is masked. All cost little more than the
    last one alone. `bos` stands first and, in an encoder, `eos` last; both are never masked. `vocabulary` has the word of
    each token id, for sentences in words of a model without a tokenizer. Batches have about `tokens_at_once` tokens, all
    rows counted; a longer sentence is a batch of its own. Hooks that the model carries act, at the price of a slower engine.

    Raises `InputError` for an encoder whose attention no hook reaches, a layer or threshold that doesn't exist, and a
    sentence that is empty, has one word, a word that isn't known, or more tokens than the model's context.
    """
    if distance not in get_args(Distance):
        raise InputError(f"distance={distance!r} isn't known; use one of {', '.join(get_args(Distance))}.")
    direction = find_direction(model)
    measured = _choose_layers(model, layers, threshold_layer)
    first, last = resolve_ends(model, bos, eos, direction)
    words = read_sentences(model, sentences, bos=first, eos=last, vocabulary=vocabulary)
    how: dict[str, Any] = {
        "layers": measured,
        "threshold_layer": threshold_layer,
        "distance": distance,
        "bos": first,
        "tokens_at_once": tokens_at_once,
    }
    causal = direction == "causal"
    similarities = chart_starts(model, words, **how) if causal else chart_spans(model, words, eos=last, **how)
    return Charts(
        layers=tuple(measured),
        similarities=tuple(similarities),
        distance=distance,
        threshold_layer=threshold_layer,
        direction=direction,
        bos=first,
        eos=last,
        words=words,
    )


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
