"""Matches of several turns between seats: an environment has the rules, `MatchGame` does the rest.

All matches of a step advance together, one batch per turn and player. A turn is a sample of its own, whose prompt is
the whole state as its player sees it, so that gradients apply to a seat's own words only. A return is compared with the
running mean of its role's returns (role-conditioned advantage estimation, SPIRAL, Liu et al. 2025, section 3.3), and an
illegal move forfeits the match (their section 3.2: -1.5, and +0.5 for the others).

If an environment lists its legal moves, self-play can be regularised: each move's advantage is reduced by
`weight * log(p / q)`, with p the seat's own probability of that move, in all its spellings, and q that of a reference:
the uniform policy, which makes it an entropy bonus over moves, or the seat at the last renewal (R-NaD, Perolat et al.
2021; magnetic mirror descent, Sokota et al. 2022). The reduction is centred, so that it adds no variance between
matches.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

from pydantic import Field

from lite_selfplay.credit import RunningBaseline
from lite_selfplay.data import (
    Completion,
    Episode,
    EvalSpec,
    Example,
    Group,
    Problem,
    Sample,
    Sampling,
    Snapshot,
    Stream,
    Verdict,
)
from lite_selfplay.errors import ConfigError, GameError, LiteSelfPlayError
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.presentation import Accuracy, Figure, Row, Transcript, priced
from lite_selfplay.games.table import Table
from lite_selfplay.verify.extract import completion_text, extract_answer
from lite_selfplay.verify.format import split_reasoning

Moves = Mapping[str, Sequence[str]]  # the legal moves, each with the texts that count as it

DRAW, UNFINISHED, BROKEN = "a draw", "not finished", "broken"


class IllegalMove(Exception):
    """For `Environment.act` to raise, with a reason: the match ends, forfeited by the player."""


class Environment:
    """One match. Any exception but IllegalMove ends the match, and no seat learns from it."""

    def turn(self) -> tuple[int, str] | None:
        """The player whose turn it is, counted from 0, and all that it sees; None once the match has ended."""
        raise GameError(f"{type(self).__name__} does not say whose turn it is: override turn()")

    def act(self, player: int, text: str) -> None:
        """Take a move: the text of an `<answer>` block, otherwise all text after any reasoning."""
        raise GameError(f"{type(self).__name__} does not say what a move does: override act()")

    def returns(self) -> Sequence[float]:
        """Each player's winnings, once the match has ended."""
        raise GameError(f"{type(self).__name__} does not say what is won: override returns()")

    def moves(self) -> Moves:
        """The legal moves of this turn; empty if they cannot be listed. A cold start, the opponent `random` and
        regularised self-play need them."""
        return {}


def spelled(*words: str) -> list[str]:
    """Texts that count as one move: words as they are, capitalised and in capitals, with and without a space before."""
    return [space + text for word in words for text in dict.fromkeys((word, word.capitalize(), word.upper()))
            for space in ("", " ")]  # fmt: skip


def at_random(environment: Environment, player: int, rng: Random) -> str:
    """An opponent that takes a random legal move."""
    if not (moves := list(environment.moves())):
        raise GameError("the opponent `random` needs an environment that names its legal moves")
    return rng.choice(moves)


# An opponent that moves by rule: (match, its player number, random generator) to the text of a move.
Opponent = Callable[[Environment, int, Random], str]


class MatchOptions(GameOptions):
    """`forfeit` is the loss for an illegal move; the others win a third of it. A match ends without a winner after
    `most_turns`. `opponent`: a rule that a single seat plays against, on each side in turn, instead of self-play.
    `shuffled` swaps the returns of a step's matches at random: a control that teaches nothing. `decay` is the factor
    of the running mean returns.

    For regularised self-play: its `weight`, `renew`, the steps between renewals of the reference (0: it stays the
    uniform policy), and `fade`, the steps in which the weight halves (0: never).
    """

    decay: float = Field(0.95, ge=0, lt=1)
    forfeit: float = Field(1.5, ge=0)
    most_turns: int = Field(64, ge=1)
    opponent: str = ""
    shuffled: bool = False
    weight: float = Field(0.0, ge=0)
    renew: int = Field(0, ge=0)
    fade: int = Field(0, ge=0)


@dataclass(frozen=True)
class Move:
    """A player's turn: `completion` is None for an opponent by rule, `legal_moves` are those before the turn."""

    player: int
    text: str
    legal_moves: Moves
    completion: Completion | None = None
    reason: str = ""


