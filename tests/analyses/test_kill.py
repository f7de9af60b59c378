"""`kill -9` in the middle, then the same command: finished work is kept, and the numbers are those of a quiet run."""

import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

import interp

COMMAND = [sys.executable, "-c", "from analyses.cli import main; main()"]


def start(*words):
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_when(process, reached):
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def finish(*words):
    assert start(*words).wait() == 0


@pytest.mark.slow
def test_report(tmp_path):
    model = interp.build(n_layers=6, d_model=256, n_heads=8, d_vocab=500, n_ctx=64, d_mlp=1024, act_fn="gelu")
    interp.save(model, tmp_path / "model")
    killed, quiet = ("report", tmp_path / "model", "--out", tmp_path / "killed"), tmp_path / "quiet"
    cells = tmp_path / "killed/cells"

    def finished():
        return {path for path in cells.glob("*") if path.name[0] != "."} if cells.exists() else set()

    kill_when(start(*killed), lambda: len(finished()) >= 1)
    kept = {path: path.stat().st_mtime_ns for path in finished()}
    assert len(kept) < 3
    assert not (tmp_path / "killed/report.html").exists()
    finish(*killed)
    assert len(finished()) == 3
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    finish("report", tmp_path / "model", "--out", quiet)
    tables = [pd.read_parquet(folder / "results.parquet").drop(columns="seconds") for folder in (cells.parent, quiet)]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.slow
def test_train(tmp_path):
    words = ("train", "copying", "--steps", 1020)
    folder = tmp_path / "killed"
    kill_when(start(*words, "--out", folder), lambda: (folder / "checkpoints/step_00001000").exists())
    assert not (folder / "model").exists()
    finish(*words, "--out", folder)
    finish(*words, "--out", tmp_path / "quiet")
    resumed, quiet = (interp.load(path / "model").provenance for path in (folder, tmp_path / "quiet"))
    assert resumed.step == 1020
    assert resumed.weights_sha256 == quiet.weights_sha256
    histories = [
        pd.read_parquet(path / "history.parquet").drop(columns="seconds") for path in (folder, tmp_path / "quiet")
    ]
    pd.testing.assert_frame_equal(*histories)
