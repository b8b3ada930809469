"""Questions that wait: a bounded queue before one thread, which alone touches the model."""

import threading
import time
from collections.abc import Sequence
from typing import Literal, Self

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.runs.talk.reply import Reply
from lite_selfplay.runs.talk.speakers import Speakers

WINDOW_S = 0.02
"""Seconds that questions which find nobody speaking wait for others to share their generation."""


class Refused(LiteSelfPlayError):
    """A question that is not taken: too many wait already (`full`), or nobody answers any more (`closed`)."""

    def __init__(self, why: Literal["full", "closed"], sentence: str):
        super().__init__(sentence)
        self.why = why


class Desk:
    """Takes questions from any thread and answers them in one of its own, while the context is open.

    Replies that wait for one seat at one temperature share a generation; the one that has waited longest says whose
    turn it is. At most `most_waiting` are taken that are not answered yet.
    """

    def __init__(self, speakers: Speakers, most_waiting: int = 64):
        self.speakers, self.most_waiting = speakers, most_waiting
        self.generations = 0
        self.pace_s = 1.0
        """Seconds that the last generation took."""
        self._waiting: list[Reply] = []
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="speakers", daemon=True)

    @property
    def waiting(self) -> int:
        """Questions that are not answered yet, and that somebody still waits for."""
        with self._changed:
            return sum(not reply.is_over and not reply.is_cancelled for reply in self._waiting)

    def put(self, replies: Sequence[Reply]) -> None:
        """Have these answered, all or none. Raises Refused."""
        with self._changed:
            if self._closed:
                raise Refused("closed", "the server is stopping")
            if self.waiting + len(replies) > self.most_waiting:
                raise Refused("full", f"{self.waiting} questions wait already, and at most {self.most_waiting} may")
            self._waiting.extend(replies)
            self._changed.notify()

    def close(self) -> None:
        """Cancel what waits, and take nothing more."""
        with self._changed:
            self._closed = True
            for reply in self._waiting:
                reply.cancel()
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join()

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            began = time.monotonic()
            self.speakers.step(waiting)
            self.generations += 1
            self.pace_s = time.monotonic() - began

    def _next(self) -> list[Reply] | None:
        """Those that wait, oldest first, once there is one; None where there will be no other."""
        with self._changed:
            self._waiting = [reply for reply in self._waiting if not reply.is_over]
            if not self._waiting and not self._closed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: self._closed, timeout=WINDOW_S)
            return list(self._waiting) or None
