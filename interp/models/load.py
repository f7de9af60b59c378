"""Load a model by name, path or Hugging Face object, and check it before it is handed over.

    load(x) = HookedTransformer   if its log-probabilities agree with the Hugging Face model's
              TransformerBridge   otherwise, with the reason in `model.provenance`

Weights are as published (`processing="raw"`) unless asked otherwise: `fold_norm` moves the gains and biases of the
norms into the weights that read from them; `fold_norm+center` also subtracts what a LayerNorm or a softmax ignores, the
mean of what is written to the residual stream and of the unembedding. Neither changes log-probabilities: it is checked.
TransformerLens: https://github.com/TransformerLensOrg/TransformerLens

>>> from transformers import GPT2Config, GPT2LMHeadModel
>>> hf = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=32))
>>> model = load(hf)
>>> model.provenance.model_class, model.provenance.processing, model.tokenizer
('HookedTransformer', 'raw', None)
"""

import logging
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformer_lens import HookedTransformer
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_device
from transformer_lens.utilities.multi_gpu import maybe_cast_floating_params
from transformers import PreTrainedModel

from interp.errors import InputError
from interp.models.build import check_device
from interp.models.check import (
    HALF_PRECISION_LIMIT,
    acting_hooks,
    check_causal,
    check_finite,
    compare_logits,
    probe_logits,
)
from interp.models.checkpoint import load_checkpoint
from interp.models.convert import Hooked, attach_tokenizer, hook_model, prepare, private_copy
from interp.models.provenance import Provenance, count_parameters, get_provenance, hash_weights
from interp.models.quiet import quiet_libraries
from interp.models.sources import Source, find_source, open_source
from interp.models.weights import final_norm_gain, unembedding

Processing = Literal["raw", "fold_norm", "fold_norm+center"]

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}

logger = logging.getLogger(__name__)


def load(
    name: str | Path | PreTrainedModel,
    *,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    processing: Processing = "raw",
    tokenizer: Any = None,
) -> HookedTransformer | TransformerBridge:
    """A HookedTransformer or TransformerBridge in eval mode, with `provenance` and, where there is one, `tokenizer`.

    `name` is a name on the hub (`gpt2`, with `revision` a branch, tag or commit), `smollm2`, a Hugging Face folder, a
    `.gguf` file, a folder that `interp.save` wrote, or a Hugging Face object, which stays as it is. `device` defaults
    to an accelerator where there is one, `dtype` to float32; an object's and a checkpoint's are kept. `tokenizer`
    replaces the one found beside the weights.
    """
    place, precision = check_device(device), _check_dtype(dtype)
    if processing not in get_args(Processing):
        raise InputError(f"processing={processing!r} is not known: choose one of {', '.join(get_args(Processing))}")
    source = find_source(name)
    if revision is not None and source.kind != "hub":
        raise InputError(f"revision={revision!r} was given, but {source.name} is local: revisions are of hub names")
    if source.kind == "checkpoint":
        model = _load_checkpoint(source, place, precision, processing)
        if tokenizer is not None:
            attach_tokenizer(model, tokenizer, name=source.name)
        return model

    if source.kind == "object":
        place, precision = place or str(source.hf_model.device), precision or source.hf_model.dtype
    hooked, found, facts = _open_and_hook(source, revision)
    model = hooked.model
    unlike = _process(model, processing, hooked)
    found = found if tokenizer is None else tokenizer
    if found is not None:
        attach_tokenizer(model, found, name=source.name)
    notes = (*source.notes, *hooked.notes, *unlike, *_cast(model, precision or torch.float32, hooked, source.name))
    model.to(place or get_device(), print_details=False)
    acting_hooks(model)
    model.provenance = Provenance(
        model=source.name,
        source=source.kind,
        weights_sha256=hash_weights(model),
        model_class=type(model).__name__,
        reason=hooked.reason,
        max_logit_difference=hooked.parity.max_logit_difference,
        processing=processing,
        dtype=str(model.cfg.dtype).removeprefix("torch."),
        device=str(model.cfg.device),
        notes=notes,
        **facts,
    )
    logger.info(
        "%s is a %s (%s); largest logit difference %.2g",
        source.name,
        model.provenance.model_class,
        hooked.reason,
        hooked.parity.max_logit_difference,
    )
    return model


