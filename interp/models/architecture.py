"""What a model is beyond TransformerLens's configuration, which has no fields for it: where norms stand, fixed positions.

The classes of the modules are the record: a `PostNormTransformer`, `SinusoidalPositions`, a `ScaledEmbed`. So a deep copy and
a model built by hand say what they are, and `architecture_of` reads it off.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, positions="sinusoidal")
>>> print(architecture_of(model))
sinusoidal positions
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp.errors import InputError
from interp.models.embeddings import ScaledEmbed, SinusoidalPositions
from interp.models.post_norm import PostNormTransformer

NormPlacement = Literal["pre", "post"]
Positions = Literal["learned", "sinusoidal"]
EmbeddingScale = Literal["one", "sqrt_d_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Where a model differs from TransformerLens's own; InputError for a word that isn't known."""

    norm_placement: NormPlacement = "pre"
    """`pre`: x + sublayer(ln(x)) and a final norm; `post`: ln(x + sublayer(x)) and none."""
    positions: Positions | None = None
    """`sinusoidal`: a fixed table; `learned`: a trained one; None: what `positional_embedding_type` says."""
    embedding_scale: EmbeddingScale = "one"
    """What the embedding's rows are multiplied by on their way into the stream."""

    def __post_init__(self) -> None:
        for name, allowed in (("norm_placement", NormPlacement), ("embedding_scale", EmbeddingScale)):
            _check_word(name, getattr(self, name), get_args(allowed))
        if self.positions is not None:
            _check_word("positions", self.positions, get_args(Positions))

    def __str__(self) -> str:
        parts = [
            "norms after the sums" if self.norm_placement == "post" else "",
            "sinusoidal positions" if self.positions == "sinusoidal" else "",
            "embeddings times sqrt(d_model)" if self.embedding_scale == "sqrt_d_model" else "",
        ]
        return ", ".join(part for part in parts if part)


def construct(cfg: HookedTransformerConfig, architecture: Architecture, **options: Any) -> HookedTransformer:
    """The model without its weights; `options` are those of HookedTransformer. InputError for what excludes each other."""
    if architecture.positions is not None and cfg.positional_embedding_type != "standard":
        raise InputError(
            f"positions={architecture.positions!r} are added to the embeddings, but positional_embedding_type="
            f"{cfg.positional_embedding_type!r} has positions of another kind: leave one of them out"
        )
    if architecture.embedding_scale != "one" and cfg.post_embedding_ln:
        raise InputError(
            "embedding_scale does nothing with post_embedding_ln=True, whose norm takes it away: leave it out"
        )
    kind = PostNormTransformer if architecture.norm_placement == "post" else HookedTransformer
    model = kind(cfg, **options)
    if architecture.positions == "sinusoidal":
        model.pos_embed = SinusoidalPositions(cfg).to(cfg.device)
        model.setup()
    if architecture.embedding_scale == "sqrt_d_model":
        model.embed.__class__ = ScaledEmbed
    return model


def architecture_of(model: Any) -> Architecture:
    """Read off the classes of the model's modules; the default for a model of any other kind, such as a bridge."""
    return Architecture(
        norm_placement="post" if isinstance(model, PostNormTransformer) else "pre",
        positions="sinusoidal" if isinstance(getattr(model, "pos_embed", None), SinusoidalPositions) else None,
        embedding_scale="sqrt_d_model" if isinstance(getattr(model, "embed", None), ScaledEmbed) else "one",
    )


def _check_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not known: choose one of {', '.join(allowed)}")
