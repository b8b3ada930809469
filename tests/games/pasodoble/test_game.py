import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Problem
from lite_selfplay.errors import GameError
from lite_selfplay.games import make_game
from lite_selfplay.games.pasodoble.game import PasoDoble
from lite_selfplay.games.pasodoble.proposals import parse_proposal, proposer_prompt, solver_prompt, worked_proposal
from lite_selfplay.runs.report.steps import progress_line
from lite_selfplay.testing import ScriptedTable
from tests.made import Unread, completion, play, rewards

PASSAGES = [Problem("p-1", "Hens lay eggs."), Problem("p-2", "Trains run on rails.")]
RIGHT, WRONG = "<answer>7</answer>", "<answer>8</answer>"


def proposal(question: str, answer: str = "7") -> str:
    return f"<problem>{question}</problem><answer>So \\boxed{{{answer}}}.</answer>"


def make(j: int, k: int = 4, **options: Any) -> PasoDoble:
    """A game that asks for `j` proposals of one passage and `k` answers to each."""
    game = make_game("pasodoble", {"proposals": j, **options}, group_size=k, problems_per_step=1)
    assert isinstance(game, PasoDoble)
    return game


def table(proposals: list[str], answers: list[str]) -> ScriptedTable:
    return ScriptedTable({"proposer": proposals, "solver": answers}, PASSAGES)


# Reading proposals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<problem> 3 + 4? </problem>\n<answer>3 + 4 = 7. \\boxed{7}</answer>", ("3 + 4?", "7")),
        ("Draft <problem>a</problem>, no: <problem>b</problem> <answer>\\boxed{1} or \\boxed{2}</answer>", ("b", "2")),
        ("<problem>a</problem>", ("a", None)),
        ("<problem>a</problem><answer>7</answer>", ("a", None)),
        ("<problem>a</problem> \\boxed{7}", ("a", None)),
        ("<problem>a</problem><answer>\\boxed{7}", ("a", None)),
        ("<answer>\\boxed{7}</answer><problem>a</problem>", ("a", None)),
        ("<problem></problem><answer>\\boxed{7}</answer>", ("", "7")),
        ("<problem>a<answer>\\boxed{7}</answer>", None),
        ("What is 3 + 4? \\boxed{7}", None),
        ("", None),
    ],
)
def test_parsing(text: str, expected: tuple[str, str | None] | None):
    assert parse_proposal(text) == expected


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        (proposal("3 + 4?"), {}, ""),
        (f"<think>{proposal('1?')}</think>{proposal('3 + 4?')}", {}, ""),
        (f"<think>{proposal('3 + 4?')}", {}, "off_format"),
        (f"<think>{proposal('3 + 4?')}", {"stop": "length"}, "truncated"),
        ("<problem>3 + 4?</problem><answer>never", {}, "no_answer"),
        ("<problem>3 + 4?</problem><answer>never", {"stop": "length"}, "truncated"),
        ("<problem> </problem><answer>\\boxed{7}</answer>", {}, "empty"),
        ("", {}, "empty"),
        ("", {"stop": "prompt_too_long"}, "prompt_too_long"),
        ("no tags", {}, "off_format"),
        (proposal("x" * 600), {}, "too_long"),
        (proposal("It is 777. What is it?", "777"), {}, "leaks"),
    ],
)
def test_why_a_proposal_is_refused(text: str, changes: dict[str, Any], reason: str):
    assert make(2)._read(table([], []), completion(text, **changes)).reason == reason


def test_a_question_that_the_solvers_prompt_cannot_hold_is_malformed():
    fits = make(2, question_tokens=len(solver_prompt("3 + 4?")))
    assert fits._read(table([], []), completion(proposal("3 + 4?"))).usable
    assert fits._read(table([], []), completion(proposal("33 + 4?"))).reason == "too_long"

    game = make(2, k=2)
    script = {"proposer": [proposal("long"), proposal("3 + 4?")], "solver": [RIGHT, RIGHT, RIGHT, WRONG]}
    episode = play(game, Unread(script, PASSAGES))
    assert episode.log["refused"] == {"too_long": 1}
    assert rewards(episode, "proposer") == [[0.0, pytest.approx(0.8)]]
    assert len(game.state()["history"]) == 1