def _open_and_hook(source: Source, revision: str | None) -> tuple[Hooked, Any, dict[str, Any]]:
    """The hooked model, the tokenizer, and what provenance needs of the original; the original is released here."""
    opened = open_source(source, revision=revision)
    borrowed = source.kind == "object"
    hf_model = private_copy(opened.hf_model) if borrowed else prepare(opened.hf_model)
    check_finite(hf_model, source.name)
    check_causal(hf_model, source.name)
    facts = {
        "n_parameters": count_parameters(hf_model),
        "revision": opened.revision,
        "step": _find_step(revision),
    }
    return hook_model(hf_model, name=source.name, borrowed=borrowed), opened.tokenizer, facts


def _load_checkpoint(
    source: Source, device: str | None, dtype: torch.dtype | None, processing: Processing
) -> HookedTransformer:
    assert source.path is not None
    model = load_checkpoint(source.path, device=device, dtype=dtype)
    provenance = get_provenance(model)
    if processing not in ("raw", provenance.processing):
        raise InputError(
            f"{source.name} was saved with processing={provenance.processing!r} and is loaded as it was saved: "
            f"for {processing!r}, load the original so and save that"
        )
    check_finite(model, source.name)
    acting_hooks(model)
    model.provenance = replace(provenance, model=source.name)  # type: ignore[assignment]
    return model


def _check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    chosen = _DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise InputError(f"dtype={dtype!r} is not known: choose one of float32, bfloat16, float16")
    return chosen


def _process(model: Any, processing: Processing, hooked: Hooked) -> tuple[str, ...]:
    """Fold and centre in place, and say what was left out; InputError where the model does not allow it."""
    if processing == "raw":
        return ()
    center = processing == "fold_norm+center"
    wanted = {"fold_ln": True, "center_writing_weights": center, "center_unembed": center, "fold_value_biases": False}
    with quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what TransformerLens warns of and then leaves undone is measured below
        if isinstance(model, HookedTransformer):
            model.load_and_process_state_dict(model.state_dict(), **wanted)
        else:
            model.enable_compatibility_mode(disable_warnings=True, **wanted)
    model.eval()
    gain = final_norm_gain(model)
    if not torch.allclose(gain, torch.ones_like(gain), atol=1e-4):
        raise InputError(f"the norms of {model.cfg.model_name} cannot be folded: load it with processing='raw'")
    parity = compare_logits(probe_logits(model, hooked.tokens), hooked.reference)
    if not parity.agrees:
        raise InputError(
            f"processing={processing!r} changes what {model.cfg.model_name} computes, by up to "
            f"{parity.max_log_prob_difference:.3g} in log-probability: load it with processing='raw'"
        )
    if center and unembedding(model).mean(-1).abs().max() > 1e-4:
        return ("the unembedding is not centred, since soft-capped logits would change",)
    return ()


def _cast(model: Any, dtype: torch.dtype, hooked: Hooked, name: str) -> tuple[str, ...]:
    """Cast in place and say what it costs; InputError where too little of the fp32 model is left."""
    if dtype == torch.float32:
        return ()
    if isinstance(model, HookedTransformer):
        model.to(dtype, print_details=False)
    else:
        maybe_cast_floating_params(model.original_model, dtype)  # the rotary tables must stay in fp32
        model.cfg.dtype = dtype
    parity = compare_logits(probe_logits(model, hooked.tokens), hooked.reference)
    short = str(dtype).removeprefix("torch.")
    if not parity.mean_kl <= HALF_PRECISION_LIMIT:
        raise InputError(
            f"{name} does not survive dtype={short!r}: its predictions move by {parity.mean_kl:.3g} nats a token from "
            f"fp32, where {HALF_PRECISION_LIMIT} is the limit; use float32"
        )
    return (f"{short}: mean KL divergence from the fp32 model {parity.mean_kl:.2g} nats a token on the probe",)


def _find_step(revision: str | None) -> int | None:
    """The training step in a revision called `step1000` or `checkpoint-1000`."""
    match = re.fullmatch(r"(?:step|checkpoint)[-_]?(\d+)", revision or "")
    return int(match.group(1)) if match else None
