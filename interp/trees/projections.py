"""Does a model compute along a tree? The tree that describes its computation best, sentence by sentence and layer by layer.

A chart says of each span how little its states depend on the rest of the sentence (`interp.trees.charts`); a tree is
projected from it (`interp.trees.project`), and scored against chance (`interp.trees.scores`). Murty, Sharma, Andreas and
Manning 2022 (https://arxiv.org/abs/2211.01288).

`greedy` splits from the root down, as the authors' code does. `cky` finds the best tree; on a causal model the spans that
begin a sentence always score 1, so there each gets the mean of the other spans of its length first (`exclude_prefixes`),
and on an encoder all spans count as they are. The scores of untrained models of the same shape stand beside the model's own:
some of them are above 0 for any model.

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
from transformer_lens import HookedEncoder, HookedTransformer

from interp.errors import InputError
from interp.models.initialise import Initialisation, initialise
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import Bos
from interp.statistics import bootstrap_interval
from interp.trees.brackets import BracketScores, Span, compare_brackets
from interp.trees.charts import Charts, measure_charts
from interp.trees.ends import Eos
from interp.trees.project import check_trees, exclude_prefixes, project_cky, project_greedy
from interp.trees.scores import Score, score_trees
from interp.trees.similarity import Distance
from interp.trees.words import Sentence, spell_words
from tasks.seeding import derive_seed
from tasks.trees import Tree, list_spans

if TYPE_CHECKING:
    from interp.figures.style import Picture

Method = Literal["greedy", "cky"]
Scores = Mapping[Score, Float[np.ndarray, "layer sentence"]]
Per = Literal["sentence", "span"]


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
    untrained: tuple[Scores, ...]
    """The same of each model of this shape with random weights; empty where none could be made or was asked for."""
    words: tuple[tuple[str, ...], ...]
    """The words of each sentence, as they are drawn."""
    provenance: Provenance
    """The model."""
    seed: int
    """Seed of the untrained weights, of the sampled score and of the bootstrap."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The measured layers, ascending."""
        return self.charts.layers

    @property
    def prefixes(self) -> Literal["kept", "excluded"]:
        """Whether spans that begin a sentence drew the trees by their own scores, or by the mean of spans of their length."""
        return "excluded" if self.method == "cky" and self.charts.direction == "causal" else "kept"

    def f1(
        self, gold: Sequence[Tree], *, layer: int | None = None, labels: Sequence[Mapping[Span, str]] | None = None
    ) -> BracketScores:
        """The brackets of `gold` that the trees of a layer (the last one) have, beside trees that know no words.

        `labels` are the constituent types of the gold spans of each sentence, for a score of each type. Raises `InputError`
        for a gold tree of other words than its sentence's, and as `compare_brackets`.
        """
        check_trees(gold, self.charts.n_words, what="Gold tree")
        return compare_brackets(self._at(layer), gold, labels=labels)

    def to_frame(self, *, per: Per = "sentence") -> pd.DataFrame:
        """One row a layer and score: mean and its bootstrap interval over sentences, the untrained models' mean and range, n.

        A sentence of n words has n - 1 nodes to gain from; `per="span"` divides by them.
        """
        if per not in get_args(Per):
            raise InputError(f"per={per!r} isn't known; use {' or '.join(map(repr, get_args(Per)))}.")
        nodes = np.array(self.charts.n_words) - 1 if per == "span" else np.ones(len(self.words))
        rows = []
        for score, values in self.scores.items():
            for i, layer in enumerate(self.layers):
                own = values[i] / nodes
                low, high = bootstrap_interval(own, seed=self.seed)
                floor = [float((drawn[score][i] / nodes).mean()) for drawn in self.untrained] or [float("nan")]
                rows.append(
                    {
                        "layer": layer,
                        "score": score,
                        "value": float(own.mean()),
                        "low": float(low),
                        "high": float(high),
                        "untrained": float(np.mean(floor)),
                        "untrained_low": min(floor),
                        "untrained_high": max(floor),
                        "n": len(own),
                    }
                )
        return pd.DataFrame(rows)

    def figure(self, sentence: int = 0, *, layer: int | None = None, gold: Tree | None = None) -> "Picture":
        """The tree over a sentence, and the gold one under it where it is given; under the pointer a span's similarity."""
        from interp.figures.tree import tree_picture

        tree, chart = self._choose(sentence, layer), self.charts[self._layer(layer)][sentence]
        similarities = {(start, end): float(chart[start, end]) for start, end in list_spans(tree)}
        return tree_picture(self.words[sentence], tree, below=gold, scores=similarities)

    def text(self, sentence: int = 0, *, layer: int | None = None) -> str:
        """The tree over a sentence, in lines of characters."""
        from interp.figures.tree import tree_text

        return tree_text(self.words[sentence], self._choose(sentence, layer))

    def _layer(self, layer: int | None) -> int:
        return self.layers[-1] if layer is None else layer

    def _at(self, layer: int | None) -> tuple[Tree, ...]:
        chosen = self._layer(layer)
        if chosen not in self.trees:
            raise InputError(
                f"There are no trees of layer {chosen}: these have layers {', '.join(map(str, self.layers))}."
            )
        return self.trees[chosen]

    def _choose(self, sentence: int, layer: int | None) -> Tree:
        trees = self._at(layer)
        if not 0 <= sentence < len(trees):
            raise InputError(f"There is no sentence {sentence}: these trees are of sentences 0 to {len(trees) - 1}.")
        return trees[sentence]

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        last = self.to_frame().query(f"layer == {self.layers[-1]} and score == 'uniform_split'").iloc[0]
        floor = ""
        if self.untrained:
            models = "an untrained model" if len(self.untrained) == 1 else f"{len(self.untrained)} untrained models"
            spread = f" [{last['untrained_low']:.3f}, {last['untrained_high']:.3f}]" if len(self.untrained) > 1 else ""
            floor = f", of {models} {last['untrained']:.3f}{spread}"
        how = {"greedy": "greedy", "cky": f"cky with prefixes {self.prefixes}"}[self.method]
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
    eos: Eos = "auto",
    vocabulary: Sequence[str] | None = None,
    n_untrained: int = 3,
    initialisation: Initialisation | None = None,
    seed: int = 0,
) -> TreeProjections:
    """The trees of `sentences` at each of `layer`, on a causal model or an encoder; the options are `measure_charts`'s.

    `n_untrained` copies with random weights are measured one after the other, each in the time of the model itself. One draw
    is far from the next, farther than sentences are, so several are needed; 0 leaves them out, and a TransformerBridge has
    none. `initialisation` is how they are drawn: that of the model where it was trained from another than the usual one.

    Raises `InputError` for an unknown method, a negative number of models, and as `measure_charts` does.
    """
    if method not in get_args(Method):
        raise InputError(f"method={method!r} isn't known; use {' or '.join(map(repr, get_args(Method)))}.")
    if n_untrained < 0:
        raise InputError(f"n_untrained={n_untrained} is no number of models; give 0 or more.")
    how: dict[str, Any] = {
        "layers": layer, "threshold_layer": threshold_layer, "distance": distance, "bos": bos, "eos": eos,
        "vocabulary": vocabulary,
    }  # fmt: skip
    charts = measure_charts(model, sentences, **how)
    trees, scores = _project(charts, method, seed=seed)
    floor: list[Scores] = []
    if n_untrained and isinstance(model, HookedTransformer | HookedEncoder):
        random_weights = copy.deepcopy(model)
        for draw in range(n_untrained):
            initialise(random_weights, initialisation or Initialisation(), seed=derive_seed(seed, "untrained", draw))
            floor.append(_project(measure_charts(random_weights, sentences, **how), method, seed=seed)[1])
    return TreeProjections(
        charts=charts,
        trees=trees,
        method=method,
        scores=scores,
        untrained=tuple(floor),
        words=tuple(spell_words(model, words, vocabulary=vocabulary) for words in charts.words),
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
            if method == "greedy":
                projected = project_greedy(stacked)
            else:
                projected = project_cky(exclude_prefixes(stacked) if charts.direction == "causal" else stacked)
            found |= dict(zip(places, projected, strict=True))
            for score, values in scores.items():
                values[i, places] = score_trees(stacked, projected, score=score, seed=seed, places=places)
        trees[layer] = tuple(found[place] for place in range(n))
    return trees, scores
