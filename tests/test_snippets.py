"""Every block of every page: commands are typed as they stand, in small and on the random model, and Python is run.

A block without a language holds commands; `python`, `json` and `yaml` are what they say, `text` is what something
printed. A comment above a block names what its lines need that no test has: `<!-- needs: card, hours -->`. Such lines
are not run, but their options are checked. A mark that nothing in its block calls for fails, and so does a missing one.
"""

import ast
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from lite_selfplay.config import preset_names
from lite_selfplay.games import game_names
from lite_selfplay_cli.app import app
from tests.made import DATA, jsonl
from tests.test_docs import ROOT, TEXTS, without_code

BLOCK = re.compile(r"(?:^<!-- needs: ([a-z, ]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {
    "card": r"torchrun |vllm |lite-selfplay .*(--rollouts |/content/)|python3? \S*(?:gpu|card|carry)\.py",
    "network": r"pip install|hf download|sudo apt|python3 -m venv",
    "hours": r"make |python3? (?!examples/)\S+\.py|python -m pytest|lite-selfplay reproduce \S+\.yaml",
}
"""What a line may need, and which lines do."""


class Block(NamedTuple):
    page: str
    needs: str
    language: str
    text: str


class Line(NamedTuple):
    """A program that a block calls: what is piped into it, its name and its arguments."""

    typed: str
    program: str
    words: list[str]


BLOCKS = [Block(page, *found.groups("")) for page, text in TEXTS.items() for found in BLOCK.finditer(text)]
COMMANDS = [block for block in BLOCKS if not block.language]

# In a block that bash reads, these programs write down how they were called. `python -c` is run: it makes problems.
PROGRAMS = ("lite-selfplay", "python", "python3", "make", "pip", "torchrun", "vllm", "hf", "sudo", "cd")
RECORDER = "".join(
    f'{name}() {{ [ "{name} $1" = "python -c" ] && {{ {shlex.quote(sys.executable)} "$@"; return; }}; '
    f'local typed=; [ -p /dev/stdin ] && typed=$(cat); printf "%s\\0" "$typed" {name} "$@" $\'\\1\' >&3; }}\n'
    for name in PROGRAMS
)


def lines_of(text: str, folder: Path) -> list[Line]:
    """What bash calls in a block of commands, in order; `!` before a command is a notebook's."""
    record = folder / "record"
    with record.open("wb") as file:
        script = f"{RECORDER}exec 3>&{file.fileno()}\n{re.sub(r'^!', '', text, flags=re.MULTILINE)}"
        options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "pass_fds": [file.fileno()]}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, **options)
    assert "syntax error" not in done.stderr
    calls = record.read_text().split("\1\0")[:-1]
    record.unlink()
    return [Line(typed, program, words) for typed, program, *words in (call.split("\0")[:-1] for call in calls)]


def needs_of(line: Line) -> set[str]:
    said = " ".join([line.program, *line.words])
    return {need for need, pattern in NEEDS.items() if re.match(pattern, f"{said} ")}


def check_options(line: Line) -> None:
    """The command, its options, its game and its preset exist; of make its targets, of a script file and options."""
    words = line.words
    options = {word for word in words if word.startswith("--")}
    if line.program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets)
    if line.program == "python" and words[0].endswith(".py"):
        (script,) = (path for folder in ("", "benchmarks") if (path := ROOT / folder / words[0]).is_file())
        sources = "".join(path.read_text() for path in script.parent.glob("*.py"))
        typed = {option: rf'"{option}"|^ +{option[2:].replace("-", "_")}: ' for option in options}
        assert [option for option, known in typed.items() if not re.search(known, sources, re.MULTILINE)] == []
    if line.program == "torchrun":
        words = words[words.index("lite_selfplay_cli") + 1 :]
        words = ["train", "agon"] if words == ["train", "..."] else words
    elif line.program != "lite-selfplay":
        return
    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "list_commands") or word.startswith("-"):
            break
        assert word in command.list_commands(None)
        command = command.get_command(None, word)
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}
    if "--preset" in words:
        assert words[words.index("--preset") + 1] in preset_names()
    if words[0] in ("train", "cold-start") and words[1].isalpha() and words[1].islower():
        assert words[1] in game_names()


def test_there_are_blocks_of_these_languages_and_no_others():
    assert {block.language for block in BLOCKS} == {"", "python", "json", "yaml", "text"}
    assert sum(len(re.findall(r"^ *```", text, re.MULTILINE)) for text in TEXTS.values()) == 2 * len(BLOCKS)


@pytest.mark.parametrize("page", sorted({block.page for block in COMMANDS}))
def test_the_commands_of_a_page_exist_with_their_options_and_say_what_they_need(page: str, tmp_path: Path):
    for block in COMMANDS:
        if block.page == page:
            lines = lines_of(block.text, tmp_path)
            assert set(filter(None, block.needs.split(", "))) == set[str]().union(*map(needs_of, lines)), block.text
            for line in lines:
                check_options(line)


def test_the_commands_in_prose_exist_with_their_options(tmp_path: Path):
    spans = [" ".join(span.split()) for text in TEXTS.values() for span in re.findall(r"`([^`]+)`", without_code(text))]
    commands = [span for span in spans if re.match(r"(lite-selfplay|make|python) [\w-]", span)]
    lines = lines_of("\n".join(commands), tmp_path)
    assert len(lines) == len(commands) > 60
    for line in lines:
        check_options(line)


# Blocks, run in order, page by page

