"""Benchmarks: small rows in the hub's own columns, the files of real problems, and the page that lists them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import content_key, evaluation_set, load_task, task_names
from lite_selfplay.tasks.benchmarks import BENCHMARKS
from lite_selfplay.tasks.hub_data import DATA_VARIABLE
from lite_selfplay.tasks.split import fingerprint
from lite_selfplay.verify import Verifier
from tests.made import DATA, completion, jsonl

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
ROWS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8"))
HUB = {name: (made["row"], made["text"], made["answer"]) for name, made in ROWS.items() if "text" in made}


def publish(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """A copy of a repository of the hub: its data card, which names the files, and the files."""
    benchmark = BENCHMARKS[name]
    place = folder / benchmark.hub
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for number, split in enumerate(splits := benchmark.split.split("+")):
        own = rows[number :: len(splits)]
        if name == "gpqa":
            files.append({"split": split, "path": f"{split}.csv"})
            pandas.DataFrame(own).to_csv(place / f"{split}.csv", index=False)
        else:
            files.append({"split": split, "path": jsonl(place / f"{split}.jsonl", *own).name})
    card = {"configs": [{"config_name": benchmark.config or "default", "data_files": files}]}
    (place / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n", encoding="utf-8")
    return place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of data that the environment names."""
    place = tmp_path / "data"
    (place / "sums").mkdir(parents=True)
    monkeypatch.setenv(DATA_VARIABLE, str(place))
    return place


def variants(name: str, count: int) -> list[dict[str, Any]]:
    """Rows that differ in their text."""
    row = HUB[name][0]
    text = next(column for column in ("question", "problem", "Question", "Body") if column in row)
    return [{**row, text: f"{row[text]} ({n})"} for n in range(count)]


def sides(spec: str) -> tuple[list[Problem], list[Problem]]:
    training, held_out = (load_task(spec, held_out=side).problems for side in (False, True))
    return list(training), list(held_out)


# A table, a configuration, two splits, and a plain copy; the others are lines of a file.
COPIED = ("gpqa", "omega", "svamp", "mawps")


# The hub's library leaves a CSV file to the garbage collector to close.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [name for name in HUB if name != "deepmath"])
def test_the_hubs_columns_in_a_copy_of_its_repository_or_a_file(name: str, folder: Path) -> None:
    row, text, answer = HUB[name]
    other = {**row, "ID": "chal-2", "Body": "Other."} if name == "svamp" else row
    if name in COPIED:
        publish(folder, name, [row, other])
    else:
        jsonl(folder / f"{name}.jsonl", row, other)
    task = load_task(name, held_out=True)
    problem = task.problems[0]
    assert len(task.problems) == 2
    assert task.origin == (f"{BENCHMARKS[name].hub} ({BENCHMARKS[name].split})" if name in COPIED else f"{name}.jsonl")
    assert problem.text.partition("\n\n(A)")[0] == text
    right = problem.extra["options"][ord(problem.answer) - ord("A")] if problem.kind == "choice" else problem.answer
    assert right == answer
    assert problem.id == str(row.get(BENCHMARKS[name].columns.id, f"{name}-1"))
    with Verifier() as verifier:
        verdicts = verifier.verify([(completion(f"<answer>{p.answer}</answer>"), p) for p in task.problems])
    assert all(verdict.correct for verdict in verdicts)


def test_sides_that_the_benchmark_has_itself(folder: Path) -> None:
    for split in ("train", "test"):
        jsonl(folder / f"gsm8k_{split}.jsonl", {"question": f"The {split} question?", "answer": "#### 1"})
    assert [side[0].text for side in sides("gsm8k")] == ["The train question?", "The test question?"]
    assert load_task("gsm8k:split=train", held_out=True).problems[0].text == "The train question?"


def test_a_configuration_is_not_looked_for_in_files(folder: Path) -> None:
    jsonl(folder / "gpqa.jsonl", HUB["gpqa"][0])
    assert len(load_task("gpqa").problems) == 1
    with pytest.raises(TaskError, match=r"cannot get Idavidrein/gpqa@\w+ \(gpqa_main, train\) from the hub"):
        load_task("gpqa:config=gpqa_main")


