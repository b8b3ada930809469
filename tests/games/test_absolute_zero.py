"""Absolute Zero: rewards and six baselines by hand, valid tasks, and buffers that a resume restores."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Problem, Verdict
from lite_selfplay.errors import GameError
from lite_selfplay.games.absolute_zero import (
    IDENTITY,
    KINDS,
    Triple,
    proposer_prompt,
    read_task,
    solvers_sample,
    task_of,
    task_reward,
)
from lite_selfplay.tasks import load_task
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.verify.format import well_formed
from tests.games.scripted import played, small
from tests.made import Unread, completion, play, rewards, samples, stream

DOUBLE, ADD = "def f(a):\n    return a * 2", "def f(a, b):\n    return a + b"


def writes(program: str, inputs: str) -> str:
    return f"<program>\n{program}\n</program>\n<input>{inputs}</input>"


def says(value: object) -> str:
    return f"<answer>{value}</answer>"


def step(
    proposals: list[str], answers: list[str], b: int = 1, n: int = 4, kind: type = ScriptedTable, **options: Any
) -> Episode:
    """A step with these numbers of proposals of each kind and of answers to each task; `step.asked` has the prompts."""
    game = small("absolute-zero", n, b, **options)
    ((episode,), table) = played(game, {"proposer": proposals, "solver": answers}, kind=kind)
    step.asked, step.game = table.asked, game  # type: ignore[attr-defined]
    return episode


def test_what_a_task_earns():
    assert [task_reward(k / 4) for k in range(5)] == [0, 0.75, 0.5, 0.25, 0]
    assert [task_reward(k / 4, -0.5) for k in range(5)] == [-0.5, 0.75, 0.5, 0.25, -0.5]
    assert [task_reward(k / 4, None) for k in range(5)] == [1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize(
    ("correct", "score", "formed", "earned"),
    [(True, 1, True, 1), (False, 0, True, -0.5), (False, 0.8, True, -0.5), (True, 1, False, -1), (False, 0, False, -1)],
)
def test_what_an_answer_earns(correct: bool, score: float, formed: bool, earned: float):
    sample = solvers_sample(completion("x"), Verdict(correct, score, "x", formed), Problem("q", ""))
    assert (sample.reward, sample.verdict.score) == (earned, float(correct))  # some tests passed are not half right


def test_a_step_by_hand():
    """Two deductions and two abductions: their rewards, and a baseline for each kind and role."""
    proposals = [writes(DOUBLE, "3"), writes(ADD, "'a', 'b'"), writes(ADD, "1, 2"), "no tags"]
    deductions = [says(6), says(6), says(5), "six", *[says("'ab'")] * 4]
    abductions = [says("0, 3"), says("3"), says("[1], [2]"), says("1.0, 2"), *[says("'x'")] * 4]
    episode = step(proposals, [*deductions, *abductions], 2, kinds=["deduction", "abduction"])
    assert rewards(episode, "proposer") == [[0.5, 0.0], [0.5, -1.0]]
    right, wrong, broken = 1, -0.5, -1
    assert rewards(episode, "solver") == [
        [right, right, wrong, broken, right, right, right, right],
        # The identity stands in for the second abduction, and returns 'Hello world'.
        [right, wrong, wrong, right, wrong, wrong, wrong, wrong],
    ]
    proposer, solver = (stream(episode, role) for role in ("proposer", "solver"))
    assert (proposer.credit, solver.credit) == ("group", "group")
    # (r - mean) / (sample deviation + 1e-4): means 1/4 and -1/4, deviations 0.3536 and 1.0607.
    assert stream_advantages(proposer) == [
        pytest.approx([0.7069, -0.7069], abs=1e-4),
        pytest.approx([0.7070, -0.7070], abs=1e-4),
    ]
    told = [(s.info["question"], s.info["pass_rate"], s.verdict.reason) for s in samples(episode, "proposer")]
    assert told == [
        ("q-0-0", 0.5, ""),
        ("q-0-1", 1.0, "too_easy"),
        ("q-0-2", 0.5, ""),
        ("q-0-3", None, "off_format"),
    ]
    log = episode.log
    assert (log["proposals"], log["usable"], log["refused"]) == (4, 3, {"off_format": 1})
    assert log["success"] == {"deduction": 0.75, "abduction": 0.25}
    assert log["buffers"] == {"deduction": 3, "abduction": 2}
    assert (log["pass_rates"], log["pass_rate"]) == ([0, 0, 2, 0, 1], pytest.approx(2 / 3))


def test_an_induction_shows_half_of_its_pairs_and_is_judged_on_the_others():
    inputs = "".join(f"<input>{each}</input>" for each in ("1", "'a'", "[2]", "(3, 4)"))
    programs = ["def f(x): return x", "def f(x): return x if x in (1, 'a') else 0", "def f(x): return [2]", "x"]
    episode = step(
        [f"{inputs}<message>Change nothing.</message>"],
        [says(f"\n{each}\n") for each in programs],
        kinds=["induction"],
        inputs=4,
    )
    assert rewards(episode, "solver") == [[1, -0.5, -0.5, -0.5]]
    assert rewards(episode, "proposer") == [[0.75]]
    _, (prompt,), _ = step.asked[1]  # type: ignore[attr-defined]
    assert "f(1) returns 1\nf('a') returns 'a'\n\nA hint: Change nothing." in prompt
    assert "[2]" not in prompt.partition("Say in a sentence")[0]
    assert step.game.state()["buffers"]["induction"][1]["outputs"] == ["1", "'a'", "[2]", "(3, 4)"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (writes(DOUBLE, "3"), ""),
        (writes(f"```python\n{DOUBLE}\n```", "'ab'"), ""),
        (writes(DOUBLE, "{'a': 1}"), "invalid"),  # which cannot be doubled
        (writes("def f(a): return a[", "3"), "invalid"),
        (writes("def g(a): return a", "3"), "invalid"),
        (writes("import random\ndef f(a): return 1", "3"), "invalid"),
        (writes("import math, os.path\ndef f(a): return 1", "3"), "invalid"),
        (writes("def f(a):\n    from time import time\n    return 1", "3"), "invalid"),
        (writes("import math\ndef f(a): return math.gcd(a, 6)", "3"), ""),
        (writes("n = []\ndef f(a):\n    n.append(a)\n    return len(n)", "3"), "invalid"),  # 1, then 2
        (writes("def f(a): return object()", "3"), "invalid"),
        (writes("def f(a): return lambda: a", "3"), "invalid"),
        (writes(DOUBLE, "__import__('os').getcwd()"), "invalid"),
        (writes("def f(a): return __import__('math').pi", "3"), "invalid"),
        (writes("def f(a): return repr(f)", "3"), "invalid"),
        (writes("x = 1; import time\ndef f(a): return int(time.time())", "3"), "invalid"),
        (writes(DOUBLE, "1 + 2"), "invalid"),  # no literal
        (writes(DOUBLE, "a=3"), "invalid"),
        (writes(DOUBLE, ""), "invalid"),
        (writes(DOUBLE, "3") + "<input>4</input>", "no_answer"),
        (f"<program>{DOUBLE}</program>", "no_answer"),
        ("<program></program><input>3</input>", "empty"),
        (DOUBLE, "off_format"),
        ("", "empty"),
    ],
)
def test_what_makes_a_task_valid(said: str, reason: str):
    episode = step([said], [says(6)], kinds=["deduction"])
    (sample,) = samples(episode, "proposer")
    assert (sample.verdict.reason if sample.verdict.reason not in ("too_hard", "too_easy") else "") == reason
    assert (sample.reward == -1) == bool(reason)
    assert (episode.log["refused"], episode.log["buffers"]["deduction"]) == (({reason: 1}, 1) if reason else ({}, 2))


def test_a_task_that_no_prompt_can_hold_is_no_task_and_is_not_kept():
    episode = step([writes("def f(long): return long", "3")], [says(6)], kinds=["deduction"], kind=Unread)
    assert rewards(episode, "proposer") == [[-1.0]]
    assert (episode.log["refused"], episode.log["buffers"]) == ({"too_long": 1}, {"deduction": 1})
    assert [each.role for each in episode.streams if each.groups] == ["proposer"]


def test_values_cross_as_data_and_come_back_equal():
    made = "def f(a):\n    return (a, [1.5, None], {'k': {1, 2}}, -3, True, 'it\\'s \"so\"', b'x')"
    step([writes(made, "'<answer>'")], [says(1)], kinds=["abduction"])
    task = Triple(**step.game.state()["buffers"]["abduction"][1])  # type: ignore[attr-defined]
    (told,) = task.outputs
    assert eval(told) == ("<answer>", [1.5, None], {"k": {1, 2}}, -3, True, 'it\'s "so"', b"x")


def test_buffers_begin_with_the_identity_grow_once_and_are_restored():
    proposals = [writes(DOUBLE, str(number // 2)) for number in range(8)]
    table = ScriptedTable({"proposer": proposals, "solver": [says(0)]})
    game = small("absolute-zero", 2, 2, kinds=["deduction", "abduction"], buffer=3)
    assert game.state()["buffers"] == {kind: [vars(IDENTITY[kind])] for kind in KINDS}
    play(game, table)
    saved = json.loads(json.dumps(game.state()))
    # 0 and 0 for deduction, 1 and 1 for abduction: each once.
    assert {kind: [task["inputs"] for task in kept][1:] for kind, kept in saved["buffers"].items()} == {
        "deduction": [["0"]],
        "abduction": [["1"]],
        "induction": [],
    }
    play(game, table, 1)
    play(game, table, 2)
    assert [task["inputs"][0] for task in game.state()["buffers"]["deduction"]] == ["'Hello world'", "0", "2"]
    twin = small("absolute-zero", 2, 2, kinds=["deduction", "abduction"], buffer=3)
    twin.restore(saved)
    assert twin.state() == saved
    full = small("absolute-zero", 2, 2, kinds=["deduction"], buffer=1)
    play(full, ScriptedTable({"proposer": proposals, "solver": [says(0)]}))
    assert [task["inputs"] for task in full.state()["buffers"]["deduction"]] == [["0"]]  # the oldest leaves
    table.close()


def test_buffers_may_begin_with_programs_of_the_tasks_and_are_filled_once():
    problems = load_task("code-arithmetic:tests=10").problems[:5]
    game = small("absolute-zero", 2, 1, worked=2, references=3)
    assert game.sources == ("problems",)
    table = ScriptedTable(lambda *_: "hm", problems)
    play(game, table)
    for kind, kept in game._buffers.items():
        assert kept == [IDENTITY[kind], *(task_of(problem, kind, 10) for problem in problems[:2])]
    assert all(problem.answer is not None for problem in problems)
    prompts = next(prompts for role, prompts, _ in table.asked if role == "proposer")
    assert task_of(problems[0], "deduction", 10).program in prompts[0]
    play(game, table, 1)
    assert {kind: len(kept) for kind, kept in game._buffers.items()} == dict.fromkeys(KINDS, 3)
    with pytest.raises(GameError, match="needs programs over a line of numbers"):
        play(small("absolute-zero", 2, 1, worked=2), ScriptedTable(lambda *_: "hm", [Problem("p", "2 + 2?", "4")]))
    table.close()


def test_a_proposer_sees_so_many_earlier_tasks_and_an_induction_takes_one_of_their_programs():
    game = small("absolute-zero", references=2, inputs=3)
    game._buffers["deduction"] += [replace(IDENTITY["deduction"], inputs=[str(i)], outputs=[str(i)]) for i in range(5)]
    seen = game._earlier("deduction", random.Random(0))
    assert len(seen) == 2
    assert all(f"f({task.inputs[0]}) returns" in proposer_prompt("deduction", seen, 3) for task in seen)
    (taken,) = game._earlier("induction", random.Random(0))
    assert taken.kind in ("deduction", "abduction")
    prompt = proposer_prompt("induction", [taken], 3)
    assert taken.program in prompt
    assert "Write 3 inputs" in prompt


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cold_start_teaches_tasks_that_are_valid_and_answers_that_are_right(kind: Any, thinks: bool):
    game = small("absolute-zero", kinds=[kind])
    table = ScriptedTable({}, thinks=thinks)
    for problem in load_task(game.default_tasks).problems[:6]:
        task = task_of(problem, kind, 10)
        assert task is not None
        proposal = game.cold_start("proposer", problem, random.Random(0), thinks=thinks)
        found = read_task(kind, task, completion(proposal.completion), 10)
        assert (found.reason, found.task.program, found.task.inputs) == ("", task.program, task.inputs)
        answer = game.cold_start("solver", problem, random.Random(0), thinks=thinks)
        assert well_formed(answer.completion, thinks)
        (run,) = game._run(table, [found])
        assert run.task.outputs == task.outputs
        assert table.verify([(completion(answer.completion), task.problem("q"))])[0].correct
    table.close()


def test_other_problems_teach_no_tasks():
    game = small("absolute-zero")
    assert game.cold_start("proposer", Problem("p", "2 + 2?", "4"), random.Random(0), thinks=False) is None
    few = load_task("code-arithmetic:tests=3").problems[0]
    assert task_of(few, "induction", 10) is None
    assert task_of(few, "deduction", 10) is not None


def test_steps_without_a_valid_task_end_the_run_in_the_end():
    game, table = small("absolute-zero", 2, 1, max_empty_steps=2), ScriptedTable(lambda *_: "hm")
    assert play(game, table).log["usable"] == 0
    with pytest.raises(GameError, match="2 steps in a row brought no question"):
        play(game, table, 1)
    table.close()
