"""What the pictures of a model are drawn from, as arrays that a cell keeps: no model is needed to draw them again.

| arrays | |
|---|---|
| `control/<intervention> · <edges>` | accuracy under each draw of random edges, [draw] |
| `flow/lost` | accuracy lost when an edge between roles is cut, [layer, query role, key role] |
| `flow/control` | the same with random edges cut that carry as much attention, [draw, layer, query role, key role] |
| `states/<place>` | last-token states in the plane, [sequence, 2] |
| `states/pairs` | the anchors of each of these sequences, [sequence, 2] |

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> flow = measure_flow(model, dropped_pairs(), n=10, n_controls=2, seed=0)
>>> flow.arrays["flow/lost"].shape, flow.about["flow"]["roles"]
((2, 5, 5), ['rest', 'key', 'anchor 1', 'anchor 2', 'last'])
"""

from typing import Any

import numpy as np
import torch

from analyses.analysis import Outcome
from interp.complexity.representation import project_pca, project_tsne
from interp.errors import InputError
from interp.interventions.information_flow import information_flow
from interp.records.schema import Measurement
from interp.solutions.circuits import leave_last_free
from interp.solutions.mechanism import Mechanism
from interp.solutions.representation import measure_representation
from tasks.anchor.composite import Composite

SHUFFLED = "shuffled targets"
COSINE = "states: cosine at equal minus at different targets"

_ROLES = ("key", "anchor_1", "anchor_2", "last")
_MOST_SEQUENCES, _MOST_DRAWS = 64, 10
_PER_PAIR = 4
"""Sequences of each trained pair whose states are drawn."""


def keep_controls(mechanism: Mechanism) -> Outcome:
    """The draws of random edges behind each intervention, and which interventions say something."""
    draws = {("cut", edges): values for edges, values in mechanism.cut_control.items()}
    draws |= {("kept alone", edges): values for edges, values in mechanism.kept_control.items()}
    frame = mechanism.to_frame()
    names = frame["intervention"] + " · " + frame["edges"]
    return Outcome(
        measurements=[],
        arrays={f"control/{kind} · {edges}": values for (kind, edges), values in draws.items()},
        about={
            "verdicts": {name: said for name, said in zip(names, frame["verdict"], strict=True) if said},
            "second_stage": mechanism.second_stage,
            "n_layers": mechanism.n_layers,
        },
    )


def measure_flow(model: Any, task: Composite, *, n: int, n_controls: int, seed: int) -> Outcome:
    """What the answer loses when an edge between roles is cut, on at most 64 trained sequences and with 10 draws at most."""
    batch = leave_last_free(task, split="train", n=min(n, _MOST_SEQUENCES), seed=seed)
    flow = information_flow(model, batch, roles=_ROLES, n_controls=min(n_controls, _MOST_DRAWS), seed=seed)
    roles = [role.replace("_", " ") for role in flow.roles]
    return Outcome(
        measurements=[],
        arrays={"flow/lost": flow.accuracy_drop, "flow/control": flow.control_accuracy_drop},
        about={"flow": {"roles": roles, "n": len(batch.tokens)}},
    )


def measure_states(model: Any, task: Composite, *, seed: int) -> Outcome:
    """Last-token states in the plane, halfway and at the end, and whether those with the same target are alike."""
    try:
        found = measure_representation(model, task, n=_PER_PAIR * len(task.trained_pairs), seed=seed)
    except InputError:  # a task of too few pairs to compare orders of anchors; it has circuits all the same
        return Outcome(measurements=[])
    halfway, end = f"after layer {model.cfg.n_layers // 2 - 1}", "before the unembedding"
    planes, panels = {}, []
    for place, where in ((halfway, halfway), (end, "at the end")):
        projected = project_pca(torch.from_numpy(found.states[place]))
        planes[f"{where}, PCA"] = projected.coordinates
        panels.append((f"{where}, PCA", f"{projected.explained.sum():.0%} of the variance"))
    planes["at the end, t-SNE"] = project_tsne(torch.from_numpy(found.states[end]), seed=seed)
    panels.append(("at the end, t-SNE", "distances mean nothing"))
    cosine = found.targets[end]
    shared: dict[str, Any] = {"analysis": "solutions", "metric": COSINE, "task": task.name}
    return Outcome(
        measurements=[
            Measurement(
                value=cosine.difference, low=cosine.interval[0], high=cosine.interval[1], n=cosine.n_states, **shared
            ),
            Measurement(value=float(cosine.shuffled.mean()), control=SHUFFLED, **shared),
        ],
        arrays={f"states/{name}": plane.astype(np.float32) for name, plane in planes.items()}
        | {"states/pairs": found.pairs},
        about={"states": panels},
    )
