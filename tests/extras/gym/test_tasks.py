"""Problems of reasoning-gym: its rows, the same in every process, with what the scorer needs."""

import os
import subprocess
import sys

import pytest

from lite_selfplay.errors import TaskError, UnknownNameError
from lite_selfplay.extras.gym import SIZE
from lite_selfplay.tasks import content_key, evaluation_set, held_out_side, load_task
from lite_selfplay.tasks.task import derived_seed

DATASETS = ["chain_sum", "spell_backward", "n_queens"]

reasoning_gym = pytest.importorskip("reasoning_gym", reason="needs reasoning-gym")


@pytest.mark.parametrize("name", DATASETS)
def test_a_problem_is_a_row_of_the_data_set(name):
    task = load_task(f"reasoning-gym:{name}", seed=5)
    assert (task.name, task.procedural, len(task.problems)) == (f"reasoning-gym:{name}", True, SIZE)
    problem = task.problems[3]
    entry = problem.extra["entry"]
    assert (problem.id, problem.kind) == (f"{name}-3", "reasoning-gym")
    assert (problem.text, problem.answer) == (entry["question"].strip(), entry["answer"])
    assert (problem.extra["dataset"], problem.extra["options"]) == (name, {})
    assert entry["metadata"]["source_dataset"] == name
    for seed in (0, 1, 2):  # the sides never overlap, whatever the seeds
        for held_out in (False, True):
            problems = load_task(f"reasoning-gym:{name}", seed=seed, held_out=held_out).problems[:15]
            assert {held_out_side(content_key(problem)) for problem in problems} == {held_out}


def test_the_first_attempt_is_the_row_of_its_index():
    rows = reasoning_gym.create_dataset("gcd", seed=derived_seed(5, "reasoning-gym", "gcd") % 2**31, size=SIZE)
    first = {index: rows[index] for index in range(50)}
    kept = [index for index, row in first.items() if not held_out_side(" ".join(row["question"].casefold().split()))]
    assert 30 < len(kept) < 50
    problems = load_task("reasoning-gym:gcd", seed=5).problems
    assert [problems[index].text for index in kept] == [first[index]["question"] for index in kept]


def test_options_are_the_data_sets_own():
    problems = load_task("reasoning-gym:chain_sum,min_terms=5,max_terms=5,allow_negation=true").problems[:30]
    assert {problem.extra["entry"]["metadata"]["num_terms"] for problem in problems} == {5}
    assert any("-" in str(problem.answer) for problem in problems)
    assert problems[0].extra["options"] == {"min_terms": 5, "max_terms": 5, "allow_negation": True}
    # A slash in an option makes no file of it.
    problems = load_task("reasoning-gym:basic_arithmetic,operators=+/").problems[:30]
    assert any("/" in problem.text for problem in problems)
    assert not any("*" in problem.text for problem in problems)


def test_rows_are_the_same_in_another_process():
    code = "from lite_selfplay.tasks import load_task\n" + "".join(
        f"print([repr(p) for p in load_task('reasoning-gym:{name}', seed=3).problems[:5]])\n" for name in DATASETS
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    rows = [[repr(p) for p in load_task(f"reasoning-gym:{name}", seed=3).problems[:5]] for name in DATASETS]
    assert said.splitlines() == [str(row) for row in rows]


def test_a_small_data_set_gives_all_it_has_and_one_without_answers_none():
    chosen = evaluation_set(load_task("reasoning-gym:gcd,max_value=4", held_out=True), 500)
    assert 0 < len({content_key(problem) for problem in chosen}) == len(chosen) < 16
    assert load_task("reasoning-gym:rubiks_cube").problems[0].answer is None


def test_a_data_set_that_is_other_problems_in_each_process_needs_their_seed(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    with pytest.raises(TaskError, match="isomorphic_strings gives different problems in each process"):
        load_task("reasoning-gym:isomorphic_strings")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert load_task("reasoning-gym:isomorphic_strings").problems[0].answer


def test_what_is_refused():
    for spec, problem in {
        "": "needs the name of a data set, as in reasoning-gym:chain_sum",
        ":chainsum": "unknown data set of reasoning-gym 'chainsum': did you mean chain_sum",
        ":list_functions": "list_functions ignores the seed",
        ":chain_sum,terms=3": "chain_sum has no option 'terms'; it takes min_terms, max_terms, .*negation$",
        ":chain_sum,size=3": "no option 'size'",
        ":chain_sum,min_terms=0": r"rejects its options \(min_terms=0\): min_terms must be positive",
        ":chain_sum,gcd": "KEY=VALUE, as in letters:named=10, got 'gcd'",
        # Its generator has nothing to put in place of a division that leaves a rest.
        ":basic_arithmetic,operators=/,max_terms=2": r"cannot make its problem \d+: Cannot choose from an empty",
    }.items():
        with pytest.raises(UnknownNameError if "unknown" in problem else TaskError, match=problem):
            list(load_task(f"reasoning-gym{spec}").problems)


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.delitem(sys.modules, "reasoning_gym.factory", raising=False)
    with pytest.raises(TaskError, match="pip install reasoning-gym"):
        load_task("reasoning-gym:chain_sum")


def test_a_data_set_that_pays_one_answer_whatever_the_problem_says_so():
    for name, answer, paid in (("coin_flip", "0", 0.9), ("game_of_life_halting", "!", 1.0), ("gcd", "1", 0.0)):
        rows = reasoning_gym.create_dataset(name, seed=1, size=30)
        share = sum(rows.score_answer(answer, row) >= 1 for row in rows) / len(rows)
        assert share >= paid, name
        assert bool(load_task(f"reasoning-gym:{name}").caution) == (share >= 0.9), name
