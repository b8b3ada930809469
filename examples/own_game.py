"""A game of your own in one file: a seat is rewarded for being right in few tokens.

    lite-selfplay train examples/own_game.py:Brief --model tiny --tasks letters --steps 10

A game draws problems, asks for completions and scores them; it never sees a tensor. The figures of its log that it
declares (`figures`) are shown by `report --figures`, by `view` and in the line of a step. `check_game` plays it with a
script and checks the contract.
"""

from lite_selfplay import Game, RunConfig, train
from lite_selfplay.data import Episode, Group, Sample, Stream
from lite_selfplay.games import Figure, GameOptions
from lite_selfplay.testing import check_game


class BriefOptions(GameOptions):
    """`price` is what a token costs; `--set game.price=0.1` changes it."""

    price: float = 0.02


class Brief(Game):
    """A right answer earns 1; every token costs a little."""

    roles = ("solver",)
    about = "one seat, paid for being right in few tokens"
    Options = BriefOptions
    figures = (Figure("tokens", "tokens a step", word="tokens"),)

    def play(self, step, table):
        problems = table.draw("problems", self.problems_per_step)
        answers = table.ask("solver", [problem.text for problem in problems], n=self.group_size)
        groups = [
            Group([self.score(table, answer, problem) for answer in row], problem)
            for problem, row in zip(problems, answers, strict=True)
        ]
        return Episode(
            [Stream("solver", groups)], log={"tokens": sum(len(a.token_ids) for row in answers for a in row)}
        )

    def score(self, table, answer, problem):
        (verdict,) = table.verify([(answer, problem)])
        return Sample(answer, verdict.score - self.options.price * len(answer.token_ids), verdict)


if __name__ == "__main__":
    check_game(Brief())
    run = train(RunConfig(game=f"{__file__}:Brief", model="tiny", tasks="letters", steps=10), progress=print)
    print("adapter:", run.seats["solver"])
