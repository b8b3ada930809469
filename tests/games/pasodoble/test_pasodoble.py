import random
from collections.abc import Sequence
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Problem, StopReason
from lite_selfplay.games.pasodoble.pasodoble import (
    PasoDoble,
    parse_proposal,
    proposer_prompt,
)
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.questions import fit_to_ask, to_proposal
from lite_selfplay.runs.report.step_rows import progress_line
from lite_selfplay.testing import ScriptedTable
from tests.games.scripted import played, small
from tests.made import Unread, completion, rewards

PASSAGES = [Problem("p-1", "Hens lay eggs."), Problem("p-2", "Trains run on rails.")]
RIGHT, WRONG = "<answer>7</answer>", "<answer>8</answer>"
LEAK = ("It is 777.", "777")


def proposal(question: str | None, answer: str = "7") -> str:
    return f"<problem>{question}</problem><answer>So \\boxed{{{answer}}}.</answer>" if question else "no tags"


def make(j: int = 2, k: int = 4, **options: Any) -> Any:
    """A game with `j` proposals about one passage and `k` answers to each."""
    return small("pasodoble", k, proposals=j, **options)


def steps(game: Any, said: Sequence[Any], answers: Sequence[str], n: int = 1, kind: type = ScriptedTable) -> Any:
    """The episodes of steps that propose these questions, alone or with an answer; `steps.asked` has the prompts."""
    proposals = [proposal(*each) if isinstance(each, tuple) else proposal(each) for each in said]
    episodes, table = played(game, {"proposer": proposals, "solver": answers}, PASSAGES, steps=n, kind=kind)
    steps.asked = table.asked
    return episodes


BOUNDS: Any = {"most": 512, "guard": "token3"}
PROPOSALS = {
    "<problem> 3 + 4? </problem>\n<answer>3 + 4 = 7. \\boxed{7}</answer>": ("3 + 4?", "7"),
    "Draft <problem>a</problem>, no: <problem>b</problem> <answer>\\boxed{1} or \\boxed{2}</answer>": ("b", "2"),
    "<problem>a</problem>": ("a", None),
    "<problem>a</problem><answer>7</answer>": ("a", None),
    "<problem>a</problem> \\boxed{7}": ("a", None),
    "<problem>a</problem><answer>\\boxed{7}": ("a", None),
    "<answer>\\boxed{7}</answer><problem>a</problem>": ("a", None),
    "<problem></problem><answer>\\boxed{7}</answer>": ("", "7"),
    "<problem>a<answer>\\boxed{7}</answer>": None,
    "What is 3 + 4? \\boxed{7}": None,
    "": None,
}


def test_parsing():
    assert {text: parse_proposal(text) for text in PROPOSALS} == PROPOSALS


@pytest.mark.parametrize(
    ("text", "stop", "reason"),
    [
        (proposal("3 + 4?"), "eos", ""),
        (f"<think>{proposal('1?')}</think>{proposal('3 + 4?')}", "eos", ""),
        (f"<think>{proposal('3 + 4?')}", "eos", "off_format"),
        (f"<think>{proposal('3 + 4?')}", "length", "truncated"),
        ("<problem>3 + 4?</problem><answer>never", "eos", "no_answer"),
        ("<problem>3 + 4?</problem><answer>never", "length", "truncated"),
        ("<problem> </problem><answer>\\boxed{7}</answer>", "eos", "empty"),
        ("no tags", "eos", "off_format"),
        (proposal("x" * 600), "eos", "too_long"),
        (proposal("It is 777. What is it?", "777"), "eos", "leaks"),
    ],
)
def test_why_a_proposal_is_refused(text: str, stop: StopReason, reason: str):
    assert fit_to_ask(to_proposal(completion(text, stop), parse_proposal), ScriptedTable({}), **BOUNDS).reason == reason


def test_a_question_that_the_solvers_prompt_cannot_hold_is_malformed():
    fits = make(2, question_tokens=len(fill("solver", problem="3 + 4?")))
    (episode,) = steps(fits, ["3 + 4?", "33 + 4?"], [RIGHT])
    assert episode.log["refused"] == {"too_long": 1}
    game = make(k=2)
    (episode,) = steps(game, ["long", "3 + 4?"], [RIGHT, RIGHT, RIGHT, WRONG], kind=Unread)
    assert episode.log["refused"] == {"too_long": 1}
    assert rewards(episode, "proposer") == [[0.0, pytest.approx(0.8)]]
    assert len(game.state()["history"]) == 1


