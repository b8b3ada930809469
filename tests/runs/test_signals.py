"""Stopping from outside: what a signal does, and where long work asks whether to stop."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lite_selfplay.errors import Interrupted
from lite_selfplay.extras.gym import WorkerPool
from lite_selfplay.models.backends.transformers import between_layers
from lite_selfplay.training.interrupts import Interrupts, ending_at_once

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """The tests themselves may have been started not to hear of a closed terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def working() -> Iterator[Interrupts]:
    """Work that asks whether to stop, and did so once."""
    with Interrupts() as interrupts:
        interrupts.poll()
        yield interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_there_is_nothing_to_save_the_first_signal_leaves_at_once(number: signal.Signals):
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), number)
    with working() as interrupts:
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=f"stopped by {number.name}"):
            interrupts.poll()


def test_a_signal_after_the_last_poll_of_some_work_stops_what_follows():
    with contextlib.suppress(KeyboardInterrupt), Interrupts():
        with working():
            os.kill(os.getpid(), signal.SIGTERM)
        with Interrupts():
            pytest.fail("other work began")
        pytest.fail("nothing stopped it")


FINDER = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {imported!r}:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except KeyboardInterrupt:
                {becomes}
sys.meta_path.insert(0, Finder())
sys.argv = ['', *'train agon --model tiny --tasks letters --steps 1 --run-dir run'.split()]
from lite_selfplay_cli.__main__ import main
main()
"""
SECOND = """
import os, signal
from lite_selfplay.training.interrupts import Interrupts
with Interrupts() as interrupts:
    interrupts.poll()
    os.kill(os.getpid(), signal.SIGINT)
    print('waits', flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print('stayed', flush=True)
"""


def ended(program: str, folder: Path) -> Any:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("imported", "becomes"),
    [
        ("lite_selfplay_cli.app", "raise"),
        ("lite_selfplay.config", "raise RuntimeError('Could not import') from None"),
        ("lite_selfplay.runs.planning", "pass"),
    ],
)
def test_a_signal_in_the_first_seconds_is_answered_by_one_sentence(tmp_path, imported, becomes):
    """Whatever is being imported then, and whatever that makes of it."""
    found = ended(FINDER.format(imported=imported, becomes=becomes), tmp_path)
    assert (found.returncode, found.stderr, list(tmp_path.iterdir())) == (130, "stopped: nothing was saved\n", [])


def test_the_second_signal_leaves_at_once(tmp_path):
    found = ended(SECOND, tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (130, "waits\n", "stopped at once\n")


def test_a_destructor_that_a_signal_meets_swallows_neither_the_stop_nor_its_own_faults(monkeypatch):
    """Python prints what is raised in one, and goes on: a stop is not printed, and comes with the next poll."""

    class Closed:
        def __init__(self, error: type[Exception] | None) -> None:
            self.error = error

        def __del__(self) -> None:
            if self.error is not None:
                raise self.error
            signal.raise_signal(signal.SIGTERM)

    printed: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))
    with Interrupts() as interrupts:
        Closed(ValueError)
        Closed(None)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            interrupts.poll()
    with working() as interrupts:
        with ending_at_once(interrupts.poll):  # within a user's own code
            Closed(None)
        with pytest.raises(Interrupted):
            interrupts.poll()
    Closed(OSError)
    assert printed == [ValueError, OSError]


def test_a_terminal_that_closes_asks_and_never_hurries_and_where_it_was_to_be_ignored_stays_so():
    with working() as interrupts:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match="stopped by SIGHUP"):
            interrupts.poll()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with working() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.poll()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_waiting_for_the_checker_asks_whether_to_stop():
    silent = "import time; print('{\"ready\": true}', flush=True); time.sleep(100)"
    asked: list[float] = []

    def poll() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise Interrupted("stopped")

    with contextlib.closing(WorkerPool(1, 100, command=[sys.executable, "-c", silent])) as pool:
        with pytest.raises(Interrupted):
            pool.work([{"q": 1}], poll)
        assert asked[-1] - asked[0] < 10.0


class Layer(GradientCheckpointingLayer):  # type: ignore[misc]
    """What stands for a decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_a_microbatch_asks_between_its_layers_forwards_and_backwards_and_may_be_stopped():
    asked: list[str] = []

    def poll() -> None:
        asked.append("asked")
        if len(asked) > 6:
            raise Interrupted("stopped")

    layers = nn.Sequential(Layer(), nn.ReLU(), Layer())
    between_layers(layers, poll)
    layers.eval()
    layers(torch.ones(2, 3))
    assert not asked
    layers.train()
    loss = layers(torch.ones(2, 3)).sum()
    assert len(asked) == 2
    loss.backward()
    assert len(asked) == 4
    loss = layers(torch.ones(2, 3)).sum()
    with pytest.raises(Interrupted, match="stopped"):
        loss.backward()


def test_of_many_layers_only_the_last_of_so_many_asks():
    asked: list[int] = []
    layers = nn.Sequential(*(Layer() for _ in range(5)))
    between_layers(layers, lambda: asked.append(sum(p.grad is not None for p in layers.parameters())), 2)
    loss = layers(torch.ones(2, 3)).sum()
    assert asked == [0, 0]
    loss.backward()
    assert asked == [0, 0, 2, 6]  # weights and biases of the layers that were passed on the way back


def wait_after(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(100)


def test_code_that_asks_nobody_ends_at_once_and_saves():
    """A user's own reward function may take an hour, and swallow whatever it can catch."""
    with working() as interrupts, pytest.raises(Interrupted, match="by SIGINT"), ending_at_once(interrupts.poll):
        wait_after(signal.SIGINT)
    with working() as interrupts:
        with ending_at_once(interrupts.poll), contextlib.suppress(BaseException):
            wait_after(signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            interrupts.poll()


def test_outside_a_run_a_signal_stays_what_it_is(request: pytest.FixtureRequest):
    # A shell that started the tests in the background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt), ending_at_once(lambda: None):
        os.kill(os.getpid(), signal.SIGINT)
