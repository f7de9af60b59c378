"""Read Hugging Face models from their files: safetensors only, whole or not at all, and no code that comes with them.

>>> pickle_refusal("the folder x", "pytorch_model.bin")[:73]
'the folder x holds its weights as pytorch_model.bin only, and pickles are'
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from interp.errors import InputError
from interp.models.quiet import quiet_libraries

UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
"""What transformers raises for files that are missing, damaged or of another kind."""


def open_folder(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer (None without one) in a Hugging Face folder."""
    if not any(folder.glob("*.safetensors")):
        pickled = next((file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)), None)
        if pickled is None:
            raise InputError(f"the folder {folder} holds no weights: model.safetensors is missing")
        raise InputError(pickle_refusal(f"the folder {folder}", pickled))
    try:
        with quiet_libraries():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            check_decoder(config, str(folder))
            hf_model = read_weights(str(folder), str(folder), local_files_only=True)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"the folder {folder} cannot be loaded: {first_line(error)}") from error
    return hf_model, read_tokenizer(str(folder), local_files_only=True)


def read_weights(where: str, name: str, **kwargs: Any) -> Any:
    """The model with its weights from safetensors, in fp32 with eager attention; InputError where some are missing."""
    hf_model: Any
    report: dict[str, Any]
    hf_model, report = AutoModelForCausalLM.from_pretrained(
        where,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation="eager",
        dtype=torch.float32,
        output_loading_info=True,
        **kwargs,
    )
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise InputError(f"{name} lacks {len(missing)} of its weights, first {missing[0]}: get the files again")
    return hf_model


def check_decoder(config: Any, name: str) -> None:
    """InputError for a configuration that is not a decoder-only language model's."""
    architecture = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    decoder = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "is_encoder_decoder", False)
    if not decoder or architecture.endswith(("ForMaskedLM", "ForPreTraining", "Classification", "Answering")):
        raise InputError(f"{name} is a {architecture}, not a decoder-only language model: give one that predicts text")


def read_tokenizer(where: str, **kwargs: Any) -> Any:
    """The tokenizer in a folder or of a hub name; None where there is none."""
    try:
        with quiet_libraries():
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **kwargs)
    except (*UNREADABLE, TypeError, AttributeError):
        return None
    return tokenizer if tokenizer.vocab_size else None  # without files, transformers makes up an empty one


def pickle_refusal(where: str, pickled: str) -> str:
    """What to say of a place that holds its weights as pickles only."""
    return (
        f"{where} holds its weights as {pickled} only, and pickles are not read because they can run code: "
        "where you trust it, load it once with transformers and call save_pretrained, which writes safetensors"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0]:.240}" if lines else type(error).__name__
