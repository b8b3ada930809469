"""`lite-selfplay analyse`, on runs of the random model and on folders written by hand."""

import functools
import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.models.packages import install
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.analysis import figures


@pytest.fixture(scope="module")
def agon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of Agon, measured before and after."""
    small = {"group_size": 2, "problems_per_step": 2, "steps": 4, "precision": "fp32", "max_completion_tokens": 8}
    measured = {"tasks": "letters", "limit": 3}
    folder = tmp_path_factory.mktemp("runs") / "first"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", eval=measured, run_dir=folder, **small)).path


@pytest.fixture
def analyse(call: Callable[..., Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():  # of what matplotlib itself imports
        warnings.simplefilter("ignore")
        import matplotlib.figure  # noqa: F401
    return functools.partial(call, "analyse")


def test_a_run_of_agon(analyse: Callable[..., Any], agon: Path):
    ended = analyse(agon, "--windows", 2)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"agon on tiny: 4 steps in {agon}"
    for title in ("drafter", "challenger", "game", "seats"):
        place = lines.index(title)
        assert lines[place + 1].split() == ["steps", "1-2", "3-4"]
    rows = [line.split("  ")[0] for line in lines]
    for row in ("reward", "accuracy", "well-formed", "truncated", "conversions a step", "gradient norm: A"):
        assert row in rows
    assert "held-out problems (3 of letters), pass@1 with 95% intervals" in lines
    assert any(line.startswith("A->B") and "[" in line for line in lines)
    made = [agon / "figures" / f"{name}.png" for name in ("streams", "game", "evaluations")]
    assert lines[-1] == f"figures: {', '.join(map(str, made))}"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


def test_one_object_for_machines(analyse: Callable[..., Any], agon: Path, tmp_path: Path):
    ended = analyse(agon, "--json", "--windows", "4", "--out", tmp_path / "out", "--format", "svg")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told["figures"] == [str(tmp_path / "out" / f"{name}.svg") for name in ("streams", "game", "evaluations")]
    assert all(Path(path).is_file() for path in told["figures"])
    (run,) = told["runs"]
    assert run["windows"] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    rows = RunFolder.open(agon).metrics()
    (accuracy,) = [figure for figure in run["figures"]["drafter"] if figure["name"] == "accuracy"]
    assert accuracy["values"] == [row["streams"]["drafter"]["accuracy"] for row in rows]
    (conversions,) = [figure for figure in run["figures"]["game"] if figure["name"] == "conversions a step"]
    assert conversions["values"] == [row["game"]["conversions"] for row in rows]
    assert [moment["step"] for moment in run["evaluations"]] == [-1, 0, 4]


@pytest.mark.long
def test_several_runs_need_a_folder_for_their_figures(analyse: Callable[..., Any], agon: Path, tmp_path: Path):
    ended = analyse(agon, agon.parent, "--no-figures")
    assert ended.code == 2  # the second is no run
    ended = analyse(agon, agon)  # one run, named twice
    assert ended.out.count("agon on tiny") == 1
    other = tmp_path / "second"
    RunFolder(other).create(RunFolder.open(agon).config())
    (other / "metrics.jsonl").write_bytes((agon / "metrics.jsonl").read_bytes())
    ended = analyse(agon, other)
    assert ended.code == 0
    assert ended.out.count("agon on tiny") == 2
    assert ended.out.splitlines()[-1] == "figures of several runs are drawn into the folder that --out names"
    ended = analyse(agon, other, "--out", "both")
    assert (ended.code, len(list((tmp_path / "both").iterdir()))) == (0, 3)
    assert "episodes.jsonl holds the completions of 0 of 4 steps: reasons and studies are of these" in ended.out


def test_without_matplotlib_the_tables_are_there(
    analyse: Callable[..., Any], agon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    ended = analyse(agon, "--out", tmp_path / "none")
    assert (ended.code, ended.err) == (0, "")
    assert "challenger" in ended.out.splitlines()
    assert ended.out.splitlines()[-1] == f"for figures, install matplotlib: {install('plots')}"
    assert not (tmp_path / "none").exists()
    assert json.loads(analyse(agon, "--json").out)["figures"] == []
    ended = analyse(agon, "--no-figures")
    assert "matplotlib" not in ended.out


def test_a_terminal_gets_rich_tables(analyse: Callable[..., Any], agon: Path, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    from lite_selfplay_cli.analyse import _print_table

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    _print_table("the [bold]title\x1b[31m", ["", "steps 1-2"], [["[red]reward", "0.5"]])
    assert "the [bold]title" in shown.getvalue()
    assert "[red]reward" in shown.getvalue()
    assert "─" in shown.getvalue() or "━" in shown.getvalue()
    assert "\x1b[31m" not in shown.getvalue()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere",), 2, "error: nowhere is not a run folder: it has no config.yaml"),
        ((".",), 2, "error: . is not a run folder"),
        (("run",), 2, "error: run holds no step yet: there is nothing to analyse"),
        (("run", "--out", "file"), 2, "error: file is a file: --out names the folder of the figures"),
        (("run", "--windows", "0"), 2, "--windows"),
        (("run", "--format", "pdf"), 2, "pdf"),
        ((), 2, "RUN"),
    ],
)
def test_what_cannot_be_done(
    analyse: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
):
    RunFolder(tmp_path / "run").create(RunConfig(game="agon", model="tiny", tasks="letters"))
    (tmp_path / "file").write_text("")
    ended = analyse(*arguments)
    assert ended.code == code
    assert message in ended.err
    assert ended.out == ""


def test_a_strangers_folder_cannot_drive_the_terminal(analyse: Callable[..., Any], tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(game="agon", model="tiny\x1b[2J", tasks="letters", steps=1))
    line = {
        "step": 0,
        "streams": {"role\x1b[31m": {"completions": 1, "reward_mean": 1.0}},
        "seats": {},
        "game": {"figure\x1b]0;title\x07": 1},
        "warnings": ["\x1b[1mboo"],
    }
    folder.append(line, [], 1.0)
    ended = analyse(folder.path)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "  at 1 step: boo" in ended.out.splitlines()


def test_help(analyse: Callable[..., Any]):
    ended = analyse("--help")
    assert ended.code == 0
    assert "Examples:" in ended.out


# Studies


@pytest.fixture
def pasodoble(tmp_path: Path) -> Path:
    """Two steps of PasoDoble's proposals as it writes them: two labels of which the truth is known or given."""
    from lite_selfplay.games.pasodoble.proposals import proposer_prompt

    folder = RunFolder(tmp_path / "pasodoble")
    folder.create(RunConfig(game="pasodoble", model="tiny", tasks="letters", steps=2))
    stream = {"seat": "proposer", "completions": 2, "groups": 1, "zero_variance_groups": 0}
    asked = [("What is 2 + 3?", "5", 0.5), ("How old is Ann?", "12", 1.0), ("What is 2 + 3?", "6", 0.0)]
    metrics = [
        {"step": step, "streams": {"proposer": stream}, "seats": {}, "game": {"proposals": 2, "usable": 1}}
        for step in range(2)
    ]
    episodes = [
        {
            "step": number // 2,
            "role": "proposer",
            "seat": "proposer",
            "prompt": proposer_prompt("What is 2 + 3? It is 5."),
            "text": f"<problem>{text}</problem><answer>\\boxed{{{label}}}</answer>",
            "stop": "eos",
            "correct": True,
            "reason": "",
            "answer": label,
            "question": f"q-{number}",
            "pass_rate": rate,
        }
        for number, (text, label, rate) in enumerate(asked)
    ]
    for file, lines in (("metrics.jsonl", metrics), ("episodes.jsonl", episodes)):
        (folder.path / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.path


def test_the_studies_of_a_run(analyse: Callable[..., Any], pasodoble: Path, tmp_path: Path):
    known = tmp_path / "known.jsonl"
    known.write_text(json.dumps({"question": "how old is ann?", "answer": "11"}) + "\n")
    ended = analyse(pasodoble, "--windows", 2, "--references", known)
    assert (ended.code, ended.err) == (0, "")
    for title in (
        "accuracy of labels by pass rate",
        "difficulty and domains over time",
        "diversity of questions",
        "recall of questions from the knowledge",
    ):
        assert title in ended.out.splitlines()
    assert (
        "  a true answer is known of 3 of 3 labelled questions (2 computed, as bare calculations, 1 from the file)"
        in (ended.out.splitlines())
    )
    assert "the plane; a mark is a window, * several of them:" in ended.out
    assert (pasodoble / "figures" / "diversity.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(analyse(pasodoble, "--windows", 2, "--json", "--no-figures").out)["runs"][0]["studies"]
    assert list(told) == ["label_accuracy", "domains", "diversity", "recall"]
    groups = {each["group"]: each for each in told["label_accuracy"]["groups"]}
    assert (groups["all"]["questions"], groups["all"]["judged"], groups["all"]["right"]) == (3, 2, 1)
    assert told["domains"]["difficulty"] == [0.25, 1.0]
    assert told["recall"]["exact_match"] == [0.5, 1.0]
    assert [(point["step"], point["question"]) for point in told["diversity"]["points"]] == [
        (1, "What is 2 + 3?"),
        (1, "How old is Ann?"),
        (2, "What is 2 + 3?"),
    ]


def test_studies_that_have_nothing_to_be_about(analyse: Callable[..., Any], pasodoble: Path, agon: Path):
    (pasodoble / "episodes.jsonl").write_text("")
    ended = analyse(pasodoble, "--no-figures")
    assert "no studies: episodes.jsonl holds nothing that this game's are about" in ended.out
    ended = analyse(agon, "--no-figures")
    assert "length by correctness of the draft" in ended.out.splitlines()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "known.jsonl"),
        ('{"question": "x"}\n', "holds no question with one answer in writing"),
        ("{", "line 1"),
    ],
)
def test_references_that_are_none(
    analyse: Callable[..., Any], pasodoble: Path, tmp_path: Path, content: str | None, message: str
):
    known = tmp_path / "known.jsonl"
    if content is not None:
        known.write_text(content)
    ended = analyse(pasodoble, "--references", known, "--no-figures")
    assert (ended.code, message in ended.err) == (2, True), ended.err
