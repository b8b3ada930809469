"""Agon and plain GRPO on programs: rewards, the rival's view, and cold-start examples."""

import itertools
import random

import pytest

from lite_selfplay.data import Problem, Verdict
from lite_selfplay.games.agon.agon import challenge_prompt, recap_of
from lite_selfplay.games.agon.recap import worked_attempt
from lite_selfplay.games.judging import earned
from lite_selfplay.games.prompts import asked, asked_after, opening, problem_asked
from lite_selfplay.games.worked_examples import program_with_a_slip
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.task import derived_rng
from lite_selfplay.testing import ScriptedTable, check_game
from lite_selfplay.verify.format import well_formed
from lite_selfplay.verify.programs import extract_program, run_tests
from tests.games.scripted import played, small
from tests.made import completion, samples

TASK = load_task("code-arithmetic", seed=5)
ADD = Problem("add", "Add two numbers.", {"tests": [["1 2", "3"], ["0 3", "3"]]}, "program")
RIGHT = "The sum.\n<answer>\nprint(sum(map(int, input().split())))\n</answer>"
HALF = "Three.\n<answer>\nprint(input().split()[1])\n</answer>"


def test_half_of_the_tests_earn_nothing():
    """Section 5.3: r = 1 if all unit tests pass. `HALF` prints the second number: right on the second test alone."""
    for name, roles in (("agon", ("drafter", "challenger")), ("grpo", ("solver",)), ("self-refine", ("drafter",))):
        game = small(name, 2, format_weight=0.5)
        ((episode,), _) = played(game, {role: [RIGHT, HALF] for role in game.roles}, [ADD])
        for role in roles:
            assert [s.verdict.score for s in samples(episode, role)][:2] == [1, 0.5]
            bonus = 0.5  # both are well-formed
            assert [s.reward for s in samples(episode, role)][:2] == [2 + bonus, bonus], name


def test_a_users_own_number_stands():
    assert earned(Verdict(False, 0.3, reason=""), ADD) == 0.3
    assert earned(Verdict(False, 0.9, reason="wrong_answer"), ADD) == 0
    assert earned(Verdict(True, 1.0), ADD) == 1
    assert earned(Verdict(False, 0.4, reason="wrong"), Problem("x", "1 + 1?", "2")) == 0.4


def test_a_rival_sees_explanation_and_program_and_no_verdict():
    table, thinking = ScriptedTable({}), ScriptedTable({}, thinks=True)
    seen = recap_of(table, completion(RIGHT), ADD)
    assert seen == "The sum.\n\nprint(sum(map(int, input().split())))"
    prompt = challenge_prompt(ADD, seen)
    assert seen in prompt
    assert "may or may not be correct" in prompt
    assert not [word for word in ("passed", "failed", "wrong_answer", "1 2") if word in prompt]
    assert [recap_of(table, completion("<think>hm"), ADD), recap_of(thinking, completion(RIGHT), ADD)] == ["", ""]
    assert recap_of(thinking, completion(f"<think>secret</think>{RIGHT}"), ADD) == seen
    fenced = recap_of(table, completion("```python\nprint(1)\n```"), ADD)
    assert "```\n'''python\nprint(1)\n'''\n```" in challenge_prompt(ADD, fenced)


def test_prompts_say_what_is_not_there_and_worked_examples_before_them_are_programs():
    for prompt in (asked(ADD), asked_after(ADD, "x"), challenge_prompt(ADD, "")):
        missing = ("no files", "no network", "no threads", "no other processes")
        assert [words for words in missing if words not in prompt] == []
    assert problem_asked(asked(ADD)) == ADD.text
    assert problem_asked(asked(Problem("x", "1 + 1?", "2"))) == "1 + 1?"
    prompt = opening(ADD, 5)
    assert prompt.count("<answer>\n") == 5
    assert prompt.endswith(asked(ADD))


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("name", ["agon", "grpo", "self-refine"])
def test_a_cold_start_teaches_programs_that_pass(name, thinks):
    game = small(name)
    for problem, role in itertools.product(TASK.problems[:2], game.roles):
        example = game.cold_start(role, problem, derived_rng(role), thinks=thinks)
        assert well_formed(example.completion, thinks)
        assert extract_program(example.completion) == problem.extra["solution"]
        assert problem.text in example.prompt


def test_attempts_of_a_cold_start_are_right_wrong_and_missing():
    problem, rng = TASK.problems[0], random.Random(0)
    attempts = [worked_attempt(problem, rng) for _ in range(40)]
    programs = [
        extract_program(f"<answer>\n{text.partition(chr(10))[2].strip()}\n</answer>") for text in attempts if text
    ]
    assert run_tests(problem.extra["solution"], problem.answer).score == 1
    scores = [report.score for report in run_tests(programs, problem.answer)]
    assert 1 <= attempts.count("") <= 15
    assert 0.2 < sum(score < 1 for score in scores) / len(scores) < 0.8
    assert all(problem.extra["explanation"] in text for text in attempts if text)


def test_a_slip_is_another_program():
    for problem in TASK.problems[:20]:
        program = problem.extra["solution"]
        slipped = program_with_a_slip(program, random.Random(1))
        assert slipped != program or not any(c.isdigit() or c in "+*<>=" for c in program.split("\n", 1)[1])
    assert program_with_a_slip("pass", random.Random(1)) == "pass"


def test_the_contract_holds():
    check_game(small("agon", 2), steps=2, problems=TASK.problems[:3])