SIZES = "--model tiny --steps 1 --group-size 2 --problems-per-step 2 --max-completion-tokens 240 --eval-limit 2".split()
SHORT = ["--set", "cold_start.steps=1", "--set", "cold_start.examples_per_step=2"]
IN_SMALL = {
    "train": [*SIZES, *SHORT],
    "cold-start": ["--model", "tiny", "--steps", "1", "--examples-per-step", "2"],
    "eval": ["--limit", "2", "--max-completion-tokens", "8"],
    "plan": ["--model", "tiny"],
    "reproduce": ["--dry-run"],
    "view": ["--bundle", "page"],
}
"""What makes a command small, given after what a page gives it."""
TINY_ALREADY = re.compile(r"train .*--model tiny .*--steps [1-5] ")
STAND_IN = {
    r"^(smollm2-135m|Qwen3-[\d.]+B)$": "tiny",
    r"^(DATA|data)$": str(DATA),
    r"@20\b": "@1",
    r"@40\b": "@2",
    r"^400$": "3",  # the steps of a run that goes on
    r"(?<=passage_tokens=)120$": "2000",  # the random model has a token a byte
}
PYTHON_IN_SMALL = {
    '"smollm2-135m"': '"tiny"',
    'preset="demo"': 'model="tiny"',
    "steps=20": "steps=1",
    "minutes=5": "steps=1, group_size=2, max_completion_tokens=48",
    'eval={"tasks": "problems.jsonl"}': 'eval={"tasks": "problems.jsonl", "limit": 2}',
    '"problems.jsonl")': '"problems.jsonl", limit=2)',
    '"letters")': '"letters", limit=2)',
    '"experiments/results/': f'"{ROOT}/experiments/results/',
}
RUN = re.compile(r"(?:runs/[\w.-]+|RUN)(?=@|$)")
LONG = (
    "README.md",
    *(f"docs/{name}.md" for name in ("export", "start", "update")),
    *(f"docs/games/{name}.md" for name in "absolute-zero agon cpmobius kuhn pasodoble rzero spc spice sqlm".split()),
)


def stand_in(word: str, trained: Path) -> str:
    """A word of a command as it is run here; the file or the run that it names is laid into this folder."""
    for name in re.findall(r"[\w./-]+\.(?:jsonl|py|yaml)\b", word):
        if not Path(name).exists():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            lay(Path(name))
    if (run := RUN.match(word)) and not Path(run[0]).exists():
        made = sorted(Path("runs").glob("*"), key=os.path.getmtime) if "..." in word or word == "RUN" else []
        shutil.copytree(made[-1] if made else trained, run[0])  # the page's last run, where it has made one
    for pattern, other in STAND_IN.items():
        word = re.sub(pattern, other, word)
    return word


def lay(path: Path) -> None:
    """What a page takes for given: a benchmark's file, problems and passages, or code that it tells to write."""
    python = [block.text for block in BLOCKS if block.language == "python"]
    if path.name == "my_game.py":
        path.write_text((ROOT / "examples" / "own_game.py").read_text().replace("class Brief(", "class MyGame("))
    elif path.name in ("my_task.py", "my_reward.py"):
        (text,) = [text for text in python if f"def {'doubles' if 'task' in path.name else 'reward'}(" in text]
        path.write_text(text)
    elif there := [place for place in (DATA, ROOT, ROOT / "benchmarks") if (place / path).is_file()]:
        shutil.copy(there[0] / path, path)
    else:
        sums = [(n, n % 7 + 1) for n in range(2, 42)]
        jsonl(path, *({"problem": f"{a} + {b}?", "answer": str(a + b), "text": f"{a} and {b}."} for a, b in sums))


PAGES = {b.page for b in BLOCKS if b.language == "python" or (not b.language and "lite-selfplay" in b.text)}


@pytest.mark.parametrize("page", [pytest.param(p, marks=[pytest.mark.long] * (p in LONG)) for p in sorted(PAGES)])
def test_the_blocks_of_a_page_run(
    page: str, agon_run: Path, call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not DATA.is_dir() and re.search(r"gsm8k|mawps|svamp|--suite", TEXTS[page]):
        pytest.skip("no benchmark files: set LITE_SELFPLAY_TEST_DATA to the folder that holds them")
    monkeypatch.setenv("LITE_SELFPLAY_DATA", str(DATA))
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            run_python(block.text, agon_run)
        for line in lines_of(block.text, tmp_path) if block.page == page and not block.language else ():
            if not needs_of(line) and line.program != "cd":
                run_line(line, agon_run, call, monkeypatch)


def run_line(line: Line, trained: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before = ["", *line.words]
    new = ("--run-dir", "--out", "--bundle")
    words = [w if before[i] in new else stand_in(w, trained) for i, w in enumerate(line.words)]
    if line.program == "python":
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        return
    whole = TINY_ALREADY.match(" ".join(words)) or "--resume" in words or words == ["reproduce"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(line.typed))
    ended = call(*words, *([] if whole else IN_SMALL.get(words[0], [])))
    assert ended.code == 0, (line.words, ended.err)


def run_python(text: str, trained: Path) -> None:
    """Run a block, in small; where a line is a value and its comment is one, the two are equal."""
    for old, new in PYTHON_IN_SMALL.items():
        text = text.replace(old, new)
    for run in re.findall(r'load_run\("(.+?)"', text):
        stand_in(run, trained)
    names: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "a page", "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), "a page", "eval"), names)
        try:
            said = ast.literal_eval(text.splitlines()[statement.lineno - 1].partition("  # ")[2])
        except (SyntaxError, ValueError):
            continue  # a comment in words
        assert value == said, ast.unparse(statement)


def test_blocks_of_data_are_read(call: Callable[..., Any]):
    for block in BLOCKS:
        if block.language == "json":
            assert json.loads(block.text)
        if block.language == "yaml":
            lay(Path("mine.jsonl"))
            Path("own.yaml").write_text(block.text)
            ended = call("reproduce", "own.yaml", "--dry-run", "--model", "tiny")
            assert ended.code == 0, ended.err
