"""Studies of questions, worked by hand: accuracy of labels by pass rate, difficulty and domains, diversity."""

from math import log, sqrt

import numpy as np
import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.propose_solve.diversity import mean_distance, principal_components, question_map, terms, tfidf
from lite_selfplay.games.propose_solve.domains import domain_of
from lite_selfplay.games.propose_solve.questions import (
    Question,
    difficulty_and_domains,
    labels_by_pass_rate,
    question,
    questions_of,
)
from lite_selfplay.tasks.split import content_key

WINDOWS = [(0, 1), (2, 3)]


def test_labels_are_compared_with_what_can_be_computed_or_is_given():
    known = {content_key(Problem("", "How old is Ann?", None)): "12"}
    asked = [
        question(0, "What is 2 + 3?", "5", 1.0, known),
        question(0, "What is 2 + 3?", "6", 0.1, known),
        question(0, "how old  is Ann?", "12.0", 0.5, known),
        question(0, "How old is Bob?", "12", 0.5, known),
        question(0, "What is 2 + 3?", None, 0.25, known),
    ]
    assert [each.right for each in asked] == [True, False, True, None, None]
    assert [each.by_file for each in asked] == [False, False, True, False, False]


def test_accuracy_of_labels_by_pass_rate_and_window():
    asked = [
        Question(0, "a", "1", 0.0, False),
        Question(0, "b", "1", 0.1, True),
        Question(1, "c", "1", 0.2, True),  # on the edge: the higher bin
        Question(2, "d", "1", 1.0, True),
        Question(3, "e", "1", 1.0, None),
        Question(3, "f", None, 0.5, None),  # a tie
    ]
    study = labels_by_pass_rate(asked, WINDOWS)
    found = {row[0]: row[1:] for row in study.rows}
    assert found["0 to 20%"] == ["2", "2", "50% [1, 99]"]
    assert found["20 to 40%"][:2] == ["1", "1"]
    assert found["40 to 60%"] == ["0", "0", "-"]
    assert found["80 to 100%"][:2] == ["2", "1"]
    assert found["all"][:2] == ["5", "4"]
    assert found["all"][2].startswith("75% ")
    assert [found[name][:2] for name in ("steps 1-2", "steps 3-4")] == [["3", "3"], ["2", "1"]]
    assert study.notes == [
        "a true answer is known of 4 of 5 labelled questions (4 computed, as bare calculations); of the other 1 "
        "nothing is known: --references gives answers to them",
        "1 answered questions had no label, since no answer had a majority: they are left out",
    ]
    assert study.data["without_label"] == 1


def test_difficulty_and_domains_over_time():
    asked = [
        Question(0, "Find the area of the triangle.", "1", 0.75),
        Question(1, "Solve the equation.", "1", 0.25),
        Question(3, "What is 2 + 3?", "5", 1.0),
    ]
    study = difficulty_and_domains(asked, WINDOWS)
    rows = {row[0]: row[1:] for row in study.rows}
    assert rows["difficulty (1 - pass rate), mean"] == ["0.5", "0"]
    assert rows["difficulty, standard deviation"] == ["0.354", "-"]  # sqrt(1/8)
    assert rows["geometry"] == ["50%", "0%"]
    assert rows["algebra"] == ["50%", "0%"]
    assert rows["arithmetic"] == ["0%", "100%"]
    assert study.data["effective_domains"] == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("Evaluate the integral of x^2 from 0 to 1.", "calculus"),
        (r"What is $\sin 30^\circ + \cos 60^\circ$?", "trigonometry"),
        ("Two dice are rolled. What is the probability that the sum is 9?", "probability/statistics"),
        ("In how many ways can 5 people be seated?", "combinatorics"),
        ("Maximize x + y subject to x, y at most 3.", "optimization"),
        ("What is the remainder when 7^100 is divided by 5, with 5 prime?", "number theory"),
        ("A rectangle has perimeter 20. What is its area?", "geometry"),
        ("Solve the equation 3x + 1 = 7.", "algebra"),
        ("What is 12 + 30?", "arithmetic"),
        ("It is 12 seconds past 5.", "arithmetic"),
        ("Who wrote it?", "other"),
    ],
)
def test_domains_are_told_by_words(text: str, domain: str):
    assert domain_of(text) == domain


def test_each_question_is_counted_once():
    rows = [{"question": "q-1", "step": 0}, {"question": None}, {}, {"question": "q-1"}, {"question": "q-2"}]
    made = questions_of(rows, lambda row: Question(0, row["question"], None, 0.0) if row["question"] == "q-1" else None)
    assert [each.text for each in made] == ["q-1"]


# Diversity


def test_terms_are_words_numbers_and_signs():
    assert terms("What is 12+X?") == ["what", "is", "12", "+", "x", "?"]


def test_tfidf_by_hand():
    vectors = tfidf(["a", "a b"]).toarray()  # columns: a, b, "a b"
    rare = log(3 / 2) + 1  # in one of two texts; `a`, in both, has ln(3/3) + 1 = 1
    length = sqrt(1 + 2 * rare**2)
    assert vectors == pytest.approx(np.array([[1, 0, 0], [1 / length, rare / length, rare / length]]))
    assert tfidf(["", "a"]).toarray() == pytest.approx(np.array([[0], [1]]))


def test_principal_components_are_those_of_the_centred_rows():
    texts = ["two apples and a pear", "three apples and a pear", "solve x", "solve x squared", "what is a pear"]
    vectors = tfidf(texts)
    coordinates, explained = principal_components(vectors)
    dense = vectors.toarray()
    centred = dense - dense.mean(0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    assert np.abs(coordinates) == pytest.approx(np.abs(centred @ directions[:2].T))
    assert explained == pytest.approx(singular[:2] ** 2 / (singular**2).sum())
    assert all(column[np.argmax(np.abs(column))] > 0 for column in coordinates.T)


def test_equal_questions_lie_in_one_place():
    study = question_map([Question(step, "What is 2 + 3?", "5", 1.0) for step in range(4)], WINDOWS)
    assert {(point.x, point.y) for point in study.points} == {(0.0, 0.0)}
    assert study.data["explained"] == [0.0, 0.0]
    assert study.data["mean_distance"] == pytest.approx([0.0, 0.0])
    assert study.data["different"] == [0.5, 0.5]
    assert question_map([Question(0, "", None, 0.0)], WINDOWS).data["mean_distance"] == [None, None]


def test_the_mean_distance_of_questions():
    assert mean_distance(tfidf(["a", "b"])) == pytest.approx(1.0)
    assert mean_distance(tfidf(["a", "a", "b"])) == pytest.approx(2 / 3)  # 0, 1 and 1 over three pairs
