"""Sets of labelled steps in the published layouts, the built-in one, and the figures of a critic."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import TaskError
from lite_selfplay.games.spc.corruptor import holds
from lite_selfplay.games.spc.critic_modes import critic_figures
from lite_selfplay.games.spc.stepsets import read_pairs, read_step_set, steps_of_solutions
from tests.made import jsonl, shared_problems


def processbench(name: str, label: int, steps: int = 3) -> dict:
    row = {"id": name, "generator": "M", "problem": "How many?", "final_answer_correct": False, "label": label}
    return {**row, "steps": [f"{name} step {i}" for i in range(steps)]}


def deltabench(name: str, wrong: list[int], useless: list[int], task: str = "math") -> dict:
    sections = [{"start": i, "end": i, "content": f"{name} section {i}", "section_type": "R"} for i in range(1, 6)]
    numbers = {"reason_error_section_numbers": wrong, "reason_unuseful_section_numbers": useless}
    return {"id": name, "task_l1": task, "question": "How many?", "sections": sections, "long_cot": "", **numbers}


def prm800k(*steps: tuple[str, int | None]) -> dict:
    """Steps: completions and their ratings, as in `a:1 b:-1 c:`, and the number of the chosen one."""
    listed: list[dict] = []
    for said, chosen in steps:
        rated = [
            (text, int(rating) if rating else None) for text, _, rating in (w.partition(":") for w in said.split())
        ]
        completions = [{"text": text, "rating": rating, "flagged": None} for text, rating in rated]
        listed.append({"completions": completions, "human_completion": None, "chosen_completion": chosen})
    label = {"steps": listed, "total_time": 1, "finish_reason": "found_error"}
    return {"labeler": "x", "question": {"problem": "How many?"}, "label": label, "is_quality_control_question": False}


def found_in(path: Path) -> list[tuple[str, bool]]:
    return [(step.extra["step"], step.answer == "Correct") for step in read_step_set(path)]


def test_the_files_of_the_release(tmp_path: Path):
    begun = {"problem": "How many?", "partial_solution": "Two and two."}
    steps = [
        {**begun, "next_step": f"s{n}", "process_bench_human_label": label, "source": source, "file_name": f"{n}.json"}
        for n, (label, source) in enumerate([(1, "math"), (-1, "math"), (-1, "gsm8k"), (1, "gsm8k"), (1, "gsm8k")])
    ]
    (tmp_path / "process.json").write_text(json.dumps(steps))
    found = read_step_set(tmp_path / "process.json")
    labels = [(step.extra["subset"], step.answer) for step in found]
    assert labels[:3] == [("math", "Correct"), ("math", "Incorrect"), ("gsm8k", "Incorrect")]
    assert (len(found), found[0].extra["before"], found[0].extra["step"]) == (4, "Two and two.", "s0")
    pairs = [{**begun, "id": n, "correct_last_step": f"r{n}", "incorrect_last_step": f"w{n}"} for n in range(2)]
    (tmp_path / "prm.json").write_text(json.dumps(pairs))
    assert found_in(tmp_path / "prm.json") == [("r0", True), ("w0", False), ("r1", True), ("w1", False)]
    pair = read_pairs(tmp_path / "prm.json")[1]
    assert (pair.before, pair.right, pair.wrong) == ("Two and two.", "r1", "w1")
    with pytest.raises(TaskError, match=r"lines.jsonl, line 1: a step needs a '..._human_label' of 1 or -1"):
        read_step_set(jsonl(tmp_path / "lines.jsonl", {**steps[0], "process_bench_human_label": 0}))


@pytest.mark.parametrize("listed", [False, True])
def test_processbench(tmp_path: Path, listed: bool):
    rows = [processbench(*row) for row in (("gsm8k-0", 1), ("gsm8k-1", -1), ("gsm8k-2", 0), ("math-0", 2))]
    found = read_step_set(jsonl(tmp_path / "p.json", *([rows] if listed else rows)))
    sides = {name: sorted(s.answer for s in found if s.extra["subset"] == name) for name in ("gsm8k", "math")}
    assert sides == {"gsm8k": ["Correct", "Correct", "Incorrect", "Incorrect"], "math": ["Correct", "Incorrect"]}
    right, wrong = sorted((step for step in found if step.id.startswith("gsm8k-0")), key=lambda step: step.answer)
    assert (wrong.extra["step"], wrong.extra["before"], wrong.text) == ("gsm8k-0 step 1", "gsm8k-0 step 0", "How many?")
    assert (right.extra["step"], right.extra["before"]) == ("gsm8k-0 step 0", "")
    assert found == read_step_set(tmp_path / "p.json")


def test_each_subset_is_one_to_one(tmp_path: Path):
    rows = [processbench(f"math-{i}", -1) for i in range(9)] + [processbench(f"math-{i}", 2) for i in range(10, 13)]
    found = found_in(jsonl(tmp_path / "p.jsonl", *rows))
    assert sorted(correct for _, correct in found) == [False] * 3 + [True] * 3
    assert found_in(jsonl(tmp_path / "q.jsonl", *rows)) != found  # drawn by the file's name


def test_deltabench(tmp_path: Path):
    rows = [deltabench("a", [3, 5], [1]), deltabench("b", [], [2], "code"), deltabench("c", [1], [], "code")]
    found = read_step_set(jsonl(tmp_path / "d.jsonl", *rows))
    assert [(step.extra["step"], step.answer, step.extra["subset"]) for step in found[:2]] == [
        ("a section 2", "Correct", "math"),  # the first is useless, neither right nor wrong
        ("a section 3", "Incorrect", "math"),
    ]
    assert found[1].extra["before"] == "a section 1\n\na section 2"
    assert [step.answer for step in found[2:]] == ["Correct", "Incorrect"]
    assert found[2].extra["step"] != "b section 2"


# The path ends at a step without a choice, so the last step is on no path.
LABELLED = prm800k(("a:1 b:-1 c:0", 0), ("d:-1", None), ("f:-1 g:1 h:-1 i:", None), ("j:1 k:-1", 0))
LABELLED["label"]["steps"][1]["human_completion"] = {"text": "e"}


def test_prm800k(tmp_path: Path):
    checks = [{**LABELLED, key: True} for key in ("is_quality_control_question", "is_initial_screening_question")]
    broken = {**LABELLED, "label": {**LABELLED["label"], "finish_reason": "bad_problem"}}
    path = jsonl(tmp_path / "p.jsonl", LABELLED, *checks, broken)  # rows that served to check labellers are skipped
    pairs = [(pair.before, pair.right, pair.wrong) for pair in read_pairs(path)]
    assert pairs == [("", "a", "b"), ("a\n\ne", "g", "f")]
    assert found_in(path) == [("a", True), ("b", False), ("g", True), ("f", False)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"a": 1}, "neither ProcessBench, PRM800K nor DeltaBench: a"),
        ({**processbench("p-0", 1), "label": 3}, "'label' must be"),
        ({**processbench("p-0", 1), "label": True}, "'label' must be"),
        ({**processbench("p-0", 1), "steps": []}, "'steps' must be"),
        ({**processbench("p-0", 1), "problem": " "}, "'problem' must be"),
        (deltabench("a", [6], []), "'reason_error_section_numbers' must be .* 1 to 5"),
        (deltabench("a", [1], [0]), "'reason_unuseful_section_numbers' must be"),
        ({**deltabench("a", [1], []), "sections": ["x"]}, "'sections' must be"),
        ({**LABELLED, "label": {"steps": [{"completions": [{"text": "a"}]}]}}, "not as in PRM800K"),
        ({**LABELLED, "question": "?"}, "not as in PRM800K"),
        (prm800k(("a:1", 4)), "not as in PRM800K"),
    ],
)
def test_a_row_in_no_layout_is_named_by_file_and_line(tmp_path: Path, row: dict, said: str):
    with pytest.raises(TaskError, match=rf"s\.jsonl, line 2: .*{said}"):
        read_step_set(jsonl(tmp_path / "s.jsonl", processbench("p-9", 1), row))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps([processbench("p-0", -1)]), "holds no correct and wrong steps"),
        ("[5]", "row 1: must be an object, not int"),
        ("[{]", "not JSON"),
        (None, "cannot read"),
    ],
)
def test_files_that_hold_no_set(tmp_path: Path, content: str | None, said: str):
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(TaskError, match=said):
        read_step_set(tmp_path / "s.json")


@pytest.mark.data
def test_the_built_in_set():
    problems = shared_problems("gsm8k_test")
    found = steps_of_solutions(problems)
    assert steps_of_solutions(problems, each=20) == found[:40]
    assert [sum(step.answer == side for step in found) for side in ("Correct", "Incorrect")] == [500, 500]
    assert len({step.text for step in found}) == 1000
    assert all(holds(step.extra["step"]) is (step.answer == "Correct") for step in found)  # wrong by arithmetic
    assert all(holds(step.extra["before"]) is not False for step in found)
    assert not any("<<" in s.extra["step"] + s.extra["before"] or "####" in s.extra["step"] for s in found)


@pytest.mark.parametrize(
    ("said", "correct", "error", "mean", "harmonic_mean"),
    [
        # 3 of 4 correct steps and 1 of 2 wrong ones; one reply of seven without a verdict.
        ([(True, "ccci"), (False, "ic?")], 0.75, 0.5, 0.625, pytest.approx(0.6)),
        ([(True, "c" * 10), (False, "c" * 10)], 1.0, 0.0, 0.5, 0.0),  # it always judges the same
        ([(True, "c"), (False, "?")], 1.0, None, None, None),
        ([], None, None, None, None),
    ],
)
def test_the_figures_by_hand(said: Any, correct: Any, error: Any, mean: Any, harmonic_mean: Any):
    judgements = {"c": "correct", "i": "incorrect", "?": None}
    results = [(right, judgements[letter]) for right, letters in said for letter in letters]
    found = json.loads(json.dumps(critic_figures(results)))  # type: ignore[arg-type]
    assert (found["steps"], found["correct"], found["error"]) == (len(results), correct, error)
    assert (found["mean"], found["harmonic_mean"]) == (mean, harmonic_mean)
    assert found["invalid"] == pytest.approx(sum("?" in letters for _, letters in said) / max(1, len(results)))


def test_the_interval_of_a_recall():
    found = critic_figures([(True, "correct")] * 3 + [(True, "incorrect")])
    assert found["correct_ci95"] == pytest.approx((0.194, 0.994), abs=1e-3)
