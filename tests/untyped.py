"""The tests run with type checks that users don't have; this switches them off, to see what a user's mistake meets."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def as_without_type_checks() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
