"""What can go wrong for a user, said in one sentence.

`InputError` is for what was given: its text says what was given, what was expected and what to do. The command line
prints it without a traceback and exits with 2. The other classes are for runs that cannot go on.
"""


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what was given, what was expected and what to do."""


class HookLeakError(RuntimeError):
    """A context manager of this library left a model with other hooks than it found."""


class DivergedError(RuntimeError):
    """Training met a loss that is not finite; the message names the step and the last good checkpoint."""
