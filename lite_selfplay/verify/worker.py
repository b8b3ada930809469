"""The program a checking process runs: one JSON question a line on stdin, one JSON reply a line on stdout.

The first line it writes says {"ready": true}, or {"failed": reason}. A question is {"references": [[value, ...], ...],
"answer": text}, its reply {"outcome": "same" | "different" | "unparsable"}. It ends with its stdin. It is started by
`lite_selfplay.verify.workers`, which kills it when an answer takes too long; should that parent be gone, an alarm of
its own ends it.
"""

import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.verify.exact import judge

# How much later than the parent's deadline the alarm rings.
ALARM_GRACE = 5.0
# What a decimal of six digits may be off by.
RELATIVE_ERROR = 1e-6

Compare = Callable[[str, str], bool]
Reply = Callable[[dict[str, Any]], dict[str, str]]
"""A question to its reply."""


class UnparsableAnswer(Exception):
    """math-verify could make nothing of the answer."""


def load_compare() -> Compare:
    """math-verify as a function of (reference, answer), loaded and warmed up; ImportError where it is missing."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # Its list of units would strip symbols: "2m" would be 2, "\\frac{1}{m} t" would lose its t.
    normalization = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)]

    def read(text: str) -> list[Any]:
        # The whole text must be one formula: no searching for a piece that parses. Its own time limits are off, they
        # would need the alarm and do not interrupt C code.
        return parse(
            f"${text}$", config, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None
        )

    def compare(gold: str, answer: str) -> bool:
        wanted, given = read(gold), read(answer)
        if not given:
            raise UnparsableAnswer(answer)
        return bool(verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None)) and close_if_small(
            wanted, given
        )

    compare("\\frac{1}{2}", "x + 0.5")
    return compare


def close_if_small(gold: list[Any], answer: list[Any]) -> bool:
    """False where both are numbers below one that differ by more than `RELATIVE_ERROR`.

    math-verify rounds to a fixed number of decimal places: 2e-19 and 3e-19 are the same to it.
    """
    if not all(getattr(value, "is_number", False) for value in (*gold, *answer)):
        return True
    try:
        first, second = complex(gold[0]), complex(answer[0])
    except OverflowError:
        return True
    largest = max(abs(first.real), abs(first.imag), abs(second.real), abs(second.imag))
    return largest >= 1 or abs(first - second) <= RELATIVE_ERROR * largest


def reply_to(question: dict[str, Any], compare: Compare) -> dict[str, str]:
    """The reply to one question. Only running out of memory gets past it."""
    unparsable = False

    def leaf(gold: str, answer: str) -> bool:
        nonlocal unparsable
        try:
            return compare(gold, answer)
        except MemoryError:
            raise
        except Exception:  # sympy and the parser raise anything on odd input
            unparsable = True
            return False

    if judge(question["references"], question["answer"], leaf):
        return {"outcome": "same"}
    return {"outcome": "unparsable" if unparsable else "different"}


def limit_memory(megabytes: int) -> None:
    """Cap the address space, where the system can: an answer must not take the machine down."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    except (ImportError, ValueError, OSError):
        return


def set_alarm(seconds: float) -> None:
    """End this process after `seconds`, even inside C code; 0 calls that off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def serve(questions: TextIO, replies: TextIO, deadline: float, prepare: Callable[[], Reply]) -> None:
    """Answer questions until their stream ends, by the function that `prepare` loads or fails to load."""

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
    """A checking process from its start to its end; its arguments are the deadline in seconds and its memory in MB."""
    # Ctrl-C is for the parent: a worker that dies of it would turn a pending answer into a wrong one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    deadline, megabytes = float(sys.argv[1]), int(sys.argv[2])
    limit_memory(megabytes)
    # Replies get a stream of their own, so that nothing a library prints can mix with them.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(sys.stdin, replies, deadline, prepare)
    except MemoryError:
        os._exit(1)


def by_math_verify() -> Reply:
    """What this program answers with."""
    try:
        compare = load_compare()
    except ImportError as error:
        raise ImportError(f"math-verify cannot be imported: {error}") from error
    return functools.partial(reply_to, compare=compare)


if __name__ == "__main__":
    run(by_math_verify)
