"""A small HookedTransformer with weights from one integer seed.

    model = build(n_layers=2, d_model=64, n_heads=1, d_vocab=64, n_ctx=64, attn_only=True, gamma=0.5, seed=0)

Any field of TransformerLens's `HookedTransformerConfig` can be given by name (`attn_only`, `act_fn`, `d_mlp`,
`normalization_type`, `positional_embedding_type="rotary"`, ...); `initialise` has the formula of the weights, in which
a larger gamma is a smaller initialisation. The global random generators are neither read nor moved, which
TransformerLens's own `seed` would do. Three words have no field there (`interp.models.architecture`): with
`norm_placement="post", positions="sinusoidal", embedding_scale="sqrt_d_model"` it is the transformer of Vaswani et al.

>>> model = build(n_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8, attn_only=True, seed=3, device="cpu")
>>> model(torch.zeros(1, 8, dtype=torch.long)).shape
torch.Size([1, 8, 10])
"""

import difflib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp.errors import InputError
from interp.models.architecture import (
    Architecture,
    EmbeddingScale,
    NormPlacement,
    Positions,
    architecture_of,
    construct,
)
from interp.models.initialise import Initialisation, Part, ResidualScale, initialise
from interp.models.provenance import Provenance, count_parameters, hash_weights

_OURS = ("seed", "init_weights", "init_mode", "initializer_range")
"""Fields of TransformerLens whose job `gamma` and `seed` do here."""

_COUNTS = ("n_layers", "d_model", "n_heads", "d_vocab", "n_ctx", "d_head", "d_mlp", "n_key_value_heads", "rotary_dim")


@contextmanager
def quiet_construction() -> Iterator[None]:
    """Silence the one warning that a HookedTransformer gives about itself; every other warning still shows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="HookedTransformer is deprecated", category=DeprecationWarning)
        yield


def check_device(device: str | torch.device | None) -> str | None:
    """The device as text, None left as it is; InputError for one that this machine does not have."""
    if device is None:
        return None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason}); name one that this machine has") from error
    return str(device)


def build(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_vocab: int,
    n_ctx: int,
    gamma: float = 0.5,
    gamma_by_part: Mapping[Part, float] | None = None,
    init_multiplier: float = 1.0,
    residual_scale: ResidualScale = "one",
    embedding_std: float | None = None,
    seed: int = 0,
    norm_placement: NormPlacement = "pre",
    positions: Positions | None = None,
    embedding_scale: EmbeddingScale = "one",
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> HookedTransformer:
    """A HookedTransformer in eval mode whose matrices have `std = d_in ** -gamma`: larger gamma, smaller initialisation.

    `gamma_by_part` overrides gamma in the parts it names (`embedding`, `qk`, `vo`, `mlp`, `unembed`), `init_multiplier`
    multiplies every std, `residual_scale="one_over_sqrt_2L"` divides W_O and W_out, `embedding_std` replaces the
    embeddings' std. `norm_placement="post"` puts the norms behind the sums (a `PostNormTransformer`, without a final norm),
    `positions="sinusoidal"` adds a fixed table instead of a learned one, and `embedding_scale="sqrt_d_model"` multiplies
    embeddings on their way into the stream. `d_head` defaults to `d_model // n_heads`, `device` to an accelerator where
    there is one. Anything that cannot be built is an `InputError` that says what was given and what was expected.
    """
    _check_names(config)
    counts: dict[str, Any] = {
        "n_layers": n_layers,
        "d_model": d_model,
        "n_heads": n_heads,
        "d_vocab": d_vocab,
        "n_ctx": n_ctx,
    }
    _check_counts(counts | config)
    scheme = Initialisation(
        gamma=gamma,
        gamma_by_part=gamma_by_part,
        init_multiplier=init_multiplier,
        residual_scale=residual_scale,
        embedding_std=embedding_std,
    )
    architecture = Architecture(norm_placement=norm_placement, positions=positions, embedding_scale=embedding_scale)
    if "d_head" not in config:
        if d_model % n_heads:
            raise InputError(
                f"d_model={d_model} is not divisible by n_heads={n_heads}: change one of them or give d_head"
            )
        config["d_head"] = d_model // n_heads
    settings = counts | config | {"dtype": dtype, "device": check_device(device), "init_weights": False}
    try:
        with quiet_construction():
            model = construct(HookedTransformerConfig(**settings), architecture)
    except InputError:
        raise
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"this configuration cannot be built: {error}") from error
    initialise(model, scheme, seed=seed)
    model.eval()
    model.provenance = _describe(model, f"{scheme}, seed {seed}")  # type: ignore[assignment]
    return model


def _describe(model: HookedTransformer, initialisation: str) -> Provenance:
    architecture = str(architecture_of(model))
    return Provenance(
        model="built",
        source="built",
        revision=None,
        weights_sha256=hash_weights(model),
        model_class=type(model).__name__,
        reason=f"built from a configuration{architecture and ' with '}{architecture}",
        max_logit_difference=None,
        processing="raw",
        dtype=str(model.cfg.dtype).removeprefix("torch."),
        device=str(model.cfg.device),
        n_parameters=count_parameters(model),
        step=0,
        notes=(f"initialisation: {initialisation}",),
    )


def _check_names(config: dict[str, Any]) -> None:
    known = [field.name for field in fields(HookedTransformerConfig) if field.name not in _OURS]
    for name in config:
        if name in _OURS:
            raise InputError(f"{name!r} cannot be given to build: the weights follow from gamma and seed alone")
        if name not in known:
            close = difflib.get_close_matches(name, [*known, *_ours_by_name(), "seed"], n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "see HookedTransformerConfig for the names"
            raise InputError(f"{name!r} is not a field of a model's configuration; {hint}")


def _ours_by_name() -> list[str]:
    return [field.name for kind in (Initialisation, Architecture) for field in fields(kind)]


def _check_counts(settings: dict[str, Any]) -> None:
    for name in _COUNTS:
        value = settings.get(name)
        if value is None and name not in ("n_layers", "d_model", "n_heads", "d_vocab", "n_ctx"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
    heads, shared = settings["n_heads"], settings.get("n_key_value_heads")
    if shared is not None and heads % shared:
        raise InputError(f"n_key_value_heads={shared} must divide n_heads={heads}")
