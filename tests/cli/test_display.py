"""The live bar: what it shows at which size, and that nothing that is said can drive the terminal."""

import errno
import io
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli.display import Display, Lasting, make_progress, outlast_readers


class Terminal(io.StringIO):
    """What a terminal is sent."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def console(width=120, height=40, **options) -> Console:
    options = {"force_terminal": True, "file": Terminal(), "color_system": None, "_environ": {}, **options}
    return Console(width=width, height=height, **options)


class Shown:
    """A display in training whose clock is set by hand, and its bar as text."""

    def __init__(self, width=120, **options):
        self.console, self.now = console(width, **options), 0.0
        self.display = Display(self.console)
        self.display._bars.get_time = lambda: self.now
        self.display.phase("training", 20)
        self.display.advance(2, "loss 0.5")
        self.display.activity("A samples as drafter")
        self.display.tokens(214, 1024)

    def text(self) -> str:
        other = console(self.console.width, file=io.StringIO())
        with other.capture() as capture:
            other.print(self.display._bars.get_renderable())
        return capture.get()

    def sent(self) -> str:
        return self.console.file.getvalue()


# What is shown


def test_a_phase_tells_how_far_it_is_and_the_time_left_follows_from_the_parts_that_were_done_here():
    shown = Shown(160)
    assert re.search(r"^training .* 2/20 ", shown.text())
    assert "A samples as drafter, up to 214 of 1,024 tokens, loss 0.5" in shown.text()
    shown.display.phase("evaluation", 720)
    shown.now = 6
    shown.display.advance(600)  # answered before, and read back on a busy machine
    assert "-:--:--" in shown.text()
    shown.now = 46
    shown.display.advance(640)
    assert "640/720 0:00:46 0:01:20" in shown.text()  # 40 in 40 s, not 640 in 46 s


def test_a_step_is_a_line_above_the_bar_and_markup_is_shown_as_it_stands():
    shown, words = Shown(200), "[bold]x[/bold] [link=http://x]y[/link] :smile: [/]"
    shown.display.step({"step": 3}, "step 3/20 | solver A: 50% right")
    shown.display.evaluated("after 3 steps", {}, "A 34%")
    shown.display.warn("slow")
    shown.display.say(words)
    assert shown.sent() == f"step 3/20 | solver A: 50% right\nafter 3 steps: A 34%\nwarning: slow\n{words}\n"
    shown.display.activity(words)
    assert words in shown.text()


@pytest.mark.parametrize("width", [20, 40, 60, 84, 100, 200])
def test_the_bar_is_one_line_that_fits(width):
    shown = Shown(width)
    shown.display.activity("漢字" * 300)
    (line,) = shown.text().splitlines()
    assert cell_len(line) <= width


TEXTS = st.text(st.one_of(st.characters(), st.sampled_from("\x1b[]\\\x9b\x07\r\n\t漢👩‍👧é/=bold")), max_size=200)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_no_text_drives_the_terminal(text):
    shown = Shown()
    tell: Any = shown.display
    for told in (tell.activity, tell.say, tell.warn, tell.phase, lambda words: tell.advance(1, words)):
        told(text)
    tell.finished([text])
    sent = shown.text() + shown.sent()
    assert not set("\x1b\x9b\r\x07\x08") & set(sent)


# The terminal before and after


def test_lines_scroll_above_a_bar_that_goes_away():
    shown = Shown(color_system="standard")
    before = (sys.stdout, sys.stderr)
    with shown.display as display:
        display._bars.refresh()
        display.warn("slow")
        display.finished(["up 3 points", "lite-selfplay report " + "x" * 120])
    assert (sys.stdout, sys.stderr) == before
    written = shown.sent()
    assert "warning: slow" in written
    assert "lite-selfplay report " + "x" * 120 + "\n" in written  # whole, so that it can be copied
    assert "training" not in written[written.rindex("up 3 points") :]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_terminal_as_it_was(error):
    terminal = console(color_system="standard")
    before = (sys.stdout, sys.stderr)

    def cursor_is_there() -> bool:
        written = terminal.file.getvalue()
        return written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")

    def run() -> None:
        with make_progress(terminal) as progress:
            assert isinstance(progress, Display)
            progress.phase("training", 3)
            assert cursor_is_there()  # in case the process is ended
            raise error

    with pytest.raises(error):
        run()
    assert (sys.stdout, sys.stderr) == before
    assert cursor_is_there()


class Ascii(Terminal):
    encoding = "ascii"


@pytest.mark.parametrize(
    ("file", "options"),
    [
        (io.StringIO, {}),
        (io.StringIO, {"force_terminal": True}),  # FORCE_COLOR into a pipe
        (Terminal, {"_environ": {"TERM": "dumb"}}),
        (Ascii, {"force_terminal": True}),
    ],
)
def test_elsewhere_there_are_lines(file, options, capsys):
    with make_progress(Console(file=file(), **{"_environ": {}, **options}), verbose=True) as progress:
        assert isinstance(progress, PlainProgress)
        assert progress.verbose
        progress.say("loading")
        progress.warn("slow")
    assert capsys.readouterr() == ("loading\n", "warning: slow\n")


# Output that nobody takes any more


class Gone(io.StringIO):
    """A stream whose reader has gone after the first line."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        if self.getvalue():
            raise OSError(errno.EPIPE, "Broken pipe")
        return super().write(text)

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(errno.EIO, "Input/output error")


def test_what_cannot_be_written_is_lost_and_raises_nothing(monkeypatch: pytest.MonkeyPatch):
    gone = Gone()
    monkeypatch.setattr(sys, "stdout", gone)
    monkeypatch.setattr(sys, "stderr", Gone())
    outlast_readers()
    outlast_readers()
    print("read", flush=True)
    print("lost", flush=True)
    assert gone.getvalue() == "read"
    assert isinstance(sys.stdout, Lasting)
    assert (sys.stdout._stream is gone, sys.stdout.encoding) == (True, "utf-8")
