"""What the states and weights of a model look like: evidence beside its behaviour and mechanism, none of it proof.

Of the last token, after every layer and before the unembedding, on sequences of all trained pairs:

- `targets`: are states with the same target alike in direction? (arXiv 2405.05409, figure 4; see `target_cosine`)
- `mirrored`: with the key hidden, do (a, b) and (b, a) lie together? (arXiv 2501.08537, figure 4C; see `cluster_score`.)
  A neighbour may have the same order, so only the silhouette, over both orders, says that they are one cluster.
  This does not identify the symmetric solution: models of the parallel circuit do it as well, and the order of models
  depends on how the key is hidden. It's reported because it is published.

Of the weights: `value_order`, does the value of a key token follow from the first components of its embedding;
`condensation` of the first layer's W_Q, and the stable ranks of its W_Q and W_in beside random matrices'.

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=16, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> found = measure_representation(model, dropped_pairs(), n=60)
>>> list(found.targets), list(found.stable_rank)
(['after layer 0', 'after layer 1', 'before the unembedding'], ['W_Q'])
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.complexity.condensation import Condensation, condense
from interp.complexity.measure import Part, measure_complexity
from interp.complexity.representation import (
    ClusterScore,
    TargetCosine,
    ValueOrder,
    cluster_score,
    order_of_values,
    project_pca,
    project_tsne,
    project_umap,
    target_cosine,
)
from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.knock_out import mask_tokens
from interp.models.provenance import Provenance, get_provenance
from interp.solutions.circuits import check_fits
from interp.statistics import permutation_p_value
from tasks.anchor.composite import Composite
from tasks.anchor.sequences import read_role
from tasks.task import Batch

if TYPE_CHECKING:
    from interp.figures.style import Picture

Method = Literal["pca", "tsne", "umap"]
_COMPONENTS = (1, 2, 10)
_LAST = "before the unembedding"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Representation:
    """States of the last token, and what was measured of them and of the weights."""

    states: Mapping[str, Float[np.ndarray, "sequence d_model"]]
    """`after layer 0`, ..., `before the unembedding` (after the final norm)."""
    pairs: Int[np.ndarray, "sequence 2"]
    """The anchors of each sequence."""
    targets: Mapping[str, TargetCosine]
    """Of each entry of `states`: are those with the same target alike?"""
    mirrored: Mapping[str, ClusterScore]
    """With the key hidden from all, on pairs of two different anchors that are both trained: do both orders lie together?"""
    value_order: ValueOrder
    """Of the embeddings of the keys: does their value follow from 1, 2 and 10 components?"""
    condensation: Condensation
    """Of the first layer's W_Q, all heads together."""
    stable_rank: Mapping[str, float]
    """Of the first layer's W_Q and, where it has an MLP, W_in."""
    random_stable_rank: Mapping[str, Float[np.ndarray, "draw"]]
    """The same of Gaussian matrices of the shape."""
    provenance: Provenance
    """The model."""
    seed: int
    """Seed of the sequences and of the controls."""

    def to_frame(self) -> pd.DataFrame:
        """One row a number: `measure`, `where`, `value`, its interval where there is one, control, p and n."""
        parts = []
        for where, cosine in self.targets.items():
            row = cosine.to_frame().rename(columns={"difference": "value"}).assign(measure="target cosine", where=where)
            parts.append(row)
        for where, score in self.mirrored.items():
            names = ["nearest has the same two anchors", "silhouette of two anchors"]
            parts.append(score.to_frame().assign(measure=names, where=where))
        order = self.value_order.to_frame().rename(columns={"r2": "value"})
        parts.append(order.assign(measure="R² of the key's value", where=[f"{k} components" for k in _COMPONENTS]))
        directions = self.condensation
        weights = [("condensed directions", "W_Q", directions.n_directions, directions.control_directions)]
        weights += [("stable rank", part, v, self.random_stable_rank[part]) for part, v in self.stable_rank.items()]
        rows = [
            {"measure": measure, "where": where, "value": float(value), "shuffled": draws.mean(), "n": len(draws),
             "p": permutation_p_value(-float(value), -draws)}
            for measure, where, value, draws in weights
        ]  # fmt: skip
        frame = pd.concat([*parts, pd.DataFrame(rows)], ignore_index=True).rename(columns={"shuffled": "control"})
        return frame[["measure", "where", "value", "low", "high", "control", "p", "n"]]

    def figure(self, method: Method = "pca") -> "Picture":
        """The states in the plane, a panel a place: colour is the first anchor, shape the second.

        UMAP is an extra, `pip install 'interp-toolkit[umap]'`; `InputError` without it, and for another method.
        """
        from interp.figures.states import states_picture

        if method not in get_args(Method):
            raise InputError(f"method={method!r} isn't known; use {', '.join(map(repr, get_args(Method)))}.")
        planes, notes = {}, {}
        for where, states in self.states.items():
            tensor = torch.from_numpy(states)
            if method == "pca":
                projected = project_pca(tensor)
                planes[where] = projected.coordinates
                notes[where] = f"{projected.explained.sum():.0%} of the variance"
            else:
                project = project_tsne if method == "tsne" else project_umap
                planes[where] = project(tensor, seed=self.seed)
                notes[where] = "distances and sizes mean nothing"
        title = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}[method]
        return states_picture(planes, self.pairs, notes=notes, title=f"Last token by anchors, {title}")

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        ranks = ", ".join(
            f"{part} {value:.1f} (random {self.random_stable_rank[part].mean():.1f})"
            for part, value in self.stable_rank.items()
        )
        cosine = self.targets[_LAST]
        return (
            f"Representation({self.provenance.model}: before the unembedding, cosine at equal targets {cosine.equal:.2f}, "
            f"at different ones {cosine.unequal:.2f}; stable rank {ranks}; n={len(self.pairs)} sequences)"
        )


