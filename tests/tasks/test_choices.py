"""Multiple choice: which option the answers of a column name, decided by the whole column, and what is then right."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import TaskError
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks import Task, load_task
from lite_selfplay.tasks import choices as reading
from lite_selfplay.tasks.choices import FROM_0, FROM_1, LABELS, TEXT, Choice, proof, reading_of
from lite_selfplay.verify.choice import check_batch, chosen_letter, labels_for, unproven
from lite_selfplay.verify.extract import AnswerFormat
from tests.made import completion, jsonl

CITIES = ["Rome", "Oslo", "Bern", "Kyiv"]
BLOOD = ["O", "A", "B", "AB"]


def right(task: Task) -> list[str]:
    """The text of each problem's right option, by its label."""
    found = []
    for problem in task.problems:
        labels = labels_for(options := problem.extra["options"])
        found.append(options[labels.index(problem.answer)])
        assert f"({problem.answer}) {found[-1]}\n" in problem.text
        assert problem.kind == "choice"
    return found


@pytest.mark.parametrize(
    ("rows", "read", "positions"),
    [
        ([(CITIES, "B"), (CITIES, "(d)"), (CITIES, "C. Bern")], LABELS, [1, 3, 2]),
        ([(CITIES, 0), (CITIES, 3)], FROM_0, [0, 3]),
        ([(CITIES, "1"), (CITIES, "4")], FROM_1, [0, 3]),
        ([(CITIES, 1.0), (CITIES, 2.0)], FROM_0, [1, 2]),  # nothing decides, as in most data sets
        ([(CITIES, "Bern"), (CITIES, " Rome ")], TEXT, [2, 0]),
        ([(BLOOD, "O"), (BLOOD, "A"), (BLOOD, "AB")], TEXT, [0, 1, 3]),
        ([(["A. Rome", "B. Oslo"], "B. Oslo"), (["A) Rome", "B) Oslo"], "A")], LABELS, [1, 0]),
        ([({"A": "Rome", "B": "Oslo"}, "B")], LABELS, [1]),
        ([({"text": CITIES, "label": ["1", "2", "3", "4"]}, "2")], LABELS, [1]),
        ([("['Rome', 'Oslo']", 1), ('["Rome", "Oslo"]', 0)], FROM_0, [1, 0]),
    ],
)
def test_the_whole_column_says_how_answers_name_options(rows: list[Any], read: str, positions: list[int]):
    choices = [Choice.of({"options": options}, answer, f"row {n}") for n, (options, answer) in enumerate(rows)]
    assert reading_of(choices) == read
    assert [choice.position(read) for choice in choices] == positions


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(CITIES, "B"), (CITIES, "F")], r"^row 1: the answer 'F' names none of the 4 options"),
        ([(CITIES, 0), (CITIES, 4)], r"^row [01]: the answer [04] names none"),
        ([(CITIES, None)], "the answer None names none"),
        ([(["Rome", "", None], "A")], r"there must be 2 to 26 options, got \['Rome'\]"),
        ([(["Rome", "", "Oslo"], "B")], "the answer 'B' names none"),
        ([(BLOOD, "A"), (BLOOD, "B")], r"row 0: .* labels of the options \('A' is 'O'\) or the texts .*\('A'\)"),
        ([(["1", "2", "3"], 1)], r"may be positions, counted from 0 \(1 is '2'\) or the texts of the options \('1'\)"),
        ([("Rome or Oslo", "A")], "'options' must be a list of 2 to 26 options"),
        ([([["a"], ["b"]], 0)], "'options' must be a list of 2 to 26 options"),
        ([({}, 0)], "there must be 2 to 26 options"),
    ],
)
def test_answers_that_name_no_option_or_two(rows: list[Any], said: str):
    with pytest.raises(TaskError, match=said):
        reading_of([Choice.of({"options": options}, answer, f"row {n}") for n, (options, answer) in enumerate(rows)])


TABLE = "Q,A,B,C,D,Key\nCapital of Italy?,Oslo,Rome,Bern,Kyiv,{}\nOf Norway?,Oslo,Rome,,Kyiv,{}\n"


