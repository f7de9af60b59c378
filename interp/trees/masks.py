"""Every span of a sentence on its own, in any causal model with hooks: a masked pass for each start.

As in `interp.trees.causal`, one pass for each word that a span can start with has the masked states of all spans that
start there. Here each pass runs the whole sentence through the model itself, and `interp.mask_tokens` hides the words
before the start in the layers from the threshold on. It takes two to three times as long as the packed rows, and needed for
bridges, for attention of an unusual kind, and for models that carry hooks of the caller's, which act here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.knock_out import mask_tokens
from interp.interventions.patch_sites import record
from interp.trees.causal import PackedSentences


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
