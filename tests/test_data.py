"""What games are told and give back: completions as JSON, samples, snapshots."""

import dataclasses
import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import START, Completion, Sample, Sampling, Snapshot
from lite_selfplay.errors import GameError
from lite_selfplay.games.collections import completion_from_json

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COMPLETIONS = st.builds(
    Completion,
    prompt=st.text(),
    text=st.text(),
    prompt_ids=st.lists(st.integers(0, 10**6)).map(tuple),
    token_ids=st.lists(st.integers(0, 10**6)).map(tuple),
    logprobs=st.lists(NUMBERS).map(tuple),
    stop=st.sampled_from(["eos", "length", "string", "prompt_too_long"]),
    seat=st.text(),
    weights_version=st.integers(-1, 1000),
    sampling=st.builds(
        Sampling,
        temperature=NUMBERS,
        max_tokens=st.integers(1, 10**5),
        stop=st.lists(st.text(), max_size=2).map(tuple),
    ),
    prefill=st.text(),
)


@settings(deadline=None)
@given(COMPLETIONS)
def test_a_completion_survives_json(completion: Completion):
    written = json.dumps(asdict(completion), allow_nan=False)
    assert completion_from_json(json.loads(written)) == completion
    assert completion_from_json(asdict(completion)) == completion
    hash(completion_from_json(json.loads(written)))  # tuples again, not lists


SOME = asdict(Completion("p", "t", (1,), (2,), (-0.5,), "eos", "A", 3, Sampling(stop=("x",))))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {**SOME, "extra": 1},
        *({key: value for key, value in SOME.items() if key != lacking} for lacking in ("seat", "sampling")),
        *({**SOME, "sampling": wrong} for wrong in (None, {**SOME["sampling"], "heat": 1})),
        {**SOME, "token_ids": None},
    ],
)
def test_what_is_no_completion(values):
    with pytest.raises((LookupError, TypeError, ValueError)):
        completion_from_json(values)


def test_what_is_for_the_record_alone_has_no_reward():
    said = completion_from_json(SOME)
    shown = Sample(said, None, masked=True)
    assert shown.reward is None
    for wrong in ({"masked": False}, {"advantage": 0.5}):
        with pytest.raises(GameError, match="must be either only recorded"):
            dataclasses.replace(shown, **wrong)


def test_a_game_cannot_name_a_snapshot_as_the_library_does():
    with pytest.raises(GameError, match="cannot be named 'A@start'"):
        Snapshot("A", f"A{START}")
    assert Snapshot("A", "A@start of round 2").name == "A@start of round 2"
