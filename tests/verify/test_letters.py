"""The toy checker: a letter that the problem names, anywhere in the sampled text."""

import pytest

from lite_selfplay.errors import TaskError
from lite_selfplay.verify.letters import check
from tests.made import completion


@pytest.mark.parametrize(("text", "found"), [("zzcz", "c"), ("h", "h"), ("ABC", None), ("xyz", None), ("", None)])
def test_any_named_letter_is_right(text: str, found: str | None) -> None:
    verdict = check(text, "abcdefgh")
    assert verdict.correct == (found is not None)
    assert verdict.score == float(verdict.correct)
    assert verdict.answer == found
    assert verdict.reason == ("" if found else "wrong")


def test_the_prefill_does_not_count_and_the_format_is_judged_separately() -> None:
    assert not check(completion("zz", prefill="abc"), "abc").correct
    assert check("<answer>a</answer>", "a").well_formed
    assert not check("<answer>a</answer>", "a", thinks=True).well_formed
    assert check(completion("</think><answer>a</answer>", prefill="<think>"), "a", thinks=True).well_formed


@pytest.mark.parametrize("answer", ["", None, 5, ["a"]])
def test_a_problem_without_letters_is_refused(answer: object) -> None:
    with pytest.raises(TaskError, match="letters"):
        check("a", answer)
