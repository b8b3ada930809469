"""Stopping a run from outside without tearing a step.

The first SIGINT, SIGTERM or SIGHUP sets a flag that long work asks for between tokens and between layers, never inside
an optimizer step or a save; a second SIGINT or SIGTERM ends the process at once. Before anybody has asked, while a
model is still being loaded and there is nothing to save, the first one leaves at once as KeyboardInterrupt.

A terminal that closes sends SIGHUP, often twice: once by the shell and once by the system. So it asks, and never
hurries. Where it was ignored at the start, as under `nohup`, it stays ignored.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from lite_selfplay.errors import Interrupted

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # not on Windows
NOTHING_SAVED = "stopped: nothing was saved"


def stopping_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a run to stop: SIGHUP only where this process does not ignore it."""
    heard = HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP is not None and heard else []))


class Interrupts:
    """A context in which signals ask instead of killing. Outside the main thread it changes nothing.

    `patient`: a second signal ends nothing. Who starts several processes passes signals on to each of them, and kills
    those that have not ended in half a minute.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._asked: str | None = None
        self._insisted = self._polled = False
        self._before: dict[signal.Signals, Any] = {}
        self._unraisable = sys.unraisablehook

    def poll(self) -> None:
        """Raise Interrupted if somebody asked to stop. From the first call on, signals wait for the next."""
        self._polled = True
        if self._asked is not None:
            raise Interrupted(f"stopped by {self._asked}")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            around = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if isinstance(around, Interrupts) and around._unheard:
                raise KeyboardInterrupt
            self._before = {number: signal.signal(number, self._ask) for number in stopping_signals()}
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._ask:
                signal.signal(number, handler)
        if sys.unraisablehook == self._lost:
            sys.unraisablehook = self._unraisable
        if self._unheard and isinstance(error, Exception):
            raise KeyboardInterrupt from None

    @property
    def _unheard(self) -> bool:
        """Whether it has raised KeyboardInterrupt. A library that is being imported may make another error of that,
        or none at all."""
        return self._asked is not None and not self._polled

    def _lost(self, error: "sys.UnraisableHookArgs") -> None:
        """Keep silent where a destructor or a callback swallowed a KeyboardInterrupt that was asked for: it is raised
        again, by the next poll at the latest."""
        if self._asked is None or not issubclass(error.exc_type, KeyboardInterrupt):
            self._unraisable(error)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number != HANGUP and not self._patient:
            if self._insisted:
                os.write(2, b"stopped at once\n")
                os._exit(130)
            self._insisted = True
        if self._asked is not None:
            return
        self._asked = signal.Signals(number).name
        if self._unheard:
            raise KeyboardInterrupt


@contextlib.contextmanager
def ending_at_once(poll: Callable[[], None]) -> Iterator[None]:
    """A context for code that asks nobody, such as a user's own: a signal ends it as KeyboardInterrupt.

    Where `poll` is that of `Interrupts`, it is raised as Interrupted, which saves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in stopping_signals()}

    def end(number: int, frame: FrameType | None) -> None:
        before[number](number, frame)
        raise KeyboardInterrupt

    for number in (number for number, handler in before.items() if callable(handler)):
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt:
        poll()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
