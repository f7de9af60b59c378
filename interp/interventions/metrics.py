"""What a patched run is scored by: one number for each example, from the logits at its scored position.

- `logit_difference`: logit(answer) - logit(wrong), linear in the residual stream after the last norm (Wang et al. 2022,
  arXiv:2211.00593).
- `answer_log_probability`: log softmax(logits)[answer], in nats.
- `kl_to_clean`: KL(clean || patched), in nats: how far the whole prediction is from that of the clean run.

Any function from logits [batch, d_vocab] to one value per example serves as well.

>>> logit_difference(2, 0)(torch.tensor([[1.0, 0.0, 4.0]]))
tensor([3.])
>>> answer_log_probability([1])(torch.zeros(1, 4)).exp()
tensor([0.2500])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError

Answer = int | Sequence[int] | Int[Tensor, "batch"]
"""One token id for all examples, or one for each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """A named function of the logits at the scored positions, and of the clean run's logits there."""

    name: str
    """What the values are called in tables and figures."""
    measure: Callable[..., Tensor]
    """(logits [batch, d_vocab], clean logits [batch, d_vocab]) -> values [batch]."""
    answers: tuple[Tensor, ...] = ()
    """Token ids that it reads, checked against the vocabulary and the batch before anything runs."""

    def __call__(
        self, logits: Float[Tensor, "batch d_vocab"], clean: Float[Tensor, "batch d_vocab"] | None = None
    ) -> Float[Tensor, "batch"]:
        """One finite value per example; `InputError` where the function gives anything else."""
        values = self.measure(logits, clean)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"The metric {self.name} gave {found} for {len(logits)} examples; "
                f"it must return a tensor of shape ({len(logits)},), one value for each."
            )
        if not values.isfinite().all():
            raise InputError(
                f"The metric {self.name} gave {values[~values.isfinite()][0].item()} for example "
                f"{int((~values.isfinite()).nonzero()[0])}; it must be finite for every example."
            )
        return values


def logit_difference(answer: Answer, wrong: Answer) -> Metric:
    """Logit of the answer minus logit of the wrong answer."""
    right_ids, wrong_ids = _as_ids(answer), _as_ids(wrong)
    return Metric(
        name="logit difference",
        measure=lambda logits, clean: _pick(logits, right_ids) - _pick(logits, wrong_ids),
        answers=(right_ids, wrong_ids),
    )


def answer_log_probability(answer: Answer) -> Metric:
    """Log-probability of the answer, in nats."""
    ids = _as_ids(answer)
    return Metric(
        name="log-probability of the answer",
        measure=lambda logits, clean: _pick(logits.log_softmax(-1), ids),
        answers=(ids,),
    )


def kl_to_clean() -> Metric:
    """KL(clean || patched) in nats: 0 for the clean run, and recovery is still 0 for corrupted and 1 for clean."""

    def measure(logits: Tensor, clean: Tensor) -> Tensor:
        theirs = clean.log_softmax(-1)
        return (theirs.exp() * (theirs - logits.log_softmax(-1))).sum(-1)

    return Metric(name="KL to clean", measure=measure)


def prepare_metric(metric: Metric | Callable[..., Any], *, n_examples: int, d_vocab: int) -> Metric:
    """The metric itself with its answers checked, or a caller's function under its own name."""
    if not isinstance(metric, Metric):
        if not callable(metric):
            raise InputError(f"metric={metric!r} is not a function; give one from logits [batch, d_vocab] to [batch].")
        function = metric
        name = getattr(metric, "__name__", type(metric).__name__)
        return Metric(name=name, measure=lambda logits, clean: function(logits))
    for ids in metric.answers:
        if ids.dim() and len(ids) != n_examples:
            raise InputError(
                f"{len(ids)} answers were given for {n_examples} examples: give one token id, or one for each example."
            )
        outside = ids[(ids < 0) | (ids >= d_vocab)]
        if outside.numel():
            raise InputError(
                f"The answer {int(outside[0])} is not a token id of this model: they go from 0 to {d_vocab - 1}."
            )
    return metric


def _as_ids(answer: Any) -> Tensor:
    """Token ids as a scalar or a vector of integers."""
    try:
        ids = torch.as_tensor(answer)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0, 0)
    if ids.dim() > 1 or ids.dtype in (torch.bool, torch.complex64) or ids.is_floating_point():
        raise InputError(
            f"The answer {answer!r} is not one token id: give one integer, or one integer for each example "
            "(a word may be several tokens, so look up its id yourself)."
        )
    return ids


def _pick(values: Float[Tensor, "batch d_vocab"], ids: Tensor) -> Float[Tensor, "batch"]:
    ids = ids.to(values.device)
    return values[:, ids] if ids.dim() == 0 else values.gather(1, ids[:, None])[:, 0]
