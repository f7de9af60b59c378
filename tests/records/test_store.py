import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import InputError
from interp.records import COLUMNS, Measurement, Store, write_file

KEY = Store.key(analysis="heads", model="m", seed=0)


def rows(*values: float, **common) -> list[Measurement]:
    return [Measurement(analysis="heads", metric="induction", value=value, **common) for value in values]


def test_a_cell_comes_back_as_written(tmp_path: Path):
    arrays = {
        "scores": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "half": np.array([1.5], dtype=np.float16),
        "one": np.array(3),
        "yes": np.array([True, False]),
        "none": np.zeros((0, 4)),
    }
    about = {"command": "interp heads m", "notes": ["é", None], "deep": {"x": 1.5}}
    Store(tmp_path).write(KEY, rows(0.5, 0.25, layer=1), arrays=arrays, about=about)
    cell = Store(tmp_path, mode="read").read(KEY)
    assert cell.about == about
    assert cell.frame["value"].tolist() == [0.5, 0.25]
    assert set(cell.arrays) == set(arrays)
    for name, array in arrays.items():
        assert cell.arrays[name].dtype == array.dtype
        assert cell.arrays[name].shape == array.shape
        np.testing.assert_array_equal(cell.arrays[name], array)


def test_the_frame_is_in_an_order_that_does_not_depend_on_writing(tmp_path: Path):
    cells = {Store.key(i=i): rows(i + 0.0, i + 0.5, model="b" if i % 2 else "a", step=10 - i) for i in range(6)}
    for folder, keys in (("forward", list(cells)), ("backward", list(reversed(cells)))):
        for key in keys:
            Store(tmp_path / folder).write(key, cells[key])
    forward, backward = Store(tmp_path / "forward").frame(), Store(tmp_path / "backward").frame()
    pd.testing.assert_frame_equal(forward, backward)
    assert forward["value"].tolist() == [4, 4.5, 2, 2.5, 0, 0.5, 5, 5.5, 3, 3.5, 1, 1.5]


def test_export_is_the_frame_and_an_empty_store_has_every_column(tmp_path: Path):
    store = Store(tmp_path)
    store.export(tmp_path / "deeper" / "results.parquet")
    assert list(pd.read_parquet(tmp_path / "deeper" / "results.parquet").columns) == list(COLUMNS)
    store.write(KEY, rows(1.0))
    store.export(tmp_path / "deeper" / "results.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "deeper" / "results.parquet"), store.frame())
    assert os.listdir(tmp_path / "deeper") == ["results.parquet"]


def test_the_first_writer_of_a_cell_wins_and_nothing_is_left_over(tmp_path: Path):
    store = Store(tmp_path)
    store.write(KEY, rows(1.0))
    store.write(KEY, rows(2.0))
    assert store.read(KEY).frame["value"].tolist() == [1.0]
    assert os.listdir(tmp_path / "cells") == [KEY]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values, min_size=1))
def test_keys_agree_exactly_where_what_determines_them_agrees(determines: dict):
    key = Store.key(**determines)
    assert key == Store.key(**dict(reversed(determines.items()))) == Store.key(**json.loads(json.dumps(determines)))
    name = next(iter(determines))
    assert key != Store.key(**{**determines, name: [determines[name]]})
    assert key != Store.key(**{**determines, "d": 1})


def test_key_refuses_what_json_cannot_hold():
    for value in (np.zeros(2), float("nan"), {1, 2}, object()):
        with pytest.raises(InputError, match="plain JSON"):
            Store.key(value=value)


KILLED_WRITER = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from interp.records import Measurement, Store

    folder, key = Path(sys.argv[1]), sys.argv[2]
    rows = [Measurement(analysis="heads", metric="induction", value=0.5)]

    def run(kill_at, folder):
        store, seen = Store(folder), 0
        def hook(event, arguments):
            nonlocal seen
            if any(str(folder) in str(argument) for argument in arguments):
                if seen == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
        sys.addaudithook(hook)
        store.write(key, rows, arrays={"scores": np.ones(3)})
        os._exit(0)

    for kill_at in range(100):
        child = os.fork()
        if child == 0:
            run(kill_at, folder / str(kill_at))
        if os.waitpid(child, 0)[1] == 0:
            break
"""


def test_whatever_step_a_writer_is_killed_at_a_cell_that_is_there_is_whole(tmp_path: Path):
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED_WRITER), tmp_path, KEY], check=True)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) > 8
    finished, leftovers = 0, 0
    for folder in folders:
        store = Store(folder)
        leftovers += len(list((folder / "cells").glob(".writing-*")))
        if KEY in store:
            finished += 1
            assert store.read(KEY).arrays["scores"].sum() == 3
        assert len(store.frame()) == (KEY in store)
        store.write(Store.key(other=1), rows(0.25))
        assert not list((folder / "cells").glob(".writing-*"))
        store.write(KEY, rows(0.5), arrays={"scores": np.ones(3)})
        assert store.read(KEY).frame["value"].tolist() == [0.5]
    assert finished >= 1
    assert leftovers >= 4


def test_a_running_writer_and_one_on_another_machine_are_not_swept(tmp_path: Path):
    store = Store(tmp_path)
    alive = tmp_path / "cells" / f".writing-{socket.gethostname()}-{os.getpid()}-abc"
    fresh, old = (tmp_path / "cells" / f".writing-elsewhere-1-{name}" for name in ("fresh", "old"))
    for folder in (alive, fresh, old):
        folder.mkdir()
    os.utime(old, (0, 0))
    store.write(KEY, rows(1.0))
    assert alive.exists()
    assert fresh.exists()
    assert not old.exists()
    assert list(store.keys()) == [KEY]


@pytest.mark.parametrize("name", ["rows.parquet", "arrays.safetensors", "about.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "changed"])
def test_a_damaged_cell_is_one_clear_error(tmp_path: Path, name: str, damage: str):
    store = Store(tmp_path)
    store.write(KEY, rows(1.0), arrays={"scores": np.ones(3)})
    path = tmp_path / "cells" / KEY / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content.replace(b"sha256", b"sha512") if name == "about.json" else content[:-1] + b"\0")
    for read in (lambda: store.read(KEY), store.frame):
        with pytest.raises(InputError, match=rf"record in .*{KEY} is damaged .*Delete that folder"):
            read()


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"Cannot write to {folder}"):
            Store(folder)
    with pytest.raises(InputError, match="Cannot write to"):
        write_file(tmp_path / "file" / "page.html", b"")

    store = Store(tmp_path / "full")

    def no_room(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(InputError, match=r"Cannot write to .*full: No space left on device"):
        store.write(KEY, rows(1.0))
    assert KEY not in store
    assert os.listdir(tmp_path / "full" / "cells") == []
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(InputError, match="No space left"):
        write_file(tmp_path / "page.html", b"new")
    assert (tmp_path / "page.html").read_text() == "old"


def test_what_a_cell_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path):
    store = Store(tmp_path)
    with pytest.raises(InputError, match="'names' has dtype"):
        store.write(KEY, [], arrays={"names": np.array(["a"])})
    with pytest.raises(InputError, match="plain JSON"):
        store.write(KEY, [], about={"path": tmp_path})
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        store.write("../escape", [])
    assert os.listdir(tmp_path / "cells") == []
    with pytest.raises(InputError, match="no finished cell"):
        store.read(KEY)


def test_reading_where_no_run_wrote_says_so_and_makes_nothing(tmp_path: Path):
    with pytest.raises(InputError, match="holds no records"):
        Store(tmp_path / "nowhere", mode="read")
    assert not (tmp_path / "nowhere").exists()
