"""`lite-selfplay chat`: in a pipe, on a terminal, and with texts that would do harm there."""

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from lite_selfplay.errors import Interrupted
from lite_selfplay_cli import chat as shown

ANSI, BIDI, LONE, MARKUP = "\x1b[2J\x1b]0;gone\x07", "safe\u202etxt.exe\u2066", "half \ud800 of a pair", "[red]x[/]"
HOSTILE = f"{ANSI}{BIDI}{LONE}{MARKUP}\rover\x08\x00"


@pytest.fixture
def chat(run: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`chat("line", ..., flags=["--json"])`: a chat whose input is these lines."""

    def chat(*lines: str, flags: tuple[str, ...] = ("--json",)) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return call("chat", run, "--max-completion-tokens", 8, *flags)

    return chat


def test_a_line_is_asked_of_everybody_and_answered_in_a_line_of_json_and_commands_work(chat: Callable[..., Any]):
    ended = chat(
        *("What is 7+8+9?", "", "And 1+1?", "/seat base, A->B", "Which?", "/follow More?"),
        *("/duel", "/duel B->A Which letter?", "/quit", "never asked"),
        flags=("--json", "--temperature", "0.5"),
    )
    assert ended.code == 0, ended.err
    first, second, message, follow, duel, turned = map(json.loads, ended.out.splitlines())
    assert (first["message"], second["message"]) == ("What is 7+8+9?", "And 1+1?")
    assert list(first["answers"]) == ["base", "A", "B"]
    assert all({"text", "answer", "finish", "tokens", "seconds"} <= set(a) for a in first["answers"].values())
    assert list(message["answers"]) == ["base", "A->B"]
    assert message["temperature"] == 0.5
    assert (follow["follow"], list(follow["answers"])) == ("More?", ["base"])
    assert (duel["duel"], list(duel["answers"]), list(turned["answers"])) == ("Which?", ["A->B"], ["B->A"])
    assert [stage["seat"] for stage in turned["answers"]["B->A"]["stages"]] == ["B", "A"]


REFUSED = {
    "/dual 1+1": "did you mean /duel?",
    "/duel A->C 1+1?": "unknown speaker 'A->C'",
    "/seat C": "unknown speaker 'C'",
    "/follow more": "nothing to follow up",
    "x" * 6000: "at most 4,096",
    "y" * 1_200_000: "1,200,000 characters",
}


def test_what_is_refused_is_said_and_the_chat_goes_on(chat: Callable[..., Any]):
    ended = chat(*REFUSED, "Which?")
    assert ended.code == 2
    *refused, answered = map(json.loads, ended.out.splitlines())
    for line, found in zip(REFUSED, refused, strict=True):
        assert REFUSED[line] in found["error"]
    assert answered["message"] == "Which?"


def test_as_text(chat: Callable[..., Any]):
    ended = chat("Which?", "/help", "/wrong", flags=("--seat", "A"))
    asked, answered, *_ = ended.out.splitlines()
    assert (ended.code, asked, answered[:3]) == (2, "> Which?", "A: ")
    assert "/follow TEXT" in ended.err
    assert "error: unknown command" in ended.err
    assert "unknown speaker 'C'" in chat(flags=("--seat", "C")).err


@pytest.mark.parametrize(("number", "at_terminal"), [("SIGINT", True), ("SIGINT", False), ("SIGTERM", True)])
def test_a_signal_ends_a_chat_but_an_answer_alone_where_somebody_types_ctrl_c(
    number: str, at_terminal: bool, monkeypatch: pytest.MonkeyPatch
):
    lines, ends = iter(["Which?", "/quit"]), (number, at_terminal) != ("SIGINT", True)
    monkeypatch.setattr(shown._Chat, "_line", Mock(side_effect=Interrupted(f"stopped by {number}")))
    with pytest.raises(Interrupted) if ends else nullcontext():
        assert not shown._Chat(Mock(), Mock()).run(lines, at_terminal)
    assert list(lines) == (["/quit"] if ends else [])


# The screen


def entry(text: str) -> dict[str, Any]:
    stages = [{"seat": seat, "text": text, "answer": text, "saw": text} for seat in "AB"]
    answer = {"text": text, "answer": text, "finish": "length", "tokens": 3, "seconds": 1.0}
    return {"message": text, "answers": {"base": answer, "A->B": {**answer, "stages": stages}}}


def rendered(thing: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 60, 200])
def test_what_a_model_says_drives_no_terminal(width: int):
    for text in (rendered(shown.drawn(entry(HOSTILE), width), width), shown.as_text(entry(HOSTILE))):
        assert not set(text) & {"\x1b", "\x07", "\x08", "\x00", "\r", "\u202e", "\u2066", "\ud800"}
        assert "gone" not in text  # what a terminal would have taken for its title
        assert MARKUP in text or width < 200


def test_a_line_of_a_megabyte_is_shown_in_part():
    began = time.monotonic()
    text = rendered(shown.drawn(entry("x" * 1_000_000), 100))
    assert "(980,000" in text
    assert len(text) < 200_000
    assert time.monotonic() - began < 20


def test_a_duel_has_the_recap_between_draft_and_answer():
    drawn = rendered(shown.drawn(entry("said"), 200), 200).splitlines()[0]
    titles = ("base", "A drafts", "shown to B", "B answers")
    assert [drawn.index(title) for title in titles] == sorted(drawn.index(title) for title in titles)


@pytest.mark.timeout(900)
def test_the_console_script_at_a_terminal(run: Path):
    script = shutil.which("lite-selfplay", path=sysconfig.get_path("scripts"))
    assert script is not None, "the package is not installed with its console script"
    ours, theirs = pty.openpty()
    command = [script, "chat", str(run), "--max-completion-tokens", "3000"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", "OMP_NUM_THREADS": "1"}
    streams, seen, everything = dict.fromkeys(("stdin", "stdout", "stderr"), theirs), "", ""
    with subprocess.Popen(command, env=environment, start_new_session=True, **streams) as process:
        os.close(theirs)
        try:
            for awaited, typed in (
                ("base, A, B answer", "Which?\n"),  # at temperature 0 the random model repeats itself up to the limit
                ("base is answering", ""),
                ("stopped by SIGINT", "/seat A\n"),  # and the chat goes on
                ("A answer; available: base, A, B, A->B, B->A", ""),
                ("> ", "\x04"),  # before it is asked for a line, the terminal would swallow the end
            ):
                end = time.monotonic() + 240
                while awaited not in seen and time.monotonic() < end:
                    if select.select([ours], [], [], 1)[0]:
                        seen += os.read(ours, 65536).decode(errors="replace")
                assert awaited in seen, seen
                everything, seen = everything + seen, seen.partition(awaited)[2]
                if awaited == "base is answering":
                    time.sleep(1)
                    process.send_signal(signal.SIGINT)
                os.write(ours, typed.encode())
            assert process.wait(60) == 0
            assert not re.search("Traceback|kernel", everything)  # no word of a library that misses a kernel either
        finally:
            process.kill()
            os.close(ours)
