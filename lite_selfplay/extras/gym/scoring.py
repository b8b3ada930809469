"""The program that scores answers with reasoning-gym's scorers, in a process of its own.

It first writes the line {"ready": true} or {"failed": reason} to stdout. Then it reads one JSON question per line from
stdin and writes one JSON reply per line to stdout, until stdin is closed. Its parent kills it if a reply takes too
long. A parent that has died cannot do so; therefore an alarm ends the program if a question takes 5 seconds of CPU time
more than the parent allows.

A question is {"dataset": name, "options": {...}, "entry": pickled, in base64, "answer": text}; its reply is {"outcome":
"score 0.5"}, or {"outcome": "unparsable"} if the scorer fails on the answer.
"""

import base64
import contextlib
import functools
import json
import logging
import math
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.extras.gym import open_dataset
from lite_selfplay.extras.gym.literals import replace_eval

ALARM_GRACE = 5.0  # seconds between the parent's deadline and the alarm

Reply = Callable[[dict[str, Any]], dict[str, str]]  # maps a question to its reply


def run(prepare: Callable[[], Reply]) -> None:
    """Run this program: read questions from stdin and write replies to stdout, one JSON object per line, until stdin
    ends. `prepare` is called once at the beginning, and returns a `Reply`: the function that maps a question to the
    reply to it. The program's first command-line argument is the time in seconds that its parent allows for a question.
    If a question takes more CPU time than that plus 5 seconds, an alarm kills the program. The second argument is the
    memory limit in MiB; at the limit, the program exits without a reply."""
    # Only the parent handles Ctrl-C: if it ended a worker, the pending answer would count as wrong.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    deadline, megabytes = float(sys.argv[1]), int(sys.argv[2])
    with contextlib.suppress(ValueError, OSError):  # an answer must not use up the machine's memory
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    # Replies have a separate stream, which no library prints to.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    say = functools.partial(print, file=replies, flush=True)
    try:
        reply = prepare()
        say(json.dumps({"ready": True}))
        for line in sys.stdin:
            # Ends this process by CPU time, even inside C code: a process suspended for a while must keep its question.
            signal.setitimer(signal.ITIMER_PROF, deadline + ALARM_GRACE)
            answered = reply(json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            say(json.dumps(answered))
    except MemoryError:
        os._exit(1)
    except (ImportError, LiteSelfPlayError) as error:
        say(json.dumps({"failed": str(error)}))


@functools.cache
def _dataset(name: str, options: str) -> Any:
    return open_dataset(name, json.loads(options))


def reply_to(question: dict[str, Any]) -> dict[str, str]:
    """Score the answer in `question` (see the top of this file) with the scorer of its data set. The reply's outcome is
    `score 0.5`, for example, or `unparsable` if the scorer raises or returns NaN. MemoryError is passed on."""
    entry = pickle.loads(base64.b64decode(question["entry"]))
    try:
        dataset = _dataset(question["dataset"], json.dumps(question["options"]))
        score = float(dataset.score_answer(question["answer"], entry))
    except MemoryError:
        raise
    except (Exception, SystemExit):  # a scorer that evaluates an answer may raise anything
        return {"outcome": "unparsable"}
    return {"outcome": "unparsable" if math.isnan(score) else f"score {score!r}"}


def by_its_own_rules() -> Reply:
    """Import reasoning-gym, make one of its data sets to see whether the package works, and keep its scorers from
    running answers as programs (`literals`). Returns the function `reply_to`, which scores an answer with the scorer of
    its data set. Raises TaskError if the package cannot be imported or cannot make the data set."""
    open_dataset("chain_sum", {})
    replace_eval()
    return reply_to


if __name__ == "__main__":
    run(by_its_own_rules)
