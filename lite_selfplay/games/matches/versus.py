"""The evaluation mode `versus`: matches of seats against opponents by rule, and against each other.

Matches are dealt in pairs (for n players, n at a time): the same deal with the sides swapped. A match is won if a
seat's return is above every other's. Seats are sampled at the run's temperature, unless another is requested.
"""

from collections.abc import Sequence
from itertools import combinations

from lite_selfplay.data import Completion
from lite_selfplay.errors import ConfigError
from lite_selfplay.games import find_game
from lite_selfplay.games.matches.match import BROKEN, Match, MatchGame, play_together
from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, score_of
from lite_selfplay.stats import paired_bootstrap
from lite_selfplay.tasks import Task, numbered
from lite_selfplay.tasks.task import derived_seed


def deals(game: str) -> Task:
    """Numbered matches of the game with this name. Raises ConfigError if it is not a `MatchGame`."""
    if not issubclass(find_game(game), MatchGame):
        raise ConfigError(f"{game} has no matches between players, which the mode `versus` measures")
    return numbered(game)


def measure_versus(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Each seat against each opponent by rule, then every two seats."""
    kind = find_game(str(examiner.problems[0].extra["game"]))
    assert issubclass(kind, MatchGame)
    game = kind()
    pairs = [*((seat, rule) for seat in seats for rule in game.opponents), *combinations(seats, 2)]
    found = {}
    for number, (seat, other) in enumerate(pairs):
        examiner.progress(len(examiner.problems) * len(seats) * number // len(pairs), f"{seat} plays against {other}")
        found[f"{seat} against {other}"] = _measured(examiner, game, seat, other)
    return Found(found)


def _measured(examiner: Examiner, game: MatchGame, seat: str, other: str) -> Measured:
    """A seat's matches against an opponent: pass@1 is the share won. `payoff`: mean return, with a 95% interval
    (bootstrap over deals); `broken`: how many matches ended with an error of the environment, whose return is 0."""
    dealt = [divmod(int(problem.answer), len(game.roles)) for problem in examiner.problems]
    matches = [
        Match(game, derived_seed("deal", deal), [seat if i == side else other for i in range(len(game.roles))])
        for deal, side in dealt
    ]
    indices = {id(match): i for i, match in enumerate(matches)}

    def ask(who: str, prompts: list[str], these: list[Match]) -> list[Completion]:
        about = [(indices[id(match)], f"{who}, turn {len(match.moves)}") for match in these]
        return examiner.say(who, prompts, examiner.sampling, about)

    play_together(matches, ask)
    rows, payoffs = list[list[Judged]](), dict[int, list[float]]()
    draws = losses = 0
    for match, (deal, side) in zip(matches, dealt, strict=True):
        own, best = match.returns[side], max([r for i, r in enumerate(match.returns) if i != side], default=0.0)
        draws, losses = draws + (own == best), losses + (own < best)
        payoffs.setdefault(deal, []).append(own)
        said = [move for move in match.moves if move.player == side]
        silent = Completion("", "", (), (), (), "eos", seat, -1, examiner.sampling)
        last = next((move.completion for move in reversed(said) if move.completion), silent)
        rows.append([Judged(last, own > best, not any(move.reason for move in said), f"{own:+g}")])
    means = [sum(values) / len(values) for values in payoffs.values()]
    payoff = sum(sum(values) for values in payoffs.values()) / len(matches)
    _, low, high = paired_bootstrap([0.0] * len(means), means) if len(means) > 1 else (payoff, payoff, payoff)
    more = {
        "draws": draws,
        "losses": losses,
        "broken": sum(match.outcome == BROKEN for match in matches),
        "payoff": payoff,
        "payoff_low": low,
        "payoff_high": high,
    }
    return Measured(rows, score_of(rows, more=more))


VERSUS = Mode(
    measure_versus, columns=("draws", "losses", "payoff", "payoff_low", "payoff_high"), tasks=deals, matches=True
)
