"""Matches of any environment: lockstep, forfeits, bounds, baselines, broken environments, and how they are shown."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Sample, Snapshot
from lite_selfplay.errors import ConfigError, GameError
from lite_selfplay.games.matches import Environment, IllegalMove, MatchGame, MatchOptions, spelled
from lite_selfplay.runs.report.pages import choose_transcripts, transcripts_markdown
from lite_selfplay.runs.report.step_rows import episode_rows
from lite_selfplay.testing import ScriptedTable, check_game
from lite_selfplay.training.updates import StepReport, StreamUpdate
from tests.made import play


class Higher(Environment):
    """Two players name numbers in turn, as often as the deal says; the higher last number wins."""

    def __init__(self, rng: Random):
        self.rounds, self.said = rng.choice((1, 2)), list[int]()

    def turn(self) -> tuple[int, str] | None:
        if len(self.said) == 2 * self.rounds:
            return None
        return len(self.said) % 2, f"{self.rounds} rounds, so far {self.said}"

    def act(self, player: int, text: str) -> None:
        if text == "crash":
            raise ZeroDivisionError("the environment has a mistake")
        if not text.isdecimal():
            raise IllegalMove("no number")
        self.said.append(int(text))

    def returns(self) -> Sequence[float]:
        first, second = self.said[-2:]
        won = float((first > second) - (first < second))
        return [won, -won]

    def moves(self) -> Mapping[str, Sequence[str]]:
        return {"1": spelled("1"), "2": spelled("2")}


class Unmade(MatchGame):
    roles = ("one", "two")


class HigherGame(Unmade):
    def make(self, rng: Random) -> Environment:
        return Higher(rng)


class Unfinished(Unmade):
    def make(self, rng: Random) -> Environment:
        return Environment()


class Short(Unmade):
    def make(self, rng: Random) -> Environment:
        environment = Higher(rng)
        environment.rounds = 1
        return environment


def samples_of(episode: Episode) -> list[Sample]:
    return [sample for stream in episode.streams for group in stream.groups for sample in group.samples]


def game(matches: int = 6, kind: type[MatchGame] = HigherGame, **options: Any) -> MatchGame:
    return kind(MatchOptions(**options), group_size=1, problems_per_step=matches)


def test_matches_advance_together_and_leave_when_they_end():
    table, played = ScriptedTable({"one": ["2"], "two": ["1"]}), game()
    episode = play(played, table)
    asked = [(role, len(prompts)) for role, prompts, _ in table.asked]
    longer = asked[2][1]
    assert 0 < longer < 6
    assert asked == [("one", 6), ("two", 6), ("one", longer), ("two", longer)]
    one = episode.streams[0]
    assert [len(group.samples) for group in one.groups].count(2) == longer
    assert {s.reward for group in one.groups for s in group.samples} == {1.0}
    assert episode.log["value"] == 1.0
    assert episode.log["moves"] == pytest.approx((6 * 2 + longer * 2) / 6)
    assert [s.completion.seat for s in one.groups[0].samples] == ["A"]
    assert play(played, table, 1).streams[0].groups[0].samples[0].completion.seat == "B"
    # RAE: every move of a match has the baseline of before it; after a return of 1 each it is 1 - 0.95 ** n.
    for number, (group, row) in enumerate(zip(one.groups, stream_advantages(one), strict=True)):
        assert row == pytest.approx([0.95**number] * len(group.samples))


def test_what_an_environment_or_a_game_does_not_say_is_named():
    with pytest.raises(GameError, match=r"Environment does not say whose turn it is: override turn\(\)"):
        play(game(kind=Unfinished), ScriptedTable({}))
    with pytest.raises(GameError, match=r"Unmade does not say what is played: override make\(\)"):
        play(Unmade(), ScriptedTable({}))


def test_a_forfeit_a_bound_a_crash_and_what_is_counted():
    said = {"one": ["1", "crash", " x ", "1", "2", "1"], "two": ["2", "2", "2", "2", "2"]}
    episode = play(game(kind=Short), ScriptedTable(said))
    ((forfeit, verdict),) = [(s, s.verdict) for s in samples_of(episode) if s.verdict and s.verdict.reason]
    assert (forfeit.reward, verdict.reason, verdict.well_formed) == (-1.5, "no number", False)
    assert forfeit.info["outcome"] == "one forfeits"
    (crashed,) = [s for s in samples_of(episode) if s.masked]
    assert (crashed.reward, crashed.info["outcome"]) == (None, "broken")
    assert crashed.info["error"] == "ZeroDivisionError: the environment has a mistake"
    assert (episode.log["broken"], episode.log["illegal"]) == (1, 1 / 5)
    assert episode.log["value"] == pytest.approx((-1 - 1.5 - 1 + 0 - 1) / 5)
    assert "exception in 1 matches" in game().warnings(episode.log)[0]
    bound = play(game(most_turns=1), ScriptedTable({"one": ["2"], "two": ["1"]}))
    assert bound.log["unfinished"] == 1.0
    assert {s.reward for group in bound.streams[0].groups for s in group.samples} == {0.0}


def test_the_baseline_is_in_the_state_and_a_restored_game_goes_on():
    check_game(game(weight=0.3, renew=2), script={"one": ["1", "2", "no", "2"], "two": ["2", "crash", "1"]})
    played = game(1, Short, decay=0.5)
    for text, value in (("2", 0.5), ("0", -0.25), ("2", 0.375)):
        play(played, ScriptedTable({"one": [text], "two": ["1"]}))
        assert played.state()["baseline"]["one"] == value


def test_against_an_opponent_by_rule_one_seat_plays_each_side_in_turn(monkeypatch: pytest.MonkeyPatch):
    table, played = ScriptedTable({"one": ["2"], "two": ["2"]}), game(opponent="random")
    episode = play(played, table)
    assert played.trained_seats() == ("A",)
    assert {s.completion.seat for s in samples_of(episode)} == {"A"}
    assert [len(stream.groups) for stream in episode.streams] == [3, 3]
    assert {s.reward for s in samples_of(episode)} <= {0.0, 1.0}
    with pytest.raises(ConfigError, match=r"game\.opponent is 'nobody': there are random"):
        game(opponent="nobody")
    monkeypatch.setattr(Higher, "moves", dict)
    with pytest.raises(GameError, match="names its legal moves"):
        play(game(opponent="random"), ScriptedTable({"one": ["2"], "two": ["2"]}))


def test_shuffled_returns_are_those_of_other_matches():
    said = {"one": ["2", "1"], "two": ["1", "2", "2"]}
    own, dealt = (play(game(64, Short, shuffled=on), ScriptedTable(said)) for on in (False, True))
    rewards = [[group.samples[0].reward or 0.0 for group in e.streams[0].groups] for e in (own, dealt)]
    assert sorted(rewards[0]) == sorted(rewards[1])
    assert rewards[0] != rewards[1]


class Known(ScriptedTable):
    """A table at which `1` has the probability of 0.2, in two spellings, and `2` that of 0.6."""

    def score(self, role: str, completions: Sequence[Completion], *, seat: str | None = None) -> Any:
        own, kept = {"1": 0.15, " 1": 0.05, "2": 0.6, " 2": 0.0}, {"1": 0.5, " 1": 0.0, "2": 0.25, " 2": 0.0}
        scores = super().score(role, completions)
        self.scored = [*getattr(self, "scored", []), seat]
        probabilities = [(kept if seat else own)[one.text] for one in completions]
        pairs = zip(probabilities, scores, strict=True)
        return [type(score)([math.log(p) if p else -1e9, 0.0], score.entropies) for p, score in pairs]


@pytest.mark.parametrize("step", [0, 3])
def test_regularisation_is_over_moves_by_hand(step: int):
    """Among legal moves the seat has 1/4 and 3/4. Weight 2 halves in 3 steps; the reference is uniform until it is
    renewed after step 2, then 2/3 and 1/3."""
    played = game(1, Short, weight=2.0, renew=2, fade=3)
    table = Known({"one": ["1"], "two": ["2"]})
    episode = play(played, table, step)
    q = (2 / 3, 1 / 3) if step else (0.5, 0.5)
    ratios = [math.log(p / other) for p, other in zip((0.25, 0.75), q, strict=True)]
    mean, weight = 0.25 * ratios[0] + 0.75 * ratios[1], 1.0 if step else 2.0
    first, second = (stream_advantages(stream)[0][0] for stream in episode.streams)
    assert first == pytest.approx(-1.0 - weight * (ratios[0] - mean))
    assert second == pytest.approx(1.0 - weight * (ratios[1] - mean))
    assert episode.streams[0].groups[0].samples[0].reward == -1.0  # the return is reported
    assert set(table.scored) == ({None, "A@reference", "B@reference"} if step else {None})
    assert list(episode.actions) == ([Snapshot(s, f"{s}@reference") for s in "AB"] if step else [])


def test_whole_matches_are_shown_turn_by_turn():
    episode = play(game(2, Short), ScriptedTable({"one": ["2", "x"], "two": ["1"]}))
    untrained = [[[None] * len(group.samples) for group in stream.groups] for stream in episode.streams]
    report = StepReport(0, episode, untrained, [StreamUpdate(s.role, "A") for s in episode.streams])
    won, lost = HigherGame.transcripts(episode_rows(report))
    assert (won.kind, won.subject, len(lost.rows), lost.kind) == ("one wins", "match 1, A first", 1, "one forfeits")
    assert [row["turn"] for row in won.rows] == [*range(1, len(won.rows) + 1)]
    chosen = choose_transcripts(HigherGame, episode_rows(report), 2)
    page = transcripts_markdown(HigherGame, "Matches", chosen, "kinds")
    assert "Step 1, match 1, A first: one wins" in page
    assert "one, seat `A`: not legal (no number); one forfeits, reward -1.5" in page
