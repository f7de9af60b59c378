"""Which way a model reads, and the tokens at both ends of a sentence, which no mask hides.

    causal          each token reads itself and those before it: what comes after a span never matters, what stands last neither
    bidirectional   each token reads all: an encoder, such as BERT, whose sentences stand between CLS and SEP

>>> import interp
>>> shape = dict(n_layers=1, d_model=8, n_heads=1, d_vocab=9, n_ctx=8, attn_only=True, device="cpu")
>>> find_direction(interp.build(**shape)), find_direction(interp.build(**shape, attention_dir="bidirectional"))
('causal', 'bidirectional')
"""

from typing import Any, Literal

from transformer_lens import HookedEncoder

from interp.errors import InputError
from interp.models.tokens import Bos, resolve_bos

Direction = Literal["causal", "bidirectional"]
"""Whether a token reads those before it, or all."""

Eos = Literal["auto", "none"] | int
"""`auto`: an encoder's SEP where its tokenizer has one, nothing on a causal model; `none`; or a token id."""


def find_direction(model: Any) -> Direction:
    """Raises `InputError` for an encoder that can't be measured: one whose attention no hook reaches, or that reads backwards."""
    if isinstance(model, HookedEncoder):
        if model.cfg.attention_dir != "bidirectional":
            raise InputError(
                "This HookedEncoder was made with attention_dir='causal', so it isn't the encoder it looks like; make it "
                "with attention_dir='bidirectional'."
            )
        return "bidirectional"
    architecture = str(getattr(model.cfg, "architecture", None))
    if architecture.endswith(("ForMaskedLM", "ForPreTraining")):
        raise InputError(
            f"This {type(model).__name__} is an encoder ({architecture}) whose attention no hook changes; give it as a "
            "transformer_lens.HookedEncoder."
        )
    return "bidirectional" if getattr(model.cfg, "attention_dir", "causal") == "bidirectional" else "causal"


def resolve_ends(model: Any, bos: Bos, eos: Eos, direction: Direction) -> tuple[int | None, int | None]:
    """The ids that stand first and last, None where there is none.

    An encoder's tokenizer has them as CLS and SEP. Raises `InputError` for an id that the model doesn't have, and for a last
    token of a causal model, which no word reads.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(eos, int) and not 0 <= eos < model.cfg.d_vocab:
        raise InputError(f"The last token has id {eos}, but this model's ids go from 0 to {model.cfg.d_vocab - 1}.")
    if isinstance(eos, str) and eos not in ("auto", "none"):
        raise InputError(f"eos={eos!r} isn't known; use 'auto', 'none' or a token id.")
    if direction == "causal":
        if isinstance(eos, int):
            raise InputError(
                f"eos={eos} is for encoders: in a causal model no word reads what stands last; leave it out."
            )
        return resolve_bos(model, bos), None
    first = getattr(tokenizer, "cls_token_id", None)
    if bos not in ("auto", "bos") or first is None:
        first = resolve_bos(model, bos)
    if isinstance(eos, int):
        return first, eos
    return first, getattr(tokenizer, "sep_token_id", None) if eos == "auto" else None
