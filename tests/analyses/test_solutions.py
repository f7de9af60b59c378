"""Running a grid: cells are kept whole, read and not run again, and reported on."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import interp
from analyses.grid_runs import choose_engine, estimate_cells, model_folder, run_cell, run_stacked
from analyses.recipes import RECIPES
from analyses.report_models import open_subject
from analyses.solutions.behaviour_section import draw_diagram, tell_shares
from analyses.solutions.cells import keep_cell
from analyses.solutions.finished import read_finished
from analyses.solutions.page import write_grid_page
from analyses.solutions.run import run_grid
from analyses.solutions.section import SOLUTIONS, restore_task
from interp.errors import InputError
from interp.records.store import Store
from tasks.anchor import altered_pair, composition, dropped_pairs
from tests.analyses.test_kill import kill_when
from tests.analyses.tiny_grid import finish, make_tiny


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished grid of two models, run in this process."""
    folder, grid = tmp_path_factory.mktemp("grids") / "done", make_tiny()
    for cell in grid.cells:
        run_cell(cell, folder, keep=keep_cell)
    return grid, folder


def test_a_cell_keeps_labels_scores_controls_history_and_a_model_that_loads(done):
    grid, folder = done
    cell = grid.cells[0]
    record = Store(folder).read(cell.key)
    assert record.about["setting"] == "gamma 0.4, decay 0.01"
    assert (record.about["behaviour"], record.about["engine"]) == ("none", "separate")
    assert record.arrays["behaviour/train"].shape == (30,)
    assert record.arrays["behaviour/train"].mean() == pytest.approx(record.about["scores"]["train"]["value"])
    assert record.arrays["history_step"].tolist() == [0, 2, 3]
    metrics = set(record.frame["metric"])
    assert {"behaviour: id", "mechanism: uncut", "stable rank of W_Q", "stable rank of W_in"} <= metrics
    rank = record.frame[record.frame["metric"].eq("stable rank of W_Q")]
    assert set(rank["control"].fillna("")) == {"", "random matrix of the same shape"}
    assert set(record.frame["model"]) == {cell.name}
    model = interp.load(str(model_folder(cell, folder)))
    assert set(record.frame["weights_sha256"]) == {model.provenance.weights_sha256}
    W_Q = model.blocks[0].attn.W_Q[0]
    s = np.linalg.svd(W_Q.detach().numpy(), compute_uv=False)
    assert rank["value"].iloc[0] == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-4)


def test_a_finished_grid_is_read_and_not_run(done, monkeypatch):
    grid, folder = done
    other = folder.parent / "again"
    for cell in grid.cells:
        run_cell(cell, other, keep=keep_cell)
    (other / "models").rename(other.parent / "moved")
    monkeypatch.setattr("analyses.grid_runs.run_cell", pytest.fail)
    cells = {path: path.stat().st_mtime_ns for path in (other / "cells").iterdir()}
    (other / "run.json").write_text(
        json.dumps({"version": interp.__version__, "command": "solutions", "device": "cpu", **grid.describe()},
                   indent=1, sort_keys=True)
    )  # fmt: skip
    report = run_grid(grid, other, command="interp solutions", device="cpu")
    assert {path: path.stat().st_mtime_ns for path in (other / "cells").iterdir()} == cells
    assert report.is_file()
    assert set(pd.read_parquet(other / "results.parquet")["model"]) == {cell.name for cell in grid.cells}


def test_models_that_are_stacked_are_those_that_are_trained_one_by_one(done, tmp_path):
    grid, folder = done
    names = [(cell.name, error) for cell, error in run_stacked(grid.cells, tmp_path, keep=keep_cell, device="cpu")]
    assert names == [(cell.name, None) for cell in grid.cells]
    for cell in grid.cells:
        one, many = Store(folder).read(cell.key), Store(tmp_path).read(cell.key)
        assert many.about["engine"] == "stacked"
        np.testing.assert_allclose(many.arrays["history_loss"][1:], one.arrays["history_loss"][1:], atol=1e-5)
        assert many.arrays["rank_step"].tolist() == [0, 2, 3]
        np.testing.assert_allclose(many.arrays["rank"], one.arrays["rank"], rtol=1e-4)


def test_an_accelerator_stacks_and_a_cpu_takes_processes():
    assert choose_engine("cpu") == "processes"
    assert choose_engine("cuda") == "stacked"


def test_a_folder_of_another_grid_is_refused(done, tmp_path):
    grid, _ = done
    other = make_tiny(gammas=(0.5,))
    (tmp_path / "run.json").write_text(
        json.dumps({"version": interp.__version__, "command": "solutions", "device": "cpu", **other.describe()})
    )
    with pytest.raises(InputError) as refused:
        run_grid(grid, tmp_path, command="", device="cpu")
    assert "holds another run (its grid is dropped; gamma 0.5; weight decay 0.01; 2 layers; 1,500 steps, not" in str(
        refused.value
    )
    assert "give another folder with --out" in str(refused.value)
    assert len(str(refused.value)) < 600