@pytest.mark.parametrize(
    ("keys", "texts", "read"),
    [
        (("B", "A"), ["Rome", "Oslo"], LABELS),
        (("2", "1"), ["Rome", "Oslo"], FROM_1),
        (("1", "0"), ["Rome", "Oslo"], FROM_0),
        (("Rome", "Kyiv"), ["Rome", "Kyiv"], TEXT),
        (("Turin", "Bergen"), ["Turin", "Bergen"], reading.ADDED),
    ],
)
def test_columns_of_options_and_a_column_of_keys(tmp_path: Path, keys: tuple[str, str], texts: list[str], read: str):
    (tmp_path / "t.csv").write_text(TABLE.format(*keys))
    task = load_task(f"{tmp_path / 't.csv'}:kind=choice,problem=Q,options=A+B+C+D,answer=Key")
    assert right(task) == texts
    added = read == reading.ADDED
    assert [len(problem.extra["options"]) for problem in task.problems] == [4 + added, 3 + added]
    assert added or task.problems[0].extra["options"] == ["Oslo", "Rome", "Bern", "Kyiv"], "a table's own order"
    said = f"the answers of 2 choices are read as {read} (`Capital of Italy?` has the answer `{texts[0]}`); each label"
    assert task.notes[0].startswith(said)


@pytest.mark.parametrize(
    ("keys", "options", "said"),
    [
        (("B", "X"), "A+B+C+D", r"line 3: the answer 'X' names none"),
        (("B", "C"), "A+B+C+D", r"line 3: the answer 'C' names none"),  # which is empty
        (("B", "A"), "A+B+E", r"line 2: no column 'E' among Q, A, B"),
    ],
)
def test_a_key_without_an_option(tmp_path: Path, keys: tuple[str, str], options: str, said: str):
    (tmp_path / "t.csv").write_text(TABLE.format(*keys))
    with pytest.raises(TaskError, match=said):
        load_task(f"{tmp_path / 't.csv'}:kind=choice,problem=Q,options={options},answer=Key")


def test_a_table_of_numbers_whose_keys_may_be_a_further_option(tmp_path: Path):
    rows = "Q,A,B,C,Key\n" + "".join(f"{n} + 1?,{n},{n + 1},{n + 2},{{}}\n" for n in (1, 2, 1))
    spec = f"{tmp_path / 't.csv'}:kind=choice,problem=Q,options=A+B+C,answer=Key"
    (tmp_path / "t.csv").write_text(rows.format(3, 3, 3))
    with pytest.raises(TaskError, match="the answer '3' may be a position or the right options, the other"):
        load_task(spec)
    (tmp_path / "t.csv").write_text(rows.format(3, 1, 2))
    assert right(load_task(spec)) == ["3", "2", "2"]


def test_options_that_are_letters_have_numbers_as_labels(tmp_path: Path):
    file = jsonl(tmp_path / "b.jsonl", {"q": "Which group suits all?", "opts": BLOOD, "a": 0})
    (problem,) = load_task(f"{file}:kind=choice,problem=q,options=opts,answer=a").problems
    assert (problem.answer, problem.extra["options"]) == ("1", BLOOD)
    assert "(1) O\n(2) A\n" in problem.text
    assert problem.text.endswith("Answer with the number of the right choice.")
    judged = {
        text: check_batch([(completion(f"<answer>{text}</answer>"), problem)], AnswerFormat(), None)[0]  # type: ignore[arg-type]
        for text in ("1", "(1)", "O", "2", "A", "5")
    }
    assert [verdict.correct for verdict in judged.values()] == [True, True, True, False, False, False]
    assert judged["5"].reason == "no_answer"
    # A reference to another option is no letter text, and a label is read before a text.
    assert labels_for(["iron", "lead", "B"])[0] == "A"
    assert labels_for(["B", "H", "M", "P"])[0] == "1"
    assert [chosen_letter(text, ["iron", "lead", "B"]) for text in ("B", "b", "C", "B. lead")] == ["B", "B", "C", "B"]


def test_what_is_shown_of_choices_fails_for_a_label_that_is_read_otherwise(monkeypatch: pytest.MonkeyPatch):
    (problem,) = load_task(json.dumps({"problem": "Which?", "options": CITIES, "answer": "B"})).problems
    assert unproven(problem) is None
    monkeypatch.setattr("lite_selfplay.verify.choice.chosen_letter", lambda *_: "A")
    assert unproven(problem) == "B"
    with pytest.raises(TaskError, match=r"^tasks-1: the answer 'B' would be judged as another option"):
        proof([problem], LABELS)


