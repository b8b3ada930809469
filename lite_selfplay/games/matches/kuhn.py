"""Kuhn poker, with exact policies, values and exploitability of the seats that learn it.

Three cards, J < Q < K; each player gets one and puts in a chip. The first player passes or bets a chip, then the second
does, and then the first once more if it passed and the second bet. To pass after a bet is to fold. Returns are the
chips won. In equilibrium the first player loses 1/18 per match (Kuhn 1950). An information set is named by card and
moves so far, as in `Qpb`; a policy maps the twelve of them to the probability of `b`. NashConv is the sum that best
responses would win against both players: 0 in equilibrium, 11/12 for the uniform policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from lite_selfplay.data import Episode
from lite_selfplay.games.matches.match import (
    Environment,
    IllegalMove,
    Match,
    MatchGame,
    MatchOptions,
    Moves,
    at_random,
    spelled,
)
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.table import Table

CARDS = "JQK"
# The information sets: the first player's six, which have an even number of moves so far, then the second's.
SETS = tuple(card + history for history in ("", "pb", "p", "b") for card in CARDS)
WORDS = {"p": "pass", "b": "bet"}
_LETTERS = "ACDEFGHILMNO"  # none of these is a card or a move
Policy = Mapping[str, float]


def chips(cards: Sequence[str], history: str) -> int | None:
    """The first player's winnings; None if the match continues."""
    high = 1 if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -1
    return {"pp": high, "bb": 2 * high, "pbb": 2 * high, "bp": 1, "pbp": -1}.get(history)


def value(policy: Policy) -> float:
    """The first player's mean winnings per match, in chips."""
    deals = list(permutations(CARDS, 2))
    return sum(_value(policy, cards, "") for cards in deals) / len(deals)


def _value(policy: Policy, cards: Sequence[str], history: str) -> float:
    if (won := chips(cards, history)) is not None:
        return float(won)
    bet = policy[cards[len(history) % 2] + history]
    return bet * _value(policy, cards, history + "b") + (1 - bet) * _value(policy, cards, history + "p")


def best_response(policy: Policy, player: int) -> float:
    """The winnings of a player's best response, among its 64 pure policies, to the other's part of `policy`."""
    own, sign = SETS[6 * player : 6 * player + 6], 1 - 2 * player
    return max(sign * value({**policy, **dict(zip(own, pure, strict=True))}) for pure in product((0.0, 1.0), repeat=6))


def nash_conv(policy: Policy) -> float:
    """The sum of what both players would win by best responses: 0 in equilibrium and nowhere else."""
    return best_response(policy, 0) + best_response(policy, 1)


