"""A game and a task that nobody in the library knows, each a file of its own, by the command line alone."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.games import make_game
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.testing import check_game
from tests.made_runs import read_lines

GAME = '''
"""One seat hints, another answers with the hint before its eyes."""

from dataclasses import dataclass

from lite_selfplay.data import Episode, EvalSpec, Group, Sample, Stream, Verdict
from lite_selfplay.games import Accuracy, Figure, Game, GameOptions, Mode, register_mode
from lite_selfplay.games.modes import Found, Measured, Score, score_of


class HintOptions(GameOptions):
    longest: int = 6


@dataclass(frozen=True)
class HintScore(Score):
    copied: int


class Hint(Game):
    roles = ("guide", "walker")
    about = "a guide hints, a walker answers"
    Options = HintOptions
    accuracy = {
        "guide": Accuracy("usable", "usable hints", "of no use", "a usable hint", "of no use", proposals=True),
        "walker": Accuracy("arrived", "arrivals", "lost", "arrived", "lost"),
    }
    figures = (
        Figure("short_hints", "short hints", "share", of="hints", part=True, word="short hints"),
        Figure("hints", "hints a step", how="last", word="hints"),
        Figure("odd", "oddity", healthy=(0, 1), warning="oddity is at {value:.0f}"),
    )
    played = 0

    def play(self, step, table):
        self.played += 1
        problems = table.draw("problems", self.problems_per_step)
        hints = table.ask("guide", [f"Hint: {x.text}" for x in problems], n=self.group_size)
        guides, walkers = [], []
        for x, row in zip(problems, hints):
            answers = [answer for (answer,) in table.ask("walker", [with_hint(x, hint) for hint in row])]
            judged = list(zip(row, answers, table.verify([(answer, x) for answer in answers])))
            guides.append(Group([Sample(h, v.score, self.judge(h)) for h, _, v in judged], x))
            walkers.append(Group([Sample(a, v.score, v, info={"hint": k}) for k, (_, a, v) in enumerate(judged)], x))
        lengths = [len(hint.text) for row in hints for hint in row]
        short = sum(length <= self.options.longest for length in lengths)
        log = {"hints": len(lengths), "short_hints": short, "odd": self.played}
        return Episode([Stream("guide", guides), Stream("walker", walkers)], log=log)

    def judge(self, hint):
        usable = len(hint.text) <= self.options.longest
        return Verdict(usable, float(usable), None, True, "" if usable else "too_long")

    def evaluation(self):
        return EvalSpec("with-hints", ("guide", "walker"))

    def state(self):
        return {"played": self.played}

    def restore(self, state):
        self.played = state["played"]


def with_hint(problem, hint):
    return f"{problem.text} ({hint.text})"


def with_hints(examiner, seats):
    guide, walker = seats
    hints = examiner.ask(guide, [[f"Hint: {x.text}"] for x in examiner.problems], "hint", "hints for")
    prompts = [[with_hint(x, h.completion) for h in row] for x, row in zip(examiner.problems, hints)]
    answers = examiner.ask(walker, prompts, "answer", "answers to")
    pairs = [pair for rows in zip(hints, answers) for pair in zip(*rows)]
    copied = sum(h.completion.text == a.completion.text for h, a in pairs)
    score = score_of(answers, before=[h for h, _ in pairs], kind=HintScore, copied=copied)
    return Found({"walker": Measured(answers, score)})


register_mode("with-hints", Mode(with_hints, stages=len, columns=("copied",)))
'''

TASK = '''
from lite_selfplay.data import Problem
from lite_selfplay.tasks import Task
from lite_selfplay.tasks.procedural import Procedural, attempt_rng


def doors(seed, held_out, count="9"):
    """Which door: the answer is one of the first letters."""
    def make(index, attempt):
        rng = attempt_rng(seed, "doors", index, attempt)
        key = "".join(rng.sample("abcdefghijkl", int(count)))
        return Problem(f"door-{index}", f"Which door? {key}", key, kind="letters", extra={"content": key})
    return Task("doors", Procedural("doors", 100, held_out, make), 12, procedural=True)


def few(seed, held_out):
    """Four problems, whatever is asked for."""
    return Task("few", [Problem(f"few-{i}", f"Door {c}?", c, kind="letters") for i, c in enumerate("abcd")], 12)
'''

SMALL = ("--model", "tiny", "--group-size", "2", "--problems-per-step", "2", "--max-completion-tokens", "8")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "hint.py").write_text(GAME)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds a user's own files and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hint.py").write_text(GAME)
    (tmp_path / "doors.py").write_text(TASK)
    return tmp_path


@pytest.fixture
def run(elsewhere: Path, here: Path, call: Callable[..., Any]) -> Path:
    """Two steps of the game of `elsewhere`, measured before and after, made there once."""
    if not (elsewhere / "run").exists():
        asked = ("--tasks", "letters", "--steps", 2, *SMALL, "--eval-tasks", "letters", "--eval-limit", "4")
        ended = call("train", elsewhere / "hint.py:Hint", *asked, "--run-dir", elsewhere / "run")
        assert ended.code == 0, ended.err
        assert re.search(r"step 2/2 \| guide: \d+% usable.* \| walker: \d+% arrived", ended.out)
        assert re.search(r"\| short hints (0|25|50|75|100)% \| hints 4 \|", ended.out)
        assert "warning: oddity is at 2" in ended.err
    return Path(shutil.copytree(elsewhere / "run", here / "run"))


def let_its_game_lie_at(run: Path, file: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"/\S+/hint\.py", str(file), config))


def test_the_game_keeps_the_contract():
    check_game(make_game("./hint.py:Hint", {"longest": 3}, group_size=3))


def test_a_game_of_ones_own_is_trained_shown_measured_and_resumed(run: Path, call: Callable[..., Any]):
    report = call("report", run, "--duels", 4)
    assert f"Hint on tiny: 2 steps in {run}" in report.out
    assert re.search(r"-- its answer, (arrived|lost)", report.out)

    measured = call("eval", run, "--tasks", "letters", "--limit", 4)
    assert measured.code == 0, measured.err
    assert re.search(r"all stages +copied", measured.out)
    result = json.loads((run / "eval" / "with-hints-letters-4.json").read_text())
    assert (result["mode"], type(result["seats"]["walker"]["copied"])) == ("with-hints", int)
    assert call("eval", run, "--tasks", "letters", "--limit", 2, "--mode", "single").code == 0

    resumed = call("train", "--resume", run, "--steps", 3)
    assert resumed.code == 0, resumed.err
    assert "step 3/3" in resumed.out
    assert [row["game"]["odd"] for row in read_lines(run / "metrics.jsonl")] == [1, 2, 3]


def test_a_run_is_shown_by_its_game_which_this_user_has_run(run: Path, elsewhere: Path, call: Callable[..., Any]):
    shown, why, figure = call("report", run), call("why", run), call("why", "short_hints", run)
    assert re.search(r"step 1: walker \(seat walker\): \d+% arrived, reward", shown.out)
    assert re.search(r"guide \(seat guide\), \S+: of no use \(too long\), advantage", why.out)
    assert "docs/games/" not in why.out
    assert re.search(r"this run: first \d+%", figure.out)
    page = call("view", run, "--bundle", run.parent / "page")
    for ended in (shown, why, figure, page):
        assert (ended.code, "without its game" in ended.err + ended.out) == (0, False), ended.err
    assert "short hints" in "".join(file.read_text() for file in (run.parent / "page").rglob("*") if file.is_file())
    # Changed since, it is a stranger's until it is run anew.
    before = (elsewhere / "hint.py").read_text()
    (elsewhere / "hint.py").write_text(before + f"\nopen({str(run / 'ran')!r}, 'w')\n")
    try:
        for asked in (("report",), ("why",), ("why", "kl")):
            assert call(*asked, run).code == 0, asked
        assert "hint.py:Hint is code that you have not run yourself" in call("report", run).err
        assert not (run / "ran").exists()
    finally:
        (elsewhere / "hint.py").write_text(before)


@pytest.mark.parametrize(
    ("source", "said"), [("raise SystemExit(3)", "SystemExit"), ("other = 1", "no class 'Hint'"), (None, "is code")]
)
def test_a_game_that_cannot_be_had_any_more_leaves_the_run_readable(
    run: Path, here: Path, call: Callable[..., Any], source: str | None, said: str
):
    file = here / ("hint.py" if source else "gone.py")
    let_its_game_lie_at(run, file)
    if source:
        file.write_text(source)
    assert call("list", "games", f"{file}:Hint").code == 2  # which is to name it
    for ended in (call("report", run), call("why", run)):
        without = "without its game's own figures and words" in ended.err
        assert (ended.code, without, said in ended.err) == (0, True, True), ended.err
    assert call("train", "--resume", run, "--steps", 3).code == 2


def test_a_run_goes_on_where_its_game_has_moved(run: Path, here: Path, call: Callable[..., Any]):
    (here / "hint.py").rename(here / "moved.py")
    let_its_game_lie_at(run, here / "moved.py")
    refused, named = call("train", "--resume", run, "--steps", 3), f"list games {here}/moved.py:Hint"
    assert (refused.code, f"`lite-selfplay {named}`" in refused.err) == (2, True)
    assert call(*named.split()).code == 0
    assert call("train", "--resume", run, "--steps", 3).code == 0


def test_a_game_of_ones_own_is_listed_and_others_are_named(call: Callable[..., Any]):
    listed = call("list", "games", "hint.py:Hint")
    assert "a guide hints, a walker answers" in listed.out
    assert "roles: guide, walker; switches: longest" in listed.out
    for place, message in (
        ("hint.py:Hnit", "hint.py has no class 'Hnit' derived from Game; it has Hint"),
        ("hint.py", "GAME takes FILE.py:CLASS, got 'hint.py'"),
        ("hnit.py:Hint", "GAME: no file at hnit.py"),
        ("argon", "agon"),
    ):
        ended = call("train", place, "--tasks", "letters", "--model", "tiny")
        assert (ended.code, message in ended.err) == (2, True), ended.err


def test_a_task_of_ones_own_is_trained_on_and_measured(here: Path, call: Callable[..., Any]):
    place = "./doors.py:doors:count=8"
    arguments = ("--eval-tasks", place, "--eval-limit", "3", "--steps", 1, "--run-dir", "run")
    ended = call("train", "grpo", "--tasks", place, *SMALL, *arguments)
    assert ended.code == 0, ended.err
    rows = list(RunFolder(here / "run").episodes())
    assert all(re.match(r"Which door\? [a-l]{8}\b", row["prompt"]) for row in rows)
    assert RunFolder(here / "run").config().tasks.train == f"{here}/doors.py:doors:count=8"
    assert call("train", "--resume", "run", "--steps", 2).code == 0
    assert call("eval", "run", "--tasks", place, "--limit", 2).code == 0
    assert call("report", "run").code == 0


def test_problems_of_ones_own_that_were_in_training_are_left_out_of_evaluations(call: Callable[..., Any]):
    place = "doors.py:few"
    held_out = ("--eval-tasks", place, "--eval-limit", "1")
    assert call("train", "grpo", "--tasks", place, *SMALL, "--steps", 1, *held_out, "--run-dir", "run").code == 0
    ended = call("eval", "run", "--tasks", place)
    assert ended.code == 0
    assert "3 of 4 problems of few were in training and are skipped" in ended.err