def test_an_estimate_counts_what_is_finished_and_writes_nothing(done, tmp_path):
    grid, folder = done
    before = sorted(path for path in folder.rglob("*"))
    estimate = estimate_cells(make_tiny(seeds=2).cells, folder, device="cpu")
    assert sorted(path for path in folder.rglob("*")) == before
    assert (len(estimate.cells), estimate.finished) == (4, 2)
    assert estimate.measured == "gamma_0.4_decay_0.01-seed_1"
    assert estimate.seconds == pytest.approx(2 * 3 * estimate.seconds_per_step / 2)
    assert not list(tmp_path.iterdir())
    assert estimate_cells(grid.cells, tmp_path / "new", device="cpu").finished == 0
    assert not (tmp_path / "new").exists()


def test_the_page_is_one_small_offline_file_on_what_is_finished(done):
    _, folder = done
    html = write_grid_page(make_tiny(seeds=2), Store(folder), command="interp solutions --gamma 0.4,0.8").read_text()
    assert len(html) < 1_000_000
    assert "2 models of 4" in html
    assert "interp solutions --gamma 0.4,0.8" in html
    for title in (
        "What they answer",
        "By which circuit",
        "An example of each",
        "How complex the weights are",
        "When they learn it",
        "Every model",
    ):
        assert title in html
    # The diagram, an example of two pictures, the transition, curves and ranks, and four pictures of each model.
    assert html.count("<svg") == 1 + 2 + 1 + 2 + 2 * 4
    assert (folder / "phase_diagram.svg").read_text().startswith("<svg")
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", html, flags=re.DOTALL).lower().split()


def test_a_page_of_nothing_says_so(tmp_path):
    store = Store(tmp_path)
    assert "No model of this grid is finished" in write_grid_page(make_tiny(), store, command="interp").read_text()


def test_a_grid_of_gammas_is_told_by_where_most_seeds_reason():
    grid = make_tiny(gammas=(0.4, 0.6, 0.8), seeds=2, weight_decays=(0.01, 1.0))
    reasons = {(0.8, 0.01): 2, (0.6, 0.01): 1, (0.6, 1.0): 2, (0.8, 1.0): 2}
    finished = [
        finish(cell, behaviour="reasoning" if cell.seed < reasons.get((cell.gamma, cell.weight_decay), 0) else "none")
        for cell in grid.cells
    ]
    assert tell_shares(finished) == [
        "Decay 0.01: most seeds reason from gamma 0.8 on (0 of 2 at 0.4, 1 of 2 at 0.6, 2 of 2 at 0.8).",
        "Decay 1: most seeds reason from gamma 0.6 on (0 of 2 at 0.4, 2 of 2 at 0.6, 2 of 2 at 0.8).",
    ]
    assert "0.01: 0.4 none 2 of 2" in draw_diagram(finished).alt


def test_other_grids_are_told_setting_by_setting_with_intervals():
    grid = make_tiny(seeds=3)
    finished = [
        finish(cell, behaviour="symmetric" if cell.gamma == 0.4 and cell.seed else "reasoning") for cell in grid.cells
    ]
    assert "symmetric in 2 of 3 [21%, 94%]" in " ".join(tell_shares(finished))


def test_finished_models_come_in_the_order_of_settings(done):
    grid, folder = done
    assert [one.cell.gamma for one in read_finished(grid, Store(folder))] == [0.4, 0.8]


@pytest.mark.parametrize(
    "task",
    [altered_pair(weight=0.3, n_sequences=50), dropped_pairs(), composition()],
    ids=["altered", "dropped", "composition"],
)
def test_a_task_comes_back_from_json(task):
    from dataclasses import asdict

    assert restore_task(json.loads(json.dumps(asdict(task)))) == task


def test_a_report_on_a_model_of_a_grid(done, run_interp, tmp_path):
    grid, folder = done
    model = model_folder(grid.cells[0], folder)
    code, out, err = run_interp(
        "report", model, "--analyses", "solutions", "--quick", "--out", tmp_path / "r", "--json"
    )
    assert (code, err) == (0, "")
    told = {headline["what"]: headline for headline in json.loads(out)["headlines"]}
    assert told["right on unseen keys"]["n"] == 240
    assert told["accuracy, parallel circuit kept alone"]["control"] == "random edges"
    html = (tmp_path / "r" / "report.html").read_text()
    assert "Reasoning, symmetry or memory" in html
    assert html.count("<svg") == 5  # mechanism, flow, states, curves, rank
    assert "at the end, t-SNE" in html