def test_a_step_by_hand():
    questions = ["three and four", "9 - 2", "half of fourteen", "six plus one"]
    answers = [RIGHT, WRONG, RIGHT, WRONG, *[WRONG] * 4, *[RIGHT] * 4, WRONG, WRONG, WRONG, RIGHT]
    (episode,) = steps(make(6), [*questions, None, LEAK], answers)
    # p = 2/4, 0, 1, 1/4: the history is empty, so every diversity is 1. Refused proposals stay in the group at 0.
    expected = [1.1 - 0.5 + 0.2, 0.0, 1.1 - 1.0 + 0.2, 1.1 - 0.25 + 0.2, 0.0, 0.0]
    assert rewards(episode, "proposer") == [pytest.approx(expected)]
    assert rewards(episode, "solver") == [[1, 0, 1, 0], [0, 0, 0, 1]]
    proposers, solvers = episode.streams
    assert (proposers.credit, proposers.drop_zero_variance, solvers.credit) == ("group", False, "group")
    assert None not in stream_advantages(proposers)[0]
    assert [group.problem for group in solvers.groups] == [
        Problem("q-0-0", questions[0], "7"),
        Problem("q-0-3", questions[3], "7"),
    ]
    assert proposers.groups[0].problem == PASSAGES[0]
    told = [
        (s.info["question"], s.info["pass_rate"], s.verdict and s.verdict.reason) for s in proposers.groups[0].samples
    ]
    assert told == [
        ("q-0-0", 0.5, ""),
        ("q-0-1", 0.0, "too_hard"),
        ("q-0-2", 1.0, "too_easy"),
        ("q-0-3", 0.25, ""),
        ("q-0-4", None, "off_format"),
        ("q-0-5", None, "leaks"),
    ]
    assert {sample.info["question"] for sample in solvers.groups[1].samples} == {"q-0-3"}
    log = episode.log
    assert (log["phase"], log["skipped"], log["proposals"], log["usable"], log["leaks"]) == ("online", False, 6, 2, 1)
    assert log["refused"] == {"leaks": 1, "off_format": 1}
    assert log["invalid"] == {"too_easy": 1, "too_hard": 1}
    assert (log["valid_rate"], log["pass_rate"], log["diversity"]) == (2 / 6, 1.75 / 4, 1.0)
    assert log["pass_rates"] == [1, 1, 1, 0, 1]


def test_a_guarded_question_is_not_asked_and_enters_the_history():
    game = make()
    steps(game, [LEAK], [RIGHT])
    assert [role for role, *_ in steps.asked] == ["proposer"]
    assert len(game.state()["history"]) == 2


def test_all_proposals_meet_the_history_before_them():
    first, second = steps(make(), ["aaa", "aaa", "aaa", "zzz"], [RIGHT, WRONG], 2)
    assert rewards(first, "proposer") == [pytest.approx([0.8, 0.8])]  # alike, but none was there before
    assert rewards(second, "proposer") == [pytest.approx([0.0, 0.8])]
    assert second.log["invalid"] == {"alike": 1}
    assert [group.problem.text for group in second.streams[1].groups if group.problem] == ["zzz"]
    game = make(history=3)
    steps(game, ["aaa", "bbb", "ccc", "ddd"], [RIGHT, WRONG], 2)
    assert game.state()["history"] == [[ord(c)] for c in "bcd"]


def test_a_step_without_a_valid_question_is_skipped_and_counted():
    game = make()
    for step, episode in enumerate(steps(game, ["3 + 4?", None], [WRONG], 3), 1):
        said = {s.role: [x.completion.text for g in s.groups for x in g.samples] for s in episode.record}
        assert said == {"proposer": [proposal("3 + 4?"), "no tags"], "solver": [WRONG] * 4}
        assert (episode.streams, episode.log["skipped"]) == ([], True)
        assert episode.log["skips"] == episode.log["empty_steps"] == step
        assert episode.log["refused_texts"] == {"off_format": "no tags", "too_hard": proposal("3 + 4?")}
    (after,) = steps(game, ["z?"], [RIGHT, WRONG])
    assert (after.log["skipped"], after.log["skips"], after.log["empty_steps"]) == (False, 3, 0)


