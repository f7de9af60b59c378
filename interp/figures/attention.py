"""Attention patterns under the pointer, by CircuitsVis, in a notebook or a page that is offline.

CircuitsVis's own display asks a web server on every call, loads its library from a CDN, lets a token close the script it
stands in, and shows tokens as HTML. Here the library is put into the page once, from the installed package, and what it
is given is validated, rounded and escaped. Nothing of CircuitsVis is imported: only its script is read.

>>> view = show_attention(np.eye(3)[None], ["the", " cat", " sat"], head_names=["18.6"])
>>> view
AttentionView(1 head: 18.6; 3 tokens)
>>> bundle([view, view]).count("CircuitsVis.render(")
2
"""

import html
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError

_DIGITS = 4
_MOST_NUMBERS = 400_000


@dataclass(frozen=True, kw_only=True, slots=True, repr=False, eq=False)
class AttentionView:
    """Patterns of some heads over one sequence; a notebook shows it when it is the value of a cell."""

    patterns: Float[np.ndarray, "head query key"]
    """What each query position attends to, rounded to four digits."""
    tokens: tuple[str, ...]
    """The sequence, token by token, each with its role where it has one."""
    head_names: tuple[str, ...]
    """A name for each head, such as "18.6"."""

    def __repr__(self) -> str:
        n = len(self.head_names)
        return f"AttentionView({n} head{'s' * (n > 1)}: {', '.join(self.head_names)}; {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        return bundle([self])


def show_attention(
    patterns: Float[np.ndarray, "..."] | Float[Tensor, "..."],
    tokens: Sequence[str],
    *,
    head_names: Sequence[str] | None = None,
    roles: Mapping[int, str] | None = None,
) -> AttentionView:
    """A view of `patterns` [head, query, key], after the softmax, over `tokens`.

    `roles` names positions: {2: "IO"} shows the token at position 2 with that name beside it.
    """
    array = patterns.detach().float().cpu().numpy() if isinstance(patterns, Tensor) else np.asarray(patterns)
    if array.ndim != 3 or array.shape[1:] != (len(tokens), len(tokens)) or array.shape[0] == 0:
        raise InputError(
            f"show_attention was given patterns of shape {tuple(array.shape)} and {len(tokens)} tokens; it needs "
            f"[head, query, key] = (heads, {len(tokens)}, {len(tokens)}). Take one sequence of a batch: pattern[0]."
        )
    strange = next((token for token in tokens if not isinstance(token, str)), None)
    if strange is not None:
        raise InputError(
            f"show_attention was given the token {strange!r} of type {type(strange).__name__}; tokens must be text. "
            "For token ids, give model.to_str_tokens(ids) or [str(id) for id in ids.tolist()]."
        )
    absent = [position for position in roles or {} if not 0 <= position < len(tokens)]
    if absent:
        raise InputError(
            f"show_attention was given a role for position {absent[0]}, but the tokens have positions 0 to "
            f"{len(tokens) - 1}; name positions that are there."
        )
    names = tuple(head_names) if head_names is not None else tuple(f"head {head}" for head in range(array.shape[0]))
    if len(names) != array.shape[0]:
        raise InputError(f"show_attention was given {len(names)} head names for {array.shape[0]} heads; give one each.")
    if array.size > _MOST_NUMBERS:
        raise InputError(
            f"{array.shape[0]} heads over {len(tokens)} tokens are {array.size:,} numbers, more than the "
            f"{_MOST_NUMBERS:,} that a browser shows well. Give fewer heads or a shorter sequence."
        )
    if not np.isfinite(array).all() or array.min() < -1e-3 or array.max() > 1 + 1e-3:
        raise InputError(
            f"show_attention was given values from {array.min()} to {array.max()}; attention after the softmax lies "
            "between 0 and 1. Give the pattern, not the scores, and no NaN."
        )
    rounded = np.round(array.astype(np.float64), _DIGITS)
    labelled = tuple(f"{token} ⟨{roles[i]}⟩" if roles and i in roles else token for i, token in enumerate(tokens))
    return AttentionView(patterns=rounded, tokens=labelled, head_names=names)


def bundle(views: Sequence[AttentionView]) -> str:
    """An HTML fragment that shows every view and has the library once, for any page or notebook."""
    parts = [f"<script>{_read_library()}</script>"]
    for view in views:
        name = f"attention-{uuid.uuid4().hex[:12]}"
        properties = {
            "tokens": [_show_token(token) for token in view.tokens],
            "attention": view.patterns.tolist(),
            "headLabels": list(view.head_names),
        }
        text = json.dumps(properties, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        parts.append(
            f'<div id="{name}" class="attention-view"></div>'
            f'<script>CircuitsVis.render("{name}", CircuitsVis.AttentionPatterns, {text})</script>'
        )
    return "\n".join(parts)


def _show_token(token: str) -> str:
    """CircuitsVis sets a token as HTML, so it is escaped here; a line break would be invisible, so it gets a sign."""
    return html.escape(token).replace("\n", "↵")


@lru_cache
def _read_library() -> str:
    spec = find_spec("circuitsvis")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "dist" / "cdn" / "iife.js" if folders else None
    if path is None or not path.is_file():
        raise InputError(
            f"The script of CircuitsVis was looked for at {path} and is not there. "
            "Install it with: pip install 'circuitsvis>=1.43.3,<2'"
        )
    script = path.read_text(encoding="utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script.replace("//# sourceMappingURL=iife.js.map", "")
