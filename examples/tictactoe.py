"""Tic-tac-toe as an environment of one's own: two seats against each other, or one against an opponent by rule.

lite-selfplay train ./examples/tictactoe.py:TicTacToe --model tiny --steps 20
lite-selfplay train ./examples/tictactoe.py:TicTacToe --model tiny --steps 20 --set game.opponent=perfect
lite-selfplay eval RUN --limit 200    # against both opponents, sides swapped
"""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar

from lite_selfplay.games.matches import Environment, IllegalMove, MatchGame, at_random

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")


def winner(board: str) -> str | None:
    """`X` or `O` where one has three in a line, `-` for a full board without, None where the match goes on."""
    for a, b, c in LINES:
        if board[int(a)] == board[int(b)] == board[int(c)] != ".":
            return board[int(a)]
    return None if "." in board else "-"


def after(board: str, move: int) -> str:
    """The board once the player whose turn it is has moved: X has as many marks as O at its turn."""
    mark = "XO"[board.count("X") - board.count("O")]
    return board[:move] + mark + board[move + 1 :]


def free(board: str) -> list[int]:
    return [place for place, mark in enumerate(board) if mark == "."]


@cache
def worth(board: str) -> int:
    """What X gets from here if both play as well as they can: 1, 0 or -1."""
    if (won := winner(board)) is not None:
        return {"X": 1, "O": -1, "-": 0}[won]
    best = max if board.count("X") == board.count("O") else min
    return best(worth(after(board, move)) for move in free(board))


class Board(Environment):
    """A match: places are numbered 1 to 9, row by row."""

    def __init__(self) -> None:
        self.board = 9 * "."

    def turn(self) -> tuple[int, str] | None:
        if winner(self.board) is not None:
            return None
        player = self.board.count("X") - self.board.count("O")
        shown = " / ".join(self.board[row : row + 3] for row in (0, 3, 6))
        return player, f"{shown} You are {'XO'[player]}. Which place, 1 to 9?"

    def act(self, player: int, text: str) -> None:
        if text not in self.moves():
            raise IllegalMove("that place is taken" if text in list("123456789") else "no place")
        self.board = after(self.board, int(text) - 1)

    def returns(self) -> Sequence[float]:
        worth_to_x = worth(self.board)
        return [worth_to_x, -worth_to_x]

    def moves(self) -> dict[str, list[str]]:
        return {str(place + 1): [str(place + 1), f" {place + 1}"] for place in free(self.board)}


def perfect(environment: Environment, player: int, rng: Random) -> str:
    """An opponent that never loses, and takes any of its best moves."""
    assert isinstance(environment, Board)
    sign = 1 - 2 * player
    values = {move: sign * worth(after(environment.board, move)) for move in free(environment.board)}
    return str(rng.choice([move for move, value in values.items() if value == max(values.values())]) + 1)


class TicTacToe(MatchGame):
    """Two seats that change sides from step to step, entropy over moves, and a cold start on random legal moves."""

    roles = ("crosses", "noughts")
    about = "tic-tac-toe between two seats"
    opponents: ClassVar = {"random": at_random, "perfect": perfect}
    recipe: ClassVar[dict[str, Any]] = {
        "run": {"group_size": 8, "problems_per_step": 4, "max_completion_tokens": 2},
        "cold_start": {"enabled": True, "steps": 40, "lr": 2e-3},
        "roles": {"*": {"temperature": 0.5}},
        "seats": {"*": {"lr": 2e-4}},
    }

    def make(self, rng: Random) -> Board:
        return Board()
