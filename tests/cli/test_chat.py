"""`lite-selfplay chat`: in a pipe, on a terminal, and with texts that would do harm there."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Completion, Sampling
from lite_selfplay.runs.talk.reply import Question, Reply, Stage
from lite_selfplay_cli import columns, talk

ANSI, BIDI, LONE, MARKUP = "\x1b[2J\x1b]0;gone\x07", "safe\u202etxt.exe\u2066", "half \ud800 of a pair", "[red]x[/]"
HOSTILE = f"{ANSI}{BIDI}{LONE}{MARKUP}\rover\x08\x00"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small: dict[str, Any] = {"group_size": 2, "problems_per_step": 1, "steps": 1, "precision": "fp32"}
    folder = tmp_path_factory.mktemp("chat") / "agon"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", run_dir=folder, **small)).path


@pytest.fixture
def chat(run: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`chat("line", ..., flags=["--json"])`: a chat whose input is these lines."""

    def chat(*lines: str, flags: tuple[str, ...] = ("--json",)) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return call("chat", run, "--max-completion-tokens", 8, *flags)

    return chat


def test_a_line_is_asked_of_everybody_and_answered_in_a_line_of_json(chat: Callable[..., Any]):
    ended = chat("What is 7+8+9?", "", "And 1+1?")
    assert ended.code == 0, ended.err
    first, second = map(json.loads, ended.out.splitlines())
    assert (first["message"], second["message"]) == ("What is 7+8+9?", "And 1+1?")
    assert list(first["answers"]) == ["base", "A", "B"]
    assert all({"text", "answer", "finish", "tokens", "seconds"} <= set(a) for a in first["answers"].values())


def test_commands_work_in_a_pipe(chat: Callable[..., Any], tmp_path: Path):
    ended = chat(
        *("/seat base, A->B", "/temperature 0.5", "/tokens 3", "Which?", "/duel", "/duel B->A Which letter?"),
        *("/plain on", "/play drafter", "it is <answer>a</answer>"),
        *("/save talk.jsonl", "/save talk.svg", "/save talk.md", "/quit", "never asked"),
    )
    assert ended.code == 0, ended.err
    message, duel, turned, game = map(json.loads, ended.out.splitlines())
    assert list(message["answers"]) == ["base", "A->B"]
    assert (message["temperature"], message["answers"]["base"]["tokens"]) == (0.5, 3)
    assert (duel["duel"], duel["pair"], turned["pair"]) == ("Which?", "A->B", "B->A")
    assert (game["play"], game["you"]["text"]) == ("drafter", "it is <answer>a</answer>")
    assert [json.loads(line) for line in (tmp_path / "talk.jsonl").read_text().splitlines()] == [
        message,
        duel,
        turned,
        game,
    ]
    svg = (tmp_path / "talk.svg").read_text()
    assert svg.startswith("<svg")
    assert "url(http" not in svg.replace('url("http', "url(http")  # nothing is fetched to look at it
    assert "> /play drafter" in (tmp_path / "talk.md").read_text()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/dual 1+1", "did you mean /duel?"),
        ("/duel", "a duel needs a problem"),
        ("/duel A->C 1+1?", "unknown speaker 'A->C'"),
        ("/seat C", "unknown speaker 'C'"),
        ("/temperature hot", "a temperature is from 0 to 100"),
        ("/temperature nan", "a temperature is from 0 to 100"),
        ("/tokens 0", "a number of tokens is from 1"),
        ("/play judge", "unknown role or seat 'judge'"),
        ("/play", "the game is off"),
        ("/follow more", "nothing to follow up"),
        ("/save x.svg", "nothing to save yet"),
        ("x" * 6000, "there is room for 4,096 together"),
        ("y" * 1_200_000, "1,200,000 characters"),
        ("\ud800", "surrogate"),
    ],
    ids=lambda value: value[:20].encode("ascii", "replace").decode(),
)
def test_what_is_refused_is_said_and_the_chat_goes_on(chat: Callable[..., Any], line: str, sentence: str):
    lines = (line,) if line == "/play" else (line, "Which?")
    ended = chat(*lines)
    assert ended.code == 2
    assert sentence in ended.out
    assert line == "/play" or "Which?" in json.loads(ended.out.splitlines()[-1])["message"]


def test_as_text(chat: Callable[..., Any]):
    ended = chat("Which?", "/help", "/wrong", flags=("--seat", "A"))
    assert (ended.code, ended.out.splitlines()[0]) == (2, "> Which?")
    assert ended.out.splitlines()[1].startswith("A: ")
    assert "/temperature" in ended.err
    assert "error: unknown command" in ended.err


def test_nothing_is_written_over(chat: Callable[..., Any], tmp_path: Path):
    (tmp_path / "mine.md").write_text("mine")
    ended = chat("Which?", "/save mine.md", "/save nowhere/x.md")
    assert (ended.code, (tmp_path / "mine.md").read_text()) == (2, "mine")
    assert ended.out.count('"error"') == 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("nowhere",), "unknown model"),
        ((".",), "error"),
        (("RUN", "--seat", "C"), "unknown speaker 'C'"),
        (("RUN", "--checkpoint", "step-9"), "unknown checkpoint 'step-9'"),
        (("RUN", "--temperature", "-1"), "temperature"),
        (("RUN", "--precision", "5bit"), "precision"),
    ],
)
def test_a_wrong_command(call: Callable[..., Any], run: Path, flags: tuple[str, ...], sentence: str):
    ended = call("chat", *(str(run) if flag == "RUN" else flag for flag in flags))
    assert ended.code == 2
    assert sentence in ended.err


