"""Progress: lines, heartbeats, and text that cannot drive a terminal."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lite_selfplay.training.progress as progress_module
from lite_selfplay.errors import Interrupted
from lite_selfplay.training.progress import Pace, PlainProgress, Poll, Progress, as_progress, clock, printable


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is moved."""
    time = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: time[0])
    return time


def test_everything_becomes_a_line(now):
    said: list[str] = []
    lines = PlainProgress(said.append)
    lines.say("loading tiny")
    lines.phase("training", 2)
    lines.warn("nothing moves")
    lines.step({"step": 0}, [], "step 1/2")
    lines.evaluated("after 2 steps", {}, "A 34%")
    lines.finished(["up 3 points", "the run: x"])
    assert said == [
        "loading tiny",
        "training",
        "warning: nothing moves",
        "step 1/2",
        "after 2 steps: A 34%",
        "up 3 points",
        "the run: x",
    ]


def test_warnings_go_where_they_are_sent():
    said, warned = [], []
    lines = PlainProgress(said.append, warn=warned.append)
    lines.warn("slow")
    lines.say("on")
    assert (said, warned) == (["on"], ["warning: slow"])


def test_a_heartbeat_says_what_is_done_and_for_how_long(now):
    said: list[str] = []
    lines = PlainProgress(said.append, every_s=5)
    lines.phase("training", 4)
    lines.step({"step": 0}, [], "step 1/4")
    lines.activity("A speaks as drafter")
    lines.advance(1, "loss 0.5")
    now[0] += 4.9
    lines.tick()
    assert said[2:] == []
    now[0] += 0.1
    lines.tick()
    lines.tick()
    assert said[2:] == ["  ... training, 1 of 4 done; A speaks as drafter for 0:05; loss 0.5"]
    now[0] += 60
    lines.tick()
    assert said[-1] == "  ... training, 1 of 4 done; A speaks as drafter for 1:05; loss 0.5"


def test_a_heartbeat_of_a_phase_of_unknown_length(now):
    said: list[str] = []
    lines = PlainProgress(said.append, every_s=5)
    lines.phase("loading")
    now[0] += 7
    lines.tick()
    assert said == ["loading", "  ... loading; at work for 0:07"]


def test_a_heartbeat_says_how_far_the_tokens_are(now):
    said: list[str] = []
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
    def __init__(self) -> None:
        self.told: list[Any] = []

    def tokens(self, done: int, most: int | None) -> None:
        self.told.append((done, most))

    def tick(self) -> None:
        self.told.append("tick")


def test_a_poll_counts_tokens_where_it_is_told_to():
    ear = Counted()
    poll = Poll(ear)
    poll()
    with poll.counting(8):
        poll()
        poll()
    poll()
    with poll.counting(None):
        poll()
    assert ear.told == ["tick", (0, 8), "tick", (1, 8), "tick", "tick", (0, None), "tick"]


def test_a_poll_stops_what_it_counts():
    ear = Counted()

    def stop() -> None:
        raise Interrupted("stopped by a test")

    poll = Poll(ear, stop)
    with pytest.raises(Interrupted), poll.counting(8):
        poll()
    with pytest.raises(Interrupted):
        poll()
    assert ear.told == [(0, 8), "tick", "tick"]


def test_what_counts_as_progress():
    mine, said = Progress(), []
    assert as_progress(mine) is mine
    as_progress(said.append).say("a line")
    assert said == ["a line"]
    silent = as_progress(None)
    silent.say("x")
    silent.warn("x")
    silent.phase("x")
    silent.finished(["x"])


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")]
)
def test_clock(seconds, said):
    assert clock(seconds) == said


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


def test_the_time_left_follows_from_what_was_done_in_this_phase():
    pace = Pace(100.0)
    assert pace.left(100.0, 12) is None
    pace.at(110.0, 2)  # 5 s a part
    assert pace.left(110.0, 12) == 50.0
    assert pace.left(125.0, 12) == 35.0
    assert pace.left(300.0, 12) == 0.0  # longer than expected
    pace.at(112.0, 12)
    assert pace.left(112.0, 12) is None


def test_what_a_phase_that_is_gone_on_with_begins_with_took_no_time():
    pace = Pace(0.0)
    pace.at(0.2, 40)  # restored
    assert pace.left(0.2, 48) is None
    pace.at(20.2, 44)
    assert pace.left(20.2, 48) == 20.0


def test_parts_that_took_no_work_tell_nothing_of_those_to_come():
    pace = Pace(0.0)
    pace.at(60.0, 600, free=True)  # restored on a busy machine
    assert pace.left(60.0, 720) is None
    pace.at(100.0, 640)  # 1 s a part
    assert pace.left(100.0, 720) == 80.0
    pace.at(101.0, 680, free=True)  # shared with another mode
    pace.at(141.0, 700)  # 60 parts of work in 81 s
    assert pace.left(141.0, 720) == pytest.approx(81 / 60 * 20)


def test_without_a_tick_there_was_no_work(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("lite_selfplay.training.progress.time.monotonic", lambda: now[0])
    lines: list[str] = []
    progress = PlainProgress(lines.append)
    progress.phase("evaluation", 100)
    now[0] = 30.0
    progress.advance(50)
    progress.tick()
    assert lines[-1].endswith("50 of 100 done; at work for 0:30")
    now[0] = 60.0
    progress.advance(60)
    now[0] = 75.0
    progress.tick()
    assert "60 of 100 done, about 1:45 left" in lines[-1]
