"""A question and its answer in one row, padded on the right: what is trained, and the score of a whole answer.

    question ... separator  y_1 y_2 ... y_m  pad pad ...        trained and scored: the predictions of y_1 ... y_m

    exact match = prod_i [argmax p(. | question, y_<i) = y_i]

The model reads the right answer up to y_i, yet exact match is that of greedy decoding. If every argmax is right, then a
greedy decoder writes y_1, reads it, writes y_2 and so on; if it writes the right answer, then each argmax was taken on a
right prefix. Token accuracy has no such meaning: behind its first mistake a decoder would read its own words.

Padding stands behind the answer, where a causal model can't see it.

>>> rows = torch.tensor([[5, 9, 1, 2, 0], [5, 6, 9, 1, 2]])
>>> batch = assemble(rows, answer=mask_between([[2], [3]], [[4], [5]], width=5), roles={})
>>> batch.trained.int().tolist()
[[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]]
>>> guess = torch.nn.functional.one_hot(torch.tensor([[7, 1, 2, 7, 7], [7, 7, 1, 1, 7]]), 10).float()
>>> {name: values.tolist() for name, values in score_answers(guess, batch).items()}
{'exact_match': [1.0, 0.0], 'token_accuracy': [1.0, 0.5]}
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.task import Batch

PAD = 0
"""The padding's id in every language."""


def assemble(
    tokens: Int[Tensor, "batch pos"],
    *,
    answer: Bool[Tensor, "batch pos"],
    roles: Mapping[str, Int[Tensor, "batch width"] | Bool[Tensor, "batch pos"]],
) -> Batch:
    """The batch in which the tokens marked by `answer` are predicted, each from the position before it."""
    before = answer.roll(-1, dims=1)
    before[:, -1] = False
    return Batch(tokens=tokens, targets=tokens.roll(-1, dims=1), trained=before, scored=before, roles=dict(roles))


def mask_between(
    start: Int[Tensor, "batch 1"] | Sequence[Sequence[int]],
    end: Int[Tensor, "batch 1"] | Sequence[Sequence[int]],
    *,
    width: int,
) -> Bool[Tensor, "batch width"]:
    """Positions from `start` up to, not including, `end`, row by row."""
    position = torch.arange(width)
    return (position >= torch.as_tensor(start)) & (position < torch.as_tensor(end))


def score_answers(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> dict[str, Float[Tensor, " batch"]]:
    """`exact_match`, 1 where every scored argmax is right, and `token_accuracy`, the share of them that are."""
    right = logits.argmax(-1) == batch.targets.to(logits.device)
    scored = batch.scored.to(logits.device)
    return {
        "exact_match": (right | ~scored).all(-1).float(),
        "token_accuracy": (right & scored).sum(-1) / scored.sum(-1),
    }


def spell(tokens: Int[Tensor, " pos"], vocabulary: Sequence[str]) -> str:
    """A row in words, without its padding."""
    return " ".join(vocabulary[token] for token in tokens.tolist() if token != PAD)
