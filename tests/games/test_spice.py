"""SPICE: the bell around one half, invalid questions, questions with choices, and a step by hand."""

from math import exp
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Problem
from lite_selfplay.games.spice import challenger_reward, choices_of, prompt_about, read_question
from lite_selfplay.testing import ScriptedTable
from tests.games.scripted import played, small
from tests.made import Unread, completion, rewards, samples, stream

PASSAGES = [Problem("p-1", "Hens lay eggs."), Problem("p-2", "Trains ```run``` on rails.")]
RIGHT, WRONG = "<answer>7</answer>", "<answer>8</answer>"
CHOICES = "Which is prime?\nA) 4\nB) 7\nC) 9\nD) 12"


def asks(question: str, answer: str = "7") -> str:
    return f"Let me see. <question>{question}</question> \\boxed{{{answer}}}"


def step(said: list[str], answers: list[str], size: int = 4, kind: type = ScriptedTable, **options: Any) -> Any:
    """A step about one passage; `step.asked` has the prompts."""
    game = small("spice", size, **options)
    ((episode,), table) = played(game, {"challenger": said, "reasoner": answers}, PASSAGES, kind=kind)
    step.asked = table.asked
    return episode


def test_the_challengers_reward_by_hand():
    """Var = p (1 - p): 1/4 at one half; at one quarter 3/16, 1/16 away from it; at 0 and 1 a quarter away."""
    assert challenger_reward(0.5) == 1
    assert challenger_reward(0.25) == challenger_reward(0.75) == pytest.approx(exp(-((1 / 16) ** 2) / 0.02))
    assert challenger_reward(0.25) == pytest.approx(0.8226, abs=1e-4)
    assert challenger_reward(0) == challenger_reward(1) == pytest.approx(exp(-3.125)) == pytest.approx(0.0439, abs=1e-4)
    assert challenger_reward(0, width=0.001) == pytest.approx(exp(-31.25))  # narrower: less


@pytest.mark.parametrize("n", range(2, 17))
def test_the_reward_rises_towards_one_half_and_is_the_same_on_both_sides(n: int):
    earned = [challenger_reward(right / n) for right in range(n + 1)]
    assert earned == pytest.approx(earned[::-1])
    half = earned[: n // 2 + 1]
    assert half == sorted(set(half))
    assert 0 < min(earned) <= max(earned) <= 1


def test_a_step_by_hand():
    answers = [RIGHT, WRONG, WRONG, RIGHT, *[RIGHT] * 4, RIGHT, WRONG, WRONG, WRONG]
    episode = step([asks("3 + 4?"), asks("9 - 2?"), asks("14 / 2?"), "no tags"], answers)
    bell = [1.0, exp(-3.125), exp(-((1 / 16) ** 2) / 0.02), -0.1]
    assert rewards(episode, "challenger") == [pytest.approx(bell)]
    assert rewards(episode, "reasoner") == [[1, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]]
    # Advantages are not divided by a deviation.
    challenger, reasoner = (stream(episode, role) for role in ("challenger", "reasoner"))
    mean = sum(bell) / 4
    assert stream_advantages(challenger) == [pytest.approx([each - mean for each in bell])]
    assert stream_advantages(reasoner) == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4, [0.75, -0.25, -0.25, -0.25]]
    assert challenger.groups[0].problem == PASSAGES[0]
    assert [group.problem for group in reasoner.groups][:2] == [
        Problem("q-0-0", "3 + 4?", "7"),
        Problem("q-0-1", "9 - 2?", "7"),
    ]
    told = [(s.info["pass_rate"], s.verdict.correct, s.verdict.reason) for s in samples(episode, "challenger")]
    assert told == [(0.5, True, ""), (1.0, False, "too_easy"), (0.25, True, ""), (None, False, "off_format")]
    log = episode.log
    assert (log["proposals"], log["usable"], log["refused"], log["choices"]) == (4, 2, {"off_format": 1}, 0)
    assert log["variance"] == pytest.approx((1 / 4 + 0 + 3 / 16) / 3)


def test_the_reasoner_never_sees_the_passage_and_the_challenger_always_does():
    step([asks("3 + 4?")], [RIGHT])
    (_, (challengers,), n), (_, reasoners, m) = step.asked
    assert (n, m, len(reasoners)) == (4, 4, 4)
    assert "Hens lay eggs." in challengers
    assert not [prompt for prompt in reasoners if "Hens" in prompt]
    assert "'''run'''" in prompt_about(PASSAGES[1].text, "free")  # which cannot close its fence


def test_what_is_no_question_costs_the_same_and_is_never_asked():
    said = [asks("It is 777. What is it?", "777"), asks("x" * 600), asks("long"), "<question>How many?</question>"]
    episode = step(said, [RIGHT], kind=Unread, penalty=-0.5)
    assert rewards(episode, "challenger") == [[-0.5] * 4]
    assert episode.log["refused"] == {"leaks": 1, "no_answer": 1, "too_long": 2}
    assert [each.role for each in episode.streams] == ["challenger"]
    assert [len(prompts) for _, prompts, _ in step.asked] == [1, 1]  # one question was asked, and could not be read
    assert rewards(step(said[:1] * 4, [RIGHT], leak_guard="off"), "challenger") == [pytest.approx([exp(-3.125)] * 4)]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (CHOICES, ("4", "7", "9", "12")),
        ("Which?\n(A) one\n(B) two", ("one", "two")),
        ("Which?\nA. one\nB. two\nC. three", ("one", "two", "three")),
        ("Which?\nA) one", ()),  # a single one is no choice
        ("Which?\nA) one\nC) two", ()),
        ("Which?\nB) one\nA) two", ()),
        ("What is 3 + 4?", ()),
        ("I) think", ()),
    ],
)
def test_the_choices_of_a_question(question: str, found: tuple[str, ...]):
    assert choices_of(question) == found


@pytest.mark.parametrize(("boxed", "letter"), [("B", "B"), ("(b)", "B"), ("7", "B"), ("E", None), ("5", None)])
def test_a_question_with_choices_needs_one_of_them_as_its_answer(boxed: str, letter: str | None):
    found = read_question(completion(asks(CHOICES, boxed)))
    assert (found.reason, found.answer) == (("", letter) if letter else ("no_answer", boxed))


def test_answers_to_a_question_with_choices_are_judged_by_the_letter():
    said = ["<answer>B</answer>", "<answer>(b) 7</answer>", "<answer>7</answer>", "<answer>C</answer>"]
    episode = step([asks(CHOICES, "B")], said, form="choice")
    assert rewards(episode, "reasoner") == [[1, 1, 1, 0]] * 4
    assert episode.log["choices"] == 1


def test_passages_take_turns_between_choices_and_free_answers():
    def kinds(**options: Any) -> list[bool]:
        game = small("spice", 2, 3, **options)
        _, table = played(game, {"challenger": ["-"], "reasoner": ["-"]}, PASSAGES, steps=2)
        return ["four choices" in prompt for _, prompts, _ in table.asked for prompt in prompts]

    assert kinds() == [False, True, False, True, False, True]
    assert (kinds(form="choice"), kinds(form="free")) == ([True] * 6, [False] * 6)
