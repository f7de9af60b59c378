"""What a model answers instead: the histogram of prediction - key, and whether the order of the anchors matters.

A model that doesn't compose a held-out pair often answers with the shift of another pair, whose name the histogram
gives: x - 16 for (4, 3) copies (4, 4), x - 7 copies (2, 4) or (4, 2).

>>> from tasks.anchor.designs import dropped_pairs
>>> task = dropped_pairs()
>>> batch = task.sample(500, split="held_out", seed=0)
>>> answer = (read_role(batch, "key") - 7)[:, None, None]
>>> deviation_histogram(torch.zeros(500, 1, 120).scatter(2, answer, 1.0), batch, task.shifts)
prediction - key of 500 sequences
    -7  1.000  copies (2, 4)/(4, 2)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.anchor.functions import Pair
from tasks.anchor.sequences import predict, read_role
from tasks.task import Batch, TaskError


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DeviationHistogram:
    """How often a model answers key + d, for each d that occurs, the commonest first."""

    deviations: Int[Tensor, " deviation"]
    """prediction - key."""
    counts: Int[Tensor, " deviation"]
    """Sequences with it."""
    copied: tuple[tuple[Pair, ...], ...]
    """The pairs whose own shift it is, other than those the batch asked."""
    asked: tuple[tuple[Pair, ...], ...]
    """The pairs that the batch asked and whose own shift it is: there the answer is the composition or the data's."""

    @property
    def n(self) -> int:
        """Sequences that were counted."""
        return int(self.counts.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """What each deviation means in words; empty where it is no pair's shift."""
        return tuple(_name(asked, copied) for asked, copied in zip(self.asked, self.copied, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """One row a deviation: `deviation`, `count`, `share`, `name`."""
        counts = self.counts.numpy()
        return pd.DataFrame(
            {
                "deviation": self.deviations.numpy(),
                "count": counts,
                "share": counts / self.n,
                "name": list(self.names),
            }
        )

    def __repr__(self) -> str:
        rows = zip(self.deviations.tolist(), (self.counts / self.n).tolist(), self.names, strict=True)
        lines = [f"{deviation:+6d}  {share:.3f}  {name}".rstrip() for deviation, share, name in rows]
        left_out = [f"   and {len(lines) - 10} others"] if len(lines) > 10 else []
        return "\n".join([f"prediction - key of {self.n} sequences", *lines[:10], *left_out])

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format=lambda share: f"{share:.3f}")


def deviation_histogram(
    logits: Float[Tensor, "batch pos d_vocab"], batch: Batch, shifts: Mapping[Pair, int]
) -> DeviationHistogram:
    """Count prediction - key over a batch; `shifts` (`task.shifts`) names the pairs with that shift."""
    if not shifts:
        raise TaskError("no pair of this task is a shift, so a deviation names nothing: count predictions instead")
    deviation = predict(logits, batch) - read_role(batch, "key")
    values, counts = deviation.cpu().unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    values, counts = values[order], counts[order]
    size = len(next(iter(shifts)))
    tokens = torch.stack([read_role(batch, f"anchor_{i + 1}") for i in range(size)], dim=1)
    in_batch = {tuple(pair) for pair in tokens.unique(dim=0).tolist()}
    same = [[pair for pair, shift in shifts.items() if shift == value] for value in values.tolist()]
    return DeviationHistogram(
        deviations=values,
        counts=counts,
        copied=tuple(tuple(pair for pair in pairs if pair not in in_batch) for pairs in same),
        asked=tuple(tuple(pair for pair in pairs if pair in in_batch) for pairs in same),
    )


def commutativity(
    logits: Float[Tensor, "batch pos d_vocab"], swapped_logits: Float[Tensor, "swapped pos d_vocab"]
) -> Float[Tensor, " batch"]:
    """1 where a model answers the same for both orders of the anchors, with key and noise the same.

    `swapped_logits` are those of `task.swap(batch)`. The mean is P[prediction(x; 3, 4) = prediction(x; 4, 3)] where
    the batch holds that pair, as in the figures of arXiv 2501.08537, whose text doesn't define it.
    """
    if len(logits) != len(swapped_logits):
        raise TaskError(
            f"{len(logits)} sequences cannot be compared with {len(swapped_logits)} swapped ones: "
            "give the logits of a batch and of task.swap(batch)"
        )
    return (logits[:, -1].argmax(-1) == swapped_logits[:, -1].argmax(-1)).float()


def _name(asked: tuple[Pair, ...], copied: tuple[Pair, ...]) -> str:
    parts = [f"answers {'/'.join(map(str, asked))}"] if asked else []
    parts += [f"copies {'/'.join(map(str, copied))}"] if copied else []
    return ", ".join(parts)
