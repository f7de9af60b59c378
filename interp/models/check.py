"""What is checked once, when a model is loaded: parity, finite weights, causality, and hooks that act.

Parity compares log-probabilities `log softmax(logits)` with the Hugging Face model's on random tokens, in fp32, on a
probe that is longer than any attention window (as far as `n_ctx` allows). Converters are silently wrong for some
configurations (errors of 2 to 6), rounding gives 1e-6 to 5e-5, so the limit is 1e-3, and a thousandth of the spread of
the log-probabilities where that is smaller: a small untrained model can hide an error in nearly flat logits.

In bf16 and fp16 single logits move by tenths, so there the rule is on the mean KL divergence from the fp32 model.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, normalization_type=None)
>>> sorted(acting_hooks(model) & {"attn.hook_attn_scores", "attn.hook_z", "hook_mlp_out"})
['attn.hook_attn_scores', 'attn.hook_z']
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.hooks import add_hooks, lift_hooks
from tasks.seeding import derive_generator

HOOK_KINDS: tuple[str, ...] = (
    "attn.hook_attn_scores",
    "attn.hook_pattern",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_z",
    "hook_resid_pre",
    "hook_resid_post",
    "hook_attn_out",
    "hook_mlp_out",
)
"""The hooks, by their name inside a block, that this library edits."""

PARITY_LIMIT = 1e-3
HALF_PRECISION_LIMIT = 0.05
"""Largest mean KL divergence, in nats a token, from the fp32 model that bf16 or fp16 may have."""

_SHORTEST_PROBE = 64
_BEYOND_WINDOW = 32
_KEPT_AT_EACH_END = 128
_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """How far a model's outputs are from those of the Hugging Face model on the same tokens."""

    max_logit_difference: float
    max_log_prob_difference: float
    mean_kl: float
    """Mean over positions of KL(Hugging Face || model), in nats."""
    limit: float
    """Largest `max_log_prob_difference` that counts as the same function in fp32."""

    @property
    def agrees(self) -> bool:
        """False also where a difference is not a number."""
        return self.max_log_prob_difference <= self.limit


def probe_tokens(*, d_vocab: int, n_ctx: int, window: int | None) -> Int[Tensor, "1 pos"]:
    """Random ids, longer than `window` where `n_ctx` allows."""
    length = _SHORTEST_PROBE if window is None else max(_SHORTEST_PROBE, window + _BEYOND_WINDOW)
    return torch.randint(d_vocab, (1, min(length, n_ctx)), generator=derive_generator(0, "parity probe"))


@torch.no_grad()
def probe_logits(model: Any, tokens: Int[Tensor, "1 pos"]) -> Float[Tensor, "kept d_vocab"]:
    """fp32 logits at the first and the last positions of the probe, on the CPU; of either library's model."""
    outputs = model(tokens.to(next(model.parameters()).device))
    logits = (outputs if isinstance(outputs, Tensor) else outputs.logits)[0]
    if len(logits) > 2 * _KEPT_AT_EACH_END:  # a long probe times a large vocabulary is gigabytes
        logits = torch.cat([logits[:_KEPT_AT_EACH_END], logits[-_KEPT_AT_EACH_END:]])
    return logits.float().cpu()


def compare_logits(logits: Float[Tensor, "kept d_vocab"], reference: Float[Tensor, "kept d_vocab"]) -> Parity:
    """The distances between two models' logits at the same positions."""
    ours, theirs = logits.log_softmax(-1), reference.log_softmax(-1)
    return Parity(
        max_logit_difference=(logits - reference).abs().max().item(),
        max_log_prob_difference=(ours - theirs).abs().max().item(),
        mean_kl=(theirs.exp() * (theirs - ours)).sum(-1).mean().item(),
        limit=max(_ROUNDING, PARITY_LIMIT * min(1.0, theirs.std().item())),
    )


def check_finite(model: torch.nn.Module, name: str) -> None:
    """InputError that names the first tensor with a NaN or an infinity."""
    for tensor_name, tensor in model.named_parameters():
        # A NaN or an infinity survives a sum, which is 20 times as fast as looking at each element; half precision may
        # also overflow in one, so a suspicion is looked into.
        if not tensor.detach().sum().isfinite() and not tensor.isfinite().all():
            raise InputError(f"{name} has weights that are not finite, first in {tensor_name}: get the files again")


