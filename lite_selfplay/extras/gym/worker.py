"""What a checking process runs: a JSON question per line on stdin, a JSON reply per line on stdout.

Its first line is {"ready": true} or {"failed": reason}. A reply is {"outcome": text}. The program ends when stdin is
closed. It is started by `lite_selfplay.extras.gym.pool`, which kills it if an answer takes too long; if that parent is
gone, the program's own alarm ends it.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from lite_selfplay.errors import LiteSelfPlayError

# Seconds between the parent's deadline and the alarm.
ALARM_GRACE = 5.0

Reply = Callable[[dict[str, Any]], dict[str, str]]
"""From a question to its reply."""


def limit_memory(megabytes: int) -> None:
    """Limit the address space, if the system can: an answer must not use up the machine's memory."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    except (ImportError, ValueError, OSError):
        return


def set_alarm(seconds: float) -> None:
    """End this process after `seconds` of work, even inside C code; 0 cancels the alarm.

    Seconds of the processor, since a process that is stopped for a while must find its question unharmed.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def serve(questions: TextIO, replies: TextIO, deadline: float, prepare: Callable[[], Reply]) -> None:
    """Answer questions until their stream ends, using the function that `prepare` loads."""

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        reply = prepare()
    except (ImportError, LiteSelfPlayError) as error:
        send({"failed": str(error)})
        return
    send({"ready": True})
    for line in questions:
        set_alarm(deadline + ALARM_GRACE)
        answered = reply(json.loads(line))
        set_alarm(0)
        send(answered)


def run(prepare: Callable[[], Reply]) -> None:
    """Run a checking process; its command-line arguments are the deadline in seconds and the memory limit in MiB."""
    # Ctrl-C is for the parent: if it ended a worker, the pending answer would count as wrong.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    deadline, megabytes = float(sys.argv[1]), int(sys.argv[2])
    limit_memory(megabytes)
    # Replies have a stream of their own, so that nothing that a library prints is mixed with them.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, replies, deadline, prepare)
    except MemoryError:
        os._exit(1)