@torch.no_grad()
def measure_representation(model: Any, task: Composite, *, n: int = 500, seed: int = 0) -> Representation:
    """Measure `n` sequences that go through all trained pairs, with keys kept for the test where there are any.

    Raises `InputError` for a model too small for the task, a task of other than two anchors, and fewer than 4 sequences
    a pair: what lies nearest to a state, and whether targets are equal, says nothing then.
    """
    check_fits(model, task)
    if task.group_size != 2:
        raise InputError(
            f"Pairs of anchors are looked at, but {task.name!r} has {task.group_size} anchors in a sequence."
        )
    trained = list(task.trained_pairs)
    if n < 4 * len(trained):
        raise InputError(
            f"n={n} sequences of {len(trained)} pairs are too few to compare; give at least {4 * len(trained)}."
        )
    free = task.with_last_free()
    keys: Literal["train", "test"] = "train" if task.modulus is None else "test"
    batch = free.sample_pairs(n, pairs=trained, keys=keys, seed=seed)
    states = _last_states(model, batch)
    complexity = measure_complexity(model, parts=_first_parts(model), seed=seed)
    ranks = complexity.values["stable_rank"]  # noqa: PD011 - no DataFrame
    first = [i for i, layer in enumerate(complexity.layers) if layer == 0]
    values = torch.tensor(task.keys)
    W_Q = model.blocks[0].attn.W_Q.detach()  # [head d_model d_head]
    return Representation(
        states={where: state.numpy() for where, state in states.items()},
        pairs=_read_pairs(batch).numpy(),
        targets={where: target_cosine(state, batch.targets[:, -1], seed=seed) for where, state in states.items()},
        mirrored=_score_mirrored(model, free, trained, keys, n=n, seed=seed),
        value_order=order_of_values(
            model.W_E[values].detach().float().cpu(), values, n_components=_COMPONENTS, seed=seed
        ),
        condensation=condense(W_Q.movedim(0, 1).flatten(1).float(), seed=seed),
        stable_rank={complexity.parts[i]: float(ranks[i]) for i in first},
        random_stable_rank={complexity.parts[i]: complexity.control["stable_rank"][i] for i in first},
        provenance=get_provenance(model),
        seed=seed,
    )


def _score_mirrored(
    model: Any, task: Composite, trained: list[tuple[int, ...]], keys: Literal["train", "test"], *, n: int, seed: int
) -> dict[str, ClusterScore]:
    both = [pair for pair in trained if pair[0] != pair[1] and pair[::-1] in trained]
    if len(both) < 4:
        raise InputError(
            f"{task.name!r} trains both orders of {len(both) // 2} pairs of different anchors; at least 2 are needed to see "
            "whether orders lie together."
        )
    batch = task.sample_pairs(n, pairs=both, keys=keys, seed=seed)
    with mask_tokens(model, "key", batch=batch):
        states = _last_states(model, batch)
    anchors = _read_pairs(batch)
    low, high = anchors.amin(dim=1), anchors.amax(dim=1)
    labels = low * (int(high.max()) + 1) + high
    return {where: cluster_score(state, labels, seed=seed) for where, state in states.items()}


def _last_states(model: Any, batch: Batch) -> dict[str, Float[Tensor, "sequence d_model"]]:
    """States of the last token after each layer and after the final norm, on the CPU; one batch, as roles belong to it."""
    found: dict[str, Tensor] = {}

    def keep(where: str) -> HookFunction:
        def store(residual: Tensor, hook: HookPoint) -> None:
            found[where] = residual[:, -1].float().cpu()
            if where == f"after layer {n_layers - 1}":
                final = residual[:, -1:] if model.cfg.normalization_type is None else model.ln_final(residual[:, -1:])
                found[_LAST] = final[:, 0].float().cpu()

        return store

    n_layers = model.cfg.n_layers
    with add_hooks(
        model, [(f"blocks.{layer}.hook_resid_post", keep(f"after layer {layer}")) for layer in range(n_layers)]
    ):
        model(batch.tokens.to(model.cfg.device), return_type=None)
    return found


def _read_pairs(batch: Batch) -> Int[Tensor, "sequence 2"]:
    return torch.stack([read_role(batch, "anchor_1"), read_role(batch, "anchor_2")], dim=1)


def _first_parts(model: Any) -> tuple[Part, ...]:
    return ("W_Q",) if getattr(model.cfg, "attn_only", False) else ("W_Q", "W_in")
