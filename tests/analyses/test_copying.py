from dataclasses import replace

import pandas as pd
import pytest
import torch

import interp
from analyses.analysis import Options
from analyses.registry import choose_analyses
from analyses.report_models import open_subject
from analyses.runner import Ask, claim_folder, run_asks
from tasks.copying import Copying
from tasks.seeding import derive_seed

TASK = Copying(d_vocab=12, n_ctx=24, min_length=6, max_length=7, ood_length=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short training runs: the model and its control of one layer."""
    folder = tmp_path_factory.mktemp("runs")
    config = interp.TrainConfig(steps=4, batch_size=4, eval_every=2, eval_sequences=7)
    for name, n_layers in (("two", 2), ("one", 1)):
        model = interp.build(
            n_layers=n_layers, d_model=12, n_heads=1, d_vocab=12, n_ctx=24, attn_only=True, device="cpu"
        )
        interp.train(model, TASK, config, folder=folder / name)
    return folder


@pytest.fixture(scope="module")
def results(runs):
    def load():
        subject = open_subject(str(runs / "two"), device="cpu")
        return replace(subject, control=open_subject(str(runs / "one"), device="cpu"))

    ask = Ask(name="two", load=load, analyses=tuple(choose_analyses(["copying"])))
    store = claim_folder(runs / "report", {})
    page = run_asks([ask], store, options=Options(quick=True), command="interp", title="t")
    return pd.read_parquet(runs / "report/results.parquet"), page.read_text()


def test_errors_are_those_of_the_model_on_fresh_sequences(runs, results):
    frame, _ = results
    batch = TASK.sample(240, split="ood", seed=derive_seed(0, "copying analysis"))
    for name, control in (("two", None), ("one", "model of one layer")):
        guesses = interp.load(runs / name, device="cpu")(batch.tokens).argmax(-1)
        wrong = [
            torch.mean((guesses[b] != batch.targets[b])[batch.scored[b]].float()).item()
            for b in range(len(batch.tokens))
        ]
        rows = frame[frame["metric"] == "error, out of distribution"]
        row = rows[rows["control"].isna() if control is None else rows["control"].eq(control).fillna(False)].iloc[0]
        assert row["value"] == pytest.approx(sum(wrong) / 240, abs=1e-6)
        assert row["low"] <= row["value"] <= row["high"]
        assert (row["n"], row["step"]) == (240, 4)


def test_the_history_has_its_n_and_chance_is_exact(runs, results):
    frame, _ = results
    history = frame[(frame["metric"] == "error over training, out of distribution") & frame["control"].isna()]
    assert history["step"].tolist() == [0, 2, 4]
    assert history["n"].tolist() == [7, 7, 7]
    kept = pd.read_parquet(runs / "two/history.parquet")
    assert history["value"].tolist() == pytest.approx(kept["ood_error"].tolist())
    chance = frame[frame["control"].eq("chance").fillna(False)].iloc[0]
    assert chance["value"] == pytest.approx(11 / 12)


def test_an_untrained_model_is_not_said_to_copy(results):
    _, page = results
    assert "It did not learn to copy by a rule" in page
    assert "A model of one layer, trained alike, stays at" in page
