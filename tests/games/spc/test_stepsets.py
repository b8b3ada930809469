"""Sets of labelled steps in the published layouts, the built-in one, and the figures of a critic."""

import json
from pathlib import Path

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


def completions(*rated: tuple[str, int | None]) -> list[dict]:
    return [{"text": text, "rating": rating, "flagged": None} for text, rating in rated]


def prm800k(steps: list[dict], **more: object) -> dict:
    label = {"steps": steps, "total_time": 1, "finish_reason": "found_error"}
    row = {"labeler": "x", "question": {"problem": "How many?"}, "label": label, "is_quality_control_question": False}
    return {**row, **more}


def test_the_files_of_the_release(tmp_path: Path):
    begun = {"problem": "How many?", "partial_solution": "Two and two."}
    steps = [
        {**begun, "next_step": f"s{n}", "process_bench_human_label": label, "source": source, "file_name": f"{n}.json"}
        for n, (label, source) in enumerate([(1, "math"), (-1, "math"), (-1, "gsm8k"), (1, "gsm8k"), (1, "gsm8k")])
    ]
    (tmp_path / "process.json").write_text(json.dumps(steps))
    found = read_step_set(tmp_path / "process.json")
    assert [(s.subset, s.correct) for s in found][:3] == [("math", True), ("math", False), ("gsm8k", False)]
    assert (len(found), found[0].before, found[0].step) == (4, "Two and two.", "s0")
    pairs = [{**begun, "id": n, "correct_last_step": f"r{n}", "incorrect_last_step": f"w{n}"} for n in range(2)]
    (tmp_path / "prm.json").write_text(json.dumps(pairs))
    assert [(s.step, s.correct) for s in read_step_set(tmp_path / "prm.json")] == [
        *(("r0", True), ("w0", False), ("r1", True), ("w1", False)),
    ]
    assert [(pair.before, pair.right, pair.wrong) for pair in read_pairs(tmp_path / "prm.json")][1] == (
        *("Two and two.", "r1", "w1"),
    )
    with pytest.raises(TaskError, match=r"lines.jsonl, line 1: a step needs a '..._human_label' of 1 or -1"):
        read_step_set(jsonl(tmp_path / "lines.jsonl", {**steps[0], "process_bench_human_label": 0}))


LABELLED = prm800k(
    [
        {"completions": completions(("a", 1), ("b", -1), ("c", 0)), "human_completion": None, "chosen_completion": 0},
        {"completions": completions(("d", -1)), "human_completion": {"text": "e"}, "chosen_completion": None},
        {"completions": completions(("f", -1), ("g", 1), ("h", -1), ("i", None)), "chosen_completion": None},
        {"completions": completions(("j", 1), ("k", -1)), "human_completion": None, "chosen_completion": 0},
    ]
)


def write(path: Path, rows: list[dict], *, listed: bool = False) -> Path:
    return jsonl(path, rows) if listed else jsonl(path, *rows)


@pytest.mark.parametrize("listed", [False, True])
def test_processbench(tmp_path: Path, listed: bool):
    rows = [
        processbench("gsm8k-0", 1),
        processbench("gsm8k-1", -1),
        processbench("gsm8k-2", 0),
        processbench("math-0", 2),
    ]
    found = read_step_set(write(tmp_path / "p.json", rows, listed=listed))
    gsm8k = [step for step in found if step.subset == "gsm8k"]
    assert sorted(step.correct for step in gsm8k) == [False, False, True, True]
    first = next(step for step in gsm8k if not step.correct and step.id.startswith("gsm8k-0"))
    assert (first.step, first.before, first.problem) == ("gsm8k-0 step 1", "gsm8k-0 step 0", "How many?")
    right = next(step for step in gsm8k if step.correct and step.id.startswith("gsm8k-0"))
    assert (right.step, right.before) == ("gsm8k-0 step 0", "")
    assert [step.correct for step in found if step.subset == "math"] == [True, False]
    assert found == read_step_set(tmp_path / "p.json")


def test_each_subset_is_one_to_one(tmp_path: Path):
    rows = [processbench(f"math-{i}", -1) for i in range(9)] + [processbench(f"math-{i}", 2) for i in range(10, 13)]
    found = read_step_set(write(tmp_path / "p.jsonl", rows))
    assert [step.correct for step in found].count(True) == [step.correct for step in found].count(False) == 3
    assert read_step_set(tmp_path / "p.jsonl", seed=1) != found


