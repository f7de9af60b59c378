"""What a name means, and the Hugging Face model and tokenizer that it stands for.

In this order: a Hugging Face object; `smollm2`; a `.gguf` file; a folder, ours (`interp.json`) or Hugging Face's
(`config.json`); else a name on the hub. Nothing local contacts the hub.

>>> find_source("gpt2").kind, find_source("smollm2").kind
('hub', 'gguf')
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, PreTrainedModel

from interp.errors import InputError
from interp.models.catalogue import close_names
from interp.models.checkpoint import is_checkpoint
from interp.models.gguf import find_smollm2, open_gguf
from interp.models.hugging_face import (
    UNREADABLE,
    check_decoder,
    first_line,
    open_folder,
    pickle_refusal,
    read_tokenizer,
    read_weights,
)
from interp.models.quiet import quiet_libraries
from interp.training.runs import find_run, find_run_model

SMOLLM2_NOTE = "the Q4_1 weights of SmolLM2-135M-Instruct, dequantised: not the published bf16 weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a model is to come from."""

    kind: Literal["hub", "folder", "gguf", "checkpoint", "object"]
    name: str
    """As it was typed; for an object, the name in its configuration."""
    path: Path | None = None
    hf_model: Any = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A Hugging Face model, read."""

    hf_model: Any
    tokenizer: Any
    """None where there is none."""
    revision: str | None = None


def find_source(name: Any) -> Source:
    """Decide what `name` means; InputError where it can mean nothing."""
    if isinstance(name, PreTrainedModel):
        return Source(kind="object", name=name.config.name_or_path or type(name).__name__, hf_model=name)
    if not isinstance(name, str | Path):
        raise InputError(f"a {type(name).__name__} cannot be loaded: give a name, a path, or a Hugging Face model")
    text, path = str(name), Path(name).expanduser()
    if text == "smollm2":
        return Source(kind="gguf", name=text, path=find_smollm2(), notes=(SMOLLM2_NOTE,))
    if path.is_file():
        if path.suffix != ".gguf":
            raise InputError(f"{text} is a file but not a .gguf file: give one, or the folder that holds the model")
        return Source(kind="gguf", name=text, path=path.absolute(), notes=("weights dequantised from a GGUF file",))
    if path.is_dir():
        if is_checkpoint(path):
            return Source(kind="checkpoint", name=text, path=path)
        if find_run(path) is not None:
            return Source(kind="checkpoint", name=text, path=find_run_model(path))
        if not (path / "config.json").is_file():
            raise InputError(f"the folder {text} holds no model: neither a config.json nor a checkpoint of interp.save")
        return Source(kind="folder", name=text, path=path)
    looks_like_path = isinstance(name, Path) or text.startswith((".", "~", "/")) or text.count("/") > 1
    if looks_like_path or (os.sep != "/" and os.sep in text) or path.suffix in (".gguf", ".safetensors", ".bin"):
        raise InputError(f"there is no file or folder {text}")
    return Source(kind="hub", name=text)


def open_source(source: Source, *, revision: str | None) -> Opened:
    """Read the model and its tokenizer, in fp32 unless they are a caller's object."""
    if source.kind == "object":
        return Opened(hf_model=source.hf_model, tokenizer=_find_tokenizer(source.name))
    if source.kind == "hub":
        return _open_hub(source.name, revision)
    assert source.path is not None
    if source.kind == "gguf":
        hf_model, tokenizer = open_gguf(source.path)
    else:
        hf_model, tokenizer = open_folder(source.path)
    return Opened(hf_model=hf_model, tokenizer=tokenizer)


def _open_hub(name: str, revision: str | None) -> Opened:
    reach = {"local_files_only": True} if _hub_is_out_of_reach() else {}
    try:
        with quiet_libraries():
            config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False, **reach)
        check_decoder(config, name)
        # The rest is read from the commit that the configuration came from, also when a branch moves meanwhile.
        kept = _find_cached(name, "config.json", revision)
        commit = kept.parent.name if kept is not None else revision
        with quiet_libraries():
            hf_model = read_weights(name, name, revision=commit, **reach)
    except InputError:
        raise
    except UNREADABLE as error:
        raise _explain_hub(error, name, revision) from error
    return Opened(hf_model=hf_model, tokenizer=read_tokenizer(name, revision=commit, **reach), revision=commit)


def _hub_is_out_of_reach() -> bool:
    """The hub's name has no address, and there is no proxy to ask: its client would try again for half a minute."""
    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


def _find_tokenizer(name: str) -> Any:
    """The tokenizer beside the weights that an object says it came from, if those are on this machine."""
    folder = Path(name)
    if not folder.is_dir():
        kept = _find_cached(name, "tokenizer_config.json", None)
        if kept is None:
            return None
        folder = kept.parent  # asked by its name, transformers would contact the hub in spite of `local_files_only`
    return read_tokenizer(str(folder), local_files_only=True)


def _find_cached(name: str, file: str, revision: str | None) -> Path | None:
    """Where the hub's client keeps this file: `.../snapshots/<commit>/<file>`."""
    try:
        kept = try_to_load_from_cache(name, file, revision=revision)
    except hub_errors.HFValidationError:
        return None
    return Path(kept) if isinstance(kept, str) else None


def _explain_hub(error: BaseException, name: str, revision: str | None) -> InputError:
    causes = list(_causes(error))

    def is_any(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    close = close_names(name)
    hint = f"; did you mean {' or '.join(close)}?" if close and name not in close else ""
    if is_any(hub_errors.GatedRepoError):
        return InputError(f"{name} is gated: accept its licence on its page of the hub, then run `hf auth login`")
    if is_any(hub_errors.RevisionNotFoundError):
        return InputError(f"{name} has no revision {revision!r} on the Hugging Face hub: see its branches there")
    if is_any(hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError):
        return InputError(f"there is no model {name!r} on the Hugging Face hub, or it is private{hint}")
    if is_any(hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError) or any(
        "connect" in str(cause).lower() for cause in causes
    ):
        return InputError(
            f"{name!r} is not on this machine and the Hugging Face hub cannot be reached: "
            f"connect, or give the path of a local folder{hint}"
        )
    if any("safetensors" in str(cause) for cause in causes):
        return InputError(pickle_refusal(name, "a pickle"))
    return InputError(f"{name} cannot be loaded: {first_line(error)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
