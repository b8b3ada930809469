"""A person in a role: what they are asked is what the game asks, and what they earn is what its rules pay."""

from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.credit import advantages
from lite_selfplay.errors import ConfigError, GameError, UnknownNameError
from lite_selfplay.games.agon import agon_reward, challenge_prompt
from lite_selfplay.games.prompts import asked
from lite_selfplay.runs.talk.conversation import Conversation
from lite_selfplay.runs.talk.play import GROUP, Called, find_role, play
from lite_selfplay.runs.talk.speakers import Speakers, speakers_of

from .conftest import SMALL


def right(called: Called) -> str:
    """A well-formed right answer to a problem of the task `letters`."""
    assert called.problem is not None
    return f"One of them. <answer>{str(called.problem.answer)[0]}</answer>"


def test_a_challenger_sees_the_recap_and_is_paid_for_out_solving_the_draft(speakers: Speakers):
    calls: list[Called] = []

    def answer(called: Called) -> str:
        calls.append(called)
        return right(called)

    found = play(speakers, "challenger", answer)
    (called,) = calls
    assert (called.role, called.seat) == ("challenger", "B")
    assert called.problem is not None
    shared = challenge_prompt(called.problem, "x").partition("```")[0]
    assert called.prompt.startswith(shared) or called.prompt == challenge_prompt(called.problem, "")
    verdict = found.sample.verdict
    assert verdict is not None
    assert verdict.correct
    draft_right = found.sample.info["draft_correct"]
    assert found.sample.reward == agon_reward(1, draft_right, True) == (2.5 if draft_right else 3.5)
    rewards = [found.sample.reward, *(other.reward for other in found.others)]
    assert len(rewards) == GROUP
    expected = None if len(set(rewards)) == 1 else advantages([r for r in rewards if r is not None])[0]
    assert found.advantage == expected
    assert {other.completion.seat for other in found.others} == {"B"}


def test_a_drafter_is_asked_the_problem_alone(speakers: Speakers):
    found = play(speakers, "drafter", lambda called: "7")
    assert found.called.problem is not None
    assert found.called.prompt == asked(found.called.problem)
    assert found.sample.reward == 0.0


def test_each_game_has_a_problem_of_its_own(speakers: Speakers):
    prompts = {play(speakers, "drafter", right, number=number).called.prompt for number in range(3)}
    assert len(prompts) == 3


def test_roles_by_their_seats(speakers: Speakers):
    assert [find_role(speakers, name) for name in (None, "A", "B", "drafter")] == [
        "challenger", "drafter", "challenger", "drafter",
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="challenger"):
        find_role(speakers, "chalenger")


def test_the_entry_says_all_of_it(speakers: Speakers):
    entry = Conversation(speakers, ("A",)).play("B", right, lambda sentence: None)
    assert (entry["play"], entry["in_place_of"]) == ("challenger", "B")
    assert entry["you"]["verdict"] == "right"
    assert entry["reference"][0] in entry["you"]["text"]
    assert len(entry["others"]) == GROUP - 1


@pytest.mark.parametrize("options", [{"game": "grpo", "tasks": "letters"}, {"game": "self-refine", "tasks": "letters"}])
def test_games_of_one_seat(tmp_path: Path, options: dict[str, Any]):
    folder = train(RunConfig(run_dir=tmp_path / "run", **{**SMALL, "steps": 1}, **options)).path
    with speakers_of(folder) as found:
        role = find_role(found, None)
        assert play(found, role, right).sample.reward == 2.5


def test_a_base_model_plays_nothing_and_a_role_that_nobody_is_asked_as_is_given_up(tmp_path: Path):
    with speakers_of("tiny", precision="fp32") as base, pytest.raises(ConfigError, match="no game"):
        find_role(base, None)
    folder = train(RunConfig(game="sqlm", tasks="arithmetic", run_dir=tmp_path / "r", **{**SMALL, "steps": 1})).path
    with speakers_of(folder) as found:
        called: list[Called] = []

        def question(call: Called) -> str:
            called.append(call)
            return "What is 3 + 4?"

        assert play(found, find_role(found, "proposer"), question).sample.reward in (0.0, 1.0)
        assert (called[0].seat, called[0].problem) == ("shared", None)
        with pytest.raises(GameError, match="nobody was asked as judge within 8 steps"):
            play(found, "judge", question)
