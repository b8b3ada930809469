import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lite_selfplay.data import Episode, Group, Problem, Sample, Sampling, Snapshot, Stream
from lite_selfplay.errors import GameError, UnknownNameError
from lite_selfplay.games import Game
from lite_selfplay.games.table import Table
from lite_selfplay.testing import EOS, ScriptedTable, check_game


class Counting(Game):
    """A small sound game with a state."""

    roles = ("counter",)

    def __init__(self, options: Any = None, **sizes: int):
        super().__init__(options, **sizes)
        self.count = 0

    def play(self, step: int, table: Table) -> Episode:
        self.count += 1
        said = table.ask("counter", [f"number {self.count}, {table.rng.random()}"], n=2)
        samples = [Sample(completion, float(i)) for i, completion in enumerate(said[0])]
        return Episode([Stream("counter", [Group(samples)])], log={"count": self.count})

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Broken(Counting):
    """The sound game with one change in its episode."""

    change: Callable[[Episode], Any]

    def play(self, step: int, table: Table) -> Episode:
        return type(self).change(super().play(step, table))


def one_stream(episode: Episode, **changes: Any) -> Episode:
    return dataclasses.replace(episode, streams=[dataclasses.replace(episode.streams[0], **changes)])


def one_sample(episode: Episode, **changes: Any) -> Episode:
    group = episode.streams[0].groups[0]
    return one_stream(episode, groups=[Group([dataclasses.replace(group.samples[0], **changes)])])


def one_completion(episode: Episode, **changes: Any) -> Episode:
    said = episode.streams[0].groups[0].samples[0].completion
    return one_sample(episode, completion=dataclasses.replace(said, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: None, "returned NoneType, not an Episode"),
        (lambda e: dataclasses.replace(e, log={"x": object()}), "the log must be JSON"),
        (lambda e: dataclasses.replace(e, log={"x": float("nan")}), "the log must be JSON"),
        (lambda e: one_stream(e, role="nobody"), "a stream of nobody"),
        (lambda e: dataclasses.replace(e, streams=[*e.streams, *e.streams]), "has two streams"),
        (lambda e: one_stream(e, groups=[]), "a stream without groups"),
        (lambda e: one_stream(e, groups=[Group([])]), "a group without samples"),
        (lambda e: one_sample(e, reward=float("inf")), "a reward of inf"),
        (lambda e: one_completion(e, seat="x"), "seat 'counter' would train on a completion of 'x'"),
        (lambda e: one_completion(e, sampling=Sampling(top_p=0.9)), r"step 0, counter: .* sampled with top_p=0\.9"),
        (lambda e: dataclasses.replace(e, actions=["snapshot"]), "is not an action"),
    ],
)
def test_a_broken_episode_is_named(change: Callable[[Episode], Any], message: str):
    kind = type("Kind", (Broken,), {"change": staticmethod(change)})
    with pytest.raises(GameError, match=message):
        check_game(kind())


def test_a_sound_game_passes_and_a_masked_sample_needs_no_reward():
    check_game(Counting())
    unpaid = staticmethod(lambda episode: one_sample(episode, reward=None, masked=True))
    check_game(type("Shows", (Broken,), {"change": unpaid})())


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"restore": lambda self, state: None, "state": lambda self: {}}, "does not continue as the first one did"),
        ({"restore": lambda self, state: setattr(self, "count", 0)}, "does not continue as the first one did"),
        ({"roles": ("counter", "counter")}, "distinct names"),
        ({"seats": lambda self, step: {}}, r"seats\(\) has no seat for counter"),
        ({"play": Game.play}, "override play"),
        ({"kept_at_start": lambda self: [Snapshot("other", "x")]}, r"kept_at_start\(\) holds"),
        ({"kept_at_start": lambda self: ["counter"]}, r"kept_at_start\(\) holds"),
    ],
)
def test_a_broken_game_is_named(methods: Mapping[str, Any], message: str):
    with pytest.raises(GameError, match=message):
        check_game(type("Other", (Counting,), dict(methods))())


def test_the_tokens_of_a_scripted_table_are_bytes():
    table = ScriptedTable({"a": ["hé"]}, [Problem("p", "?", "1")])
    ((said,),) = table.ask("a", ["prompt"])
    assert list(said.token_ids) == [*"hé".encode(), EOS]
    assert table.detokenize(said.token_ids) == "hé"
    assert len(said.logprobs) == len(said.token_ids)
    assert table.draw("problems", 3) == [Problem("p", "?", "1")] * 3
    assert table.asked == [("a", ["prompt"], 1)]


PROBLEMS = [Problem("p", "2 + 2?", "4"), Problem("q", "3 + 3?", "6")]
PROMPTS = [problem.text for problem in PROBLEMS]


def right(verdicts: Any) -> list[bool]:
    return [verdict.correct for verdict in verdicts]


def test_the_scripted_table_measures_from_a_list_of_its_own():
    script = {"a": ["<answer>5</answer>"], "a, measured": ["<answer>4</answer>", "<answer>7</answer>", "no idea"]}
    table = ScriptedTable(script, PROBLEMS)
    assert table.everything("validation") == PROBLEMS
    table.draw("validation", 1)
    assert table.everything("validation") == table.everything("anything") == PROBLEMS
    assert table.draw("validation", 1) == PROBLEMS[1:]
    assert right(table.evaluate("a", PROMPTS, PROBLEMS)) == [True, False]
    assert right(table.evaluate("a", PROMPTS, PROBLEMS)) == [False, False]  # read in a circle
    assert table.ask("a", ["?"])[0][0].text == "<answer>5</answer>"  # which leaves the other list where it was
    assert table.asked == [("a, measured", PROMPTS, 1)] * 2 + [("a", ["?"], 1)]
    # Several answers to a prompt are consecutive.
    table = ScriptedTable({"a, measured": [f"<answer>{said}</answer>" for said in "466?"]}, PROBLEMS)
    assert right(table.evaluate("a", PROMPTS, PROBLEMS, 2)) == [True, False, True, False]
    assert table.asked == [("a, measured", PROMPTS, 2)]


def test_a_role_without_such_a_list_is_measured_by_its_usual_completions():
    one = PROBLEMS[:1]
    table = ScriptedTable({"a": ["<answer>4</answer>", "<answer>5</answer>"]}, one)
    assert [right(table.evaluate("a", ["?"], one)) for _ in range(3)] == [[True], [False], [True]]
    table = ScriptedTable(lambda role, prompt, index: f"<answer>{4 if role == 'a' else 5}</answer>", one)
    assert right(table.evaluate("a", ["?"], one)) == [True]
    with pytest.raises(UnknownNameError, match="unknown role 'b'"):
        ScriptedTable({"a": ["x"]}, one).evaluate("b", ["?"], one)
