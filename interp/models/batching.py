"""Work through sequences in batches that fit, and go on with half the batch when memory runs out.

>>> sizes = []
>>> notes = for_each_batch(5, lambda rows: sizes.append(len(range(5)[rows])), batch_size=2)
>>> sizes, notes
([2, 2, 1], [])
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

_BUDGET_BYTES = 2**28
"""Activations alive at once; far below a laptop's memory, and beyond this a larger batch is hardly faster."""


def choose_batch_size(model: Any, n_positions: int) -> int:
    """Sequences whose activations inside one layer stay within the budget."""
    cfg = model.cfg
    width = 6 * cfg.d_model + 3 * (getattr(cfg, "d_mlp", None) or 0) + 3 * cfg.n_heads * n_positions
    return max(1, _BUDGET_BYTES // (4 * width * n_positions))


def split_evenly(n: int, *, at_most: int) -> int:
    """The batch size that cuts `n` into as few batches as `at_most` allows, all but the same size: never 16 and 1."""
    n_batches = -(-n // at_most)
    return -(-n // n_batches)


def for_each_batch(n: int, run: Callable[[slice], object], *, batch_size: int) -> list[str]:
    """Call `run(rows)` over `range(n)`; returns a note for each time the batch had to be halved.

    `run` must store its result only at its end, since a batch that fails is run again in two halves.
    """
    notes: list[str] = []
    start = 0
    while start < n:
        stop = min(start + batch_size, n)
        try:
            run(slice(start, stop))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or batch_size == 1:
                raise
            batch_size = max(1, (stop - start) // 2)
            notes.append(f"out of memory with {stop - start} sequences at once, went on with {batch_size}")
            logger.warning(notes[-1])
            continue
        start = stop
    return notes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on an accelerator or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
