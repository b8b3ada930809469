"""R-Zero: phases that take turns, the challenger's reward and the pool of the solver's phase."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Episode, Problem
from lite_selfplay.games.baselines.rzero import (
    bleu_distance,
    challenger_reward,
    cluster_shares,
)
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.questions import boxed_question
from tests.games.scripted import NONE, THREE, TWO, played, small
from tests.made import completion, rewards

HENS = "<question>A farmer has 3 hens and buys 4. How many are there now?</question> \\boxed{7}"
TRAIN = "<question>The train leaves at noon and runs for two hours. When does it stop?</question> \\boxed{2}"
BROKEN = "A question without a tag \\boxed{1}"


def test_the_challengers_reward():
    shares = [(0.5, 0.0), (0.5, 0.25), (0.3, 0.25), (0.8, 0.0), (1.0, 0.0), (0.0, 1.0)]
    assert [challenger_reward(*each) for each in shares] == pytest.approx([0.5, 0.25, 0.05, 0.2, 0.0, -1.0])


@pytest.mark.parametrize(
    ("text", "stop", "reason"),
    [
        (HENS, "eos", ""),
        (f"<think>first <question>no</question> \\boxed{{1}}</think>{HENS}", "eos", ""),
        ("<question>How many?</question>", "eos", "no_answer"),
        ("\\boxed{3} <question>How many?</question>", "eos", "no_answer"),  # the answer precedes its question
        ("<question>How many? \\boxed{3}</question>", "eos", "no_answer"),
        ("<question> </question> \\boxed{3}", "eos", "empty"),
        ("<question>How many", "length", "truncated"),
        ("How many? \\boxed{3}", "eos", "off_format"),
    ],
)
def test_a_question_needs_its_tag_and_a_boxed_answer_after_it(text: str, stop: str, reason: str):
    found = boxed_question(completion(text, stop))
    assert found.reason == reason
    if not reason:
        assert found.question == "A farmer has 3 hens and buys 4. How many are there now?"


def rzero(problems_per_step: int = 2, **options: Any) -> Any:
    phases = {"challenger_steps": 1, "solver_steps": 2, "votes": 4}
    return small("rzero", 2, problems_per_step, **{**phases, **options})


def play(game: Any, challenger: Sequence[str], solver: Sequence[str], steps: int = 1) -> list[Episode]:
    """The episodes of `steps` steps; `play.asked` has the prompts."""
    episodes, table = played(game, {"challenger": challenger, "solver": solver}, steps=steps)
    play.asked = table.asked
    return episodes


def test_a_challengers_step_by_hand():
    # Two groups of two: hens, train | hens again, broken. Votes: 3 of 4, 2 of 4 with a tie, 2 of 4 with one unread.
    votes = [TWO, TWO, TWO, THREE, TWO, TWO, THREE, THREE, TWO, TWO, NONE, THREE]
    (episode,) = play(rzero(), [HENS, TRAIN, HENS, BROKEN], votes)
    (challenger,) = episode.streams
    assert (challenger.role, challenger.credit) == ("challenger", "group")
    # Half of the four proposals ask about hens, a quarter about a train.
    assert rewards(episode, "challenger") == [[0.25 - 0.5, 0.5 - 0.25], [0.5 - 0.5, -1.0]]
    fates = [sample.info["fate"] for group in challenger.groups for sample in group.samples]
    assert fates == ["kept", "no_majority", "kept", "off_format"]
    assert episode.log["refused"] == {"off_format": 1}
    assert episode.log["cluster_share"] == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    asked = [(role, len(prompts), n) for role, prompts, n in play.asked]
    assert asked == [("challenger", 2, 2), ("solver", 3, 4)]
    # Every malformed proposal costs the same.
    (episode,) = play(rzero(), [BROKEN], [TWO])
    assert rewards(episode, "challenger") == [[-1.0, -1.0]] * 2
    assert (episode.log["usable"], episode.log["cluster_share"], episode.log["empty_steps"]) == (0, None, 1)


def test_the_solver_learns_from_the_pool_of_the_trained_challenger():
    game = rzero(problems_per_step=1)
    # The challenger's step asks 2 questions and takes 8 votes; the pool needs 2 kept ones, 2 questions a batch.
    pool = [TWO, TWO, TWO, THREE, TWO, TWO, TWO, TWO]  # 0.75: kept; 1.0: too easy
    again = [THREE, THREE, TWO, NONE, TWO, TWO, TWO, TWO]  # 0.5: kept
    answers = [TWO, THREE, THREE, NONE]
    _, first, second = play(game, [HENS, TRAIN], [TWO] * 8 + pool + again + answers, steps=3)
    assert [stream.role for stream in first.streams] == ["challenger", "solver"]
    assert all(sample.masked for group in first.streams[0].groups for sample in group.samples)
    assert [group.samples[0].info["fate"] for group in first.streams[0].groups] == ["kept", "too_easy"] * 2
    (group,) = first.streams[1].groups
    assert group.problem == Problem("q-1-0", "A farmer has 3 hens and buys 4. How many are there now?", "2")
    assert [stream.role for stream in second.streams] == ["solver"]
    # The second question's label is 3, by the vote before the phase.
    assert rewards(first, "solver") == rewards(second, "solver") == [[1, 0]]
    assert second.streams[0].groups[0].problem.answer == "3"
    assert (first.log["draws"], first.log["pool"], second.log["draws"], second.log["pool"]) == (4, 2, 0, 2)


def test_a_small_pool_is_walked_in_a_circle_and_an_empty_one_skips_the_step_and_draws_again():
    # One kept question in 9 draws, which is never there twice in a step.
    solver = [*[TWO] * 24, TWO, TWO, TWO, THREE, *[TWO] * 33]
    for episode in play(rzero(3, solver_steps=3, max_draws=1), [HENS], solver, steps=3)[1:]:
        (solved,) = [stream for stream in episode.streams if stream.role == "solver"]
        assert [group.problem.id for group in solved.groups] == ["q-1-0"]
    episodes = play(rzero(max_draws=1), [HENS], [TWO], steps=3)
    for episode in episodes[1:]:
        assert [stream.role for stream in episode.streams] == ["challenger"]
        assert (episode.log["pool"], episode.log["draws"], episode.log["too_easy"]) == (0, 4, 4)
    assert [episode.log["empty_steps"] for episode in episodes] == [0, 1, 2]


def test_anchors_are_examples_for_the_challenger_and_join_the_pool_if_they_are_within_reach():
    # Four anchors of the five problems, with four answers each: right ones are 2 of 4, 4, 1, and 3 (of 4).
    problems = [Problem(f"p-{k}", f"What is 1 + {k}?", "2") for k in range(5)]
    game = rzero(problems_per_step=1, max_draws=1, anchors=4, shots=2)
    assert game.sources == ("problems",)
    assert rzero().sources == ()
    votes = [THREE] * 8 + [THREE, THREE, THREE, TWO] * 2  # of the challenger's step, and of a batch: 0.75, kept twice
    anchors = [TWO, TWO, THREE, THREE, *[TWO] * 4, TWO, THREE, THREE, THREE, TWO, TWO, TWO, NONE]
    (challenge, first, second), table = played(
        game, {"challenger": [HENS, TRAIN], "solver": [*votes, *anchors, TWO, THREE]}, problems, steps=3
    )
    assert game.state()["pool"] == [vars(each) for each in game._pool]
    labels = {each.id: each.answer for each in game._pool}
    assert labels == {"q-1-0": "3", "q-1-1": "3", "p-0": "2", "p-3": "2"}
    trained = [stream.groups[0].problem for episode in (first, second) for stream in episode.streams[-1:]]
    assert trained == game._pool[:2]
    assert rewards(first, "solver") == [[float(trained[0].answer == "2"), float(trained[0].answer == "3")]]
    assert (first.log["pool"], first.log["usable"], first.log["draws"]) == (4, 2, 2)
    prompts = [prompt for role, asked, _ in table.asked for prompt in asked if role == "challenger"]
    assert all(prompt.startswith(fill("rzero_challenger")) for prompt in prompts)
    shown = [prompt.count("<question>What is 1 + ") for prompt in prompts]
    assert set(shown) <= {0, 1, 2}
    assert any(shown)
    assert "1 + 4" not in "".join(prompts)
    assert challenge.streams[0].role == "challenger"


def test_phases_take_turns_and_each_iteration_draws_anew():
    game = rzero(challenger_steps=2, solver_steps=1)
    episodes = play(game, [HENS, TRAIN], [TWO, TWO, TWO, THREE], steps=6)
    turns = [(phase, i) for i in (0, 1) for phase in ("challenger", "challenger", "solver")]
    assert [(e.log["phase"], e.log["iteration"]) for e in episodes] == turns
    pools = [stream.groups[0].problem.id for e in episodes for stream in e.streams if stream.role == "solver"]
    assert pools == ["q-2-0", "q-5-0"]


def test_the_most_it_samples():
    # A batch is 4 questions, 4 votes each. A challenger's step: 20. A solver's phase: at most 2 x 2 x 4 = 16 draws and
    # 80 completions, a vain try a quarter of that, and 4 answers a step.
    assert [rzero().most_rollouts(steps) for steps in (0, 1, 2, 3, 4)] == [0, 20, 104, 128, 148]
    # Three anchors are answered four times in each of a solver's steps, as long as the pool is empty.
    assert [rzero(anchors=3).most_rollouts(steps) for steps in (1, 2, 3)] == [20, 116, 152]


EGGS = "A farmer has 3 hens and buys 4 more. How many hens are there now?"
MORE_EGGS = "A farmer has 3 hens and buys 9 more. How many hens are there now?"
DEPARTURE = "The train leaves at noon, runs for two hours and stops. When does it stop?"


def test_distances_by_hand():
    assert bleu_distance(["a", "b"], ["a", "b"]) == 0
    assert bleu_distance([], ["a"]) == bleu_distance(["a"], []) == 1
    # One word in two: precision 1 with a brevity penalty of exp(1 - 2 / 1) one way. The other way 1 of 2 words and none
    # of 1 pair, smoothed to 0.1: the root of 0.05, over two orders since the text is two words long.
    there, back = math.exp(-1), math.sqrt(0.5 * 0.1)
    assert bleu_distance(["a"], ["a", "b"]) == pytest.approx(1 - (there + back) / 2)


def test_alike_questions_lie_in_one_cluster_and_the_threshold_decides():
    assert cluster_shares([EGGS, DEPARTURE, MORE_EGGS, EGGS.upper()], 4) == [0.75, 0.25, 0.75, 0.75]
    assert cluster_shares([EGGS, MORE_EGGS], 2, 0.01) == [0.5, 0.5]
    assert cluster_shares([EGGS, DEPARTURE], 2, 0.999) == [1.0, 1.0]
    assert cluster_shares([EGGS, DEPARTURE], 8) == [0.125, 0.125]  # of all proposals, malformed ones included
    assert [cluster_shares(few, 2) for few in ([], [EGGS], ["", ""])] == [[], [0.5], [1.0, 1.0]]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([EGGS, MORE_EGGS, DEPARTURE, "2 + 2?", ""]), min_size=1, max_size=6))
def test_shares_are_in_range_and_equal_questions_share_a_cluster(questions: list[str]):
    shares = cluster_shares(questions, len(questions))
    assert all(questions.count(q) / len(questions) <= share <= 1 for q, share in zip(questions, shares, strict=True))
