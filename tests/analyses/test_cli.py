import json
import os

import pytest


def test_heads_lists_the_strongest_beside_their_control(run_interp, machine_folder):
    code, out, err = run_interp("heads", machine_folder, "--top", 2, "--quick", "--json")
    assert (code, err) == (0, "")
    best = json.loads(out)["heads"][0]
    assert (best["what"], best["n"]) == ("1.0", 12)
    assert best["value"] == pytest.approx(1.0, abs=1e-4)
    assert best["control_value"] < 0.2


def test_models_lists_smollm2_with_its_licence(run_interp):
    code, out, _ = run_interp("models", "--json")
    assert code == 0
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert entries["smollm2"]["licence"] == "Apache-2.0"
    code, out, _ = run_interp("models")
    assert code == 0
    assert "smollm2" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heads", "gtp2"], "gpt2"),
        (["heads", "./missing"], "there is no file or folder ./missing"),
        (["heads", "MACHINE", "--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        (["heads", "MACHINE", "--dtype", "float7"], "dtype='float7' is not known"),
        (["heads", "MACHINE", "--kind", "indction"], "There is no head score 'indction'"),
        (["heads", "MACHINE", "--top", "99"], "The top 99 heads were asked for, but this model has 1 to 4"),
        (["heads", "MACHINE", "--bos", "first"], "bos='first' isn't known; use 'auto', 'none', 'bos' or a token id"),
        (["heads", "MACHINE", "--bos", "bos"], "this model has no tokenizer with a BOS token"),
        (["report", "MACHINE", "--bos", "99"], "this model's ids go from 0 to 29"),
        (["report", "MACHINE", "--analyses", "induktion"], "There is no analysis 'induktion'"),
        (["report", "MACHINE", "--analyses", ""], "No analysis was named"),
        (["report", "MACHINE", "--analyses", "copying"], "it doesn't come from a training run on the copying task"),
        (["report", "MACHINE", "MACHINE"], "A model is named twice"),
        (["report", "MACHINE", "--out", "MACHINE"], "isn't a report's folder"),
        (["show", "./missing"], "holds no finished run"),
        (
            ["train", "copyng"],
            "There is no recipe 'copyng'; there are copying, copying_one_layer, anchor",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_interp, machine_folder, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    words = [str(machine_folder) if word == "MACHINE" else word for word in words]
    code, out, err = run_interp(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("interp: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(run_interp, machine_folder, tmp_path):
    tmp_path.chmod(0o500)
    code, _, err = run_interp("report", machine_folder, "--out", tmp_path / "run")
    assert code == 2
    assert "Cannot write to" in err


def test_a_file_in_the_place_of_the_folder(run_interp, machine_folder, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run_interp("report", machine_folder, "--out", tmp_path / "file/run")
    assert code == 2
    assert "Cannot write to" in err


def test_json_errors_are_json_too(run_interp):
    code, out, _ = run_interp("show", "./missing", "--json")
    assert code == 2
    assert "holds no finished run" in json.loads(out)["error"]


def test_unknown_options_are_clicks_own_error(run_interp):
    code, _, err = run_interp("heads", "--frobnicate")
    assert code == 2
    assert "frobnicate" in err