# DeepMath's own split


def test_deepmath_is_filtered_and_then_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = variants("deepmath", 33)
    binary = ["Yes", "no", r"\text{True}", "$\\text{False}$", r"\boxed{No}", "(yes)."]
    others = [{**rows[0], "question": f"Is it so? {n}", "final_answer": a} for n, a in enumerate(binary)]
    easier = [{**row, "question": row["question"] + "!", "difficulty": 7.5} for row in rows]
    jsonl(folder / "deepmath.jsonl", *others, *rows, rows[3], *easier)
    training, held_out = sides("deepmath")
    assert (len(training), len(held_out)) == (30, 3)
    assert {p.text for p in training + held_out} == {row["question"] for row in rows}
    assert training[0].extra == {"difficulty": 8.0, "topic": "Calculus"}
    jsonl(folder / "deepmath.jsonl", *reversed(rows))
    assert [p.text for p in sides("deepmath")[1]] == [p.text for p in held_out]
    monkeypatch.setitem(BENCHMARKS, "deepmath", replace(BENCHMARKS["deepmath"], own_split=(20, 2)))
    training, held_out = sides("deepmath")  # more rows than are split
    assert (len(training), len(held_out)) == (20, 2)
    assert not {content_key(p) for p in training} & {content_key(p) for p in held_out}


def test_deepmaths_difficulty_is_an_option(folder: Path) -> None:
    publish(folder, "deepmath", [{**row, "difficulty": n / 2} for n, row in enumerate(variants("deepmath", 20))])
    levels = sorted(p.extra["difficulty"] for side in sides("deepmath:difficulty=0.5-7") for p in side)
    assert levels == [n / 2 for n in range(1, 15)]
    for difficulty, said in (
        ("hard", "difficulty is a number, or two joined by -"),
        ("30", "deepmath holds no problem"),
    ):
        with pytest.raises(TaskError, match=said):
            load_task(f"deepmath:difficulty={difficulty}")


# Multiple choice


def test_options_have_an_order_of_the_questions_own(folder: Path) -> None:
    rows = [{**row, "uuid": str(n)} for n, row in enumerate(variants("supergpqa", 60))]
    publish(folder, "supergpqa", rows)
    problems = load_task("supergpqa").problems
    assert {problem.answer for problem in problems} == set("ABCDE")
    for problem in problems:
        assert problem.extra["options"][ord(problem.answer) - ord("A")] == "Hydrogen"
        assert f"({problem.answer}) Hydrogen" in problem.text
    publish(folder, "supergpqa", rows[::-1])
    assert [p.text for p in load_task("supergpqa").problems] == [p.text for p in problems][::-1]


# Refused