@dataclass
class Match:
    """A match in play. `players` are the names of its players in order: seats, roles, or opponents."""

    game: "MatchGame"
    seed: int
    players: Sequence[str]
    moves: list[Move] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    outcome: str = ""

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self.environment: Environment = self._trying(lambda: self.game.make(Random(self._rng.getrandbits(64))))

    def waits_for(self) -> tuple[int, str] | None:
        """The next player, after opponents by rule have moved, and what it sees; None if the match is over."""
        return None if self.outcome else self._trying(self._next)

    def take(self, player: int, completion: Completion) -> None:
        """Take a seat's completion as its move."""
        self._trying(lambda: self._act(player, self.game.read(completion), completion))

    def _trying(self, part: Callable[[], Any]) -> Any:
        try:
            return part()
        except LiteSelfPlayError:
            raise
        except Exception as error:  # any error of the environment ends this match, and no other
            self._end(BROKEN, error=f"{type(error).__name__}: {error}"[:200])

    def _next(self) -> tuple[int, str] | None:
        while not self.outcome:
            turn = self.environment.turn()
            if turn is None:
                returns = [float(value) for value in self.environment.returns()]
                if len(returns) != len(self.players) or not all(map(math.isfinite, returns)):
                    raise ValueError(f"returns {returns} for {len(self.players)} players")
                best = [role for role, won in zip(self.game.roles, returns, strict=True) if won == max(returns)]
                self._end(f"{best[0]} wins" if len(best) == 1 < len(returns) else DRAW, returns)
            elif len(self.moves) >= self.game.options.most_turns:
                self._end(UNFINISHED)
            elif (rule := self.game.opponents.get(self.players[turn[0]])) is None:
                return turn
            else:
                self._act(turn[0], rule(self.environment, turn[0], self._rng))
        return None

    def _act(self, player: int, text: str, completion: Completion | None = None) -> None:
        if completion is not None and completion.stop == "prompt_too_long":
            raise ValueError("the observation is longer than a prompt may be")
        self.moves.append(Move(player, text, self.environment.moves(), completion))
        try:
            self.environment.act(player, text)
        except IllegalMove as error:
            self.moves[-1] = replace(self.moves[-1], reason=str(error) or "illegal")
            lost = [self.game.options.forfeit / 3] * len(self.players)
            lost[player] = -self.game.options.forfeit
            self._end(f"{self.game.roles[player]} forfeits", lost)

    def _end(self, outcome: str, returns: Iterable[float] = (), error: str = "") -> None:
        self.outcome, self.error = outcome, error
        self.returns = list(returns) or [0.0] * len(self.players)


def play_together(matches: Sequence[Match], ask: Callable[[str, list[str], list[Match]], list[Completion]]) -> None:
    """Play matches to their ends, one batch per turn and player. `ask` gets the player's name, prompts and matches."""
    while True:
        waiting: dict[tuple[int, str], list[tuple[Match, str]]] = {}
        for match in matches:
            if (turn := match.waits_for()) is not None:
                waiting.setdefault((turn[0], match.players[turn[0]]), []).append((match, turn[1]))
        if not waiting:
            return
        for (player, who), asked in sorted(waiting.items(), key=lambda item: item[0]):
            prompts, these = [match.game.prompt(seen) for match, seen in asked], [match for match, _ in asked]
            for match, completion in zip(these, ask(who, prompts, these), strict=True):
                match.take(player, completion)