def equilibrium(alpha: float = 0.2) -> dict[str, float]:
    """The equilibrium in which the first player bets a jack with probability `alpha`, 0 to 1/3; there are no others."""
    first = {"J": alpha, "Q": 0.0, "K": 3 * alpha, "Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0}
    return {**first, "Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0}


_FAMILY = {name: (equilibrium(0)[name], equilibrium(1 / 3)[name]) for name in SETS}


class KuhnPoker(Environment):
    """A match of Kuhn poker."""

    def __init__(self, rng: Random):
        self.cards, self.history = rng.sample(CARDS, 2), ""

    def turn(self) -> tuple[int, str] | None:
        if chips(self.cards, self.history) is not None:
            return None
        player = len(self.history) % 2
        return player, seen(self.cards[player] + self.history)

    def act(self, player: int, text: str) -> None:
        move = next((move for move, texts in self.moves().items() if text in texts), None)
        if move is None:
            raise IllegalMove("neither pass nor bet")
        self.history += move

    def returns(self) -> Sequence[float]:
        won = chips(self.cards, self.history) or 0
        return [won, -won]

    def moves(self) -> Moves:
        return {move: spelled(move, word) for move, word in WORDS.items()}


def seen(name: str) -> str:
    """A player's view of an information set: its card, the moves so far, and a letter of the set, 64 times, because a
    random base can tell little else apart."""
    return f"Kuhn {name[0]} {name[1:] or '-'} {64 * _LETTERS[SETS.index(name)]}"


def in_equilibrium(environment: Environment, player: int, rng: Random) -> str:
    """An opponent that no policy beats on average."""
    assert isinstance(environment, KuhnPoker)
    return "b" if rng.random() < equilibrium()[environment.cards[player] + environment.history] else "p"


class KuhnOptions(MatchOptions):
    """`exact_every`: steps between computations of the exact figures; 0 never."""

    exact_every: int = Field(10, ge=0)
    weight: float = Field(0.5, ge=0)
    fade: int = Field(363, ge=0)


class Kuhn(MatchGame):
    """Kuhn poker between two seats that change sides at every step, with their exact exploitability."""

    roles = ("first", "second")
    about = "Kuhn poker between two seats: several turns, and an exact equilibrium to compare them with"
    Options = KuhnOptions
    opponents: ClassVar = {"random": at_random, "equilibrium": in_equilibrium}
    recipe: ClassVar[dict[str, Any]] = {
        "run": {"steps": 960, "group_size": 16, "problems_per_step": 12, "max_completion_tokens": 2},
        "cold_start": {"enabled": True, "steps": 40, "lr": 2e-3},
        # Sharp enough for the random base, whose logits are bounded, to mix two moves without writing others.
        "roles": {"*": {"temperature": 0.5}},
        "seats": {"*": {"lr": 3e-4, "clip": 0.05}},
    }
    figures: ClassVar[Sequence[Figure]] = (
        Figure("nash_conv", "NashConv", how="last", word="NashConv",
               about="The sum that best responses would win against both players: 0 in equilibrium."),
        Figure("nash_conv_average", "NashConv of the averaged policy", how="last",
               about="The same for the average over all measured policies, with more weight on later ones."),
        Figure("exact_value", "exact value for the first player", how="last",
               about="The first player's mean winnings a match, in chips; in equilibrium -1/18."),
        Figure("illegal_mass", "probability of an illegal move", "share", how="last",
               about="1 minus the probability of all spellings of the legal moves, over the twelve sets."),
        *(Figure(role, f"probability of a bet, {role} player", "share", how="last", within=_FAMILY,
                 about="By card and moves so far; the bands show the range of the equilibria.") for role in roles),
        *MatchGame.figures,
    )  # fmt: skip

    def __init__(self, options: Any = None, **sizes: int):
        super().__init__(options, **sizes)
        self.average: dict[str, list[float]] = {name: [0.0, 0.0] for name in SETS}

    def make(self, rng: Random) -> Environment:
        return KuhnPoker(rng)

    def dealt(self, match: Match, player: int) -> str:
        assert isinstance(match.environment, KuhnPoker)
        return match.environment.cards[player] + match.environment.history[:player]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "average": self.average}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.average = {name: list(sums) for name, sums in state["average"].items()}

    def play(self, step: int, table: Table) -> Episode:
        episode, every = super().play(step, table), self.options.exact_every
        if not every or (step and (step + 1) % every):
            return episode
        return replace(episode, log={**episode.log, **self._exact(step, table, episode)})

    def _exact(self, step: int, table: Table, episode: Episode) -> dict[str, Any]:
        """The exact figures of the step's policy, and of the average over all measured policies.

        The average weights a policy with the square of its step, and an information set in it with the probability that
        the player's own moves lead there, as if one of the policies were drawn for each match.
        """
        policy, legal = dict[str, float](), list[float]()
        for stream in episode.streams:
            names = {seen(name): name for name in SETS if len(name) % 2 == 1 - self.roles.index(stream.role)}
            moves = {prompt: KuhnPoker(Random()).moves() for prompt in names}
            found = self.policy(table, stream.role, moves, stream.groups[0].samples[0].completion.sampling)
            legal += [sum(p.values()) for p in found.values()]
            policy |= {names[prompt]: p["b"] / (sum(p.values()) or 1.0) for prompt, p in found.items()}
        if len(policy) < len(SETS):
            return {}
        for name, sums in self.average.items():
            weight = (step + 1) ** 2 * (1 - policy[name[0]] if len(name) == 3 else 1.0)
            sums[0], sums[1] = sums[0] + weight * policy[name], sums[1] + weight
        return {
            "nash_conv": nash_conv(policy),
            "nash_conv_average": nash_conv({name: sums[0] / (sums[1] or 1.0) for name, sums in self.average.items()}),
            "exact_value": value(policy),
            "illegal_mass": 1 - sum(legal) / len(legal),
            "first": {name: policy[name] for name in SETS[:6]},
            "second": {name: policy[name] for name in SETS[6:]},
        }

    @classmethod
    def closing(cls, log: Mapping[str, Any]) -> list[str]:
        if "nash_conv" not in log:
            return []
        last, average, worth = (f"{log[key]:.3f}" for key in ("nash_conv", "nash_conv_average", "exact_value"))
        return [f"NashConv {last}, of the averaged policy {average} (0 in equilibrium); value {worth} (-0.056)"]