# A step online


def test_a_step_by_hand():
    questions = ["three and four", "9 - 2", "half of fourteen", "six plus one"]
    game = make(6)
    script = table(
        [*map(proposal, questions), "no tags", proposal("It is 777.", "777")],
        [RIGHT, WRONG, RIGHT, WRONG] + [WRONG] * 4 + [RIGHT] * 4 + [WRONG, WRONG, WRONG, RIGHT],
    )
    episode = play(game, script)
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
    game, script = make(2), table([proposal("It is 777.", "777")], [RIGHT])
    assert not play(game, script).streams
    assert [role for role, *_ in script.asked] == ["proposer"]
    assert len(game.state()["history"]) == 2


def test_all_proposals_meet_the_history_before_them():
    game = make(2)
    script = table([proposal("aaa"), proposal("aaa"), proposal("aaa"), proposal("zzz")], [RIGHT, WRONG])
    first, second = play(game, script), play(game, script, 1)
    assert rewards(first, "proposer") == [pytest.approx([0.8, 0.8])]  # alike, but none was there before
    assert rewards(second, "proposer") == [pytest.approx([0.0, 0.8])]
    assert second.log["invalid"] == {"alike": 1}
    assert [group.problem.text for group in second.streams[1].groups if group.problem] == ["zzz"]


def test_the_history_holds_the_last_questions():
    game = make(2, history=3)
    script = table([proposal("aaa"), proposal("bbb"), proposal("ccc"), proposal("ddd")], [RIGHT, WRONG])
    play(game, script)
    play(game, script, 1)
    assert game.state()["history"] == [[ord(c)] for c in "bcd"]


def test_a_step_without_a_valid_question_is_skipped_and_counted():
    game, script = make(2), table([proposal("3 + 4?"), "no tags"], [WRONG])
    for step in range(3):
        episode = play(game, script, step)
        assert not episode.streams
        said = {s.role: [x.completion.text for g in s.groups for x in g.samples] for s in episode.record}
        assert said == {"proposer": [proposal("3 + 4?"), "no tags"], "solver": [WRONG] * 4}
        assert episode.log["skipped"]
        assert episode.log["skips"] == episode.log["empty_steps"] == step + 1
        assert episode.log["refused_texts"] == {"off_format": "no tags", "too_hard": proposal("3 + 4?")}
    script = table([proposal("z?")], [RIGHT, WRONG])
    log = play(game, script, 3).log
    assert (log["skipped"], log["skips"], log["empty_steps"]) == (False, 3, 0)


def test_too_many_empty_steps_end_the_run_and_show_what_was_said():
    game, script = make(2, max_empty_steps=2), table(["gibberish"], [])
    play(game, script)
    with pytest.raises(GameError, match=r"2 steps in a row .*2 off_format.*'gibberish'"):
        play(game, script, 1)


# Switches


def test_without_knowledge_nothing_is_drawn():
    game = make(2, knowledge="none")
    script = table([proposal("3 + 4?")], [RIGHT, WRONG])
    assert game.sources == ()
    assert play(game, script).streams[0].groups[0].problem is None
    assert script.asked[0][1] == [proposer_prompt()]
    assert "```" not in proposer_prompt()
    assert make(2).sources == ("passages",)


def test_one_seat_in_both_roles_gets_both_gradients():
    game = make(2, seats="shared")
    assert game.trained_seats() == ("shared",)
    episode = play(game, table([proposal("3 + 4?")], [RIGHT, WRONG]))
    assert [stream.role for stream in episode.streams] == ["proposer", "solver"]
    assert {s.completion.seat for stream in episode.streams for g in stream.groups for s in g.samples} == {"shared"}
    assert game.evaluation().seats == ("shared",)