def test_a_model_that_was_not_trained_on_anchors_is_refused(run_interp, machine_folder, tmp_path):
    code, _, err = run_interp("report", machine_folder, "--analyses", "solutions", "--out", tmp_path / "r")
    assert code == 2
    assert "solutions can't be asked of" in err
    assert "it doesn't come from a training run on an anchor task" in err


def test_a_task_on_which_the_circuits_mean_nothing_is_refused(tmp_path):
    task = composition()
    model = interp.build(n_layers=2, d_model=8, n_heads=1, d_vocab=task.d_vocab, n_ctx=task.n_ctx, attn_only=True)
    config = interp.TrainConfig(steps=1, batch_size=2, eval_sequences=2)
    interp.train(model, task, config, folder=tmp_path / "run", progress="off")
    subject = open_subject(str(tmp_path / "run"))
    assert "the key stands behind its anchors" in (SOLUTIONS.applies(subject) or "")


def test_show_tells_shares_of_a_grid(done, run_interp):
    grid, folder = done
    (folder / "run.json").write_text(json.dumps({"command": "solutions", **grid.describe()}))
    (folder / "settings.json").write_text(json.dumps({setting.name: {} for setting in grid.settings}))
    Store(folder).export(folder / "results.parquet")
    code, out, _ = run_interp("show", folder, "--json")
    assert code == 0
    told = json.loads(out)["settings"]
    assert [one["setting"] for one in told] == ["gamma 0.4, decay 0.01", "gamma 0.8, decay 0.01"]
    assert told[0]["behaviour"]["none"]["models"] == 1
    code, out, _ = run_interp("show", folder)
    assert "none 1 [21%, 100%]" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No grid was named"),
        (["--gamma", "0.4,x", "--weight-decay", "0.01"], "'x' in --gamma is no number"),
        (["--gamma", "nan", "--weight-decay", "0.01"], "A gamma of nan is no finite number"),
        (["--gamma", ",", "--weight-decay", "0.01"], "The grid has no cells, since no gamma was given"),
        (["--recipe", "big"], "There is no recipe 'big'"),
        (["--recipe", "small", "--shard", "2/1"], "--shard 2/1 can't be used"),
        (["--recipe", "small", "--device", "cuda:99"], "device 'cuda:99' cannot be used"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_interp, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_interp("solutions", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_models_and_time(run_interp, tmp_path):
    words = ("--gamma", "0.4,0.8", "--weight-decay", "0.01", "--seeds", 1, "--steps", 4, "--dry-run", "--device", "cpu")
    code, out, _ = run_interp("solutions", *words, "--out", tmp_path / "none", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["models"] == ["gamma_0.4_decay_0.01-seed_0", "gamma_0.8_decay_0.01-seed_0"]
    assert told["seconds"] > 0
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["anchor", "anchor_altered", "anchor_memorising"])
def test_anchor_recipes_train(name, run_interp, tmp_path):
    code, out, _ = run_interp("train", name, "--steps", 2, "--gamma", 0.5, "--out", tmp_path / name, "--json")
    assert code == 0
    last = json.loads(out)["history"][-1]
    assert last["step"] == 2
    assert "held_out_reasoning" in last
    assert "induction" not in last
    assert RECIPES[name](seed=1).task.data_seed == 1


_RUN = """
import sys
from pathlib import Path
from analyses.solutions.run import run_grid
from tests.analyses.tiny_grid import make_tiny
if __name__ == "__main__":
    run_grid(make_tiny(seeds=2), Path(sys.argv[1]), command="x", shard=sys.argv[2], device="cpu")
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_shards_give_the_same_models(tmp_path):
    """Real processes: killed after its first cell and run again, and in two shards."""
    script = tmp_path / "run.py"
    script.write_text(_RUN)
    killed, sharded = tmp_path / "killed", tmp_path / "sharded"

    def start(folder, shard):
        return subprocess.Popen([sys.executable, str(script), str(folder), shard], stderr=subprocess.DEVNULL)

    def cells(folder):
        return {path for path in (folder / "cells").glob("*") if path.name[0] != "."}

    kill_when(start(killed, "1/1"), lambda: len(cells(killed)) >= 1)
    kept = {path: path.stat().st_mtime_ns for path in cells(killed)}
    assert start(killed, "1/1").wait() == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(cells(killed)) == 4
    assert [process.wait() for process in [start(sharded, "1/2"), start(sharded, "2/2")]] == [0, 0]
    tables = [pd.read_parquet(folder / "results.parquet").drop(columns="seconds") for folder in (killed, sharded)]
    pd.testing.assert_frame_equal(*tables)
