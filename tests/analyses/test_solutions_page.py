"""The report on a grid: pictures drawn from cells alone, a section for every model, and links that lead to it."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import interp
from analyses.grid_runs import model_folder, run_cell
from analyses.solutions.cells import keep_cell
from analyses.solutions.evidence import measure_flow
from analyses.solutions.finished import Finished, read_finished
from analyses.solutions.model_section import write_model
from analyses.solutions.page import write_grid_page
from analyses.solutions.phases_section import choose_example, find_edges, write_phases
from analyses.solutions.pictures import draw_flow, draw_mechanism, draw_states
from analyses.solutions.ranks import follow_rank
from interp.complexity.spectra import stable_rank
from interp.figures.svg import to_svg
from interp.records.schema import Measurement
from interp.records.store import Cell, Store
from interp.solutions.classify import classify_solution
from interp.training.runs import read_history
from tests.analyses.tiny_grid import finish, make_tiny
from tests.report.test_page import Reader
from tests.solutions.machines import WIRINGS, build_machine, make_task


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished grid of two models, run in this process."""
    folder, grid = tmp_path_factory.mktemp("grids") / "done", make_tiny()
    for cell in grid.cells:
        run_cell(cell, folder, keep=keep_cell)
    return grid, folder


@pytest.fixture(scope="module")
def html(done):
    grid, folder = done
    return write_grid_page(grid, Store(folder), command="interp solutions").read_text()


def forget(record):
    """The cell as a version wrote it that kept nothing to draw from."""
    arrays = {
        name: values
        for name, values in record.arrays.items()
        if name.startswith(("behaviour", "deviations", "history"))
    }
    about = {
        name: value
        for name, value in record.about.items()
        if name not in ("verdicts", "flow", "states", "mechanism_zero", "second_stage", "n_layers")
    }
    frame = record.frame[~record.frame["metric"].str.startswith("states")]
    return Cell(frame=frame, arrays=arrays, about=about)


def test_every_model_has_a_section_to_which_its_ring_and_its_rows_lead(done, html):
    grid, _ = done
    reader = Reader(html)
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    assert {href[1:] for href in reader.attributes("href") if href.startswith("#")} <= set(ids)
    folds = [attributes["id"] for tag, attributes in reader.elements if attributes.get("class") == "fold"]
    assert folds == [f"model-1-{cell.name}" for cell in grid.cells]
    diagram = html[html.index("<svg") : html.index("</svg>")]
    assert re.findall(r'<a href="#([^"]*)"', diagram) == folds
    for fold in folds:
        assert html.count(f'<td><a href="#{fold}">') == 2  # by which circuit, and every model
    settings = re.findall(r'<td><a href="#(model-1-setting-[^"]*)">', html)
    assert len(settings) == 4  # what they answer, and the weights
    assert set(settings) <= set(ids)


def test_a_section_has_what_was_found_its_control_its_pictures_and_its_numbers(html):
    section = html[html.index('<details class="fold"') :].split("</details>")[0]
    for part in (
        "Its answers follow none of the three rules",
        "Mechanism: none",
        "<b>Control</b> As many random edges",
    ):
        assert part in section
    assert section.count("<svg") == 4
    assert "right on unseen keys" in section
    assert "kept alone: parallel" in section
    assert "cosine of states at equal minus at different targets" in section
    assert len(section) < 60_000


def test_the_lone_diagram_has_no_links(done, html):
    _, folder = done
    assert "<a " not in (folder / "phase_diagram.svg").read_text()


def test_a_folder_without_the_arrays_of_the_pictures_has_its_report_all_the_same(done, tmp_path):
    grid, folder = done
    store = Store(tmp_path)
    names = set(Measurement.__dataclass_fields__)
    for cell in grid.cells:
        old = forget(Store(folder).read(cell.key))
        rows = [
            Measurement(**{name: None if pd.isna(value) else value for name, value in row.items() if name in names})
            for row in old.frame.to_dict("records")
        ]
        store.write(cell.key, rows, arrays=old.arrays, about=old.about)
    html = write_grid_page(grid, store, command="interp solutions").read_text()
    assert html.count('<details class="fold"') == 2
    assert html.count("<svg") == 3 + 2  # the diagram, the transition and the curves; the curves of each model
    assert "An example of each" not in html
    assert Reader(html).open == []
    record = store.read(grid.cells[0].key)
    assert (draw_mechanism(record), draw_flow(record), draw_states(record)) == (None, None, None)
    assert len(write_model(record, anchor="a", title="b").figures) == 1


def test_the_mechanism_is_drawn_from_its_cell_as_the_model_itself_draws_it(done):
    grid, folder = done
    cell = grid.cells[1]
    model = interp.load(str(model_folder(cell, folder)))
    solution = classify_solution(model, cell.task, n=cell.n, n_controls=cell.n_controls)
    assert to_svg(draw_mechanism(Store(folder).read(cell.key))) == to_svg(solution.mechanism.figure())


