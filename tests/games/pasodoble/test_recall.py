"""Recall of questions from passages, by hand, and a passage read back from its prompt."""

import pytest

from lite_selfplay.games.pasodoble.proposals import passage_of, proposer_prompt
from lite_selfplay.games.pasodoble.recall import exact_match, recall_of_knowledge, rouge_l_recall
from lite_selfplay.games.propose_solve.questions import Question


@pytest.mark.parametrize(
    ("question", "passage", "recall"),
    [
        ("a b c d", "a x c d", 3 / 4),  # a c d
        ("a b c d", "d c b a", 1 / 4),
        ("What is 2 + 3?", "He asks: what IS 2 + 3? And goes.", 1.0),
        ("α ≤ β", "α ≤ γ", 2 / 3),  # signs and other alphabets count as well
        ("a", "", 0.0),
        ("", "a", 0.0),
    ],
)
def test_rouge_l_recall(question: str, passage: str, recall: float):
    assert rouge_l_recall(question, passage) == pytest.approx(recall)


def test_exact_match_is_of_the_whole_question():
    assert exact_match("What  is\n2 + 3?", "so: what is 2 + 3? Yes")
    assert not exact_match("What is 2 + 3?", "What is 2 + 4?")


def test_recall_over_the_steps():
    asked = [
        Question(0, "a b c d", "1", 0.5, source="a b c x"),  # 3/4
        Question(1, "a b", "1", 0.5, source="x a b"),  # all, and as it is
        Question(2, "a b", "1", 0.5),
    ]
    study = recall_of_knowledge(asked, [(0, 1), (2, 3)])
    assert study.rows == [
        ["questions from a passage", "2", "0"],
        ["ROUGE-L recall, mean", "87.5%", "-"],
        ["recall of 80% or more", "50%", "-"],
        ["exact match", "50%", "-"],
    ]
    assert study.notes[1:] == ["1 questions were written without a passage: nothing to compare them with"]


def test_a_passage_comes_back_from_its_prompt():
    assert passage_of(proposer_prompt("Two and\n\ntwo are `four`.")) == "Two and\n\ntwo are `four`."
    assert passage_of(proposer_prompt("A ```fence```.")) == "A '''fence'''."
    assert passage_of(proposer_prompt()) == ""