def test_serve_refuses_before_it_loads_anything(call: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch):
    ended = call("serve", run, "--key", "")
    assert (ended.code, "the key is empty" in ended.err) == (2, True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = call("serve", run)
    assert (ended.code, 'pip install "lite-selfplay[serve]"' in ended.err) == (2, True)


# The screen


def entry(text: str) -> dict[str, Any]:
    answer = {"text": text, "answer": text, "finish": "length", "tokens": 3, "seconds": 1.0}
    return {"message": text, "answers": {"base": answer, "A": {"error": text}, "A->B": answer}}


def duel(text: str) -> dict[str, Any]:
    stages = [{"seat": seat, "text": text, "answer": text, "saw": text} for seat in "AB"]
    return {"duel": text, "pair": "A->B", "text": text, "answer": text, "finish": "stop", "tokens": 1, "seconds": 1.0,
            "stages": stages}  # fmt: skip


def game(text: str) -> dict[str, Any]:
    sample = {"text": text, "answer": text, "verdict": text, "well_formed": True, "reward": 1.0}
    return {"play": text, "in_place_of": "B", "prompt": text, "problem": text, "reference": text,
            "you": {**sample, "advantage": None}, "others": [sample]}  # fmt: skip


def rendered(thing: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", [entry, duel, game])
@pytest.mark.parametrize("width", [20, 60, 200])
def test_what_a_model_says_drives_no_terminal(made: Callable[[str], dict[str, Any]], width: int):
    shown = rendered(columns.drawn(made(HOSTILE), width), width) + rendered(columns.heading(made(HOSTILE)), width)
    saved = talk.as_svg([made(HOSTILE)], width) + talk._as_text(made(HOSTILE))
    for text in (shown, saved):
        assert not set(text) & {"\x07", "\x08", "\x00", "\r", "\u202e", "\u2066", "\ud800"}
        assert "gone" not in text  # what a terminal would have taken for its title
    assert "\x1b" not in shown + talk._as_text(made(HOSTILE))
    if width == 200:
        assert MARKUP in shown


def test_a_line_of_a_megabyte_is_shown_in_part():
    began = time.monotonic()
    shown = rendered(columns.drawn(entry("x" * 1_000_000), 100))
    assert "more characters" in shown
    assert len(shown) < 200_000
    assert time.monotonic() - began < 20


def growing(text: str, *seats: str) -> Reply:
    reply = Reply(Question("->".join(seats), "?", Sampling(max_tokens=4096)), seats)
    reply.begin(lambda ids: bytes(ids).decode(errors="replace"), None)
    for number, byte in enumerate(text.encode(errors="replace"), 1):
        reply.heard(number, byte)
    return reply


@pytest.mark.parametrize("width", [20, 100])
def test_the_last_lines_of_growing_answers_fit_on_the_screen(width: int):
    replies = [growing("\n".join(f"line {n} of {name}" for n in range(60)), name) for name in ("base", "A")]
    shown = rendered(columns.Growing(replies), width)
    assert len(shown.splitlines()) <= 30
    assert "line 59" in shown
    assert "line 0 " not in shown


def test_a_duel_shows_the_draft_beside_the_answer():
    reply = growing("I draft", "A", "B")
    assert "A drafts" in (shown := rendered(columns.Growing([reply], duel=True)))
    assert "B waits" in shown
    said = Completion("?", "I draft", (), (1,), (), "eos", "A", 0, Sampling())
    reply.stages.append(Stage("A", said))
    reply.begin(lambda ids: bytes(ids).decode(), "what it saw")
    reply.heard(1, 72)
    shown = rendered(columns.Growing([reply], duel=True))
    assert "I draft" in shown
    assert "B answers" in shown


@pytest.fixture
def terminal(run: Path) -> Iterator[tuple[Callable[[str], None], Callable[[str], str], subprocess.Popen[bytes]]]:
    """A chat at a real terminal: what types into it, what waits for something on it, and the process."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lite_selfplay_cli", "chat", str(run), "--max-completion-tokens", "3000"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    seen = ""

    def wait_for(text: str) -> str:
        nonlocal seen
        end = time.monotonic() + 240
        while text not in seen and time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536).decode(errors="replace")
        assert text in seen, seen
        before, _, seen = seen.partition(text)
        return before

    yield lambda line: os.write(ours, line.encode()) and None, wait_for, process
    process.kill()
    process.wait()
    os.close(ours)


@pytest.mark.timeout(900)
def test_at_a_terminal(terminal: Any):
    write, wait_for, process = terminal
    wait_for("base, A, B answer")
    write("/temperature\n")
    wait_for("temperature 0")  # at which the random model repeats itself up to the limit
    write("Which?\n")
    wait_for("base")  # the columns are there while they grow
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    shown = wait_for(" tokens")  # what was said up to there stays, and the chat goes on
    assert "A" in shown
    write("/seat A\n")
    wait_for("A answer, of base, A, B, A->B, B->A")
    wait_for("> ")  # before it is asked for a line, the terminal would swallow the end
    write("\x04")
    assert process.wait(60) == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_signal_ends_it_at_the_prompt(terminal: Any):
    _, wait_for, process = terminal
    wait_for("> ")
    time.sleep(0.5)  # the prompt is written a moment before Python waits in a way that a signal ends
    process.terminate()
    assert process.wait(60) == 130
