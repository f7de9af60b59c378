"""A small page that has everything a page can have, and a hostile name everywhere a name can stand."""

import numpy as np
import pandas as pd

from analyses.report import Definition, Figure, Link, ModelPart, Page, Section
from interp.figures import Curve, Effect, ablation, head_map, head_ranking, learning_curves, to_svg
from interp.figures.phase import Seed, phase_diagram

HOSTILE = "</script></style><b id=x>&\"'<img src=http://example.org/x.png onerror=alert(1)>"


def make_page(name: str = HOSTILE) -> Page:
    values = np.random.default_rng(0).random((30, 9)) ** 6
    values[18, 6] = 0.97
    steps = np.array([0, 100, 1000, 5000])
    curves = [
        Curve(label="two layers", steps=steps, values=np.array([1.0, 1.0, 0.8, 0.02]), series=1),
        Curve(label="one layer", steps=steps, values=np.array([1.0, 1.0, 0.97, 0.95]), series=1, control=True),
    ]
    effect = Effect(
        name="loss",
        unit="nats",
        untouched=0.04,
        removed=5.3,
        removed_interval=(5.1, 5.5),
        random=np.linspace(0.03, 0.09, 20),
        random_interval=(0.03, 0.09),
    )
    figures = (
        head_map(values, label="induction score", top=[(18, 6)], title=name),
        head_map(np.array([[0.1], [0.9]]), label="induction score", top=[(1, 0)]),
        head_ranking([(18, 6)], np.array([0.97]), label="induction score", control=np.array([0.02])),
        ablation([effect]),
        learning_curves(curves),
    )
    table = pd.DataFrame(
        {
            "head": ["18.6", "2.10", "2.9", name],
            "induction": [0.97, None, -0.5, 0.00001],
            "low": [0.95, None, -0.6, 0.0],
            "high": [0.99, None, -0.4, 0.001],
            "n": pd.array([50, 1000, None, 7], dtype="Int64"),
        }
    )
    section = Section(
        anchor="heads",
        title=name,
        question=name,
        verdict=f"Head 18.6 copies: {name}",
        control="In an untrained model it scores `0.02`.",
        figures=tuple(Figure(svg=to_svg(figure), caption=name, verdict=name) for figure in figures),
        table=table,
        table_caption=name,
        definitions=(
            Definition(
                name=name, formula="S = A[t, t − n] < 1", source="https://example.org/paper, 2022", docs="heads"
            ),
        ),
        notes=(name, "Ran `interp`."),
    )
    bare = Section(anchor="heads", title="Bare", question="Q?", verdict="V.")
    parts = (
        ModelPart(name=name, line=name, facts=((name, name), ("weights sha256", "ab" * 32)), sections=(section, bare)),
        ModelPart(name="twin", sections=(section,)),
    )
    if name == HOSTILE:
        parts = (ModelPart(name=name, line=name, facts=((name, name),), sections=(section,)), parts[1])
    return Page(
        title=name,
        summary=(name, "Removing 18.6 raises the loss from 0.04 to 5.3; random heads of the same layers, to 0.06."),
        parts=parts,
        command=f"interp report smollm2 --out '{name}'",
        versions=(("torch", "2.13.0"), (name, name)),
        created="2026-01-02",
    )


def make_folded(*sections: Section) -> Page:
    """Two models, each with two seeds that are folded, a diagram and a table that lead to them; or with these sections."""
    seeds = [Seed(kind="a", name=f"seed {i}", link=f"section:seed-{i}") for i in range(2)]
    diagram = phase_diagram({("1", "2"): seeds}, kinds=("a",), x_label="x", y_label="y")
    curve = Curve(label="c", steps=np.array([0, 1]), values=np.array([0.0, 1.0]))
    figure = Figure(svg=to_svg(learning_curves([curve])), caption="A curve.")
    inner = Section(
        anchor="all",
        title="All seeds",
        question="Which?",
        verdict="Two.",
        figures=(Figure(svg=to_svg(diagram), caption="A diagram."),),
        table=pd.DataFrame({"model": [Link(text=f"seed {i}", anchor=f"seed-{i}") for i in range(2)]}),
        within=(
            Section(
                anchor="setting",
                title="A setting",
                question="",
                verdict="It has two.",
                folded=tuple(
                    Section(anchor=f"seed-{i}", title=f"Seed {i}", question="", verdict="V.", figures=(figure,))
                    for i in range(2)
                ),
            ),
        ),
    )
    parts = tuple(ModelPart(name=name, sections=sections or (inner,)) for name in ("one", "two"))
    return Page(title="Folds", summary=("S.",), parts=parts, command="interp", versions=(), created="2026-01-02")
