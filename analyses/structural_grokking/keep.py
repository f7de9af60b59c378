"""What is kept of a trained model: what it follows on many lines, its trees beside the untrained ones, its whole history."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from transformer_lens import HookedTransformer

from analyses.labs.keep import list_history, share_fields, write_model
from analyses.labs.lab import LabCell
from analyses.solutions.shares import Share
from analyses.structural_grokking.progress import MEASURES, T_SCORES, GrammarTask, Progress, project
from interp.models.build import build
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval
from interp.training.result import TrainRun
from interp.trees.brackets import compare_brackets
from interp.trees.projections import TreeProjections
from tasks.grammar import CONSTRUCTIONS, Sentence, split_by_construction
from tasks.seeding import derive_seed

N_LINES = 1000
"""Lines of each split on which a trained model is scored, all of them where there are fewer."""
N_DRAWN = 3
"""Sentences whose trees are kept to be drawn."""
UNTRAINED = "untrained model"
SPLITS = ("validation", "generalisation")
FOLLOWED: Mapping[str, str] = {
    "hierarchical": "hierarchical rule",
    "linear": "linear rule",
    "shortcut": "relative-clause shortcut",
    "other": "no rule",
    "exact_match": "exact match",
}
"""The task's scores, as they are called in words."""
_BASELINES = ("left", "right", "uniform_split", "catalan")


def keep_model(cell: LabCell, run: TrainRun, folder: Path, *, seconds: float) -> None:
    """Score a trained model and write its cell into the store of `folder`; `seconds` is what training took."""
    start = time.perf_counter()
    task, watched = cell.setting.task, cell.setting.observe
    assert isinstance(watched, Progress)
    sentences = watched.sentences()
    untrained = build(**cell.setting.model, device=run.model.cfg.device)
    before, after = (project(model, watched.task, sentences) for model in (untrained, run.model))
    scores = {split: list(_score(run.model, watched.task, split, seed=cell.seed)) for split in SPLITS}
    floors = {split: dict(_score(untrained, watched.task, split, seed=cell.seed)) for split in SPLITS}
    seconds += time.perf_counter() - start
    shared = share_fields(cell, run, seconds=seconds)
    rows = [
        row
        for split, named in scores.items()
        for name, values in named
        for row in _describe_share(
            f"{split}: {name}", values, floors[split][name], step=run.config.steps, shared=shared
        )
    ]
    for name, score in T_SCORES.items():
        values, floor = after.scores[score][-1], before.scores[score][-1]
        rows += _describe_mean(MEASURES[name], values, floor, step=run.config.steps, shared=shared)
    rows += _describe_brackets(after, before, sentences, step=run.config.steps, shared=shared)
    names = {f"{split}_{name}": f"{split}, {words}" for split in SPLITS for name, words in FOLLOWED.items()}
    names |= {name: f"generalisation, {name.replace('_', ' ')}" for name in CONSTRUCTIONS[1:]} | dict(MEASURES)
    rows += list_history(run, {name: told for name, told in names.items() if name in run.history}, shared=shared)
    drawn = _draw(sentences, before, after)
    write_model(cell, run, folder, rows=rows, seconds=seconds, about={"task": task.name, "trees": drawn})


@torch.no_grad()
def _score(
    model: HookedTransformer, task: GrammarTask, split: str, *, seed: int
) -> Iterator[tuple[str, Float[np.ndarray, "line"]]]:
    """Each score by its name in words, line by line; generalisation's accuracy by construction too."""
    n = min(N_LINES, len(task.sentences(split)))  # more would repeat lines
    batch = task.sample(n, split=split, seed=derive_seed(seed, "grokking"))
    logits = torch.cat([model(rows.to(model.cfg.device)).cpu() for rows in batch.tokens.split(100)])
    scores = task.score(logits, batch)
    for name, words in FOLLOWED.items():
        if name in scores:
            yield words, scores[name].double().numpy()
    for construction, values in split_by_construction(scores["hierarchical"], batch).items():
        yield construction.replace("_", " "), values.double().numpy()


def _describe_share(
    metric: str,
    values: Float[np.ndarray, "line"],
    floor: Float[np.ndarray, "line"],
    *,
    step: int,
    shared: Mapping[str, Any],
) -> Iterator[Measurement]:
    """The share of lines, with Wilson's interval: it holds where all lines or none are right, too."""
    for control, numbers in ((None, values), (UNTRAINED, floor)):
        share = Share(found=int(numbers.sum()), n=len(numbers))
        yield _measure(metric, share.value, share.interval, share.n, control, step=step, shared=shared)


def _describe_mean(
    metric: str,
    values: Float[np.ndarray, "sentence"],
    floor: Float[np.ndarray, "sentence"],
    *,
    step: int,
    shared: Mapping[str, Any],
) -> Iterator[Measurement]:
    """The mean over sentences, with a bootstrap interval."""
    for control, numbers in ((None, values), (UNTRAINED, floor)):
        low, high = map(float, bootstrap_interval(numbers))
        yield _measure(metric, float(numbers.mean()), (low, high), len(numbers), control, step=step, shared=shared)


def _describe_brackets(
    after: TreeProjections,
    before: TreeProjections,
    sentences: Sequence[Sentence],
    *,
    step: int,
    shared: Mapping[str, Any],
) -> Iterator[Measurement]:
    """Bracket F1 without the root, beside that of the untrained model and of trees that know no words."""
    for control, found in ((None, after), (UNTRAINED, before)):
        table = compare_brackets(found.trees[found.layers[-1]], [one.tree for one in sentences]).to_frame()
        table = table[table["group"] == "without root"].set_index("parser")
        parsers = {"projected": control}
        if control is None:
            parsers |= {name: f"{name.replace('_', ' ')} trees" for name in _BASELINES}
        for parser, named in parsers.items():
            row = table.loc[parser].to_dict()
            ends = (float(row["low"]), float(row["high"]))
            yield _measure(MEASURES["f1"], float(row["found"]), ends, len(sentences), named, step=step, shared=shared)


def _measure(
    metric: str,
    value: float,
    interval: tuple[float, float],
    n: int,
    control: str | None,
    *,
    step: int,
    shared: Mapping[str, Any],
) -> Measurement:
    return Measurement(
        metric=metric,
        value=value,
        low=interval[0],
        high=interval[1],
        n=n,
        control=control,
        step=None if control else step,
        **shared,
    )


def _draw(sentences: Sequence[Sentence], before: TreeProjections, after: TreeProjections) -> list[dict[str, Any]]:
    """The longest sentences that differ in length, as they are drawn before and after training."""
    longest: dict[int, int] = {}
    for i, one in enumerate(sentences):
        longest.setdefault(len(one.words), i)
    chosen = [longest[length] for length in sorted(longest, reverse=True)[:N_DRAWN]]
    trees = {"before": before.trees[before.layers[-1]], "after": after.trees[after.layers[-1]]}
    return [
        {
            "words": sentences[i].words,
            "gold": sentences[i].tree,
            **{when: found[i] for when, found in trees.items()},
        }
        for i in chosen
    ]