def test_data_that_is_nowhere_or_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (publish(folder, "amc", [HUB["amc"][0]]) / "train.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(TaskError, match=r"cannot read the copy of a data set in .*aimo-validation-amc"):
        load_task("amc")
    with pytest.raises(TaskError, match=r"not in .*data\. Put math500_test\.jsonl or math500\.jsonl or HuggingFaceH4/"):
        load_task("math500")
    monkeypatch.delenv(DATA_VARIABLE)
    with pytest.raises(TaskError, match=r"no folder of data is given.*--data-dir or LITE_SELFPLAY_DATA"):
        load_task("math500")
    with pytest.raises(TaskError, match="no folder of data at /nowhere"):
        load_task("math500:data_dir=/nowhere")


ODD_LETTERS = [{**HUB["supergpqa"][0], "answer_letter": letter} for letter in ("F", "", 7, None)]


@pytest.mark.parametrize(
    ("spec", "row", "message"),
    [
        ("amc", {"text": "x", "answer": "1"}, "line 1: no column 'problem' among text, answer"),
        ("amc", {"problem": 5, "answer": "1"}, "line 1: problem must be text"),
        ("amc", {"problem": "x", "answer": {"a": 1}}, "line 1: 'answer' must be a text"),
        ("amc:difficulty=3", None, "amc has no option 'difficulty'; it takes config, split, revision, sha256"),
        *(("supergpqa", row, r"line 1: the answer .* names none of the 5 options") for row in ODD_LETTERS),
        ("hub:", None, "hub needs the name of a data set"),
        ("hub:me/sums,kind=essay", None, "kind must be one of number, expression, choice"),
        ("hub:me/others", None, "cannot get me/others"),
    ],
)
def test_rows_that_are_no_problems_and_specs_that_are_none(
    folder: Path, spec: str, row: dict[str, Any] | None, message: str
) -> None:
    if row is not None:
        jsonl(folder / f"{spec}.jsonl", row)
        message = rf"{spec}\.jsonl, {message}"
    with pytest.raises(TaskError, match=message):
        load_task(spec)


def test_a_fingerprint_pins_the_problems(folder: Path) -> None:
    publish(folder, "amc", variants("amc", 3))
    found = fingerprint(load_task("amc").problems)
    assert re.fullmatch("[0-9a-f]{64}", found)
    assert load_task(f"amc:sha256={found[:8]}") == load_task("amc")
    for other in ("0" * 64, found[:7]):
        with pytest.raises(TaskError, match=f"amc has the fingerprint {found[:16]}"):
            load_task(f"amc:sha256={other}")
    publish(folder, "amc", variants("amc", 4))
    with pytest.raises(TaskError, match="these are other problems"):
        load_task(f"amc:sha256={found}")


# The hub itself


@pytest.mark.parametrize("name", ["gsm8k", "svamp", "gpqa", "omega", "minerva"])
def test_what_the_hub_is_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    row, text, _ = HUB[name]
    asked: list[Any] = []

    def load_dataset(*place: Any, **options: Any) -> Dataset:
        asked.append((place, options))
        return Dataset.from_list([row])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    benchmark = BENCHMARKS[name]
    task = load_task(name, held_out=True)
    options = {"split": benchmark.split, "revision": benchmark.revision}
    assert asked == [((benchmark.hub, benchmark.config), options)]
    assert task.problems[0].text.startswith(text)
    revision = f"@{benchmark.revision[:12]}" if benchmark.revision else ""
    assert task.origin.startswith(f"{benchmark.hub}{revision} (")
    load_task(f"{name}:config=other,split=test,revision=abc")
    assert asked[-1] == ((benchmark.hub, "other"), {"split": "test", "revision": "abc"})


# Any other data set


def test_any_data_set_with_a_map_of_its_columns(folder: Path) -> None:
    place = folder / "me" / "sums"
    place.mkdir(parents=True)
    rows = [{"Body": "1 and 2?", "Question": "Sum?", "Result": 3.0, "n": i, "why": "1 + 2 = 3."} for i in range(2)]
    jsonl(place / "test.jsonl", *rows)
    spec = "hub:me/sums:test,problem=Body+Question,answer=Result,id=n,solution=why,kind=number,keep=Body"
    task = load_task(spec)
    first = Problem("0", "1 and 2? Sum?", "3", extra={"Body": "1 and 2?", "solution": "1 + 2 = 3."})
    assert task.problems[0] == first
    assert (task.name, task.origin, len(task.problems)) == ("hub:me/sums:test", "me/sums (test)", 2)
    assert load_task(f"{spec},sha256={fingerprint(task.problems)}").problems == task.problems
    assert len(evaluation_set(task)) == 1, "one content"


def test_columns_that_need_no_map_and_options_of_a_multiple_choice(folder: Path) -> None:
    for column in ("problem", "question"):
        jsonl(folder / "sums" / "train.jsonl", {column: "1 + 2?", "answer": "3"})
        assert load_task("hub:me/sums").problems[0] == Problem("sums-1", "1 + 2?", "3")
    for options, answer in (("choices", 1), ("choices", "b"), ("choices", "y"), ("x+z", "y")):
        row = {"problem": "Which?", "choices": ["x", "y", "z"], "x": "x", "z": "z", "answer": answer}
        jsonl(folder / "sums" / "train.jsonl", row)
        problem = load_task(f"hub:me/sums,kind=choice,options={options}").problems[0]
        assert sorted(problem.extra["options"]) == ["x", "y", "z"]
        assert problem.extra["options"][ord(problem.answer) - ord("A")] == "y"


REFERRING = [
    "A and C only", "Both A and B", "a and b", "(a) and (c)", "A, B, and C", "Neither A nor B", "only A", "C is right",
    "All of the above", "none of these", "any other answer", "Both", "Option A", "option 2", "the first two", "AC", "B",
    "the first and the third", "the second option", "same as B", "the last one", "1 and 3 only",
]  # fmt: skip
PLAIN = [
    "5 N", "A force of 5 N", "a dog and a cat", "I and my dog", "5 and 6", "x = 2", "a+b", "5 C", "All dogs", "Don't",
]  # fmt: skip
NAMING = ["Why is option B wrong", "What makes the first option right", "Is statement (a) true of",
          "What do the other choices share"]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "last", "kept"),
    [
        *(("Which", option, True) for option in REFERRING),
        *(("Which", option, False) for option in PLAIN),
        *((question, "gold", True) for question in NAMING),
        *((question, "gold", False) for question in ("Which of the following is no metal", "Is B a metal")),
    ],
)
def test_options_stay_in_their_order_where_one_or_the_question_names_others(
    folder: Path, question: str, last: str, kept: bool
) -> None:
    options = ["iron", "lead", "zinc", last]
    rows = [{"problem": f"{question} {n}?", "choices": options, "answer": 1} for n in range(30)]
    jsonl(folder / "sums" / "train.jsonl", *rows)
    problems = load_task("hub:me/sums,kind=choice,options=choices").problems
    assert {p.answer for p in problems} == (set("B") if kept else set("ABCD"))
    assert all(p.extra["options"] == options for p in problems) == kept


