"""A warm parent: it has imported the command line and torch, and forks a `lite-selfplay` process for every request.

A request is a line of JSON: `argv`, `cwd`, `out` and `err` (files for what the process writes), `limit` (seconds after
which it and all it started are killed), and possibly `plain` (whether it gives up root's right to write anywhere). The
answer is a line too: `{"code": c, "seconds": s}`; the code of one that a signal ended is that signal's number,
negative, and that of one that took too long is null.

The process runs what a user runs, `lite_selfplay_cli.app.main`. It leaves without taking apart all that was imported,
which would take longer than most requests.
"""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from warm_parent import warm_up

_CAPABILITIES = 0x20080522  # version 3: two words of 32 capabilities each
_PAUSE_S = 0.002


def serve() -> dict[str, Any] | None:
    """Fork for every line. Returns the request in the child, None in the parent when there are no more lines."""
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            return request
        code = _wait(child, started + request["limit"])
        print(json.dumps({"code": code, "seconds": time.monotonic() - started}), flush=True)
    return None


def _wait(child: int, until: float) -> int | None:
    """The exit code of a child, None where it had to be killed."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(_PAUSE_S)


def become(request: dict[str, Any]) -> None:
    """Be the process of a request: its arguments, its folder, its output, its rights."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, target in ((nothing, 0), (os.open(request["out"], flags), 1), (os.open(request["err"], flags), 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    if request.get("plain"):
        give_up_rights()
    sys.argv = ["lite-selfplay", *request["argv"]]


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
    warm_up()
    mine = serve()
    if mine is not None:
        become(mine)
        from lite_selfplay_cli.app import main

        leave(main)
