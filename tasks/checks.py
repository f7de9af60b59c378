"""What no task can draw: one sentence for each, raised by `sample`.

>>> check_split("test", ("train", "id"), name="SCAN, simple")
Traceback (most recent call last):
tasks.task.TaskError: SCAN, simple has no split 'test': give one of train, id
"""

from collections.abc import Sequence

from tasks.task import TaskError


def check_number(n: int) -> None:
    """A batch has at least one sequence."""
    if n < 1:
        raise TaskError(f"a batch of {n} sequences cannot be drawn: give at least 1")


def check_split(split: str, splits: Sequence[str], *, name: str) -> None:
    """The split is one of the task's."""
    if split not in splits:
        raise TaskError(f"{name} has no split {split!r}: give one of {', '.join(splits)}")
