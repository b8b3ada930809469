"""A warm parent (`tests/warm_parent.py`) for requests. One may be `plain`: it gives up root's right to write anywhere.

A process leaves without taking apart all that was imported, which would take longer than most requests.
"""

import atexit
import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from warm_parent import serve

_CAPABILITIES = 0x20080522  # version 3: two words of 32 capabilities each


def become(request: dict[str, Any]) -> None:
    """Be the process of a request: at the head of all that it starts, and with its rights."""
    os.setsid()
    if request.get("plain"):
        give_up_rights()


def give_up_rights() -> None:
    """Let root's process obey the modes of files as everybody's does: without capabilities, on Linux."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
        ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)())


def leave(main: Callable[[], None]) -> NoReturn:
    """Run a command to its end, as the interpreter would, with everything written."""
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(become, leave)
