"""When models come to copy: jumps of known curves, a machine whose heads compose exactly, and a small lab from end to end."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.copying_dynamics.lab import LABS
from analyses.copying_dynamics.page import write_order, write_pools
from analyses.copying_dynamics.progress import MEASURES, Progress, measure_attention, measure_composition
from analyses.copying_dynamics.run import DYNAMICS
from analyses.copying_dynamics.trained import TrainedCopying
from analyses.copying_dynamics.transition import find_fall, find_jump, find_leads
from analyses.labs.lab import Lab
from analyses.labs.trained import read_trained
from interp.models.build import build
from interp.records.store import Store
from tasks.copying import Copying
from tasks.task import Batch
from tests.hand_built import build_copying_machine

STEPS = np.array([0.0, 100.0, 200.0, 300.0])


@pytest.mark.parametrize(
    ("values", "jump"),
    [
        ([0.0, 0.0, 1.0, 1.0], 150.0),
        ([1.0, 1.0, 0.0, 0.0], 150.0),
        ([0.0, 0.5, 1.0, 0.2], 100.0),  # what it loses afterwards does not count
        ([0.2, 0.2, 0.2, -0.6], 250.0),
        ([0.3, 0.3, 0.3, 0.3], math.nan),
    ],
)
def test_a_jump_is_half_of_the_way_to_the_furthest_value(values, jump):
    assert find_jump(STEPS, np.array(values)) == pytest.approx(jump, nan_ok=True)


def test_an_error_falls_at_the_first_evaluation_below_a_tenth():
    assert find_fall(STEPS, np.array([1.0, 0.4, 0.09, 0.2])) == 200
    assert math.isnan(find_fall(STEPS, np.array([1.0, 0.9, 0.5, 0.1])))


def test_leads_are_within_a_model_and_leave_out_models_without_a_transition():
    early = {"step": STEPS, "z": np.array([0.0, 1.0, 1.0, 1.0]), "ood": np.array([1.0, 1.0, 0.0, 0.0])}
    late = {"step": STEPS, "z": np.array([0.0, 0.0, 0.0, 1.0]), "ood": np.array([1.0, 1.0, 1.0, 0.0])}
    never = {"step": STEPS, "z": np.array([0.0, 1.0, 1.0, 1.0]), "ood": np.ones(4)}
    leads = find_leads([early, late, never], {"z": "Z"}, error="ood")
    row = leads.to_frame().iloc[0]
    assert (leads.n, row["n"], row["leads"]) == (2, 2, 2)
    assert row["lead"] == pytest.approx((150 + 50) / 2)  # 200 - 50 and 300 - 250
    assert row["jump"] == pytest.approx((50 + 250) / 2)


def test_the_machine_attends_perfectly():
    segment = torch.stack([torch.randperm(30, generator=torch.Generator().manual_seed(i))[:15] for i in range(4)])
    tokens = segment.repeat(1, 2)
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    roles = {"source_start": 0, "copy_start": 15, "segment_length": 15}
    batch = Batch(
        tokens=tokens, targets=tokens, trained=nothing, scored=nothing,
        roles={name: torch.full((4, 1), value) for name, value in roles.items()},
    )  # fmt: skip
    found = measure_attention(build_copying_machine(), batch)
    assert found["previous_token"] == pytest.approx(1, abs=1e-5)
    assert found["induction"] == pytest.approx(1, abs=1e-5)


def test_the_machine_composes_through_the_directions_of_its_previous_tokens():
    """W_QK W_OV^T is a multiple of the identity on the 30 token directions of 124, and 0 elsewhere."""
    model = build_copying_machine()
    found = measure_composition(model, rank=30)
    n, d = 30, model.cfg.d_model
    z = (n / d - n / d**2) / math.sqrt(n / d**2 - (n / d**2) ** 2)
    assert found["diagonal"] == pytest.approx(z / math.sqrt(model.cfg.d_head), rel=1e-5)
    for name in ("match_largest", "match_rms", "bridge_share"):
        assert found[name] == pytest.approx(1, abs=1e-5)


def test_random_heads_share_what_chance_gives():
    models = [
        build(n_layers=2, d_model=64, n_heads=1, d_vocab=64, n_ctx=64, attn_only=True, seed=seed) for seed in range(20)
    ]
    found = pd.DataFrame([measure_composition(model, rank=8) for model in models])
    assert found["bridge_share"].mean() == pytest.approx(8 / 64, abs=0.02)
    assert found["match_rms"].pow(2).mean() == pytest.approx(8 / 64, abs=0.02)
    assert abs(found["diagonal"].mean()) < 0.02


def _shrink(lab: Lab, *, steps: int = 4) -> Lab:
    """The same lab with models of width 8 on short sequences."""
    task = Copying(d_vocab=8, n_ctx=24, min_length=6, max_length=7, ood_length=8)
    settings = tuple(
        replace(
            setting,
            model={**setting.model, "d_model": 8, "d_vocab": 8, "n_ctx": 24},
            task=replace(task, pool_size=setting.task.pool_size),
            config=replace(setting.config, steps=steps, warmup_steps=1, batch_size=2, eval_every=2, eval_sequences=4),
            observe=Progress(task=task, n=4, rank=4),
        )
        for setting in lab.settings
    )
    return replace(lab, settings=settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished lab of four models and its folder."""
    lab = replace(_shrink(LABS["small"]()), seeds=2)
    folder = tmp_path_factory.mktemp("lab") / "run"
    DYNAMICS.run(lab, folder, command="interp dynamics", device="cpu")
    return lab, folder


