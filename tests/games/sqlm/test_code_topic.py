"""The code topic: a problem with tests, programs for it, and the rewards of both (equations 3 and 4)."""

import json

import pytest

from lite_selfplay.games.prompts import fill
from lite_selfplay.games.sqlm.sqlm import read_question
from lite_selfplay.games.sqlm.topics import load_topic, problem_with_tests
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.task import derived_rng
from lite_selfplay.verify.programs import program_problem, read_tests, run_tests
from tests.games.scripted import played, small
from tests.made import completion, rewards, samples

TOPIC = load_topic("code", 16)
SUM = "Problem Description:\nPrint the sum.\n\nTest Cases:\n1 2 ||| 3\n4 5 6 ||| 15\n7 ||| 7\n0 0 ||| 0\n-1 1 ||| 0"
RIGHT = "<answer>\nprint(sum(map(int, input().split())))\n</answer>"
FIRST = "<answer>\nprint(input().split()[0])\n</answer>"
WRONG = "<answer>\nprint('no')\n</answer>"
CODE = small("sqlm", topic="code", proposer_every=1)


def test_a_step_by_hand():
    """Tests passed, of five: all; the first number of three lines is right, if there is one or a 0; none; all. The
    other questions: every answer passes all of them, or none does, or there is no program."""
    said = [RIGHT, FIRST, WRONG, RIGHT, *[RIGHT] * 4, *[WRONG] * 4, *["nothing"] * 4]
    ((episode,), table) = played(CODE, {"proposer": [SUM], "solver": said})
    solvers, proposers = samples(episode, "solver"), samples(episode, "proposer")
    assert [sample.reward for sample in solvers] == [1, 0.4, 0, 1, *[1] * 4, *[0] * 8]  # FIRST: right on "7", "0 0"
    assert [s.verdict.reason for s in solvers][:4] == ["", "wrong_answer", "wrong_answer", ""]
    assert [(sample.reward, sample.masked) for sample in proposers] == [(1, False), *[(0, False)] * 3]
    assert [sample.verdict.reason for sample in proposers] == ["", "all_pass", "none_pass", "none_pass"]
    assert proposers[0].info["share"] == pytest.approx(0.6)
    prompt = table.asked[1][1][0]  # the problem, and no test
    assert prompt.startswith("Print the sum.")
    assert "|||" not in prompt
    assert "no files, no network, no threads" in prompt


def test_anchors_are_shown_with_their_tests_and_answered_without():
    game = small("sqlm", 2, 4, topic="code", anchors=1, shots=1)
    anchor = program_problem("p-0", "Print the sum.", problem_with_tests(SUM)[1], "p-0")
    ((episode,), table) = played(game, {"proposer": ["x"], "solver": [RIGHT, FIRST]}, [anchor])
    assert rewards(episode, "solver") == [[1, 0.4]]
    prompts = [(role, prompt) for role, prompts, _ in table.asked for prompt in prompts]
    shown = {SUM.replace("\n\n", "\n") in prompt for role, prompt in prompts if role == "proposer"}
    assert shown == {False, True}
    assert not any("|||" in prompt for role, prompt in prompts if role == "solver")


@pytest.mark.parametrize(
    ("text", "stop", "question", "tests", "reason"),
    [
        (SUM, "eos", "Print the sum.", 5, ""),
        ("**Problem Description:** Print 1.\n### Test cases:\n1 ||| 1\\n", "eos", "Print 1.", 1, ""),
        ("Print it.\nTest Cases:\n1 ||| 1\n2 ||| 2\n3|||3\n4 ||| 4\n5 ||| 5\n6 ||| 6", "eos", "Print it.", 5, ""),
        ("<think>Test Cases:\n1 ||| 2</think>Print it.\nTest Cases:\n1 ||| 1", "eos", "Print it.", 1, ""),
        ("Print it.\nTest Cases:\n1 ||| 1\nnothing\n2 ||| \n ||| 3", "eos", "Print it.", 1, ""),
        ("Print it.\nTest Cases:\n1: 1", "eos", "", 0, "off_format"),
        ("Print it.\n1 ||| 1", "eos", "", 0, "off_format"),
        ("Test Cases:\n1 ||| 1", "eos", "", 1, "empty"),
        (SUM, "length", "Print the sum.", 5, "truncated"),
    ],
)
def test_what_a_reply_proposes(text, stop, question, tests, reason):
    found = read_question(TOPIC, completion(text, stop))
    assert (found.reason, found.question) == (reason, question)
    assert len(json.loads(found.answer or "[]")) == tests


def test_a_proposer_is_taught_what_can_be_read():
    for problem in load_task("code-arithmetic", seed=3).problems[:20]:
        example = CODE.cold_start("proposer", problem, derived_rng(0), thinks=False)
        taught = CODE.cold_start("solver", problem, derived_rng(0), thinks=False)
        assert taught is not None
        assert "<answer>\nnumbers = [int(word)" in taught.completion
        if example is None:  # a test of it prints nothing
            continue
        assert example.prompt == fill("sqlm_code")
        question, tests = problem_with_tests(example.completion)
        assert tests == [[i.strip(), o.strip()] for i, o in problem.answer["tests"]]
        assert question
        assert "stdin" not in question
        assert run_tests(problem.extra["solution"], read_tests(tests)).score == 1
    sums = load_task("arithmetic").problems[0]
    assert CODE.cold_start("proposer", sums, derived_rng(0), thinks=False) is None
