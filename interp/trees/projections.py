"""Does a model compute along a tree? The tree that describes its computation best, sentence by sentence and layer by layer.

A chart says of each span how little its states depend on the rest of the sentence (`interp.trees.charts`); a tree is
projected from it (`interp.trees.project`), and scored against chance (`interp.trees.scores`). Murty, Sharma, Andreas and
Manning 2022 (https://arxiv.org/abs/2211.01288).

`greedy` splits from the root down, as the authors' code does. `cky` finds the best tree; on a causal model the spans that
begin a sentence always score 1, so there each gets the mean of the other spans of its length first (`exclude_prefixes`).
The scores of an untrained model of the same shape stand beside the model's own: some of them are above 0 for any model.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, seed=1, act_fn="gelu", device="cpu")
>>> found = project_trees(model, [[3, 4, 5, 6], [1, 2, 3]], bos=0)
>>> found.layers, len(found.trees[1]), found.f1([((0, 1), (2, 3)), ((0, 1), 2)]).parsers[0]
((0, 1), 2, 'projected')
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.models.initialise import Initialisation, initialise
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import Bos
from interp.statistics import bootstrap_interval
from interp.trees.brackets import BracketScores, compare_brackets
from interp.trees.charts import Charts, measure_charts
from interp.trees.project import exclude_prefixes, project_cky, project_greedy
from interp.trees.scores import Score, score_trees
from interp.trees.similarity import Distance
from interp.trees.words import Sentence, Words
from tasks.seeding import derive_seed
from tasks.trees import Tree

if TYPE_CHECKING:
    from interp.figures.style import Picture

Method = Literal["greedy", "cky"]
Scores = Mapping[Score, Float[np.ndarray, "layer sentence"]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TreeProjections:
    """Trees and their scores, for every measured layer."""

    charts: Charts
    """The similarities that the trees were projected from."""
    trees: Mapping[int, tuple[Tree, ...]]
    """By layer, a tree for each sentence."""
    method: Method
    """How they were projected."""
    scores: Scores
    """Each score of each tree in its chart, per sentence."""
    untrained: Scores | None
    """The same of a model of this shape with random weights; None where none could be made or was asked for."""
    words: tuple[tuple[str, ...], ...]
    """The words of each sentence, as they are drawn."""
    provenance: Provenance
    """The model."""
    seed: int
    """Seed of the untrained weights, of the sampled score and of the bootstrap."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.charts.layers

    def f1(self, gold: Sequence[Tree], *, layer: int | None = None) -> BracketScores:
        """The brackets of `gold` that the trees of a layer (the last one) have, beside trees that know no words."""
        return compare_brackets(self._at(layer), gold)

    def to_frame(self) -> pd.DataFrame:
        """One row a layer and score: mean with its bootstrap interval over sentences, the untrained model's mean, n."""
        rows = []
        for score, values in self.scores.items():
            for i, layer in enumerate(self.layers):
                low, high = bootstrap_interval(values[i], seed=self.seed)
                floor = float("nan") if self.untrained is None else float(self.untrained[score][i].mean())
                rows.append(
                    {
                        "layer": layer,
                        "score": score,
                        "value": float(values[i].mean()),
                        "low": float(low),
                        "high": float(high),
                        "untrained": floor,
                        "n": values.shape[1],
                    }
                )
        return pd.DataFrame(rows)

    def figure(self, sentence: int = 0, *, layer: int | None = None, gold: Tree | None = None) -> "Picture":
        """The tree over a sentence, and the gold one under it where it is given."""
        from interp.figures.tree import tree_picture

        trees = self._at(layer)
        if not 0 <= sentence < len(trees):
            raise InputError(f"There is no sentence {sentence}: these trees are of sentences 0 to {len(trees) - 1}.")
        return tree_picture(self.words[sentence], trees[sentence], below=gold)

    def _at(self, layer: int | None) -> tuple[Tree, ...]:
        chosen = self.layers[-1] if layer is None else layer
        if chosen not in self.trees:
            raise InputError(
                f"There are no trees of layer {chosen}: these have layers {', '.join(map(str, self.layers))}."
            )
        return self.trees[chosen]

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        last = self.to_frame().query(f"layer == {self.layers[-1]} and score == 'uniform_split'").iloc[0]
        floor = "" if self.untrained is None else f", of an untrained model {last['untrained']:.3f}"
        how = {"greedy": "greedy", "cky": "cky with prefixes excluded"}[self.method]
        return (
            f"TreeProjections({self.provenance.model}: {len(self.words)} sentences, {how}; equation 2 at layer "
            f"{self.layers[-1]} {last['value']:.3f} [{last['low']:.3f}, {last['high']:.3f}]{floor})"
        )


def project_trees(
    model: Any,
    sentences: Sequence[Sentence],
    *,
    layer: Literal["last", "all"] | Sequence[int] = "all",
    threshold_layer: int = 0,
    distance: Distance = "cosine",
    method: Method = "greedy",
    bos: Bos = "auto",
    untrained: Literal["compare", "leave_out"] = "compare",
    seed: int = 0,
) -> TreeProjections:
    """The trees of `sentences` at each of `layer`, on a causal model; sentences as `measure_charts` takes them.

    `untrained="compare"` measures a copy with random weights too, which doubles time and memory; a TransformerBridge has
    none. Raises `InputError` for an unknown method and as `measure_charts` does.
    """
    for name, given, known in (("method", method, Method), ("untrained", untrained, Literal["compare", "leave_out"])):
        if given not in get_args(known):
            raise InputError(f"{name}={given!r} isn't known; use {' or '.join(map(repr, get_args(known)))}.")
    how: dict[str, Any] = {
        "layers": layer, "threshold_layer": threshold_layer, "distance": distance, "bos": bos
    }  # fmt: skip
    charts = measure_charts(model, sentences, **how)
    trees, scores = _project(charts, method, seed=seed)
    floor = None
    if untrained == "compare" and isinstance(model, HookedTransformer):
        random_weights = copy.deepcopy(model)
        initialise(random_weights, Initialisation(), seed=derive_seed(seed, "untrained"))
        floor = _project(measure_charts(random_weights, sentences, **how), method, seed=seed)[1]
    return TreeProjections(
        charts=charts,
        trees=trees,
        method=method,
        scores=scores,
        untrained=floor,
        words=tuple(_spell(model, words) for words in charts.words),
        provenance=get_provenance(model),
        seed=seed,
    )


def _project(charts: Charts, method: Method, *, seed: int) -> tuple[dict[int, tuple[Tree, ...]], Scores]:
    """Trees by layer, and scores; sentences of one length go through together."""
    n = len(charts.words)
    scores = {score: np.zeros((len(charts.layers), n)) for score in get_args(Score)}
    trees: dict[int, tuple[Tree, ...]] = {}
    for i, layer in enumerate(charts.layers):
        at_layer = charts[layer]
        found: dict[int, Tree] = {}
        for length in sorted(set(charts.n_words)):
            places = [place for place in range(n) if charts.n_words[place] == length]
            stacked = torch.stack([at_layer[place] for place in places])
            projected = project_greedy(stacked) if method == "greedy" else project_cky(exclude_prefixes(stacked))
            found |= dict(zip(places, projected, strict=True))
            for score, values in scores.items():
                values[i, places] = score_trees(stacked, projected, score=score, seed=seed, places=places)
        trees[layer] = tuple(found[place] for place in range(n))
    return trees, scores


def _spell(model: Any, words: Words) -> tuple[str, ...]:
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return tuple("+".join(map(str, word)) for word in words)
    return tuple(tokenizer.decode(list(word)).strip() for word in words)
