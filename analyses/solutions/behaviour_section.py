"""What the models of a grid answer: the phase diagram, shares over seeds, and both in words."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from analyses.report.page import Figure, Section
from analyses.report.table import Link
from analyses.solutions.definitions import BEHAVIOUR
from analyses.solutions.finished import KINDS, Finished, find_lines, group_settings
from analyses.solutions.shares import Share
from interp.figures.phase import Seed, phase_diagram
from interp.figures.style import Picture
from interp.figures.svg import to_svg

LETTERS = {"parallel": "P", "serial": "S", "symmetric": "Y", "hybrid": "H", "distributed": "D", "none": "–"}
"""How mechanisms are written into a diagram."""

GAMMA = "gamma (larger is smaller initial weights)"


def write_behaviour(finished: Sequence[Finished], notes: tuple[str, ...]) -> Section:
    """What the models answer, with the share of seeds in each setting."""
    rows = []
    for name, models in group_settings(finished).items():
        counts = Counter(one.behaviour for one in models)
        for kind in [kind for kind in KINDS if counts[kind]]:
            share = Share(found=counts[kind], n=len(models))
            low, high = share.interval
            settled = sum(one.behaviour == kind and bool(one.record.about["settled"]) for one in models)
            rows.append(
                {
                    "setting": Link(text=name, anchor=models[0].setting_anchor),
                    "behaviour": kind,
                    "found in": f"{share.found} of {share.n}",
                    "share": share.value,
                    "share_low": low,
                    "share_high": high,
                    "settled": settled,
                }
            )
    return Section(
        anchor="behaviour",
        title="What they answer",
        question="Asked what no model was trained on: who composes, who follows the other order, who only remembers?",
        verdict=" ".join(tell_shares(finished)),
        control=_control_behaviour(finished),
        figures=(
            Figure(
                svg=to_svg(draw_diagram(finished, links="sections")),
                caption="The colour is what most seeds of a setting answer by, and where several are equally common the cell "
                "is divided among them. The letter in a ring is that seed's mechanism; a ring leads to its model.",
            ),
        ),
        table=pd.DataFrame(rows),
        table_caption="Shares over seeds with Wilson's 95% interval; settled: the label is the same anywhere within the "
        "intervals of the model's own scores.",
        definitions=BEHAVIOUR,
        notes=(
            "A few seeds say little about a share: read the interval. Other seeds of the same setting can end elsewhere.",
            *notes,
        ),
    )


def draw_diagram(
    finished: Sequence[Finished], *, title: str = "", links: Literal["sections", "none"] = "none"
) -> Picture:
    """The phase diagram of the models: gamma from left to right, all else that differs from below.

    With `links="sections"` every ring leads to the model's section on the page.
    """
    gammas = sorted({one.cell.gamma for one in finished})
    lines = find_lines(finished)
    bare = {name.split(" ", 1)[0] for name in lines} == {"decay"}
    found: dict[tuple[str, str], list[Seed]] = {}
    for name, models in lines.items():
        row = name.removeprefix("decay ") if bare else name.replace(", ", "\n")
        for gamma in gammas:
            here = [one for one in models if one.cell.gamma == gamma]
            found[row, f"{gamma:g}"] = [
                Seed(
                    kind=one.behaviour,
                    letter=LETTERS.get(one.mechanism, one.mechanism[:1].upper()),
                    name=f"seed {one.cell.seed}: {one.behaviour}, {one.mechanism}",
                    link=f"section:{one.anchor}" if links == "sections" else "",
                )
                for one in here
            ]
    used = dict.fromkeys(one.mechanism for one in finished)
    return phase_diagram(
        found,
        kinds=KINDS,
        x_label=GAMMA,
        y_label="weight decay" if bare else "",
        letters={letter: name for name, letter in LETTERS.items() if name in used},
        title=title,
    )


def tell_shares(finished: Sequence[Finished]) -> list[str]:
    """A sentence a setting, or, on a grid of gammas, a sentence a line of the diagram."""
    groups = group_settings(finished)
    lines = find_lines(finished)
    if all(len({one.cell.gamma for one in line}) >= 3 for line in lines.values()):
        return [_tell_line(name, line) for name, line in lines.items()]
    return [
        f"{name.capitalize()}: {_tell_counts([one.behaviour for one in models])}." for name, models in groups.items()
    ]


def _tell_line(name: str, models: Sequence[Finished]) -> str:
    """From which gamma on most seeds reason."""
    gammas = sorted({one.cell.gamma for one in models})
    shares = {
        gamma: Share(
            found=sum(one.behaviour == "reasoning" for one in models if one.cell.gamma == gamma),
            n=sum(one.cell.gamma == gamma for one in models),
        )
        for gamma in gammas
    }
    from_here = [gamma for gamma in gammas if all(shares[g].value > 0.5 for g in gammas if g >= gamma)]
    counted = ", ".join(f"{share.found} of {share.n} at {gamma:g}" for gamma, share in shares.items())
    start = (
        f"most seeds reason from gamma {from_here[0]:g} on"
        if from_here
        else "at no gamma do most seeds reason up to the end"
    )
    return f"{name.capitalize()}: {start} ({counted})."


def _tell_counts(labels: Sequence[str]) -> str:
    counts = Counter(labels)
    return ", ".join(f"{kind} in {Share(found=counts[kind], n=len(labels))}" for kind in KINDS if counts[kind])


def _control_behaviour(finished: Sequence[Finished]) -> str:
    def start(column: str) -> float:
        return float(np.mean([one.record.arrays[f"history_{column}"][0] for one in finished]))

    return (
        f"The same models before training answer {start('id_accuracy'):.1%} of unseen keys rightly and compose "
        f"{start('held_out_reasoning'):.1%} of the pairs never trained."
    )
