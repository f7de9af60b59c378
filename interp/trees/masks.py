"""Every span of a sentence on its own, by masked passes through the model itself.

In a causal model, as in `interp.trees.causal`, one pass for each word that a span can start with has the masked states of
all spans that start there; `interp.mask_tokens` hides the words before it in the layers from the threshold on. In an
encoder each span has a pass of its own. This takes two to three times as long as packed rows and gathered spans, and is
needed for bridges, for attention of an unusual kind, and for models that carry hooks of the caller's, which act here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import HookedEncoder

from interp.interventions.hooks import add_hooks
from interp.interventions.knock_out import mask_tokens
from interp.interventions.patch_sites import record
from interp.models.batching import choose_batch_size, for_each_batch
from interp.trees.causal import PackedSentences
from interp.trees.similarity import TOKENS_AT_ONCE, Distance, compare_states
from interp.trees.spans import Spans


def run_masked(
    model: Any, packed: PackedSentences, *, layers: Sequence[int], threshold_layer: int
) -> Iterator[tuple[int, Float[Tensor, "packed d_model"]]]:
    """What `interp.trees.causal.run_packed` gives, for sentences of one length."""
    lead = packed.n_leading
    n_rows, length = len(packed.rows.begin), lead + packed.whole.groups[0][1]
    first = packed.position[lead + packed.rows.source[packed.rows.begin]]  # [row], the position of each row's start
    sentence = packed.whole.row[packed.rows.source[packed.rows.begin]]
    tokens = packed.tokens[lead:].view(-1, length - lead)[sentence]
    tokens = torch.cat([packed.tokens[:lead].expand(n_rows, lead), tokens], dim=1)
    hidden = torch.arange(length).expand(n_rows, -1)
    hidden = (hidden >= lead) & (hidden < first[:, None])
    masked_layers = range(threshold_layer, model.cfg.n_layers)
    with mask_tokens(model, hidden, layers=masked_layers):
        states = record(
            model,
            tokens.to(next(model.parameters()).device),
            {layer: f"blocks.{layer}.hook_resid_post" for layer in layers},
        )
    position = packed.position[lead + packed.rows.source]
    for layer in layers:
        yield layer, states[layer][packed.rows.row, position]


def score_masked(
    model: Any,
    spans: Spans,
    *,
    layers: Sequence[int],
    threshold_layer: int,
    distance: Distance,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> Float[Tensor, "layer span"]:
    """What `interp.trees.spans.score_gathered` gives."""
    device = next(model.parameters()).device
    # A HookedEncoder's `hook_resid_post` comes before the layer's last norm.
    output = "hook_normalized_resid_post" if isinstance(model, HookedEncoder) else "hook_resid_post"
    names = {layer: f"blocks.{layer}.{output}" for layer in layers}
    scores = torch.empty(len(layers), len(spans.size))
    for sentence, (begin, after) in enumerate(spans.sentences.tolist()):
        tokens = spans.tokens[begin:after].to(device)[None]
        unmasked = record(model, tokens, names)
        chosen = (spans.sentence == sentence).nonzero()[:, 0]
        place = torch.arange(begin, after)
        inside = (place >= spans.begin[chosen, None]) & (place < (spans.begin + spans.size)[chosen, None])
        ends = (place < begin + spans.lead) | (place >= after - spans.trail)

        def measure(
            rows: slice,
            chosen: Tensor = chosen,
            inside: Bool[Tensor, "span pos"] = inside,
            ends: Bool[Tensor, "pos"] = ends,
            tokens: Tensor = tokens,
            unmasked: dict[int, Tensor] = unmasked,
        ) -> None:
            own = inside[rows].to(device)
            hidden = ~(own | ends.to(device))[:, None, None]  # [span 1 1 key_pos]
            hooks = [
                (f"blocks.{layer}.attn.hook_attn_scores", lambda scores, hook: scores.masked_fill(hidden, -torch.inf))
                for layer in range(threshold_layer, model.cfg.n_layers)
            ]
            with add_hooks(model, hooks):
                states = record(model, tokens.expand(len(own), -1), names)
            for row, layer in enumerate(layers):
                masked, full = ((one[layer].float() * own[..., None]).sum(1) for one in (states, unmasked))
                scores[row, chosen[rows]] = compare_states(masked, full, distance).cpu()

        at_once = min(tokens_at_once // tokens.shape[1], choose_batch_size(model, tokens.shape[1]))
        for_each_batch(len(chosen), measure, batch_size=max(1, at_once))
    return scores
