"""The rows to learn from: balance and pairs on collections made by hand."""

import random
from collections import Counter

import pytest

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.games.collections import EXAMPLE, CollectedRow
from lite_selfplay.games.spc.cases import Fate
from lite_selfplay.games.spc.rounds import attack_success, critic_set, mixed, players, sneaky_set, win_rates

REWARDS = {"won": 1.0, "caught": -1.0, "invalid": -1.0, "right": 1.0, "wrong": -1.0}


def rows(text: str) -> list[CollectedRow]:
    """Rows from words such as `a:right`, the step and the kind."""
    found = []
    for number, (name, _, kind) in enumerate(word.partition(":") for word in text.split()):
        completion = Completion("?", f"reply {number}", (1,), (2,), (-1.0,), "eos", "critic", 0, Sampling())
        found.append(CollectedRow(name, "critic", kind, completion, REWARDS[kind]))
    return found


def kinds(found: list[CollectedRow]) -> dict[str, int]:
    return dict(Counter(row.kind for row in found))


SNEAKY = "a:won b:won c:caught d:caught e:caught f:invalid g:invalid h:invalid i:invalid"


@pytest.mark.parametrize(
    ("text", "solver_reward", "expected", "advantages"),
    [
        # Rewards 1, 1, -1, -1, -1, -1: their mean is -1/3.
        (SNEAKY, True, {"won": 2, "caught": 2, "invalid": 2}, [4 / 3] * 2 + [-2 / 3] * 4),
        (SNEAKY, False, {"won": 2, "caught": 2}, [1, 1, -1, -1]),  # failed attacks are skipped
        ("a:won b:invalid c:invalid", True, {"won": 1, "invalid": 1}, [1, -1]),
        *((text, True, {}, []) for text in ("a:caught b:invalid", "a:won b:won", "")),
        ("a:won b:invalid", False, {}, []),
    ],
)
def test_the_sneaky_set_is_one_to_one_to_one(text, solver_reward, expected, advantages):
    found = sneaky_set(rows(text), random.Random(0), solver_reward=solver_reward)
    assert kinds(found) == expected
    assert [row.advantage for row in found] == pytest.approx(advantages)
    assert len({row.id for row in found}) == len(found)
    assert sneaky_set(rows(text), random.Random(0), solver_reward=solver_reward) == found


CRITIC = "a:right a:right a:wrong a:wrong b:right b:right c:wrong d:wrong d:right d:wrong"


def test_the_critics_pairs_are_of_one_step_or_half_right_and_half_wrong():
    pairs = [(row.id, row.kind, row.advantage) for row in critic_set(rows(CRITIC), random.Random(0))]
    assert pairs == [(name, *kind) for name in "ad" for kind in (("right", 1.0), ("wrong", -1.0))]
    found = critic_set(rows(CRITIC + " e:right"), random.Random(0), pairing=False)
    assert kinds(found) == {"right": 5, "wrong": 5}
    assert {"b", "c"} & {row.id for row in found}
    assert critic_set(rows("a:right b:wrong"), random.Random(0)) == []
    assert critic_set([], random.Random(0), pairing=False) == []


def test_examples_are_mixed_in_as_many_as_rows():
    critiques, examples = rows("a:right a:wrong b:right b:wrong b:wrong"), rows("x:right y:right")
    found = mixed(critiques, examples, random.Random(0), 0.15)
    assert len(found) == 10
    learned = [(row.reward, row.advantage, row.completion.logprobs) for row in found if row.kind == EXAMPLE]
    assert learned == [(None, 0.15, ())] * 5  # no ratio is computed
    # Two examples for five rows: each occurs at least twice.
    assert set(Counter(row.id for row in found if row.kind == EXAMPLE).values()) == {2, 3}
    assert {row.completion.text for row in critiques} <= {row.completion.text for row in found}
    assert mixed(critiques, examples, random.Random(0), 0.15) == found
    assert kinds(mixed(critiques, examples, random.Random(0), weight=0)) == {"right": 2, "wrong": 3}
    assert len(mixed(critiques, [], random.Random(0), 0.15)) == 5


@pytest.mark.parametrize(("schedule", "critics"), [("asymmetric", (0, 0, 0)), ("symmetric", (0, 1, 2))])
def test_the_newest_sneaky_generator_meets_the_first_critic_or_the_newest(schedule: str, critics: tuple[int, ...]):
    met = [(f"sneaky@round-{n}", f"critic@round-{critic}") for n, critic in enumerate(critics)]
    assert [players(number, schedule) for number in (1, 2, 3)] == met


def test_win_rates_and_attack_successes_by_hand():
    fates: list[Fate] = ["fooled", "caught", "caught", "fooled", "undecided", "harmless"]
    games = [("s1", "c0", fate) for fate in fates] + [("s0", "c0", "unstable"), ("s0", "c0", "undecided")]
    first, second = win_rates(games)
    assert (first["sneaky"], first["games"], first["undecided"], first["win_rate"]) == ("s0", 0, 1, None)
    assert (second["sneaky"], second["games"], second["sneaky_wins"], second["win_rate"]) == ("s1", 4, 2, 0.5)
    low, high = second["ci95"]
    assert 0 < low < 0.5 < high < 1
    found = attack_success(["fooled", "caught", "undecided", "harmless", "harmless", "refused", "unstable"])
    assert (found["attacks"], found["valid"], found["success"]) == (6, 3, 0.5)
    assert (found["refused"], found["unstable"]) == (1, 1)
    assert attack_success(["unstable"])["success"] is None
