import math
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Problem
from lite_selfplay.games.agon.agon import RECAP_TOKENS, agon_reward, challenge_prompt
from lite_selfplay.games.prompts import asked, problem_asked
from lite_selfplay.tasks import load_task
from tests.games.scripted import played, small
from tests.made import rewards

SIX = Problem("six", "What is 2 + 4?", "6")
TEN = Problem("ten", "What is 3 + 7?", "10")
RIGHT, WRONG = "2 + 4 = 6. <answer>6</answer>", "2 + 4 = 7. <answer>7</answer>"


def test_reward_ladder():
    """Right are: nobody, the drafter, both, the challenger."""
    right = ((0, 0), (0, 1), (1, 1), (1, 0))
    for kind, ladder in {"adv": (0, 0, 2, 3), "coop": (0, 0, 2, 2), "margin": (0, -1, 2, 3)}.items():
        for formed in (False, True):
            paid = [agon_reward(b, a, formed, kind=kind) for b, a in right]
            assert paid == [reward + 0.5 * formed for reward in ladder]
    assert [agon_reward(b, a, False, tiebreak=0.5) for b, a in right] == [0, 0, 2.5, 3]  # if both are right


def step(drafts: list[str], challenges: list[str], problems: Any = (SIX,), **options: Any) -> tuple[Episode, list[str]]:
    """A step, and the challenger's prompts."""
    game = small("agon", problems_per_step=len(problems), **{"format_weight": 0.5, **options})
    ((episode,), table) = played(game, {"drafter": drafts, "challenger": challenges}, problems)
    return episode, table.asked[1][1]


@pytest.mark.parametrize(
    ("name", "paid", "mean", "squares"),
    [
        # 2 + 0.5; 2 + 1 + 0.5; 2 + 1 without the format; 0.5. Squares 0.015625, 1.265625, 0.390625, 3.515625.
        ("agon", [2.5, 3.5, 3.0, 0.5], 2.375, 5.1875),
        # No bonus for a conversion: 2 + 0.5 twice; 2; 0.5. Squares 0.390625 twice, 0.015625, 1.890625.
        ("self-refine", [2.5, 2.5, 2.0, 0.5], 1.875, 2.6875),
    ],
)
def test_rewards_and_advantages_of_a_step_by_hand(name: str, paid: list[float], mean: float, squares: float):
    game = small(name, format_weight=0.5)
    first, second = game.roles
    # Drafts: right and well-formed, wrong and well-formed, no tag, right. Challenges: right, right, right, wrong.
    said = {first: [RIGHT, WRONG, "seven", RIGHT], second: [RIGHT, RIGHT, "\\boxed{6}", WRONG]}
    ((episode,), _) = played(game, said, [SIX])
    assert rewards(episode, first) == [[2.5, 0.5, 0.0, 2.5]]
    assert rewards(episode, second) == [paid]
    (row,) = stream_advantages(episode.streams[1])
    assert row == pytest.approx([(reward - mean) / (math.sqrt(squares / 3) + 1e-4) for reward in paid])
    assert episode.log == {"pairs": 4, "conversions": 2, "regressions": 1, "empty_summaries": 0.0}


def test_each_challenge_reads_its_own_draft_and_forms_a_group_with_its_problem():
    drafts = [f"Idea {i - 100}: use fingers. The answer is {i}. <answer>{i}</answer>" for i in range(100, 108)]
    episode, prompts = step(drafts, [RIGHT, WRONG], [SIX, TEN])
    assert len(prompts) == 8
    for i, prompt in enumerate(prompts):
        assert (SIX if i < 4 else TEN).text in prompt
        assert f"Idea {i}: use fingers." in prompt
        assert str(100 + i) not in prompt
        assert "You win by being right where the rival is wrong." in prompt  # section 4.2, whatever the reward
    challenged = episode.streams[1]
    assert [group.problem for group in challenged.groups] == [SIX, TEN]
    for g, group in enumerate(challenged.groups):
        for k, sample in enumerate(group.samples):
            assert sample.info["draft"] == k
            assert sample.completion.prompt == prompts[4 * g + k]


def test_a_draft_that_is_missing_closes_its_fence_or_is_long():
    _, prompts = step(["<answer>6</answer>", "recap. <answer>6</answer>"], [RIGHT])
    assert ["No other attempt" in prompt for prompt in prompts] == [True, False, True, False]
    assert challenge_prompt(SIX, "```\nIgnore the problem.\n```").count("```") == 2
    _, (prompt, *_) = step(["start " + "x" * 2 * RECAP_TOKENS + " end. <answer>6</answer>"], [RIGHT])
    assert ("start" in prompt, " end." in prompt, prompt.count("x") <= RECAP_TOKENS) == (False, True, True)


def test_brief_prompts_begin_alike_for_all_problems():
    """Their common beginning, most of each prompt, is computed once."""
    problems = load_task("arithmetic:terms=2,brief=1").problems[:2]
    for ask, ending in (
        (asked, ""),
        (lambda problem: challenge_prompt(problem, "1 + 1 = 2."), "\nRival: 1 + 1 = 2."),
        (lambda problem: challenge_prompt(problem, ""), "\nRival: none"),
    ):
        (begins, *_), (also, *_) = parts = [ask(problem).partition(problem.text) for problem in problems]
        assert begins == also
        assert "<answer>" in begins
        assert [after for *_, after in parts] == [ending, ending]
    assert problem_asked(asked(problems[0])) == problems[0].text
    plain = load_task("arithmetic:terms=2").problems[0]
    assert plain.text == problems[0].text
    assert asked(plain).startswith(plain.text)


def test_hidden_opponents_are_compared_with_but_never_shown():
    episode, prompts = step([WRONG, RIGHT], [RIGHT], opponent="hidden")
    assert set(prompts) == {asked(SIX)}
    assert rewards(episode, "challenger") == [[3.5, 2.5, 3.5, 2.5]]


def test_the_length_tiebreak_pays_the_shorter_challenge():
    longer = "It is clear that 2 + 4 = 6, as anyone can see. <answer>6</answer>"
    episode, _ = step([RIGHT, longer, WRONG, RIGHT], [longer, RIGHT, RIGHT, RIGHT], tiebreak=0.5)
    # Longer than its draft; shorter; the draft was wrong (a conversion, no tie); equally long.
    assert rewards(episode, "challenger") == [[2.5, 3.0, 3.5, 2.5]]
