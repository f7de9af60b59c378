"""What is watched while a model learns a grammar task: rules by construction, trees, weights and attention.

On the sources of some validation lines, whose gold trees are known, with the first token `start`:

    t-score        how far the projected tree of the last layer is above chance in its chart (`interp.trees.scores`): the
                   closed form of what the published code computes, and equation 2 with both of its baselines
    bracket F1     gold brackets that the projected trees have, the root aside
    sparsity       entropy of attention, divided by the log of the number of keys and averaged; and as published
    norm           of all trained weights, per weight (rms), and divided by the number of layers as published

(Murty et al., arXiv 2305.18741.) And on lines of the generalisation split the share that follows the hierarchical rule,
apart for each construction of the subject. All models of a lab are watched on the same sentences. Trees take longer than
the rest, so that group is measured every `every` steps and is NaN in between; at step 0 it is the untrained floor.

>>> from interp.models.build import build
>>> task = QuestionFormation(train=100, validation=50, generalisation=20)
>>> model = build(n_layers=1, d_model=8, n_heads=2, d_vocab=task.d_vocab, n_ctx=task.n_ctx, act_fn="relu", device="cpu")
>>> found = Progress(task=task, n_lines=20, n_trees=5)(model, 0)
>>> set(MEASURES) | {"object_relative"} <= set(found), found["f1"] <= 1
(True, True)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformer_lens import HookedTransformer

from interp.complexity.norms import measure_norms
from interp.complexity.sparsity import attention_sparsity
from interp.trees.brackets import compare_brackets
from interp.trees.projections import TreeProjections, project_trees
from interp.trees.scores import Score
from tasks.grammar import CONSTRUCTIONS, QuestionFormation, Sentence, TenseInflection, split_by_construction
from tasks.grammar.lines import START
from tasks.seeding import derive_seed

GrammarTask = QuestionFormation | TenseInflection

MEASURES: Mapping[str, str] = {
    "t_closed": "t-score, closed form",
    "t_uniform_split": "t-score, equation 2",
    "t_catalan": "t-score, equation 2, all trees alike",
    "f1": "bracket F1 without the root",
    "entropy": "attention entropy, normalised",
    "entropy_published": "attention entropy, published sum",
    "norm": "weight norm",
    "norm_rms": "weight norm, rms",
    "norm_per_layer": "weight norm / layers",
}
"""Columns of the history that are measured every `every` steps, as they are called in words."""

T_SCORES: Mapping[str, Score] = {"t_closed": "closed", "t_uniform_split": "uniform_split", "t_catalan": "catalan"}
"""Which score of `interp.trees` each t-score is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """An observer for `interp.train`: its numbers join the history."""

    task: GrammarTask
    """What is trained."""
    every: int = 1000
    """Steps between measurements of trees, norms and attention; at most that often, since evaluations are when it is asked."""
    n_lines: int = 400
    """Lines of the generalisation split."""
    n_trees: int = 100
    """Sentences whose trees are projected."""
    seed: int = 0
    """Seed of the lines."""

    def __call__(self, model: HookedTransformer, step: int) -> dict[str, float]:
        found = self.measure_constructions(model)
        if step % self.every:
            return {**found, **dict.fromkeys(MEASURES, math.nan)}
        return {**found, **self.measure_trees(model), **self.measure_attention(model), **measure_weights(model)}

    @torch.no_grad()
    def measure_constructions(self, model: HookedTransformer) -> dict[str, float]:
        """The share of each construction's generalisation lines that follows the hierarchical rule."""
        seed = derive_seed(self.seed, "grokking progress")
        batch = self.task.sample(self.n_lines, split="generalisation", seed=seed)
        logits = torch.cat([model(rows.to(model.cfg.device)).cpu() for rows in batch.tokens.split(100)])
        right = self.task.score(logits, batch)["hierarchical"]
        found = {name: float(values.mean()) for name, values in split_by_construction(right, batch).items()}
        return {name: found.get(name, math.nan) for name in CONSTRUCTIONS[1:]}

    def measure_trees(self, model: HookedTransformer) -> dict[str, float]:
        """t-scores and bracket F1 of the trees of the last layer."""
        found = project(model, self.task, self.sentences())
        f1 = compare_brackets(found.trees[found.layers[-1]], [one.tree for one in self.sentences()]).f1_without_root
        return {**{name: float(found.scores[score][-1].mean()) for name, score in T_SCORES.items()}, "f1": f1}

    def measure_attention(self, model: HookedTransformer) -> dict[str, float]:
        """Both entropies, a mean over sentences, layers and heads."""
        token = {word: i for i, word in enumerate(self.task.vocabulary)}
        found = attention_sparsity(model, [[token[word] for word in (START, *one.words)] for one in self.sentences()])
        return {
            "entropy": float(found.normalised_per_sequence.mean()),
            "entropy_published": float(found.published_per_sequence.mean()),
        }

    def sentences(self) -> list[Sentence]:
        """The sources of the first lines of validation, with gold trees."""
        return self.task.sentences("validation")[: self.n_trees]


def measure_weights(model: HookedTransformer) -> dict[str, float]:
    """The norm of all trained weights, per weight, and per layer."""
    norms = measure_norms(model)
    return {"norm": norms.norm, "norm_rms": norms.rms, "norm_per_layer": norms.norm_per_layer}


def project(model: HookedTransformer, task: GrammarTask, sentences: Sequence[Sentence]) -> TreeProjections:
    """The trees of the last layer; the first token of every line stands in front."""
    return project_trees(
        model,
        [one.words for one in sentences],
        layer="last",
        bos=task.vocabulary.index(START),
        vocabulary=task.vocabulary,
        n_untrained=0,
    )
