"""Dispatch by kind of problem, counters, and the worker processes as a run sees them."""

import pytest

from lite_selfplay import verify
from lite_selfplay.data import Problem, Verdict
from lite_selfplay.errors import TaskError, UnknownNameError
from lite_selfplay.verify import Counters, Verifier, register_checker
from tests.made import completion


def test_mixed_kinds_keep_their_order() -> None:
    math, letters = Problem("m", "1+1?", "2"), Problem("l", "a letter", "abc", kind="letters")
    pairs = [(completion(r"\boxed{2}"), math), (completion("zzb"), letters), (completion(r"\boxed{3}"), math)]
    with Verifier() as verifier:
        verdicts = verifier.verify(pairs)
    assert [verdict.answer for verdict in verdicts] == ["2", "b", "3"]
    assert [verdict.correct for verdict in verdicts] == [True, True, False]
    assert verifier.counters == Counters(checked=3, timeouts=0)


def test_thinks_reaches_the_checker() -> None:
    pair = (completion("<answer>2</answer>"), Problem("m", "1+1?", 2))
    with Verifier() as verifier:
        assert verifier.verify([pair])[0].well_formed
        assert not verifier.verify([pair], thinks=True)[0].well_formed


def test_invalid_requests_are_not_counted() -> None:
    with Verifier() as verifier:
        with pytest.raises(UnknownNameError, match="letters"):
            verifier.verify([(completion("a"), Problem("x", "?", "a", kind="leters"))])
        with pytest.raises(TaskError):
            verifier.verify([(completion("a"), Problem("x", "?"))])
        assert verifier.verify([]) == []
        assert verifier.counters == Counters()


def test_a_registered_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_CHECKERS", dict(verify._CHECKERS))
    register_checker("short", lambda pairs, expected, workers: [Verdict(len(c.text) < 3, 1.0) for c, _ in pairs])
    problem = Problem("s", "be brief", kind="short")
    with Verifier() as verifier:
        verdicts = verifier.verify([(completion("hi"), problem), (completion("hello"), problem)])
    assert [verdict.correct for verdict in verdicts] == [True, False]
