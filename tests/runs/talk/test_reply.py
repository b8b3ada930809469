"""Tokens as text that is never taken back, and replies that end where they were asked to."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.runs.talk.reply import Question, Reply, Spelling


def utf8(ids: Sequence[int]) -> str:
    """Tokens that are bytes, as the tokenizer of the random model has them."""
    return bytes(ids).decode(errors="replace")


def spelled(ids: Sequence[int], stops: Sequence[str] = ()) -> tuple[list[str], Spelling]:
    spelling, pieces = Spelling(utf8, stops), list[str]()
    for number in ids:
        pieces.append(spelling.add(number))
        if spelling.stopped:
            break
    return [*pieces, spelling.end()], spelling


def test_a_character_of_several_bytes_comes_whole():
    pieces, _ = spelled("a€😀".encode())
    assert pieces == ["a", "", "", "€", "", "", "", "😀", ""]


@given(st.lists(st.integers(0, 255), max_size=120))
def test_pieces_add_up_to_the_whole_whatever_the_bytes(ids: list[int]):
    pieces, spelling = spelled(ids)
    assert "".join(pieces) == spelling.text == utf8(ids)


@given(st.text("ab<", max_size=60), st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stop_string_ends_the_text_before_it_and_nothing_of_it_is_shown(text: str, stops: list[str]):
    pieces, spelling = spelled(text.encode(), stops)
    places = [text.find(stop) for stop in stops if stop in text]
    # The one that is complete first ends it, and of those the one that begins first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = text[: min(p for p, e in zip(places, ends, strict=True) if e == min(ends))] if ends else text
    assert "".join(pieces) == spelling.text == expected
    assert spelling.stopped == bool(places)


def completion(text: str, stop: str = "eos") -> Completion:
    ids = tuple(text.encode())
    return Completion("?", text, (1, 2), ids, (-1.0,) * len(ids), stop, "A", 0, Sampling())  # type: ignore[arg-type]


def reply(*seats: str, **sampling: object) -> tuple[Reply, list[str]]:
    heard: list[str] = []
    asked = Question("->".join(seats), "?", Sampling(**sampling))  # type: ignore[arg-type]
    return Reply(asked, seats, hear=lambda reply, piece: heard.append(f"{reply.speaking}:{piece}")), heard


def test_a_reply_hears_each_token_once():
    one, heard = reply("A")
    one.begin(utf8, None)
    assert [one.heard(number, byte) for number, byte in [(1, 104), (2, 105), (1, 104), (2, 105)]] == [True] * 4
    one.ended(completion("hi"))
    assert heard == ["A:h", "A:i"]
    assert (one.text, one.finish, one.completion_tokens, one.prompt_tokens) == ("hi", "stop", 2, 2)


def test_a_backend_that_tells_nothing_is_caught_up_with():
    one, heard = reply("A", max_tokens=3)
    one.begin(utf8, None)
    one.ended(completion("hello"))  # sampled with others that may be longer
    assert heard == ["A:h", "A:e", "A:l"]
    assert (one.text, one.finish, one.completion_tokens) == ("hel", "length", 3)


def test_stop_strings_end_the_last_stage_alone():
    one, heard = reply("A", "B", stop=("l",))
    one.begin(utf8, None)
    one.ended(completion("hello"))
    assert not one.is_over
    one.begin(utf8, "what B saw")
    one.ended(completion("hello"))
    assert [stage.completion.text for stage in one.stages] == ["hello", "he"]
    assert [stage.saw for stage in one.stages] == [None, "what B saw"]
    assert (one.finish, heard[-2:]) == ("stop", ["B:h", "B:e"])


@pytest.mark.parametrize(("stop", "finish"), [("eos", "stop"), ("length", "length")])
def test_how_a_reply_ends(stop: str, finish: str):
    one, _ = reply("A", max_tokens=2)
    one.begin(utf8, None)
    one.ended(completion("hi", stop))
    assert one.finish == finish


def test_a_cancelled_reply_wants_no_further_token():
    one, _ = reply("A")
    one.begin(utf8, None)
    assert one.heard(1, 104)
    one.cancel()
    assert not one.heard(2, 105)
    one.ended(completion("hi", "length"))
    assert one.finish == "cancelled"
