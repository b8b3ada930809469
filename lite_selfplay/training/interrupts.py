"""Stopping a run by a signal, without leaving a step half done.

The first SIGINT, SIGTERM or SIGHUP sets a flag. Long work polls it between tokens and between layers, never during an
optimizer step or a save. A second SIGINT or SIGTERM ends the process at once. Before the first poll, while a model is
still being loaded and there is nothing to save, the first signal raises KeyboardInterrupt.

A terminal that closes sends SIGHUP, often twice (from the shell and from the system), so a second SIGHUP is ignored. If
SIGHUP was ignored at the start, as under `nohup`, it stays ignored.
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
    """The signals that stop a run: SIGHUP only if this process does not ignore it."""
    hangs_up = HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP is not None and hangs_up else []))


class Interrupts:
    """A context in which signals request a stop instead of killing. Outside the main thread it changes nothing.

    `patient`: a second signal does not end the process. torchrun, for example, passes every signal on to its processes
    and kills those that have not ended within half a minute.

    `has_worked`: whether work in a context within this one has ended that polled, as a run does, and so may have saved.
    """

    has_worked = False

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._asked: str | None = None
        self._insisted = self._polled = False
        self._before: dict[signal.Signals, Any] = {}
        self._unraisable = sys.unraisablehook

    def poll(self) -> None:
        """Raise Interrupted if a stop was requested. From the first call on, a signal takes effect at the next poll."""
        self._polled = True
        if self._asked is not None:
            raise Interrupted(f"stopped by {self._asked}")

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            around = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if isinstance(around, Interrupts) and around._raised:
                raise KeyboardInterrupt
            self._before = {number: signal.signal(number, self._ask) for number in stopping_signals()}
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._ask:
                signal.signal(number, handler)
        if sys.unraisablehook == self._swallowed:
            sys.unraisablehook = self._unraisable
        around = getattr(self._before.get(signal.SIGTERM), "__self__", None)
        if error is None and isinstance(around, Interrupts):
            around._asked = around._asked or self._asked  # the work ended before its next poll; none may follow it
            around.has_worked |= self._polled or self.has_worked
        if self._raised and isinstance(error, Exception) and not isinstance(error, Interrupted):
            raise KeyboardInterrupt from None

    @property
    def _raised(self) -> bool:
        """Whether KeyboardInterrupt was raised, even if a library has swallowed it during its import."""
        return self._asked is not None and not self._polled

    def _swallowed(self, error: "sys.UnraisableHookArgs") -> None:
        """Print nothing about a KeyboardInterrupt swallowed by a destructor or callback: a poll raises it again."""
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
        if self._raised:
            raise KeyboardInterrupt


@contextlib.contextmanager
def ending_at_once(poll: Callable[[], None]) -> Iterator[None]:
    """A context for code that does not poll, such as a user's: a signal ends it with KeyboardInterrupt.

    With the `poll` of `Interrupts` it ends with Interrupted instead, so that the run is saved.
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
