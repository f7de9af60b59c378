"""Keep the chatter of the libraries below out of our output while a model is loaded.

TransformerLens logs to the root logger, whose first message would install a handler on stderr for the whole process;
transformers draws a progress bar for loading weights and reports tensors that we check ourselves. What the user's own
logging configuration asks for still arrives.

>>> before = list(logging.getLogger().handlers)
>>> with quiet_libraries():
...     logging.warning("Missing key for a weight matrix in pretrained")
>>> logging.getLogger().handlers == before
True
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No progress bars of transformers and no root logging to stderr inside the block; all as before after it."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    root = logging.getLogger()
    silence = None if root.handlers else logging.NullHandler()
    if silence is not None:
        root.addHandler(silence)
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    hub_verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub_logging.set_verbosity(hub_verbosity)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if silence is not None:
            root.removeHandler(silence)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """For the GGUF reader, whose bars can be silenced in no other way."""
    with redirect_stderr(io.StringIO()):
        yield