def test_without_knowledge_nothing_is_drawn():
    game = make(knowledge="none")
    assert (game.sources, make().sources) == ((), ("passages",))
    (episode,) = steps(game, ["3 + 4?"], [RIGHT, WRONG])
    assert episode.streams[0].groups[0].problem is None
    assert steps.asked[0][1] == [proposer_prompt()]
    assert "```" not in proposer_prompt()


def test_random_rewards_do_not_look_at_the_answer():
    ((wrong,), (right,)) = (steps(make(k=60, reward="random"), ["3 + 4?"], [said]) for said in (WRONG, RIGHT))
    assert rewards(wrong, "solver") == rewards(right, "solver")
    assert {*rewards(wrong, "solver")[0]} == {0.0, 1.0}
    assert 0.3 < wrong.log["pass_rate"] < 0.7
    (formed,) = steps(make(k=60, reward="random_with_format"), ["3 + 4?"], [WRONG, "It is 7"])
    (first, _) = rewards(formed, "solver")
    assert (any(first[1::2]), any(first[::2])) == (False, True)


EASY, SPLIT = [RIGHT] * 4, [RIGHT, WRONG, WRONG, RIGHT]
# Proposals of a step, or of two; None is one without tags. Each gate determines the trained roles, the
# questions that the solver learns from, and the proposer's rewards, if it is trained.
ALWAYS, AGAIN, LATER = ["aaa", None], ["aaa", "zzz", "aaa", "zzz"], ["aaa", None, "aaa", "zzz"]
BOTH = ["proposer", "solver"]
OFFLINE = {"mode": "offline", "proposer_steps": 1, "solver_steps": 1}