def test_deltabench(tmp_path: Path):
    rows = [deltabench("a", [3, 5], [1]), deltabench("b", [], [2], "code"), deltabench("c", [1], [], "code")]
    found = read_step_set(write(tmp_path / "d.jsonl", rows))
    assert [(step.step, step.correct, step.subset) for step in found[:2]] == [
        ("a section 2", True, "math"),  # the first is useless, neither right nor wrong
        ("a section 3", False, "math"),
    ]
    assert found[1].before == "a section 1\n\na section 2"
    assert [step.correct for step in found[2:]] == [True, False]
    assert found[2].step != "b section 2"


def test_prm800k(tmp_path: Path):
    path = write(tmp_path / "p.jsonl", [LABELLED, prm800k([], is_quality_control_question=True)])
    pairs = read_pairs(path)
    # The walk ends where nothing was chosen: the last step is on no path.
    assert [(pair.before, pair.right, pair.wrong) for pair in pairs] == [("", "a", "b"), ("a\n\ne", "g", "f")]
    assert [(step.step, step.correct) for step in read_step_set(path)] == [
        ("a", True),
        ("b", False),
        ("g", True),
        ("f", False),
    ]


def test_prm800k_rows_that_served_to_check_labellers_are_left_out(tmp_path: Path):
    checks = [{**LABELLED, key: True} for key in ("is_quality_control_question", "is_initial_screening_question")]
    broken = {**LABELLED, "label": {**LABELLED["label"], "finish_reason": "bad_problem"}}
    assert read_pairs(write(tmp_path / "p.jsonl", [*checks, broken])) == []


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
        (prm800k([{"completions": [{"text": "a"}]}]), "not as in PRM800K"),
        ({**LABELLED, "question": "?"}, "not as in PRM800K"),
        (prm800k([{"completions": completions(("a", 1)), "chosen_completion": 4}]), "not as in PRM800K"),
    ],
)
def test_a_row_in_no_layout_is_named_by_file_and_line(tmp_path: Path, row: dict, said: str):
    path = write(tmp_path / "s.jsonl", [processbench("p-9", 1), row])
    with pytest.raises(TaskError, match=rf"s\.jsonl, line 2: .*{said}"):
        read_step_set(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps([processbench("p-0", -1)]), "holds no correct and wrong steps"),
        ("[5]", "item 1: must be an object, not int"),
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
    assert steps_of_solutions(problems, each=20) == found[:40] != steps_of_solutions(problems, each=20, seed=1)
    assert [sum(step.correct is side for step in found) for side in (True, False)] == [500, 500]
    assert len({step.problem for step in found}) == 1000
    assert all(holds(step.step) is step.correct for step in found)  # wrong by arithmetic
    assert all(holds(step.before) is not False for step in found)
    assert not any("<<" in step.step + step.before or "####" in step.step for step in found)


# Figures


def test_the_figures_by_hand():
    # 3 of 4 correct steps and 1 of 2 wrong ones; one reply of seven without a verdict.
    results = [(True, "correct")] * 3 + [(True, "incorrect"), (False, "incorrect"), (False, "correct"), (False, None)]
    found = critic_figures(results)  # type: ignore[arg-type]
    assert (found["steps"], found["correct"], found["error"], found["mean"]) == (7, 0.75, 0.5, 0.625)
    assert found["harmonic_mean"] == pytest.approx(0.6)
    assert found["invalid"] == pytest.approx(1 / 7)
    assert found["correct_ci95"] == pytest.approx((0.194, 0.994), abs=1e-3)
    assert json.loads(json.dumps(found))["harmonic_mean"] == pytest.approx(0.6)


def test_figures_of_a_critic_that_says_one_thing_only_and_of_nothing():
    found = critic_figures([(True, "correct")] * 10 + [(False, "correct")] * 10)
    assert (found["correct"], found["error"], found["mean"], found["harmonic_mean"]) == (1.0, 0.0, 0.5, 0.0)
    found = critic_figures([(True, "correct"), (False, None)])
    assert (found["correct"], found["error"], found["mean"], found["harmonic_mean"]) == (1.0, None, None, None)
    assert critic_figures([])["invalid"] == 0
