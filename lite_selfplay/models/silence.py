"""Keeping libraries' progress bars and notices off the terminal."""

import contextlib
import logging as python_logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence libraries' progress bars and notices for the length of a run."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers.utils import logging

    # Deprecated names of transformers are used, because older releases only know those.
    warnings.filterwarnings("ignore", r"`\w+` is deprecated and will be removed", FutureWarning)
    # On some CPUs its import reports a missing inference kernel, which training does not use.
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