def test_random_rewards_do_not_look_at_the_answer():
    wrong = play(make(2, k=60, reward="random"), table([proposal("3 + 4?")], [WRONG]))
    right = play(make(2, k=60, reward="random"), table([proposal("3 + 4?")], [RIGHT]))
    assert rewards(wrong, "solver") == rewards(right, "solver")
    assert {*rewards(wrong, "solver")[0]} == {0.0, 1.0}
    assert 0.3 < wrong.log["pass_rate"] < 0.7
    formed = play(make(2, k=60, reward="random_with_format"), table([proposal("3 + 4?")], [WRONG, "It is 7"]))
    (first, _) = rewards(formed, "solver")
    assert not any(first[1::2])
    assert any(first[::2])


EASY = [RIGHT] * 4
SPLIT = [RIGHT, WRONG, WRONG, RIGHT]


@pytest.mark.parametrize(
    ("gate", "moved", "usable", "empty_steps"),
    [("retained", [], 0, 1), ("valid", ["proposer"], 0, 0), ("pass_rate", [], 0, 1)],
)
def test_a_question_that_is_always_solved_moves_the_proposer_alone_or_nobody(
    gate: str, moved: list[str], usable: int, empty_steps: int
):
    game = make(2, gate=gate)
    episode = play(game, table([proposal("aaa"), "no tags"], EASY))
    assert [stream.role for stream in episode.streams] == moved
    log = episode.log
    assert (log["skipped"], log["usable"], log["empty_steps"], log["skips"]) == (
        *(not moved, usable),
        *(empty_steps, empty_steps),
    )
    assert ("refused_texts" in log) == (not moved)
    if moved:
        assert rewards(episode, "proposer") == [pytest.approx([1.1 - 1 + 0.2, 0.0])]


def test_the_papers_gate_trains_the_solver_on_what_it_does_not_always_solve():
    episode = play(make(2, gate="valid"), table([proposal("aaa"), proposal("bbb")], EASY + SPLIT))
    assert [stream.role for stream in episode.streams] == ["proposer", "solver"]
    assert [group.problem.text for group in episode.streams[1].groups if group.problem] == ["bbb"]
    assert episode.log["usable"] == 1


def test_the_papers_gate_does_not_open_for_what_is_alike_or_gives_itself_away():
    game = make(2, gate="valid")
    script = table([proposal("aaa"), proposal("zzz"), proposal("aaa"), proposal("zzz")], EASY)
    assert play(game, script).streams
    # Half of the history is like either question, and both are solved every time: 1.1 - 1 + 0.2 / 2.
    assert rewards(play(game, script, 1), "proposer") == [pytest.approx([0.2, 0.2])]
    alike = make(2, gate="valid", min_diversity=0.5)
    play(alike, script)
    assert play(alike, script, 1).streams == []
    assert not play(make(2, gate="valid"), table([proposal("It is 777.", "777")], EASY)).streams


def test_a_frozen_proposer_does_not_open_the_papers_gate():
    game = make(2, gate="valid", freeze_proposer=True)
    episode = play(game, table([proposal("aaa"), "no tags"], EASY))
    assert (episode.streams, episode.log["skipped"], episode.log["empty_steps"]) == ([], True, 1)


def test_the_releases_gate_asks_for_the_pass_rate_alone_and_for_rewards_that_differ():
    # The first step fills the history with "aaa"; in the second one "aaa" is alike, earns nothing, and trains all the
    # same, where the paper drops it.
    proposals, answers = [proposal("aaa"), "no tags", proposal("aaa"), proposal("zzz")], SPLIT + SPLIT + EASY
    for gate, trained in (("pass_rate", ["aaa"]), ("retained", []), ("valid", [])):
        game, script = make(2, gate=gate), table(proposals, answers)
        play(game, script)
        second = play(game, script, 1)
        texts = [g.problem.text for s in second.streams if s.role == "solver" for g in s.groups if g.problem]
        assert texts == trained
        if gate == "pass_rate":
            assert rewards(second, "proposer") == [pytest.approx([0.0, 1.1 - 1 + 0.2])]
    # Both proposals earn the same: the release skips the step, though the solver could learn from both.
    game = make(2, gate="pass_rate", mode="offline")
    same = play(game, table([proposal("aaa"), proposal("bbb")], SPLIT))
    assert (same.streams, same.log["skipped"], same.log["usable"], same.log["buffer"]) == ([], True, 0, 0)
    assert [s.role for s in play(make(2), table([proposal("aaa"), proposal("bbb")], SPLIT)).streams] == [
        "proposer",
        "solver",
    ]


