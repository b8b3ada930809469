"""A population's skills, pairs and replacements, against numbers worked by hand."""

from collections import Counter
from random import Random

import pytest

from lite_selfplay.data import Blend, EvalSpec, Group, Sample, Verdict
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.propose_solve.population import Population, SeatsOptions
from lite_selfplay.games.propose_solve.questions import NOBODYS, Candidate, Proposal
from tests.games.scripted import small
from tests.made import completion

P, S = ("proposer-1", "proposer-2", "proposer-3"), ("solver-1", "solver-2", "solver-3")


def population(size: int = 3, **options: object) -> Population:
    return Population(("proposer", "solver"), SeatsOptions(seats="two", population=size, **options))


def answers(*right: int) -> Candidate:
    samples = [Sample(completion("x"), 0.0, Verdict(bool(each), each, "x", True)) for each in right]
    return Candidate("q", Proposal(NOBODYS, "?"), Group(samples))


REFUSED = Candidate("r", Proposal(NOBODYS, reason="invalid"))
NOT_JUDGED = Candidate("n", Proposal(NOBODYS, reason="not_judged"))


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ([answers(1, 0, 0, 0)], 32 * (0.75 - 0.5)),
        ([answers(1, 1), answers(0, 0), REFUSED, REFUSED], 32 * (0.25 - 0.5)),  # (0 + 1 + 0 + 0) / 4
        ([answers(0, 0), NOT_JUDGED], 32 * (1 - 0.5)),
        ([NOT_JUDGED], 0.0),
        ([], 0.0),
    ],
)
def test_the_share_of_wrong_answers_moves_both_skills_against_each_other(asked: list[Candidate], change: float):
    seats = population()
    assert seats.pair() == {"proposer": P[0], "solver": S[0]}
    assert seats.settle(0, asked, Random(0)) == ([], {"skill": seats.skill, "replaced": 0})
    assert seats.skill == {**dict.fromkeys((*P, *S), 0.0), P[0]: change, S[0]: -change}
    assert seats.pair() == {"proposer": P[1], "solver": S[1]}


def test_a_stronger_proposer_is_expected_to_win_more_and_gains_less():
    seats = population()
    seats.skill[P[0]] = 400.0
    assert seats.expected(P[0], S[0]) == pytest.approx(10 / 11)
    seats.settle(0, [answers(0, 0)], Random(0))
    assert seats.skill[P[0]] == pytest.approx(400 + 32 / 11)
    assert seats.skill[S[0]] == pytest.approx(-32 / 11)


def test_in_a_round_every_seat_plays_once_and_near_pairs_are_more_frequent():
    seats, rng, met = population(), Random(1), Counter[tuple[str, ...]]()
    for step in range(3 * 400):
        seats.skill = {**dict.fromkeys((*P, *S), 0.0), P[0]: 800.0, S[2]: 800.0}
        if step % 3 == 0:
            assert [sorted(each) for each in zip(*seats.round, strict=True)] == [list(P), list(S)]
        met[tuple(seats.pair().values())] += 1
        seats.settle(step, [], rng)
    # Odds against equals 1/4, against one 800 points away 0.0098: if P1 is drawn first it meets S3 in 93% of rounds.
    assert met[P[0], S[2]] > 0.85 * 400
    assert met[P[1], S[0]] + met[P[1], S[1]] > 0.85 * 400


def test_the_weakest_of_each_role_becomes_a_blend_of_the_two_strongest_and_takes_their_mean_skill():
    seats = population(replace_every=3, mutation=0.02)
    seats.skill = dict(zip((*P, *S), (5.0, 30.0, 10.0, 7.0, -20.0, 1.0), strict=True))
    due = [seats.settle(step, [], Random(step))[0] for step in range(3)]
    assert due[:2] == [[], []]
    first, second = due[2]
    assert first == Blend(P[0], (P[1], P[2]), 0.02, first.seed)
    assert second == Blend(S[1], (S[0], S[2]), 0.02, second.seed)
    assert first.seed != second.seed
    assert seats.skill == dict(zip((*P, *S), (20.0, 30.0, 10.0, 7.0, 4.0, 1.0), strict=True))


@pytest.mark.parametrize("name", ["absolute-zero", "spice"])
def test_games_with_a_population_have_seats_for_each_role(name: str):
    game = small(name, seats="two", population=3)
    first, second = game.roles
    own = [tuple(f"{role}-{i}" for i in (1, 2, 3)) for role in game.roles]
    assert [game.seats_of(role) for role in game.roles] == own
    assert game.trained_seats() == (*own[0], *own[1])
    assert game.seats(7) == {first: own[0][0], second: own[1][0]}
    assert game.evaluation() == EvalSpec("single", own[1])
    assert set(game.updates(10).values()) == {4}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"population": 2}, "set game.seats=two"),
        ({"seats": "two", "replace_every": 5}, "needs game.population"),
        ({"seats": "two", "population": 0}, "population"),
        ({"seats": "two", "population": 2, "mutation": -1}, "mutation"),
    ],
)
def test_a_population_that_cannot_be_is_refused(options: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        small("absolute-zero", **options)
