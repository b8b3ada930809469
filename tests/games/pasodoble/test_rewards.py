import pytest

from lite_selfplay.games.pasodoble.rewards import (
    jaccard,
    leaks,
    proposer_reward,
    question_diversity,
    why_invalid,
)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({1, 2, 3}, {1, 2, 3}, 1.0),
        ({1, 2, 3}, {3, 4, 5}, 0.2),
        ({1, 2}, {3}, 0.0),
        ({1}, set(), 0.0),
        (set(), set(), 1.0),
    ],
)
def test_jaccard(a: set[int], b: set[int], expected: float):
    assert jaccard(a, b) == expected


def test_diversity_is_the_share_of_the_history_that_is_unlike():
    question = {1, 2, 3, 4}
    alike, unlike = {1, 2, 3, 5}, {1, 7, 8, 9}  # indices 3/5 and 1/7
    assert question_diversity(question, []) == 1.0
    assert question_diversity(question, [alike]) == 0.0
    assert question_diversity(question, [unlike]) == 1.0
    assert question_diversity(question, [alike, unlike, unlike, alike, unlike]) == 0.6
    assert question_diversity(question, [alike, unlike], tau_sim=0.8) == 1.0  # the release's threshold


def test_a_likeness_of_exactly_tau_is_no_likeness():
    question, earlier = set(range(13)), set(range(10, 20))  # 3 in both, 20 in either
    assert jaccard(question, earlier) == 0.15
    assert question_diversity(question, [earlier], tau_sim=0.15) == 1.0
    assert question_diversity(question, [earlier], tau_sim=0.149) == 0.0


@pytest.mark.parametrize(
    ("rate", "diversity", "expected"),
    [
        (0.5, 1.0, 0.8),
        (0.5, 0.5, 0.7),
        (1.0, 1.0, 0.3),  # a question that is always solved earns more than none
        (1.0, 0.31, 0.162),
        (2 / 6, 1.0, 1.1 - 1 / 3 + 0.2),
        (0.0, 1.0, 0.0),
        (1 / 6, 1.0, 0.0),
        (0.2, 1.0, 0.0),  # p <= 0.2 is clipped
        (0.21, 1.0, 1.09),
        (0.5, 0.3, 0.0),  # diversity <= 0.3 is clipped
        (0.5, 0.0, 0.0),
        (0.5, None, 0.6),  # neither bonus nor clip
        (0.2, None, 0.0),
        (1.0, None, 0.1),
    ],
)
def test_the_proposers_reward(rate: float, diversity: float | None, expected: float):
    assert proposer_reward(rate, diversity) == pytest.approx(expected)


def test_the_clip_is_exact_where_a_share_is_three_tenths():
    history = [{1, 2}] * 70 + [{8, 9}] * 30
    assert question_diversity({1, 2}, history) == 0.3
    assert proposer_reward(0.5, question_diversity({1, 2}, history)) == 0.0
    assert proposer_reward(0.5, question_diversity({1, 2}, [*history[1:], {8, 9}])) == pytest.approx(0.662)


@pytest.mark.parametrize(
    ("rate", "diversity", "expected"),
    [
        (0.0, 1.0, "too_hard"),
        (0.2, 1.0, "too_hard"),
        (1 / 6, 0.0, "too_hard"),
        (2 / 6, 1.0, ""),
        (5 / 6, 0.31, ""),
        (1.0, 1.0, "too_easy"),
        (0.5, 0.3, "alike"),
        (0.5, None, ""),
    ],
)
def test_which_questions_train_the_solver(rate: float, diversity: float | None, expected: str):
    assert why_invalid(rate, diversity) == expected


@pytest.mark.parametrize(
    ("question", "answer", "guarded"),
    [
        ("A train covers 120 miles. How many?", "120", True),
        ("A train covers 120 miles. How many?", " $120$ ", True),
        ("A train covers 1120 miles. How many?", "120", False),
        ("A train covers 120.5 miles. How many?", "120", False),
        ("A train covers 1,120 miles. How many?", "120", False),
        ("A train covers 1,120 miles. How many?", "1,120", True),
        ("The total is 120. Is it?", "120", True),
        ("Kim has 12 apples.", "12", False),  # two characters stand in many an honest question
        ("Is it Monday or friday?", "Friday", True),
        ("Mondays only?", "Monday", False),
        ("What is x_1 + 3?", "x_1", True),
        ("Show that it is \\boxed{5}.", "7", True),
        ("What is 3 + 4?", "7", False),
    ],
)
def test_answers_that_stand_in_their_question(question: str, answer: str, guarded: bool):
    assert leaks(question, answer) is guarded


def test_the_releases_guard_and_none():
    assert leaks("Kim has 12 apples.", "2", "substring")
    assert not leaks("Kim has 12 apples.", "3", "substring")
    assert leaks("7?", "Since 7? says so", "substring")  # the question stands in the answer
    assert leaks("Show that it is \\boxed{5}.", "7", "substring")
    assert leaks("Show that it is \\boxed {\\frac{1}{2}}.", "7", "substring")
    assert not leaks("What does \\boxed mean?", "7", "substring")
    assert not leaks("What is 3 + 4?", "7", "substring")
    assert not leaks("It is 120: \\boxed{120}", "120", "off")