def test_offline_the_papers_gate_keeps_what_is_always_solved_out_of_the_buffer():
    game = make(2, gate="valid", mode="offline", proposer_steps=1, solver_steps=1)
    episode = play(game, table([proposal("aaa"), "no tags"], EASY))
    assert [stream.role for stream in episode.streams] == ["proposer"]
    assert (episode.log["buffer"], game.schedule.phase, game.schedule.iteration) == (0, "proposer", 1)


# Offline


def test_phases_move_one_seat_each():
    game = make(2, mode="offline", proposer_steps=2, solver_steps=2, solver_questions=3)
    script = table([proposal(q) for q in ("aaa", "bbb", "ccc", "ddd")], [RIGHT, WRONG])
    episodes = [play(game, script, step) for step in range(6)]
    assert [[s.role for s in e.streams] for e in episodes] == [
        [r] for r in ("proposer",) * 2 + ("solver",) * 2 + ("proposer",) * 2
    ]
    assert [e.log["phase"] for e in episodes] == ["proposer"] * 2 + ["solver"] * 2 + ["proposer"] * 2
    assert [e.log["iteration"] for e in episodes] == [0, 0, 0, 0, 1, 1]
    assert [e.log["buffer"] for e in episodes] == [2, 4, 4, 4, 6, 8]
    asked = [[g.problem.text for g in e.streams[0].groups if g.problem] for e in episodes[2:4]]
    assert asked == [["aaa", "bbb", "ccc"], ["ddd", "aaa", "bbb"]]


def test_a_replayed_question_is_answered_afresh_and_filtered_again():
    game = make(3, mode="offline", proposer_steps=1, solver_steps=1)
    answers = [RIGHT, WRONG, WRONG, RIGHT] * 3 + [RIGHT] * 4 + [WRONG] * 4 + [WRONG, RIGHT, RIGHT, RIGHT]
    script = table([proposal(q) for q in ("aaa", "bbb", "ccc")], answers)
    play(game, script)
    episode = play(game, script, 1)
    # The buffer of three is walked twice: 1, 0, 0.75, then 0.5 three times as the script begins anew.
    assert rewards(episode, "solver") == [[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert (episode.log["replayed"], episode.log["usable"]) == (6, 4)


def test_a_bad_batch_is_skipped_and_does_not_stall():
    game = make(2, k=2, mode="offline", proposer_steps=1, solver_steps=2, solver_questions=2, attempts=2)
    script = table([proposal("aaa"), proposal("bbb")], [RIGHT, WRONG, RIGHT, WRONG] + [WRONG] * 100)
    play(game, script)
    for step in range(1, 5):
        episode = play(game, script, step)
        assert (episode.log["phase"], episode.log["skipped"], episode.streams) == ("solver", True, [])
    assert game.schedule.phase == "proposer"


def test_eviction_ends_the_solvers_phase_early():
    game = make(2, k=2, mode="offline", proposer_steps=1, solver_steps=5, eviction=True, solver_questions=2)
    script = table([proposal("aaa"), proposal("bbb")], [RIGHT, WRONG, RIGHT, WRONG] + [RIGHT] * 4)
    play(game, script)
    log = play(game, script, 1).log
    assert (log["evicted"], log["buffer"]) == (2, 0)
    assert (game.schedule.phase, game.schedule.iteration) == ("proposer", 1)


def test_a_frozen_proposer_collects_questions_without_moving():
    game = make(2, mode="offline", proposer_steps=1, solver_steps=1, freeze_proposer=True)
    script = table([proposal("aaa"), proposal("bbb")], [RIGHT, WRONG])
    collected, solved = play(game, script), play(game, script, 1)
    assert not collected.streams
    assert not collected.log["skipped"]
    assert [stream.role for stream in solved.streams] == ["solver"]


# The contract


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["aaa", "abc", "bbb", "xyz", ""]), min_size=3, max_size=9),
    st.lists(st.sampled_from([RIGHT, WRONG, "no idea"]), min_size=3, max_size=11),
    st.sampled_from(["online", "offline"]),
    st.floats(0.0, 0.9),
)
def test_what_trains_keeps_to_its_bounds(questions: list[str], answers: list[str], mode: str, bound: float):
    sizes = {"proposer_steps": 1, "solver_steps": 1, "max_empty_steps": 99}
    game = make(3, k=5, mode=mode, min_pass_rate=bound, tau_sim=0.5, **sizes)
    script = table([proposal(q) if q else "no tags" for q in questions], answers)
    accepted: set[str] = set()
    for step in range(6):
        for stream in play(game, script, step).streams:
            for group in stream.groups:
                found = [sample.reward for sample in group.samples]
                if stream.role == "solver":
                    assert bound < sum(found) / len(found) < 1
                    assert group.problem is not None
                    assert group.problem.id in accepted
                    continue
                for sample in group.samples:
                    rate, diversity = sample.info["pass_rate"], sample.info["diversity"]
                    assert 0.0 <= sample.reward <= 1.3
                    assert (sample.reward > 0) == (rate is not None and rate > bound and diversity > 0.3)
                    if sample.verdict is not None and sample.verdict.correct:
                        assert bound < rate < 1
                        accepted.add(sample.info["question"])