@torch.no_grad()
def check_causal(hf_model: Any, name: str) -> None:
    """InputError for a model that reads later tokens, as encoders do."""
    vocabulary = hf_model.config.get_text_config().vocab_size
    tokens = torch.randint(vocabulary, (2, 8), generator=derive_generator(0, "causality probe"))
    tokens[1, :-1] = tokens[0, :-1]
    tokens[1, -1] = (tokens[0, -1] + 1) % vocabulary
    logits = hf_model(tokens.to(hf_model.device)).logits.float()
    if (logits[0, :-1] - logits[1, :-1]).abs().max() > _ROUNDING * (1 + logits.abs().max()):
        raise InputError(
            f"{name} is a {type(hf_model).__name__} whose predictions depend on later tokens: "
            "give a decoder-only language model"
        )


def acting_hooks(model: Any) -> frozenset[str]:
    """Which of `HOOK_KINDS` change the logits when they are edited in this model; probed on first use, then kept."""
    known = getattr(model, "_acting_hooks", None)
    if known is None:
        known = _probe_hooks(model)
        model._acting_hooks = known
    return known


def require_hook(model: Any, kind: str) -> None:
    """InputError unless an edit at `kind` (such as `attn.hook_attn_scores`) changes what this model computes."""
    if kind not in HOOK_KINDS:
        raise InputError(f"{kind!r} is not a hook that is known to act; choose one of {', '.join(HOOK_KINDS)}")
    acting = acting_hooks(model)
    if kind in acting:
        return
    what = "has no effect in" if _hook_names(model, kind) else "does not exist in"
    raise InputError(
        f"the hook {kind!r} {what} this {type(model).__name__} of {getattr(model.cfg, 'model_name', 'a model')}; "
        f"hooks that act there: {', '.join(sorted(acting)) or 'none'}"
    )


def require_tokenizer(model: Any) -> Any:
    """The model's tokenizer, or an InputError that says to give token ids."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        name = getattr(model.cfg, "model_name", None) or "this model"
        raise InputError(f"{name} has no tokenizer, so it cannot read text: give token ids instead")
    return tokenizer


def _hook_names(model: Any, kind: str) -> list[str]:
    names = (f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers))
    return [name for name in names if name in model.hook_dict]


@torch.no_grad()
def _probe_hooks(model: Any) -> frozenset[str]:
    """One batch with a row for each kind, in which that row alone is edited, against the same batch without edits."""
    kinds = [kind for kind in HOOK_KINDS if _hook_names(model, kind)]
    if not kinds:
        return frozenset()
    length = min(4, model.cfg.n_ctx)
    tokens = torch.randint(model.cfg.d_vocab, (1, length), generator=derive_generator(0, "hook probe"))
    tokens = tokens.repeat(len(kinds), 1).to(next(model.parameters()).device)

    def tilt_row(row: int) -> Any:
        def tilt(activation: Tensor, hook: Any) -> Tensor:
            # Uneven along the last axis and from position to position, since a constant shift would vanish in a norm or
            # a softmax; and larger than what is there, since a saturated softmax doesn't notice less.
            edited = activation.clone()
            seen = activation[row].abs()
            size = 1 + seen[seen < torch.finfo(seen.dtype).max / 4].max()
            steps = torch.linspace(1, 2, len(seen)).view(-1, *[1] * (seen.dim() - 1)).to(activation)
            edited[row] += size * steps * torch.linspace(2, -2, seen.shape[-1]).to(activation)
            return edited

        return tilt

    hooks = [(name, tilt_row(row)) for row, kind in enumerate(kinds) for name in _hook_names(model, kind)]
    with lift_hooks(model):
        plain = model(tokens)
        with add_hooks(model, hooks):
            edited = model(tokens)
    return frozenset(kind for row, kind in enumerate(kinds) if not torch.equal(plain[row], edited[row]))
