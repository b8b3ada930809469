import pytest

from lite_selfplay.games.pasodoble.pasodoble import jaccard, proposer_reward, question_diversity, why_invalid
from lite_selfplay.games.propose_solve.questions import leaks


def test_diversity_is_the_share_of_the_history_that_is_unlike():
    question, alike, unlike = {1, 2, 3, 4}, {1, 2, 3, 5}, {1, 7, 8, 9}
    assert [jaccard(question, other) for other in (question, alike, unlike, {5}, set())] == [1, 3 / 5, 1 / 7, 0, 0]
    assert jaccard(set(), set()) == 1
    assert [question_diversity(question, history) for history in ([], [alike], [unlike])] == [1, 0, 1]
    assert question_diversity(question, [alike, unlike, unlike, alike, unlike]) == 0.6
    assert question_diversity(question, [alike, unlike], tau_sim=0.8) == 1.0  # the release's threshold


def test_a_likeness_of_exactly_tau_is_no_likeness():
    question, earlier = set(range(13)), set(range(10, 20))  # 3 in both, 20 in either
    assert jaccard(question, earlier) == 0.15
    assert [question_diversity(question, [earlier], tau_sim=tau) for tau in (0.15, 0.149)] == [1, 0]


@pytest.mark.parametrize(
    ("rate", "diversity", "reward", "invalid"),
    [
        (0.5, 1.0, 0.8, ""),
        (0.5, 0.5, 0.7, ""),
        (2 / 6, 1.0, 1.1 - 1 / 3 + 0.2, ""),
        (5 / 6, 0.31, 1.1 - 5 / 6 + 0.062, ""),
        (0.21, 1.0, 1.09, ""),
        (0.2, 1.0, 0.0, "too_hard"),  # p <= 0.2 is clipped
        (0.0, 1.0, 0.0, "too_hard"),
        (1 / 6, 0.0, 0.0, "too_hard"),
        (1.0, 1.0, 0.3, "too_easy"),  # a question that is always solved earns more than none
        (1.0, 0.31, 0.162, "too_easy"),
        (0.5, 0.3, 0.0, "alike"),  # diversity <= 0.3 is clipped
        (0.5, 0.0, 0.0, "alike"),
        (0.5, None, 0.6, ""),  # neither bonus nor clip
        (0.2, None, 0.0, "too_hard"),
        (1.0, None, 0.1, "too_easy"),
    ],
)
def test_what_the_proposer_earns_and_which_questions_train_the_solver(rate, diversity, reward, invalid):
    assert proposer_reward(rate, diversity) == pytest.approx(reward)
    assert why_invalid(rate, diversity) == invalid


def test_the_clip_is_exact_where_a_share_is_three_tenths():
    history = [{1, 2}] * 70 + [{8, 9}] * 30
    assert question_diversity({1, 2}, history) == 0.3
    assert proposer_reward(0.5, question_diversity({1, 2}, history)) == 0.0
    assert proposer_reward(0.5, question_diversity({1, 2}, [*history[1:], {8, 9}])) == pytest.approx(0.662)


@pytest.mark.parametrize(
    ("guard", "question", "answer", "guarded"),
    [
        ("token3", "A train covers 120 miles. How many?", "120", True),
        ("token3", "A train covers 120 miles. How many?", " $120$ ", True),
        ("token3", "A train covers 1120 miles. How many?", "120", False),
        ("token3", "A train covers 120.5 miles. How many?", "120", False),
        ("token3", "A train covers 1,120 miles. How many?", "120", False),
        ("token3", "A train covers 1,120 miles. How many?", "1,120", True),
        ("token3", "The total is 120. Is it?", "120", True),
        ("token3", "Kim has 12 apples.", "12", False),  # many honest questions contain two characters
        ("token3", "Is it Monday or friday?", "Friday", True),
        ("token3", "Mondays only?", "Monday", False),
        ("token3", "What is x_1 + 3?", "x_1", True),
        ("token3", "Show that it is \\boxed{5}.", "7", True),
        ("token3", "What is 3 + 4?", "7", False),
        ("substring", "Kim has 12 apples.", "2", True),  # the release's
        ("substring", "Kim has 12 apples.", "3", False),
        ("substring", "7?", "Since 7? says so", True),  # the answer contains the question
        ("substring", "Show that it is \\boxed{5}.", "7", True),
        ("substring", "Show that it is \\boxed {\\frac{1}{2}}.", "7", True),
        ("substring", "What does \\boxed mean?", "7", False),
        ("substring", "What is 3 + 4?", "7", False),
        ("off", "It is 120: \\boxed{120}", "120", False),
    ],
)
def test_answers_that_stand_in_their_question(guard: str, question: str, answer: str, guarded: bool):
    assert leaks(question, answer, guard) is guarded
