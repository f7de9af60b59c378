"""From a Hugging Face model object to a hooked one, without a name, a hub or a change to the object.

A `HookedTransformer` where its log-probabilities agree with the object's (`check.compare_logits`), else a
`TransformerBridge` with the reason. TransformerLens's own loader is not used: it takes names only, and for some of them
fixed configurations instead of the object's. Its converters are, through a folder that holds just the configuration.

>>> from transformers import GPT2Config, GPT2LMHeadModel
>>> hf = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=32)).eval()
>>> hooked = hook_model(private_copy(hf), name="tiny", borrowed=True)
>>> type(hooked.model).__name__, hooked.parity.agrees
('HookedTransformer', True)
"""

import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens import loading_from_pretrained as converters
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import _bridge_builder as bridges
from transformer_lens.model_bridge.sources.transformers import setup_tokenizer
from transformers import AutoTokenizer
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3

from interp.errors import InputError
from interp.models.build import quiet_construction
from interp.models.check import Parity, compare_logits, probe_logits, probe_tokens
from interp.models.quiet import quiet_libraries

_LONGEST_CONTEXT = 8192
"""A HookedTransformer keeps rotary tables of `n_ctx` rows in every layer: gigabytes at the 131,072 of Llama 3.1."""

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings that change beyond a length that no probe reaches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooked:
    """A hooked model in fp32 with the comparison that chose its class."""

    model: Any
    """HookedTransformer or TransformerBridge, unprocessed, without a tokenizer."""
    reason: str
    parity: Parity
    tokens: Int[Tensor, "1 pos"]
    """The probe."""
    reference: Float[Tensor, "kept d_vocab"]
    """The Hugging Face model's logits on it."""
    notes: tuple[str, ...] = ()


def private_copy(hf_model: Any) -> Any:
    """The object's modules and configuration copied, its weights shared where they are fp32 and converted where not.

    In eval mode, with eager attention. Nothing that is done to the copy's modules reaches the caller's object.
    """
    shared: dict[int, Any] = {}
    for parameter in hf_model.parameters():
        values = parameter.detach()
        values = values.float() if values.is_floating_point() else values
        shared[id(parameter)] = torch.nn.Parameter(values, requires_grad=False)
    private = copy.deepcopy(hf_model, shared)
    return prepare(private)


def prepare(hf_model: Any) -> Any:
    """The object itself, in eval mode, with eager attention and the architecture's name that the converters read."""
    hf_model.eval()
    hf_model.set_attn_implementation("eager")
    hf_model.config.architectures = [type(hf_model).__name__]
    return hf_model


def hook_model(hf_model: Any, *, name: str, borrowed: bool = False) -> Hooked:
    """Convert a prepared object; it must not be used afterwards, since a bridge wraps it in place.

    `borrowed`: its weights are shared with a caller's object, so a bridge gets a copy of them.
    """
    n_ctx, window = context_length(hf_model.config), attention_window(hf_model.config)
    tokens = probe_tokens(d_vocab=hf_model.config.get_text_config().vocab_size, n_ctx=n_ctx, window=window)
    reference = probe_logits(hf_model, tokens)
    model, reason = _try_hooked_transformer(hf_model, name=name, n_ctx=n_ctx)
    if model is not None:
        parity = compare_logits(probe_logits(model, tokens), reference)
        if parity.agrees:
            reason = f"its log-probabilities agree with Hugging Face's to {parity.max_log_prob_difference:.1e}"
            notes = _note_context(hf_model.config, n_ctx)
            return Hooked(model=model, reason=reason, parity=parity, tokens=tokens, reference=reference, notes=notes)
        reason = (
            "as a HookedTransformer its log-probabilities differ from the Hugging Face model's "
            f"by up to {parity.max_log_prob_difference:.3g}"
        )
        del model
    if borrowed:
        for parameter in hf_model.parameters():
            parameter.data = parameter.data.clone()
    bridge = _make_bridge(hf_model, name=name, reason=reason)
    parity = compare_logits(probe_logits(bridge, tokens), reference)
    if not parity.agrees:
        raise InputError(
            f"{name} cannot be loaded faithfully: {reason}, and as a TransformerBridge by up to "
            f"{parity.max_log_prob_difference:.3g} where {parity.limit:.1g} is the limit"
        )
    return Hooked(model=bridge, reason=reason, parity=parity, tokens=tokens, reference=reference)


def attach_tokenizer(model: Any, tokenizer: Any, *, name: str) -> None:
    """Give the model its own copy of `tokenizer`, set up as TransformerLens wants it."""
    with _tokenizer_on_disk(tokenizer) as own, quiet_libraries():
        if isinstance(model, HookedTransformer):
            model.set_tokenizer(own)
        else:
            own = setup_tokenizer(own, default_padding_side=getattr(model.cfg, "default_padding_side", None))
            prepends, appends = bridges.detect_tokenizer_bos_eos(own)
            model.cfg.tokenizer_prepends_bos, model.cfg.tokenizer_appends_eos = prepends, appends
            model.tokenizer = own
    model.tokenizer.name_or_path = name
    model.tokenizer.init_kwargs["name_or_path"] = name
    if model.tokenizer.bos_token == "<|im_start|>":  # opens a chat turn; in front of plain text it misleads
        model.cfg.default_prepend_bos = False


