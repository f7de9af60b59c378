"""The training loss with its gradient, and the scores of a split, in parts that fit in memory.

    loss = mean over the trained positions of  -log softmax(logits)[target]

What stands behind the last position that counts is padding, which a causal model's earlier positions never see. So it
isn't computed: a training batch is cut behind the last position that any row trains, and an evaluation takes its
sequences in order of length. Where each sequence is trained on its last position alone, no other logits are computed.

>>> from tasks.copying import Copying
>>> batch = Copying().sample(2, split="ood", seed=0)
>>> f"{mean_loss(torch.zeros(2, 64, 64), batch):.3f}"
'4.159'
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
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


def cut(batch: Batch, width: int) -> Batch:
    """The first `width` positions."""
    if width == batch.tokens.shape[1]:
        return batch
    return Batch(
        tokens=batch.tokens[:, :width],
        targets=batch.targets[:, :width],
        trained=batch.trained[:, :width],
        scored=batch.scored[:, :width],
        roles={name: role[:, :width] if role.dtype == torch.bool else role for name, role in batch.roles.items()},
    )


def trained_width(batch: Batch) -> int:
    """How many positions lead up to the last one that any row trains."""
    return 1 + int(batch.trained.any(0).nonzero().max())


@torch.inference_mode()
def evaluate(
    forward: Forward, task: Task, batch: Batch, *, device: torch.device, rows: int, causal: bool = True
) -> dict[str, float]:
    """`loss` and the mean of each of the task's scores over the sequences, `rows` of them at a time.

    With `causal` the sequences go in order of length, without what stands behind the last position that counts.
    """
    totals: dict[str, float] = {}
    n, n_trained = len(batch.tokens), int(batch.trained.sum())
    widths = _count_needed(batch) if causal else torch.full((n,), batch.tokens.shape[1])
    for part_rows in widths.argsort(stable=True).split(rows):
        part = cut(batch.take(part_rows), int(widths[part_rows].max()))
        logits = forward(part.tokens.to(device))
        sums = {name: values.sum() / n for name, values in task.score(logits, part).items()}
        shares = {"loss": mean_loss(logits, part) * (part.trained.sum() / n_trained), **sums}
        for name, value in shares.items():
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def _count_needed(batch: Batch) -> Int[Tensor, " batch"]:
    """The positions of each row up to the last one that is trained, scored or has a role."""
    position = torch.arange(1, batch.tokens.shape[1] + 1)
    masks = [batch.trained, batch.scored, *(role for role in batch.roles.values() if role.dtype == torch.bool)]
    ends = [(mask * position).amax(1) for mask in masks]
    ends += [role.amax(1) + 1 for role in batch.roles.values() if role.dtype != torch.bool and role.shape[1] > 0]
    return torch.stack(ends).amax(0).clamp(min=1)
