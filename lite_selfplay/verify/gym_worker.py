"""The program that scores answers by reasoning-gym's rules: `lite_selfplay.verify.worker` with other questions.

A question is {"dataset": name, "options": {...}, "entry": pickled and in base64, "answer": text}, its reply
{"outcome": "score " and the score} or {"outcome": "unparsable"} where the rule fails on the answer.
"""

import base64
import functools
import json
import logging
import math
import os
import pickle
import signal
import sys
from typing import Any, TextIO

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.verify.gym import open_dataset
from lite_selfplay.verify.worker import ALARM_GRACE, limit_memory, set_alarm


@functools.cache
def _dataset(name: str, options: str) -> Any:
    return open_dataset(name, json.loads(options))


def reply_to(question: dict[str, Any]) -> dict[str, str]:
    """The reply to one question. Only running out of memory gets past it."""
    entry = pickle.loads(base64.b64decode(question["entry"]))
    try:
        dataset = _dataset(question["dataset"], json.dumps(question["options"]))
        score = float(dataset.score_answer(question["answer"], entry))
    except MemoryError:
        raise
    except (Exception, SystemExit):  # a rule that evaluates an answer raises anything
        return {"outcome": "unparsable"}
    return {"outcome": "unparsable" if math.isnan(score) else f"score {score!r}"}


def serve(questions: TextIO, replies: TextIO, deadline: float) -> None:
    """Answer questions until their stream ends."""

    def send(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        open_dataset("chain_sum", {})
    except LiteSelfPlayError as error:
        send({"failed": str(error)})
        return
    send({"ready": True})
    for line in questions:
        set_alarm(deadline + ALARM_GRACE)
        reply = reply_to(json.loads(line))
        set_alarm(0)
        send(reply)


def main() -> None:
    """Run as `python -m lite_selfplay.verify.gym_worker DEADLINE_SECONDS MEMORY_MB`."""
    # Ctrl-C is for the parent: a worker that dies of it would turn a pending answer into a wrong one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    # Threads of a numerical library would take address space for each core of the machine.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    deadline, megabytes = float(sys.argv[1]), int(sys.argv[2])
    limit_memory(megabytes)
    # Replies get a stream of their own, so that nothing a rule prints can mix with them.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, replies, deadline)
    except MemoryError:
        os._exit(1)


if __name__ == "__main__":
    main()