class MatchGame(Game):
    """A game of matches: override `make`, and name the `roles` in the order of the players.

    A step plays `run.problems_per_step * run.group_size` matches. There is a seat for each player, named A, B, ..., and
    the seats change sides at every step. `opponents` move by rule; they are listed by name.
    """

    Options = MatchOptions
    sources = ()
    needs_answers = False
    without_tasks = True
    opponents: ClassVar[Mapping[str, Opponent]] = {"random": at_random}
    figures: ClassVar[Sequence[Figure]] = (
        Figure("value", "return of the first player", word="value",
               about="The first player's mean winnings in a step's matches."),
        Figure("illegal", "matches lost by an illegal move", "share", word="illegal",
               about="An illegal move forfeits the match."),
        Figure("moves", "moves a match", about="The mean length of a match."),
        Figure("unfinished", "matches that reached the turn limit", "share",
               about="They end without a winner after `game.most_turns`."),
        Figure("broken", "matches ended by an environment's error", how="sum", healthy=(0, 0),
               warning="the environment raised an exception in {value:.0f} matches of this step",
               about="No seat learns from a match in which the environment raised an exception."),
        Figure("baseline", "running mean of a role's returns", how="last",
               about="The baseline of a role's next return."),
    )  # fmt: skip

    def __init__(self, options: Any = None, **sizes: int):
        super().__init__(options, **sizes)
        self.baseline = RunningBaseline(self.options.decay)
        if (name := self.options.opponent) and name not in self.opponents:
            raise ConfigError(f"game.opponent is {name!r}: there are {', '.join(self.opponents)}")

    def rewards(self) -> Mapping[str, str]:
        near = "for staying near its earlier self" if self.options.renew else "for the entropy of its moves"
        paid = priced(
            (1, "for each point won"), (self.options.weight, near), (-self.options.forfeit, "for an illegal move")
        )
        return dict.fromkeys(self.roles, paid)

    def make(self, rng: Random) -> Environment:
        """A new match, which depends on `rng` only."""
        raise GameError(f"{type(self).__name__} does not say what is played: override make()")

    def prompt(self, observation: str) -> str:
        """The prompt of a player with this observation."""
        return observation

    def read(self, completion: Completion) -> str:
        """The move's text in a completion."""
        text = completion_text(completion)
        return (extract_answer(text, block_only=True) or split_reasoning(text).rest).strip()

    def dealt(self, match: Match, player: int) -> str:
        """The key, such as a player's cards, of the running mean that its returns are compared with. It must not depend
        on the player's own moves. By default there is one mean per role."""
        return ""

    def _compared(self, match: Match, player: int) -> str:
        return f"{self.roles[player]} {self.dealt(match, player)}".rstrip()

    @classmethod
    def accuracy_of(cls, role: str) -> Accuracy:
        return Accuracy("legal", "legal moves", "not legal", "legal", "not legal")

    def seats(self, step: int) -> Mapping[str, str]:
        names = [chr(ord("A") + i) for i in range(1 if self.options.opponent else len(self.roles))]
        return {role: names[(i + step) % len(names)] for i, role in enumerate(self.roles)}

    def state(self) -> dict[str, Any]:
        return {"baseline": self.baseline.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.baseline.restore(state["baseline"])

    def cold_start(self, role: str, problem: Problem, rng: Random, *, thinks: bool) -> Example | None:
        """A random legal move of the role, from a match of random moves."""
        environment, found = self.make(rng), list[Example]()
        for _ in range(self.options.most_turns):
            if (turn := environment.turn()) is None or not (moves := list(environment.moves())):
                break
            move = rng.choice(moves)
            found += [Example(self.prompt(turn[1]), move)] if self.roles[turn[0]] == role else []
            environment.act(turn[0], move)
        return rng.choice(found) if found else None

    def play(self, step: int, table: Table) -> Episode:
        matches = [
            Match(self, table.rng.getrandbits(64), self._players(n))
            for n in range(self.problems_per_step * self.group_size)
        ]
        play_together(matches, lambda role, prompts, _: [row[0] for row in table.ask(role, prompts)])
        whole = [match for match in matches if match.outcome != BROKEN]
        paid = [match.returns for match in whole]
        if self.options.shuffled:
            table.rng.shuffle(paid)
        returns = {id(match): own for match, own in zip(whole, paid, strict=True)}
        terms = self._regularised(step, table, matches)
        groups: dict[str, list[Group]] = {role: [] for role in self.roles}
        for number, match in enumerate(matches, 1):
            for player, role in enumerate(self.roles):
                if group := self._group(match, number, player, returns.get(id(match)), terms):
                    groups[role].append(group)
            for player, value in enumerate(returns.get(id(match), ())):
                self.baseline.add(self._compared(match, player), value)
        seats, renew = self.trained_seats(), self.options.renew
        renewed = [Snapshot(seat, _reference(seat)) for seat in seats] if renew and (step + 1) % renew == 0 else []
        streams = [Stream(role, found, credit="baseline") for role, found in groups.items() if found]
        return Episode(streams, actions=renewed, log=self._log(matches, whole))

    def _players(self, number: int) -> list[str]:
        """A match's players: the roles; with an opponent by rule, one role and the opponent."""
        opponent, own = self.options.opponent, number % len(self.roles)
        return [opponent if opponent and i != own else role for i, role in enumerate(self.roles)]

    def _group(
        self, match: Match, number: int, player: int, returns: Sequence[float] | None, terms: Mapping[int, float]
    ) -> Group | None:
        """A player's moves in a match as a group; those of a broken match are only recorded."""
        baseline, samples = self.baseline.of(self._compared(match, player)), []
        for turn, move in enumerate(match.moves, 1):
            if move.player == player and move.completion is not None:
                info = {"turn": turn, "outcome": match.outcome, **({"error": match.error} if match.error else {})}
                legal = not move.reason
                verdict = Verdict(legal, float(legal), move.text[:200] if legal else None, legal, move.reason)
                reward = None if returns is None else returns[player]
                advantage = None if reward is None or not terms else reward - baseline - terms.get(id(move), 0.0)
                samples.append(Sample(move.completion, reward, verdict, advantage, reward is None, info))
        problem = Problem(f"match {number}", samples[0].completion.prompt) if samples else None
        return Group(samples, problem, baseline) if samples else None

    def _regularised(self, step: int, table: Table, matches: Sequence[Match]) -> dict[int, float]:
        """By how much regularisation lowers each legal move's advantage, keyed by `id(move)`."""
        options = self.options
        if not options.weight:
            return {}
        weight = options.weight * (0.5 ** (step / options.fade) if options.fade else 1.0)
        terms: dict[int, float] = {}
        for role, seat in self.seats(step).items():
            moves = [(move, move.completion) for match in matches for move in match.moves
                     if move.completion and self.roles[move.player] == role]  # fmt: skip
            asked = {completion.prompt: move.legal_moves for move, completion in moves}
            sampling = next((completion.sampling for _, completion in moves), Sampling())
            own = self.policy(table, role, asked, sampling)
            renewed = options.renew and step >= options.renew
            other = self.policy(table, role, asked, sampling, _reference(seat)) if renewed else {}
            for move, completion in moves:
                said = next(
                    (name for name, texts in move.legal_moves.items() if move.text in map(str.strip, texts)), ""
                )
                if said and not move.reason:
                    p = _normal(own[completion.prompt])
                    q = _normal(other.get(completion.prompt, dict.fromkeys(p, 1.0)))
                    ratios = {name: math.log(p[name] / q[name]) for name in p}
                    mean = math.fsum(p[name] * ratio for name, ratio in ratios.items())
                    terms[id(move)] = weight * (ratios[said] - mean)
        return terms

    def policy(
        self, table: Table, role: str, asked: Mapping[str, Moves], sampling: Sampling, seat: str | None = None
    ) -> dict[str, dict[str, float]]:
        """The exact probability of each legal move after each prompt, summed over its spellings, so that the rest to 1
        is illegal. `sampling` is that of the role's completions; `seat` names another seat to score."""
        rows: dict[tuple[str, tuple[int, ...]], tuple[str, Completion]] = {}
        spellings = [(p, name, text) for p, moves in asked.items() for name, texts in moves.items() for text in texts]
        for prompt, name, text in spellings:
            one = table.completed(Example(prompt, text))
            if len(one.token_ids) - 1 <= sampling.max_tokens:  # the last token ends it, or is cut off
                ids = tuple(one.token_ids[: sampling.max_tokens])
                rows.setdefault((prompt, ids), (name, replace(one, token_ids=ids, sampling=sampling)))
        scores = table.score(role, [one for _, one in rows.values()], seat=seat) if rows else []
        found = {prompt: dict.fromkeys(moves, 0.0) for prompt, moves in asked.items()}
        for (prompt, _), (name, _), score in zip(rows, rows.values(), scores, strict=True):
            found[prompt][name] += math.exp(math.fsum(score.logprobs))
        return found

    def _log(self, matches: Sequence[Match], whole: Sequence[Match]) -> dict[str, Any]:
        count = max(1, len(whole))
        return {
            "value": math.fsum(match.returns[0] for match in whole) / count,
            "illegal": sum(match.outcome.endswith("forfeits") for match in whole) / count,
            "moves": sum(len(match.moves) for match in whole) / count,
            "unfinished": sum(match.outcome == UNFINISHED for match in whole) / count,
            "broken": len(matches) - len(whole),
            "baseline": self.baseline.state(),
        }

    def evaluation(self) -> EvalSpec:
        return EvalSpec("versus", self.trained_seats())

    # How matches are shown

    @classmethod
    def kinds(cls) -> list[str]:
        return [*(f"{role} {how}" for how in ("wins", "forfeits") for role in cls.roles), DRAW, UNFINISHED, BROKEN]

    @classmethod
    def transcripts(cls, rows: Iterable[Row]) -> list[Transcript]:
        """One transcript per match, turn by turn."""
        found: dict[tuple[Any, Any], list[Row]] = {}
        for row in rows:
            found.setdefault((row["step"], row["problem_id"]), []).append(row)
        return [cls._shown(sorted(turns, key=lambda row: row.get("turn") or 0)) for turns in found.values()]

    @classmethod
    def _shown(cls, turns: Sequence[Row]) -> Transcript:
        first = next((row["seat"] for row in turns if row["role"] == cls.roles[0]), "an opponent")
        subject = f"{turns[0]['problem_id']}, {first} first"
        return Transcript(tuple(turns), str(turns[0].get("outcome")), subject, str(turns[0]["prompt"]))

    @classmethod
    def verdict(cls, row: Row) -> str:
        return f"{super().verdict(row)}; {row.get('outcome')}"


def _reference(seat: str) -> str:
    return f"{seat}@reference"


def _normal(policy: Mapping[str, float]) -> dict[str, float]:
    """The probabilities of the legal moves, normalised among themselves."""
    least = {name: max(p, 1e-12) for name, p in policy.items()}
    return {name: p / math.fsum(least.values()) for name, p in least.items()}
