"""The training loss with its gradient, and the scores of a split, in parts that fit in memory.

    loss = mean over the trained positions of  -log softmax(logits)[target]

Where each sequence is trained on its last position alone, the training pass computes no other logits.

>>> from tasks.copying import Copying
>>> batch = Copying().sample(2, split="ood", seed=0)
>>> f"{mean_loss(torch.zeros(2, 64, 64), batch):.3f}"
'4.159'
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from interp.training.config import Autocast
from interp.training.forward import Forward
from tasks.task import Batch, Task


def mean_loss(logits: Float[Tensor, "batch end d_vocab"], batch: Batch) -> Float[Tensor, ""]:
    """Cross-entropy, averaged over the trained positions; logits that are shorter than the batch are of its end."""
    length = logits.shape[1]
    targets = batch.targets[:, -length:].masked_fill(~batch.trained[:, -length:], -100).to(logits.device)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


def backward(
    forward: Forward, batch: Batch, *, device: torch.device, rows: int, autocast: Autocast = "none"
) -> Float[Tensor, ""]:
    """`mean_loss` of the batch, its gradient added to the parameters', `rows` sequences at a time."""
    n_trained = batch.trained.sum()
    last_only = is_last_only(batch)
    total = torch.zeros((), device=device)
    for start in range(0, len(batch.tokens), rows):
        part = batch.take(slice(start, start + rows))
        share = (part.trained.sum() / n_trained).to(device)  # exactly 1 where one part is the whole batch
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast == "bfloat16"):
            logits = forward(part.tokens.to(device), last_only=last_only)
        loss = share * mean_loss(logits, part)
        loss.backward()
        total = total + loss.detach()
    return total


def is_last_only(batch: Batch) -> bool:
    """Whether the last position of every sequence is trained, and no other."""
    return bool(batch.trained[:, -1].all()) and not batch.trained[:, :-1].any()


@torch.inference_mode()
def evaluate(forward: Forward, task: Task, batch: Batch, *, device: torch.device, rows: int) -> dict[str, float]:
    """`loss` and the mean of each of the task's scores over the sequences, `rows` of them at a time."""
    totals: dict[str, float] = {}
    n = len(batch.tokens)
    for start in range(0, n, rows):
        part = batch.take(slice(start, start + rows))
        logits = forward(part.tokens.to(device))
        sums = {"loss": len(logits) * mean_loss(logits, part)}
        sums |= {name: values.sum() for name, values in task.score(logits, part).items()}
        for name, value in sums.items():
            totals[name] = totals.get(name, 0.0) + float(value)
    return {name: total / n for name, total in totals.items()}