def context_length(config: Any) -> int:
    """The longest sequence that we let a model take."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or _LONGEST_CONTEXT
    return min(longest, _LONGEST_CONTEXT) if _is_rotary(config) else longest


def attention_window(config: Any) -> int | None:
    """The widest sliding window of any layer, None where attention reaches back to the start."""
    text = config.get_text_config()
    if getattr(text, "use_sliding_window", None) is False:
        return None
    windows = [getattr(text, field, None) for field in ("sliding_window", "window_size", "attention_chunk_size")]
    return max((window for window in windows if isinstance(window, int)), default=None)


def _note_context(config: Any, n_ctx: int) -> tuple[str, ...]:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or n_ctx
    return (f"the context is cut to {n_ctx} of {longest} tokens",) if n_ctx < longest else ()


def _is_rotary(config: Any) -> bool:
    return getattr(config.get_text_config(), "rope_parameters", None) is not None


def _try_hooked_transformer(hf_model: Any, *, name: str, n_ctx: int) -> tuple[HookedTransformer | None, str]:
    rope = getattr(hf_model.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
        return None, f"a HookedTransformer has no rotary embedding of type {rope['rope_type']!r}"
    try:
        return _make_hooked_transformer(hf_model, name=name, n_ctx=n_ctx), ""
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each converter fails in its own way on a model it does not know
        detail = " ".join(str(error).split())
        what = f"{type(hf_model).__name__} ({type(error).__name__}: {detail:.160})"
        return None, f"TransformerLens has no HookedTransformer for this {what}"


def _make_hooked_transformer(hf_model: Any, *, name: str, n_ctx: int) -> HookedTransformer:
    with tempfile.TemporaryDirectory(prefix="interp-") as folder, quiet_libraries(), quiet_construction():
        _write_config(hf_model.config, Path(folder))
        described = {key: value for key, value in hf_model.config.to_dict().items() if value is not None}
        cfg = converters.get_pretrained_model_config(
            folder, hf_cfg=described, device=str(hf_model.device), dtype=torch.float32
        )
        # TransformerLens asks the hub for the tokenizer of this name, and caps some models at 2048 tokens.
        cfg.tokenizer_name, cfg.model_name, cfg.n_ctx = None, name, n_ctx
        state = converters.get_pretrained_state_dict(folder, cfg, hf_model)
        model = HookedTransformer(cfg)
        # Its own `load_and_process_state_dict` walks the whole model once a tensor: seconds for 30 layers.
        model.load_state_dict(model.fill_missing_keys(state), strict=False)
    return model.eval()


def _write_config(config: Any, folder: Path) -> None:
    # The converters guess the architecture from the path, so its text must not name one.
    if any(word in str(folder).lower() for word in ("llama", "gemma")):
        raise ValueError(f"the path of the temporary folder {folder} names an architecture; set TMPDIR to another one")
    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    if "n_positions" in written:
        written["n_ctx"] = written["n_positions"]  # transformers 5 dropped the name that the GPT-2 converter reads
        (folder / "config.json").write_text(json.dumps(written))


def _make_bridge(hf_model: Any, *, name: str, reason: str) -> TransformerBridge:
    try:
        with _modules_kept(), quiet_libraries():
            bridge = bridges.build_bridge_from_module(
                hf_model, type(hf_model).__name__, hf_config=hf_model.config, model_name=name
            )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # as in `_try_hooked_transformer`
        detail = " ".join(str(error).split())
        raise InputError(f"{name} cannot be loaded: {reason}, and no TransformerBridge ({detail:.200})") from error
    for parameter in bridge.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return bridge.eval()


@contextmanager
def _modules_kept() -> Iterator[None]:
    """Undo what building a bridge does to transformers' Gemma modules for the whole process; no bridge needs it."""
    modules = (modeling_gemma2, modeling_gemma3)
    kept = [vars(module)["eager_attention_forward"] for module in modules]
    try:
        yield
    finally:
        for module, function in zip(modules, kept, strict=True):
            vars(module)["eager_attention_forward"] = function


@contextmanager
def _tokenizer_on_disk(tokenizer: Any) -> Iterator[Any]:
    """A copy that has a folder while the block lasts: TransformerLens reloads it from where it says it came from."""
    with tempfile.TemporaryDirectory(prefix="interp-") as folder:
        tokenizer.save_pretrained(folder)
        yield AutoTokenizer.from_pretrained(folder, local_files_only=True)