def test_a_dry_run_names_phases_and_draws():
    (line,) = make(6, k=6).describe(600)
    assert "1 x 6 proposals, 6 answers to each question, at most 42 completions" in line
    lines = make(6, k=6, mode="offline").describe(900)
    assert "10 updates in at most 30 steps" in lines[0]
    assert "6 buffered questions, 6 answers to each, 36 completions" in lines[1]
    assert lines[2] == "900 steps are 20.0 to 60.0 iterations"
    assert make(6, k=6).rollouts_per_step() == 42
    assert make(2, k=6, mode="offline").rollouts_per_step() == 36


# Cold start


def problem(answer: str = "7", **extra: str) -> Problem:
    return Problem("p", "What is 3 + 4?", answer, extra={"solution": "3 + 4 = <<3+4=7>>7.\n#### 7", **extra})


def test_worked_proposals_are_what_play_accepts():
    game = make(2)
    example = game.cold_start("proposer", problem(), random.Random(0), thinks=False)
    assert example is not None
    assert example.prompt == proposer_prompt("3 + 4 = 7.")  # a passage to compose a problem from, not to copy one
    found = game._read(table([], []), completion(example.completion))
    assert (found.question, found.answer, found.reason) == ("What is 3 + 4?", "7", "")


def test_worked_proposals_think_where_the_template_does_and_need_a_solution():
    example = worked_proposal(problem(), knowledge=False, thinks=True)
    assert example is not None
    assert example.prompt == proposer_prompt()
    assert example.completion.startswith("<think>\n3 + 4 = 7.\n</think>\n\n<problem>")
    for refused in (
        Problem("p", "What is 3 + 4?", "7"),
        problem(answer="What"),  # gives itself away
        problem(solution="</answer>"),
    ):
        assert worked_proposal(refused, knowledge=True, thinks=False) is None


def test_worked_proposals_keep_to_the_games_own_guard():
    four = problem(answer="4")  # which stands in "What is 3 + 4?", as one character
    assert make(2).cold_start("proposer", four, random.Random(0), thinks=False) is not None
    assert make(2, leak_guard="substring").cold_start("proposer", four, random.Random(0), thinks=False) is None


def test_the_solver_learns_its_own_prompt():
    example = make(2).cold_start("solver", problem(), random.Random(0), thinks=False)
    assert example is not None
    assert (example.prompt, example.completion) == (solver_prompt("What is 3 + 4?"), "3 + 4 = 7. <answer>7</answer>")


def test_passages_cannot_close_their_fence():
    assert proposer_prompt("a\n```\nb").count("```") == 2


def test_the_terminal_says_that_a_step_was_skipped():
    metrics = {"step": 1, "streams": {}, "game": {"skipped": True}, "wall_s": {"total": 1.0, "generate": 1.0}}
    line = progress_line(PasoDoble, {**metrics, "tokens": {"generated": 9}}, 5, 4.0)
    assert "skipped, no question to train on" in line
    assert "no signal" not in line
