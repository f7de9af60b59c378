"""A folder of finished cells; a cell is there whole or not at all.

`cells/<key>/` holds `rows.parquet`, `arrays.safetensors` and `about.json` (which also has the hashes of the other two).
It is written under another name, flushed to disk, and renamed: a kill at any moment leaves either a finished cell or a
leftover that no reader sees and a later write sweeps away. The key is a hash of all that determines the cell, so a
finished cell is never run again, and shards of one grid can write to one folder.

>>> import tempfile
>>> store = Store(Path(tempfile.mkdtemp()))
>>> key = Store.key(analysis="heads", model="smollm2", seed=0)
>>> key in store
False
>>> store.write(key, [Measurement(analysis="heads", metric="induction", value=0.9)], arrays={"scores": np.eye(2)})
>>> key in store, store.read(key).arrays["scores"].shape, len(store.frame())
(True, (2, 2), 1)
"""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from interp.errors import InputError
from interp.records.schema import Measurement, concatenate, to_frame

_ROWS, _ARRAYS, _ABOUT = "rows.parquet", "arrays.safetensors", "about.json"
_KEY = re.compile(r"[0-9a-f]{32}")
_LEFTOVER = re.compile(r"\.writing-(?P<host>.+)-(?P<pid>\d+)-\w+")
_FOREIGN_LEFTOVER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one finished cell holds."""

    frame: pd.DataFrame
    """Its rows, with the columns of `COLUMNS`."""
    arrays: dict[str, np.ndarray]
    """Its arrays by name."""
    about: dict[str, Any]
    """Whatever the writer wanted remembered, as JSON."""


class Store:
    """Cells in a folder. `mode="write"` makes the folder and checks at once that it can be written."""

    def __init__(self, folder: Path, *, mode: Literal["read", "write"] = "write") -> None:
        self.folder = Path(folder)
        self._cells = self.folder / "cells"
        if mode == "read":
            if not self._cells.is_dir():
                raise InputError(
                    f"{self.folder} holds no records: it has no folder 'cells'. Give the folder that a run wrote."
                )
            return
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
            Path(tempfile.mkdtemp(prefix=self._prefix(), dir=self._cells)).rmdir()
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, {sum(1 for _ in self.keys())} cells)"

    @staticmethod
    def key(**determines: Any) -> str:
        """Hash of all that determines a cell; values are what JSON can hold, and 1 differs from 1.0."""
        try:
            text = json.dumps(determines, sort_keys=True, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"A cell's key was given {determines!r}, which is not plain JSON ({error}). "
                "Give strings, finite numbers, booleans, None, lists and dicts with string keys."
            ) from error
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and _KEY.fullmatch(key) is not None and (self._cells / key).is_dir()

    def keys(self) -> Iterator[str]:
        """Keys of the finished cells, sorted."""
        return (name for name in sorted(os.listdir(self._cells)) if name in self)

    def write(
        self,
        key: str,
        measurements: Sequence[Measurement],
        *,
        arrays: Mapping[str, np.ndarray] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a cell, whole or not at all. Where another writer finished it first, that cell stays."""
        if not _KEY.fullmatch(key):
            raise InputError(
                f"{key!r} is not the key of a cell: it should be 32 hexadecimal digits from Store.key(...)."
            )
        files = {_ROWS: _pack_rows(to_frame(measurements)), _ARRAYS: _pack_arrays(arrays or {})}
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        files[_ABOUT] = _pack_about({"about": dict(about or {}), "sha256": hashes})
        self._sweep()
        try:
            temporary = Path(tempfile.mkdtemp(prefix=self._prefix(), dir=self._cells))
            try:
                for name, content in files.items():
                    _write_synced(temporary / name, content)
                temporary.chmod(0o755)
                _sync_folder(temporary)
                if key not in self:
                    os.rename(temporary, self._cells / key)
                    _sync_folder(self._cells)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as error:
            if key not in self:
                raise _cannot_write(self.folder, error) from error

    def read(self, key: str) -> Cell:
        """A finished cell; its hashes are compared, so a damaged file never passes for a result."""
        folder = self._cells / key
        if key not in self:
            raise InputError(f"{self.folder} has no finished cell {key!r}. Run the analysis that writes it first.")
        from safetensors.numpy import load

        try:
            about = json.loads((folder / _ABOUT).read_bytes())
            contents = {name: (folder / name).read_bytes() for name in (_ROWS, _ARRAYS)}
            for name, content in contents.items():
                if hashlib.sha256(content).hexdigest() != about["sha256"][name]:
                    raise ValueError(f"{name} is not what was written")
            frame = concatenate([pd.read_parquet(io.BytesIO(contents[_ROWS]))])
            return Cell(frame=frame, arrays=load(contents[_ARRAYS]), about=about["about"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"The record in {folder} is damaged ({error}). Delete that folder and run the same command again: "
                "only this cell is computed anew."
            ) from error

    def frame(self) -> pd.DataFrame:
        """Every cell's rows, by model, analysis and step; a cell's own rows keep their order."""
        rows = concatenate([self.read(key).frame for key in self.keys()])
        return rows.sort_values(["model", "analysis", "step"], kind="stable", na_position="first", ignore_index=True)

    def export(self, path: Path) -> None:
        """Every row in one Parquet file, replaced in one step."""
        write_file(path, _pack_rows(self.frame()))

    def _prefix(self) -> str:
        return f".writing-{socket.gethostname()}-{os.getpid()}-"

    def _sweep(self) -> None:
        """Removes what a killed writer left: one of this machine that no longer runs, or a day-old one of another."""
        for path in self._cells.glob(".writing-*"):
            match = _LEFTOVER.fullmatch(path.name)
            if match is None:
                continue
            try:
                if match["host"] == socket.gethostname():
                    leftover = not _is_running(int(match["pid"]))
                else:
                    leftover = time.time() - path.stat().st_mtime > _FOREIGN_LEFTOVER_SECONDS
            except FileNotFoundError:
                continue
            if leftover:
                shutil.rmtree(path, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file in one step: a reader, or a kill, sees the old content or the new one."""
    _write_through(Path(path), content, os.replace)


def write_file_once(path: Path, content: bytes) -> None:
    """Writes a file in one step unless it is there: of several writers at once, the first one's content stays."""
    _write_through(Path(path), content, _link_unless_there)


def _link_unless_there(name: str, path: Path) -> None:
    try:
        os.link(name, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            os.replace(name, path)


def _write_through(path: Path, content: bytes, put: Callable[[str, Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        try:
            _write_synced(Path(name), content)
            os.chmod(name, 0o644)
            put(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _pack_rows(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise InputError(f"Array {name!r} has dtype {array.dtype}; a cell keeps numbers and booleans only.")
    return save({name: np.asarray(array, order="C") for name, array in sorted(arrays.items())})


def _pack_about(about: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(about, indent=1, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"A cell's `about` must be plain JSON: {error}. Convert arrays, paths and objects.") from error


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(
        f"Cannot write to {path}: {error.strerror or error}. Give a folder that you may write to and that has room."
    )
