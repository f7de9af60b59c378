"""Layer by layer: is a model's number more than that of its control, sentence by sentence?

Each comparison is paired over sentences. p-values come from flipping the signs of the differences and are corrected for the
number of layers (`interp.statistics.sign_flip_p_values`); intervals are bootstrap intervals of one layer, not corrected.

>>> result = compare_layers(np.array([[0.5, 0.7, 0.6, 0.4, 0.8, 0.5], [0.1, -0.1, 0.2, -0.2, 0.0, 0.1]]), layers=(3, 4))
>>> result.above, result.best
((3,), 3)
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from analyses.tree_projections_cells import Measured, only
from interp.heads.confirm import SIGNIFICANT
from interp.statistics import bootstrap_interval, sign_flip_p_values
from interp.trees.scores import Score

_WITHOUT_ROOT = "without root"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerContrast:
    """A difference at each layer."""

    layers: tuple[int, ...]
    """The layers."""
    value: Float[np.ndarray, " layer"]
    """Mean over sentences of the model's number less the control's."""
    low: Float[np.ndarray, " layer"]
    """Lower ends of their 95% intervals."""
    high: Float[np.ndarray, " layer"]
    """Upper ends."""
    p_value: Float[np.ndarray, " layer"]
    """Two-sided, corrected for all layers."""
    beyond_draws: Bool[np.ndarray, " layer"]
    """Whether the model's mean is above that of every draw of the control, where it was drawn more than once."""

    @property
    def above(self) -> tuple[int, ...]:
        """The layers with significantly more than the control."""
        return self._pick((self.value > 0) & (self.p_value <= SIGNIFICANT) & self.beyond_draws)

    @property
    def below(self) -> tuple[int, ...]:
        """The layers with significantly less."""
        return self._pick((self.value < 0) & (self.p_value <= SIGNIFICANT))

    @property
    def best(self) -> int:
        """The layer with the largest difference."""
        return self.layers[int(self.value.argmax())]

    def at(self, layer: int) -> tuple[float, float, float, float]:
        """(difference, low, high, p) of a layer."""
        place = self.layers.index(layer)
        return tuple(float(one[place]) for one in (self.value, self.low, self.high, self.p_value))  # type: ignore[return-value]

    def _pick(self, chosen: Bool[np.ndarray, " layer"]) -> tuple[int, ...]:
        return tuple(layer for layer, is_chosen in zip(self.layers, chosen, strict=True) if is_chosen)


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeContrasts:
    """Every comparison of the analysis."""

    gold_beyond_shuffled: LayerContrast
    """The gold tree's score, against the same tree over the same words in random order: 0 where words don't matter."""
    start_beyond_shuffled: LayerContrast
    """Gold phrases above spans with the same first word, against the same in random order."""
    end_beyond_shuffled: LayerContrast
    """Gold phrases above spans with the same last word, against the same in random order."""
    own_beyond_shuffled: LayerContrast
    """The projected tree's score by equation 2, against that of the words in random order."""
    own_beyond_untrained: LayerContrast | None
    """The same against untrained models."""
    published_beyond_untrained: LayerContrast | None
    """The projected tree's score by the published code."""
    f1_beyond_right: LayerContrast
    """Share of gold brackets found without the root, less that of right-branching trees."""

    @property
    def phrase_layers(self) -> tuple[int, ...]:
        """Where phrases are above spans of either kind, so that neither their first words nor their last alone explain it."""
        return tuple(layer for layer in self.start_beyond_shuffled.above if layer in self.end_beyond_shuffled.above)

    @property
    def phrase_layer(self) -> int:
        """The one of these where the lesser difference is largest; where there is none, the largest of the first kind."""
        start, end = self.start_beyond_shuffled, self.end_beyond_shuffled
        return max(self.phrase_layers, key=lambda layer: min(start.at(layer)[0], end.at(layer)[0]), default=start.best)


def compare_conditions(measured: Measured, *, seed: int) -> TreeContrasts:
    """All comparisons, from what was measured."""
    model, shuffled, layers = measured.model, measured.shuffled, measured.layers

    def beyond_untrained(score: Score) -> LayerContrast | None:
        if not measured.untrained:
            return None
        drawn = np.stack([one.scores[score] for one in measured.untrained])
        means = model.scores[score].mean(axis=1)
        found = compare_layers(model.scores[score] - drawn.mean(axis=0), layers=layers, seed=seed)
        return replace(found, beyond_draws=(means > drawn.mean(axis=2)).all(axis=0))

    return TreeContrasts(
        gold_beyond_shuffled=compare_layers(model.gold - shuffled.gold, layers=layers, seed=seed),
        start_beyond_shuffled=compare_layers(model.same_start - shuffled.same_start, layers=layers, seed=seed),
        end_beyond_shuffled=compare_layers(model.same_end - shuffled.same_end, layers=layers, seed=seed),
        own_beyond_shuffled=compare_layers(
            model.scores["uniform_split"] - shuffled.scores["uniform_split"], layers=layers, seed=seed
        ),
        own_beyond_untrained=beyond_untrained("uniform_split"),
        published_beyond_untrained=beyond_untrained("sampled"),
        f1_beyond_right=_compare_f1(measured, seed=seed),
    )


def compare_layers(
    effects: Float[np.ndarray, "layer sentence"], *, layers: tuple[int, ...], seed: int = 0
) -> LayerContrast:
    """Tests that the mean effect over sentences is 0, at all layers together."""
    low, high = bootstrap_interval(effects.T, seed=seed)
    return LayerContrast(
        layers=layers,
        value=effects.mean(axis=1),
        low=low,
        high=high,
        p_value=sign_flip_p_values(effects.T, seed=seed),
        beyond_draws=np.ones(len(layers), dtype=bool),
    )


def _compare_f1(measured: Measured, *, seed: int) -> LayerContrast:
    """A difference of ratios of sums, so its intervals come from resampling sentences for both trees at once."""
    frames, effects = [], []
    for scored in measured.brackets.values():
        own = only(scored, "projected")
        difference = replace(own, hits=own.hits - only(scored, "right").hits)
        frames.append(difference.to_frame(seed=seed).set_index("group"))
        effects.append(difference.hits[difference.groups.index(_WITHOUT_ROOT), 0])
    value, low, high = (
        np.array([one[name].to_dict()[_WITHOUT_ROOT] for one in frames]) for name in ("found", "low", "high")
    )
    return LayerContrast(
        layers=measured.layers,
        value=value,
        low=low,
        high=high,
        p_value=sign_flip_p_values(np.stack(effects).T, seed=seed),
        beyond_draws=np.ones(len(frames), dtype=bool),
    )