@pytest.mark.parametrize(
    ("options", "said", "answers", "moved", "learned", "earned"),
    [
        ({}, ALWAYS, EASY, [], [], None),
        ({"gate": "valid"}, ALWAYS, EASY, ["proposer"], [], [1.1 - 1 + 0.2, 0.0]),
        ({"gate": "pass_rate"}, ALWAYS, EASY, [], [], None),
        ({"gate": "valid", "freeze_proposer": True}, ALWAYS, EASY, [], [], None),
        ({"gate": "valid", **OFFLINE}, ALWAYS, EASY, ["proposer"], [], [0.3, 0.0]),
        ({"gate": "valid"}, [LEAK, None], EASY, [], [], None),
        # The paper trains the solver on questions that it does not always solve.
        ({"gate": "valid"}, ["aaa", "bbb"], EASY + SPLIT, BOTH, ["bbb"], [0.3, 0.8]),
        # Half of the history is like either question, and both are solved every time: 1.1 - 1 + 0.2 / 2.
        ({"gate": "valid"}, AGAIN, EASY, ["proposer"], [], [0.2, 0.2]),
        ({"gate": "valid", "min_diversity": 0.5}, AGAIN, EASY, [], [], None),
        # "aaa" is alike, earns nothing, and still trains in the release; the paper drops it.
        ({"gate": "pass_rate"}, LATER, SPLIT * 2 + EASY, BOTH, ["aaa"], [0.0, 0.3]),
        ({}, LATER, SPLIT * 2 + EASY, [], [], None),
        ({"gate": "valid"}, LATER, SPLIT * 2 + EASY, ["proposer"], [], [0.0, 0.3]),
        # Both proposals earn the same: the release skips the step, though the solver could learn from both.
        ({"gate": "pass_rate", **OFFLINE}, ["aaa", "bbb"], SPLIT, [], [], None),
        ({}, ["aaa", "bbb"], SPLIT, BOTH, ["aaa", "bbb"], [0.8, 0.8]),
    ],
)
def test_what_each_gate_lets_through(options, said, answers, moved, learned, earned):
    game = make(**options)
    *_, episode = steps(game, said, answers, len(said) // 2)
    assert [stream.role for stream in episode.streams] == moved
    assert [g.problem.text for s in episode.streams if s.role == "solver" for g in s.groups if g.problem] == learned
    assert earned is None or rewards(episode, "proposer") == [pytest.approx(earned)]
    log = episode.log
    assert (log["skipped"], log["usable"], log["empty_steps"] > 0) == (not moved, len(learned), not moved)
    assert ("refused_texts" in log) == (not moved)
    if options.get("mode") == "offline":  # an empty buffer, so that the solver's phase is skipped
        assert (log["buffer"], game.schedule.phase, game.schedule.iteration) == (0, "proposer", len(moved))


def test_a_replayed_question_is_answered_afresh_and_filtered_again():
    game = make(3, mode="offline", proposer_steps=1, solver_steps=1)
    answers = [RIGHT, WRONG, WRONG, RIGHT] * 3 + [RIGHT] * 4 + [WRONG] * 4 + [WRONG, RIGHT, RIGHT, RIGHT]
    _, episode = steps(game, ["aaa", "bbb", "ccc"], answers, 2)
    # The buffer of three is walked twice: 1, 0, 0.75, then 0.5 three times as the script begins anew.
    assert rewards(episode, "solver") == [[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert (episode.log["replayed"], episode.log["usable"]) == (6, 4)


TWO_A_STEP = {"k": 2, "mode": "offline", "proposer_steps": 1, "solver_questions": 2}


def test_a_bad_batch_is_skipped_and_does_not_stall():
    game = make(**TWO_A_STEP, solver_steps=2, attempts=2)
    for episode in steps(game, ["aaa", "bbb"], [RIGHT, WRONG, RIGHT, WRONG] + [WRONG] * 100, 5)[1:]:
        assert (episode.log["phase"], episode.log["skipped"], episode.streams) == ("solver", True, [])
    assert game.schedule.phase == "proposer"


def test_eviction_ends_the_solvers_phase_early():
    game = make(**TWO_A_STEP, solver_steps=5, eviction=True)
    _, solved = steps(game, ["aaa", "bbb"], [RIGHT, WRONG, RIGHT, WRONG] + [RIGHT] * 4, 2)
    assert (solved.log["evicted"], solved.log["buffer"]) == (2, 0)
    assert (game.schedule.phase, game.schedule.iteration) == ("proposer", 1)


def test_a_frozen_proposer_collects_questions_without_moving():
    game = make(mode="offline", proposer_steps=1, solver_steps=1, freeze_proposer=True)
    collected, solved = steps(game, ["aaa", "bbb"], [RIGHT, WRONG], 2)
    assert (collected.streams, collected.log["skipped"]) == ([], False)
    assert [stream.role for stream in solved.streams] == ["solver"]


def problem(answer: str = "7", **extra: str) -> Problem:
    return Problem("p", "What is 3 + 4?", answer, extra={"solution": "3 + 4 = <<3+4=7>>7.\n#### 7", **extra})


def test_a_worked_proposal_reads_a_passage_to_compose_a_problem_from_and_not_to_copy_one():
    example = make().cold_start("proposer", problem(), random.Random(0), thinks=False)
    assert example.prompt == proposer_prompt("3 + 4 = 7.")
    assert proposer_prompt("a\n```\nb").count("```") == 2  # a passage cannot close its fence
    assert make(knowledge="none").worked_proposal(problem(), thinks=True).prompt == proposer_prompt()


def test_worked_proposals_need_a_solution_and_keep_to_the_games_own_guard():
    unsolved, gives_itself_away = Problem("p", "What is 3 + 4?", "7"), problem(answer="What")
    for refused in (unsolved, gives_itself_away, problem(solution="</answer>")):
        assert make().worked_proposal(refused, thinks=False) is None
    # "What is 3 + 4?" contains 4, as one character.
    taught = [
        make(leak_guard=guard).cold_start("proposer", problem(answer="4"), random.Random(0), thinks=False)
        for guard in ("token3", "substring")
    ]
    assert [example is None for example in taught] == [False, True]


def test_the_terminal_says_that_a_step_was_skipped():
    metrics = {"step": 1, "streams": {}, "game": {"skipped": True}, "wall_s": {"total": 1.0, "generate": 1.0}}
    line = progress_line(PasoDoble, {**metrics, "tokens": {"generated": 9}}, 5)
    assert "skipped, no question to train on" in line
    assert "no signal" not in line