@pytest.mark.parametrize(
    ("name", "text", "texts"),
    [
        ("m.jsonl", '{"question": "2 + 2?", "choices": ["3", "4", "5"], "answer": 1}\n', ["4"]),
        ("m.jsonl", '{"Question": "2 + 2?", "Options": {"A": "3", "B": "4"}, "Answer": "A"}\n', ["3"]),
        ("m.csv", "question,option_a,option_b,answer\n2 + 2?,3,4,b\n1 + 1?,2,3,a\n", ["4", "2"]),
        ("m.csv", "Question,A,B,C,Answer\n2 + 2?,3,4,,B\n1 + 1?,2,3,1,A\n", ["4", "2"]),
    ],
)
def test_options_are_found_by_the_names_of_their_columns(tmp_path: Path, name: str, text: str, texts: list[str]):
    (tmp_path / name).write_text(text)
    task = load_task(str(tmp_path / name))
    assert right(task) == texts
    assert "are read as" in task.notes[0]


def test_options_are_those_of_a_choice(tmp_path: Path):
    file = jsonl(tmp_path / "m.jsonl", {"q": "2 + 2?", "opts": {"A": "3", "B": "4"}, "a": "B"})
    assert right(load_task(f"{file}:problem=q,options=opts,answer=a")) == ["4"]
    with pytest.raises(TaskError, match="hub:kind must be choice with options, got 'number'"):
        load_task(f"{file}:problem=q,options=opts,answer=a,kind=number")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"choices": {"text": ["3", "4"], "label": ["1", "2"]}, "answerKey": "2"}, "options=choices,answer=answerKey"),
        ({"opa": "4", "opb": "three", "opc": "five", "opd": "six", "cop": 0}, r"options=opa\+opb\+opc\+opd,answer=cop"),
        ({"options": ["3", "4"], "right": 1}, "options=options,answer=COLUMN"),
        (  # GPQA
            {"Old Correct Answer": "5", "Correct Answer": "4", "Incorrect Answer 1": "3", "Incorrect Answer 2": "6"},
            r"options=Incorrect Answer 1\+Incorrect Answer 2,answer=Correct Answer",
        ),
    ],
)
def test_the_key_of_a_choice_is_asked_for(tmp_path: Path, row: dict[str, Any], said: str):
    file = jsonl(tmp_path / "m.jsonl", {"question": "2 + 2?", **row})
    with pytest.raises(TaskError, match=rf"line 1: a choice without 'answer': map its columns .* FILE:{said}$"):
        load_task(str(file))
    if "COLUMN" not in said:
        spec = said.replace("\\", "")
        assert right(load_task(f"{file}:{spec}")) == ["4"]


def test_options_that_no_map_names_and_letters_that_are_no_options(tmp_path: Path):
    file = jsonl(tmp_path / "m.jsonl", {"q": "2 + 2?", "choices": ["3", "4"], "a": 1})
    with pytest.raises(TaskError, match=r"m\.jsonl: map its options: kind=choice,options=choices$"):
        load_task(f"{file}:problem=q,answer=a")
    with pytest.raises(TaskError, match=r"map its options: kind=choice,options=choices$"):
        load_task(f"{file}:kind=choice,problem=q,answer=a")
    file = jsonl(tmp_path / "m.jsonl", {"problem": "a + b?", "a": 1, "b": 2, "answer": "3"})
    assert load_task(str(file)).problems[0].kind == "math"


def test_a_plan_says_how_choices_were_read(tmp_path: Path):
    file = jsonl(
        tmp_path / "m.jsonl", *({"problem": f"Which {n}?", "options": CITIES, "answer": "B"} for n in range(6))
    )
    ready = plan(RunConfig(game="grpo", model="tiny", precision="fp32", tasks=str(file), eval_tasks=str(file)))
    (line,) = ready.chosen("problems")
    assert line.startswith("problems: the answers of 6 choices are read as the labels of the options (`Which 0?` has")
    assert line in ready.lines()
    assert line in ready.chosen()
