"""A folder with the hand-built copying machine, and the command line called in this process."""

import sys

import pytest

import interp
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks


@pytest.fixture(scope="session")
def machine_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "machine"
    interp.save(build_copying_machine(), folder)
    return folder


@pytest.fixture
def run_interp(monkeypatch, capsys):
    """`run_interp("heads", "gpt2")` gives the exit code, stdout and stderr of the command."""
    from analyses.cli import main

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["interp", *map(str, words)])
        with as_without_type_checks(), pytest.raises(SystemExit) as stopped:
            main()
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return run
