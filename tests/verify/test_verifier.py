"""Dispatch by kind of problem, counters, and the worker processes as a run sees them."""

from collections.abc import Sequence

import pytest

from lite_selfplay import verify
from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError, UnknownNameError
from lite_selfplay.verify import AnswerFormat, Checking, Verifier, register_checker
from tests.made import completion


def test_mixed_kinds_keep_their_order() -> None:
    math, letters = Problem("m", "1+1?", "2"), Problem("l", "a letter", "abc", kind="letters")
    pairs = [(completion(r"\boxed{2}"), math), (completion("zzb"), letters), (completion(r"\boxed{3}"), math)]
    with Verifier() as verifier:
        verdicts = verifier.verify(pairs)
    assert [verdict.answer for verdict in verdicts] == ["2", "b", "3"]
    assert [verdict.correct for verdict in verdicts] == [True, True, False]
    assert verifier.reasons == {"": 2, "wrong": 1}


def test_invalid_requests_are_not_counted() -> None:
    with Verifier() as verifier:
        with pytest.raises(UnknownNameError, match="letters"):
            verifier.verify([(completion("a"), Problem("x", "?", "a", kind="leters"))])
        with pytest.raises(TaskError):
            verifier.verify([(completion("a"), Problem("x", "?"))])
        assert verifier.verify([]) == []
        assert verifier.reasons == {}


def test_what_a_checker_keeps_is_ended_with_its_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Kept:
        def close(self) -> None:
            ended.append(self)

    def check(pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking) -> list[Verdict]:
        kept.append(checking.kept("mine", Kept))
        return [Verdict(True, 1.0)] * len(pairs)

    monkeypatch.setitem(verify._CHECKERS.known, "kept", lambda: check)
    kept: list[Kept] = []
    pair = (completion("hi"), Problem("k", "?", kind="kept"))
    with Verifier() as verifier:
        verifier.verify([pair])
        verifier.verify([pair])
        assert kept[0] is kept[1]
        assert ended == []
    assert ended == [kept[0]]
    assert verifier.verify([pair])[0].correct  # made anew
    assert kept[2] is not kept[0]


def test_a_registered_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify._CHECKERS, "known", dict(verify._CHECKERS.known))
    register_checker("short", lambda pairs, expected, workers: [Verdict(len(c.text) < 3, 1.0) for c, _ in pairs])
    problem = Problem("s", "be brief", kind="short")
    with Verifier() as verifier:
        verdicts = verifier.verify([(completion("hi"), problem), (completion("hello"), problem)])
    assert [verdict.correct for verdict in verdicts] == [True, False]
