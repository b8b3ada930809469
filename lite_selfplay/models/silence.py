"""Keeping the libraries' own progress bars and notices off the terminal."""

import contextlib
import logging as python_logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' progress bars and notices off the terminal for the length of a run."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers.utils import logging

    # Names that older releases of transformers know alone, and newer ones as well: both are in use.
    warnings.filterwarnings("ignore", r"`\w+` is deprecated and will be removed", FutureWarning)
    # At its import on some CPUs it misses a kernel of inference, which training does not use.
    theirs = python_logging.getLogger("bitsandbytes")
    level = theirs.level
    theirs.setLevel(python_logging.ERROR)
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        theirs.setLevel(level)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
