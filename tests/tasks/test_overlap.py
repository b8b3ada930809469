"""Problems found again in training data, by content and by runs of words."""

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.tasks.split import WORDS, Overlap, overlap

WORD = [f"w{n}" for n in range(60)]
LONG = " ".join(WORD[:20])


def problems(*texts: str) -> list[Problem]:
    return [Problem(f"p{n}", text) for n, text in enumerate(texts)]


def test_the_same_content_and_shared_runs() -> None:
    evaluation = problems("What is 2 + 2?", LONG, " ".join(WORD[30:50]), "Another short one?")
    training = [Problem("t", "what is  2 + 2?"), f"Before, {', '.join(WORD[5:18]).upper()}; after.", "Nothing of it."]
    assert overlap(evaluation, training) == Overlap(4, ("p0",), ("p1",))


def test_thirteen_words_are_shared_and_twelve_are_not() -> None:
    evaluation = problems(LONG)
    assert overlap(evaluation, [" ".join(WORD[3 : 3 + WORDS])]).shared == ("p0",)
    assert overlap(evaluation, [" ".join(WORD[3 : 2 + WORDS])]).ids == ()
    assert overlap(evaluation, [" ".join(reversed(WORD[:20]))]).ids == ()


def test_the_content_is_the_tasks_own_where_it_gives_one() -> None:
    evaluation = [Problem("p", "3 + 2?", extra={"content": "+2 +3"})]
    assert overlap(evaluation, [Problem("t", "2 + 3?", extra={"content": "+2 +3"})]).same == ("p",)
    assert overlap(evaluation, ["2 + 3?"]).same == ()


def test_problems_with_one_id_or_one_text_are_all_named() -> None:
    evaluation = [Problem("a", LONG), Problem("b", LONG)]
    assert overlap(evaluation, [LONG]) == Overlap(2, ("a", "b"), ("a", "b"))


def test_a_warning_has_the_count_and_the_ids() -> None:
    assert Overlap(9, (), ()).warning() is None
    found = Overlap(9, ("a", "b"), ("b", "c", "d"))
    assert found.ids == ("a", "b", "c", "d")
    assert found.warning(3) == (
        "4 of 9 evaluation problems stood in the training data (2 with the same content, 3 with 13 words in a row in "
        "common): a, b, c, ..."
    )


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_runs_by_definition(left: list[str], right: list[str]) -> None:
    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}

    found = overlap(problems(" ".join(left)), [" ".join(right)])
    assert bool(found.shared) == bool(runs(left) & runs(right))
    assert bool(found.same) == (left == right)


def test_ten_thousand_against_ten_thousand_take_seconds() -> None:
    rng = random.Random(0)
    words = [f"w{n}" for n in range(5000)]
    evaluation = problems(*(" ".join(rng.choices(words, k=40)) for _ in range(10_000)))
    training = [" ".join(rng.choices(words, k=80)) for _ in range(9_999)] + [evaluation[77].text]
    start = time.process_time()
    assert overlap(evaluation, training) == Overlap(10_000, ("p77",), ("p77",))
    assert time.process_time() - start < 30
