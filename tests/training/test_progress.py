"""Progress: lines, heartbeats, and text that cannot control a terminal."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lite_selfplay.training.progress as progress_module
from lite_selfplay.errors import Interrupted
from lite_selfplay.training.progress import (
    Monitor,
    OutOfTime,
    PlainProgress,
    Progress,
    Several,
    as_progress,
    clock,
    printable,
)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    time = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: time[0])
    return time


@pytest.fixture
def said() -> list[str]:
    return []


def test_everything_becomes_a_line(said):
    lines = PlainProgress(said.append)
    lines.say("loading tiny")
    lines.phase("training", 2)
    lines.warn("nothing moves")
    lines.step({"step": 1}, "step 1/2")
    lines.evaluated("after 2 steps", {}, "A 34%")
    lines.finished(["up 3 points", "run folder: x"])
    first = ["loading tiny", "training", "warning: nothing moves", "step 1/2", "after 2 steps: A 34%"]
    assert said == [*first, "up 3 points", "run folder: x"]
    warned: list[str] = []
    PlainProgress(said.append, warn=warned.append).warn("slow")
    assert (said[-1], warned) == ("run folder: x", ["warning: slow"])


def test_a_heartbeat_says_what_is_done_and_for_how_long(now, said):
    lines = PlainProgress(said.append, every_s=5)
    lines.phase("training", 4)
    lines.step({"step": 1}, "step 1/4")
    lines.activity("A samples as drafter")
    lines.advance(1, "loss 0.5")
    now[0] += 4.9
    lines.tick()
    assert said[2:] == []
    now[0] += 0.1
    lines.tick()
    lines.tick()
    assert said[2:] == ["  ... training, 1 of 4 done; A samples as drafter for 0:05; loss 0.5"]
    now[0] += 60
    lines.tick()
    assert said[-1] == "  ... training, 1 of 4 done; A samples as drafter for 1:05; loss 0.5"
    lines.phase("loading")  # of unknown length
    now[0] += 7
    lines.tick()
    assert said[-2:] == ["loading", "  ... loading; at work for 0:07"]


def test_a_heartbeat_says_how_far_the_tokens_are(now, said):
    lines = PlainProgress(said.append, every_s=0)
    lines.phase("evaluation", 100)
    lines.activity("A answers problems 1 to 64")
    now[0] += 8
    lines.tokens(214, 1024)
    lines.tick()
    assert said[-1] == "  ... evaluation, 0 of 100 done; A answers problems 1 to 64 for 0:08, up to 214 of 1,024 tokens"
    lines.tokens(2000, None)
    lines.tick()
    assert said[-1].endswith(" for 0:08, 2,000 token steps")
    lines.activity("answers are checked")
    lines.tick()
    assert said[-1] == "  ... evaluation, 0 of 100 done; answers are checked for 0:00"


class Counted(Progress):
    """Keeps its calls in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tokens(self, done: int, most: int | None) -> None:
        self.told.append((done, most))

    def tick(self) -> None:
        self.told.append("tick")

    def step(self, metrics: Any, line: str) -> None:
        self.told.append(line)


def test_a_monitor_counts_tokens_where_it_is_told_to():
    ear = Counted()
    monitor = Monitor(ear)
    monitor.poll()
    with monitor.counting(8):
        monitor.poll()
        monitor.poll()
    monitor.poll()
    with monitor.counting(None):
        monitor.poll()
    assert ear.told == ["tick", (0, 8), "tick", (1, 8), "tick", "tick", (0, None), "tick"]


def test_a_monitor_stops_what_it_counts_and_is_late(now):
    ear, stops = Counted(), iter([Interrupted("stopped by a test")] * 2)

    def stop() -> None:
        for error in stops:
            raise error

    monitor = Monitor(ear, stop=stop)
    with monitor.unstopped():
        monitor.poll()
    with pytest.raises(Interrupted), monitor.counting(8):
        monitor.poll()
    with pytest.raises(Interrupted):
        monitor.poll()
    assert ear.told == ["tick", (0, 8), "tick", "tick"]
    with monitor.within(5):
        monitor.poll()
        now[0] += 5
        with pytest.raises(OutOfTime):
            monitor.poll()
    monitor.poll()


def test_what_counts_as_progress(said):
    mine = Progress()
    assert as_progress(mine) is mine
    as_progress(said.append).say("a line")
    assert said == ["a line"]
    as_progress(None).finished(["x"])


def test_clock():
    assert [*map(clock, (0, 59.4, 59.6, 3599, 3661))] == ["0:00", "0:59", "1:00", "59:59", "1:01:01"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone?", "gone?"),
        ("\x9b31mred", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never closed", "0;never closed"),
        ("\x1bcreset", "reset"),
        ("a\r\nb\rc\x0bd\u2028e", "a\nb\nc\nd\ne"),
        ("a\tb", "a   b"),
        ("bell\x07 back\x08 nul\x00", "bell back nul"),
        ("\u202eturned\u202c", "turned"),
        ("lone \ud800", "lone "),
        ("naïve 漢字 e\u0301", "naïve 漢字 e\u0301"),
    ],
)
def test_what_is_left_of_text(text, shown):
    assert printable(text) == shown


HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("\x1b[]\x9b\x07\\;m0123HJP^_\r\n\t")))


@given(HOSTILE)
def test_nothing_that_drives_a_terminal_is_left(text):
    shown = printable(text)
    assert all(c == "\n" or c.isprintable() or c.isspace() or ord(c) > 0x9F for c in shown)
    assert not set(shown) & {"\x1b", "\x9b", "\r", "\t"}
    shown.encode()
    assert printable(shown) == shown


def test_the_time_left_follows_from_what_was_done_in_this_phase(now, said):
    lines = PlainProgress(said.append, every_s=0)

    def left(at: float, done: int | None = None) -> str:
        now[0] = at
        if done is not None:
            lines.advance(done)
        lines.tick()
        return said[-1].partition("; ")[0]

    lines.phase("evaluation", 120)
    assert left(101.0, 40) == "  ... evaluation, 40 of 120 done"  # these may have been restored
    assert left(121.0, 50) == "  ... evaluation, 50 of 120 done, about 2:20 left"  # 10 parts in 20 s
    assert left(141.0).endswith("about 2:00 left")
    assert left(999.0).endswith("about 0:00 left")  # longer than expected
    assert left(1000.0, 120) == "  ... evaluation, 120 of 120 done"


def test_several_hear_the_same():
    first, second = Counted(), Counted()
    both = Several(Progress(), first, second)
    both.tokens(1, most=8)
    both.tick()
    both.step({"step": 1}, "step 1/2")
    assert first.told == second.told == [(1, 8), "tick", "step 1/2"]
    assert not both.verbose
    assert Several(Progress(), PlainProgress(print, verbose=True)).verbose
