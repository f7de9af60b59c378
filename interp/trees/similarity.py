"""How alike two states of a span are: that with all outside it masked, and that in the whole sentence.

The state of a span is the sum of its words' states, so the spans that start a row are the row's running sums.

    cosine      cos(a, b), computed as 1 - |a/|a| - b/|b||^2 / 2: exactly 1 where a = b, and precise near it
    euclidean   -|a - b|, which unlike the cosine grows with the number of words

>>> from interp.trees.causal import pack_rows
>>> rows = pack_rows(torch.tensor([0]), torch.tensor([2]))
>>> score_spans(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[2.0, 0], [0, 2]]), rows, "euclidean")
tensor([-1.0000, -1.4142])
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from interp.trees.causal import PackedRows

Distance = Literal["cosine", "euclidean"]

TOKENS_AT_ONCE = 4096
"""Beyond this a processor gains little; an accelerator gains from more."""


def compare_states(
    own: Float[Tensor, "*span d_model"], full: Float[Tensor, "*span d_model"], distance: Distance
) -> Float[Tensor, "*span"]:
    """The similarity of two states of each span."""
    if distance == "cosine":
        return 1 - (F.normalize(own, dim=-1) - F.normalize(full, dim=-1)).square().sum(-1) / 2
    return -(own - full).norm(dim=-1)


def score_spans(
    states: Float[Tensor, "packed d_model"],
    unmasked: Float[Tensor, "packed d_model"],
    rows: PackedRows,
    distance: Distance,
) -> Float[Tensor, "packed"]:
    """At each token, the similarity of the span from the beginning of its row to it, in float32."""
    scores = torch.empty(len(states), dtype=torch.float32, device=states.device)
    begin = 0
    for count, size in rows.groups:
        here = slice(begin, begin + count * size)
        begin += count * size
        own, full = (one[here].float().unflatten(0, (count, size)).cumsum(1) for one in (states, unmasked))
        scores[here] = compare_states(own, full, distance).flatten()
    return scores