def test_of_columns_which_have_no_order_all_of_the_above_stands_last(folder: Path) -> None:
    others = {"x": "lead", "y": "All of the above", "z": "zinc"}
    rows = [{"problem": f"Which {n}?", "answer": "iron", **others} for n in range(30)]
    jsonl(folder / "sums" / "train.jsonl", *rows)
    problems = load_task("hub:me/sums,kind=choice,options=x+y+z").problems
    assert {problem.answer for problem in problems} == set("ABC")
    assert {problem.extra["options"][3] for problem in problems} == {"All of the above"}


# The page


def test_the_page_lists_every_benchmark() -> None:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:3] == "| `"]
    rows = {name.strip("`"): rest for name, *rest in cells}
    for name, b in BENCHMARKS.items():
        place = ", ".join(filter(None, [f"`{b.hub}`", b.config and f"`{b.config}`"]))
        assert [*rows[name][:3], rows[name][-1]] == [place, b.split, f"{b.size:,}", b.licence], name
        assert b.read is not None or rows[name][3:5] == [b.kind, str(b.samples)], name
    assert all(f"`{name}" in PAGE for name in task_names())


# The files of real problems

(PINNED,) = set(re.findall(r"`(gsm8k:sha256=[0-9a-f]+)`", PAGE))
SIZES = {
    PINNED: 1319, "gsm8k:split=train": 7473, "math500": 500, "amc": 83, "aime24": 30, "aime25": 30, "minerva": 272,
    "olympiadbench": 675, "svamp": 1000, "mawps": 562,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("spec", SIZES)
def test_a_file_loads_by_name(spec: str) -> None:
    """Once by the fingerprint of the page. That answers are right for their own problems: verify/test_shared_data."""
    if not DATA.is_dir():
        pytest.skip(f"no benchmark files in {DATA}: set LITE_SELFPLAY_TEST_DATA to the folder that holds them")
    problems = load_task(spec, held_out=True, data_dir=str(DATA)).problems
    assert len(problems) == SIZES[spec]
    assert all(problem.text and problem.answer is not None for problem in problems)
    assert len({problem.id for problem in problems}) == len(problems)
    answers = [problem.answer for problem in problems]
    if BENCHMARKS[spec.partition(":")[0]].kind == "number":
        # One answer of 2025's AIME is an angle in degrees.
        others = [answer for answer in answers if not re.fullmatch(r"-?\d+(\.\d+)?", answer)]
        assert others == (["336^\\circ"] if spec == "aime25" else [])
    if spec == "minerva":  # its lists are alternatives
        assert [sum(isinstance(answer, kind) for answer in answers) for kind in (dict, list)] == [75, 0]