@pytest.mark.slow
def test_a_finished_lab_has_a_report_and_every_measure_at_every_evaluation(run):
    lab, folder = run
    frame = pd.read_parquet(folder / "results.parquet")
    assert set(frame["model"]) == {cell.name for cell in lab.cells}
    for name in MEASURES.values():
        rows = frame[frame["metric"] == f"training: {name}"]
        assert rows.groupby("model")["step"].apply(list).tolist() == [[0, 2, 4]] * 4
    page = (folder / "report.html").read_text()
    assert "Learning to copy" in page
    assert "Chance is an error of 0.875" in page
    assert "What comes first" not in page  # no model of so few steps has a transition


@pytest.mark.slow
def test_a_finished_lab_is_not_trained_again(run):
    lab, folder = run
    before = {path: path.stat().st_mtime_ns for path in (folder / "models").rglob("*") if path.is_file()}
    DYNAMICS.run(lab, folder, command="interp dynamics", device="cpu")
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_the_page_tells_what_came_first_and_which_pools_were_remembered(run):
    lab, folder = run
    trained = read_trained(lab, Store(folder, mode="read"), TrainedCopying)
    rising = {name: np.array([0.0, 1.0, 1.0]) for name in MEASURES}
    histories = {f"history_{name}": values for name, values in rising.items()}
    errors = {f"history_{split}_error": np.array([1.0, 1.0, 0.0]) for split in ("id", "ood")}
    deep = [replace(one, record=replace(one.record, arrays=one.record.arrays | histories | errors)) for one in trained]
    section = write_order(deep)
    assert section is not None
    assert "In 2 of 2 models the error out of distribution falls below 0.1, at step 4" in section.verdict
    assert "Z / √d_head jumps 3 steps before that [3, 3], first in 2 of 2" in section.verdict
    assert write_pools(trained) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "smal"], "There is no lab 'smal'; there are small, pools, published. Did you mean small?"),
        (["--seeds", "0"], "seeds must be a whole number of at least 1, not 0"),
        (["--steps", "0"], "steps must be a whole number of at least 1, not 0"),
        (["--shard", "3/2"], "--shard 3/2 can't be used; give i/n with i from 1 to n"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_interp, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_interp("dynamics", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_models_and_time(run_interp, tmp_path):
    code, out, _ = run_interp(
        "dynamics", "--seeds", 1, "--steps", 4, "--dry-run", "--device", "cpu", "--out", tmp_path / "none", "--json"
    )
    assert code == 0
    assert json.loads(out)["models"] == ["two_layers-seed_0", "one_layer-seed_0"]
    assert not (tmp_path / "none").exists()