@pytest.mark.parametrize(
    ("circuit", "edges"),
    [
        ("parallel", {"key → anchor 1 in layer 0", "key → anchor 2 in layer 0", "anchor 1 → last in layer 1",
                      "anchor 2 → last in layer 1"}),
        ("symmetric", {"anchor 1 → last in layer 0", "anchor 2 → last in layer 0", "key → last in layer 1"}),
    ],
)  # fmt: skip
def test_the_flow_of_a_known_circuit_is_its_edges(circuit, edges):
    task = make_task()
    flow = measure_flow(build_machine(WIRINGS[circuit]), task, n=40, n_controls=5, seed=0)
    assert flow.about["flow"] == {"roles": ["rest", "key", "anchor 1", "anchor 2", "last"], "n": 40}
    lost, roles = np.nan_to_num(flow.arrays["flow/lost"]), flow.about["flow"]["roles"]
    # Without one anchor the other counts twice, which is right where both are the same; a token's own edge keeps its state.
    found = {
        f"{roles[key]} → {roles[query]} in layer {layer}"
        for layer, query, key in np.argwhere(lost > 0.5)
        if key != query
    }
    assert found == edges


def test_the_rank_over_training_is_that_of_the_weights_at_evaluations_or_at_checkpoints(done):
    grid, folder = done
    cell = grid.cells[0]
    run = model_folder(cell, folder)
    arrays = Store(folder).read(cell.key).arrays
    assert arrays["rank_step"].tolist() == [0, 2, 3]
    kept = follow_rank(read_history(run).drop(columns="stable_rank_W_Q"), run)
    assert kept["rank_step"].tolist() == [0, 3]
    np.testing.assert_allclose(kept["rank"], arrays["rank"][[0, 2]], rtol=1e-6)
    W_Q = interp.load(str(run)).blocks[0].attn.W_Q[0]
    assert arrays["rank"][-1] == pytest.approx(float(stable_rank(W_Q)), rel=1e-6)
    assert follow_rank(pd.DataFrame({"step": [0]}), None) == {}
    assert follow_rank(pd.DataFrame({"step": [0]}), folder / "nowhere") == {}


def show(cell, flow, **labels):
    """A finished model with this flow: {(layer, query, key): accuracy lost}, of two layers and roles."""
    one = finish(cell, **labels)
    lost = np.zeros((2, 2, 2))
    for place, value in flow.items():
        lost[place] = value
    arrays = {**one.record.arrays, "flow/lost": lost, "flow/control": np.full((3, 2, 2, 2), 0.1)}
    about = {**one.record.about, "flow": {"roles": ["key", "last"], "n": 9}}
    about["scores"] = {
        name: {"value": labels.get("score", 0.9), "low": 0.8, "high": 1.0} for name in ("id", "reasoning", "train")
    }
    return Finished(cell=one.cell, record=Cell(frame=one.record.frame, arrays=arrays, about=about))


def with_score(one, score, *, settled=True):
    about = {**one.record.about, "settled": settled}
    about["scores"] = {**about["scores"], "reasoning": {"value": score, "low": 0.0, "high": 1.0}}
    return replace(one, record=replace(one.record, about=about))


def test_the_example_of_a_behaviour_is_its_median_settled_model():
    cells = make_tiny(seeds=4).cells
    models = [show(cell, {}, behaviour="reasoning") for cell in cells[:5]]
    scores = [(0.99, True), (0.86, True), (0.95, False), (0.93, True), (0.9, False)]
    models = [with_score(one, score, settled=settled) for one, (score, settled) in zip(models, scores, strict=True)]
    example, how = choose_example(models, "reasoning")
    assert example is models[3]
    assert how == "the median of 3 settled models by the pairs it composes"
    example, how = choose_example([models[2], models[4]], "reasoning")
    assert example is models[4]
    assert how == "the median of 2 models by the pairs it composes"
    assert choose_example([], "reasoning") is None


def test_only_edges_that_cost_more_than_random_ones_are_told():
    cell = make_tiny().cells[0]
    one = show(cell, {(0, 1, 0): 0.7, (1, 1, 0): 0.09, (1, 1, 1): 0.4}, behaviour="reasoning")
    assert find_edges(one) == [
        ("key → last in layer 0", 0.7, pytest.approx(0.1)),
        ("last → last in layer 1", 0.4, pytest.approx(0.1)),
    ]
    section = write_phases([one])
    assert "reasoning, key → last in layer 0 (0.70)." in section.verdict
    assert section.control == "Random edges of the same layers that carry as much attention cost 0.10 on average."
    (phase,) = section.within
    assert phase.title == "Reasoning: gamma 0.4, decay 0.01, seed 0"
    assert phase.verdict.startswith("The only settled model. It is right on 90% [80%, 100%] of unseen keys")
    none = write_phases([show(cell, {}, behaviour="none")])
    assert "no behaviour, no single edge more than random ones." in none.verdict


def test_models_of_one_behaviour_alone_have_one_example(done):
    grid, folder = done
    finished = read_finished(grid, Store(folder))
    (phase,) = write_phases(finished).within
    assert phase.title.startswith("No behaviour: gamma 0.")
    assert len(phase.figures) == 2
