"""The alarm for an answer that is right whatever was asked."""

from lite_selfplay.data import Completion, Group, Problem, Sample, Sampling, Stream, Verdict
from lite_selfplay.runs.report.step_rows import right_for_all


def stream(*rows: tuple[object, list[tuple[str | None, bool]]], kind: str = "math") -> Stream:
    """A stream with a group for each (reference, [(answer, whether it is right), ...])."""

    def sample(answer: str | None, right: bool) -> Sample:
        said = Completion("?", str(answer), (), (), (), "eos", "A", 0, Sampling())
        return Sample(said, float(right), Verdict(right, float(right), answer))

    groups = [Group([sample(*each) for each in said], Problem("p", "?", of, kind)) for of, said in rows]
    return Stream("solver", groups)


ANYTHING = r"N\approx0\approx1\approx2"


def test_an_answer_that_is_right_for_different_references_is_named() -> None:
    played = stream(*((n, [(ANYTHING, True), ("7", n == 7)]) for n in range(4)), (3, [(ANYTHING, True)]))
    (sentence,) = right_for_all([played])
    assert f"the solver's answer {ANYTHING!r} is right on 5 problems with 4 different references" in sentence


def test_answers_of_one_class_are_one_answer() -> None:
    played = stream(*((n, [(f"{'0' * n}12", True)]) for n in range(3)))
    assert "on 3 problems with 3 different references" in right_for_all([played])[0]


def test_what_is_right_for_one_reference_is_no_alarm() -> None:
    usual = stream(*((5, [("5", True), ("six", False)]) for _ in range(9)), (6, [("6", True)]), ("5 km", [("5", True)]))
    assert right_for_all([usual]) == []
    assert right_for_all([stream(*((n, [(ANYTHING, False)]) for n in range(9)))]) == []
    assert right_for_all([stream(*((None, [(ANYTHING, True)]) for n in range(9)))]) == []
    letters = stream(("ab", [("a", True)]), ("ac", [("a", True)]), ("ad", [("a", True)]), kind="letters")
    assert right_for_all([letters]) == []
    assert right_for_all([]) == []
