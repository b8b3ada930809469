"""Rewards, games and tasks of a user's own that are no code, or do what none should."""

from collections.abc import Iterator

from .wrong import SMALL, TRAIN, Prepare, Request, holding

REWARDS = {
    2: (
        "def f(completions, **_:",
        "import nosuchmodule\ndef f(completions, **_): return [1.0] * len(completions)",
        *("raise SystemExit(3)", "class Odd(BaseException): pass\nraise Odd('x')", "f = 3"),
        *("def g(completions, **_): return [1.0]", "\0", "# -*- coding: nosuch -*-"),
    ),
    1: (
        *("def f(completions, **_): raise ValueError('no')", "import sys\ndef f(completions, **_): sys.exit(7)"),
        *("def f(completions, **_): return [1.0]", "def f(completions, **_): f(completions)"),
        "async def f(completions, **_): return [1.0] * len(completions)",
    ),
}
"""By the exit code that each must have."""
# What is put back with a warning: the run ends well.
CHANGES = (
    "os.chdir('/')", "os.environ.clear()", "random.seed(4321)", "numpy.random.seed(4321)", "torch.manual_seed(4321)",
    "torch.set_default_dtype(torch.float64)", "torch.set_grad_enabled(False)", "torch.set_num_threads(2)",
)  # fmt: skip
GAME = """
import sys
from lite_selfplay import Game
class G(Game):
    roles = ("solver",)
    def play(self, step, table):
        {body}
"""
GAMES = (
    "raise ValueError('no')", "sys.exit(7)", "raise KeyError", "return None", "return 3", "return table.nosuch()",
    "table.ask('umpire', ['?'])", "table.draw('problems', -1)", "import os; os.chdir('/'); raise ValueError('no')",
    "raise BaseException('x')",
)  # fmt: skip
OF_GAME = "from lite_selfplay import Game\nclass G(Game)"
NO_GAMES = (
    *("class G: pass", "G = 3", f"{OF_GAME}: pass", "import sys; sys.exit(3)", f"{OF_GAME}: roles = ()"),
    *(f"{OF_GAME}: roles = 3", "class G(", "def G(): pass", f"{OF_GAME}:\n    roles = ('a',)\n    Options = 3"),
    f"{OF_GAME}:\n    roles = ('a',)\n    def seats(self, step): exit(9)",
    f"{OF_GAME}:\n    roles = ('a',)\n    def seats(self, step): return {{}}",
    f"{OF_GAME}:\n    roles = ('a',)\n    recipe = {{'run': {{'stepps': 1}}}}",
)
TASKS = (
    *("def f(", "f = 3", "def f(): pass", "def f(seed, held_out): raise ValueError('no')", "import sys; sys.exit()"),
    *("def f(seed, held_out): pass", "import sys\ndef f(seed, held_out): sys.exit(3)"),
    *("def f(seed, held_out): return 'problems'", "class Odd(BaseException): pass\ndef f(seed, held_out): raise Odd"),
    *(
        f"from lite_selfplay.tasks import Task\ndef f(seed, held_out): return Task('t', {problems})"
        for problems in ("[]", "3", "['problem']", "[None]")
    ),
)


def code(body: str, file: str) -> Prepare:
    return holding(body.replace("\n", "; ")[:60], {file: body})


def rewards() -> Iterator[Request]:
    fine = code("def f(completions, **_): return [1.0] * len(completions)", "r.py")
    for odd in ("r.py", "r.py:", ":f", "r.txt:f", "nosuch.py:f", "", "r.py:f:g", "r.py:F", ".:f", "r.py:__name__"):
        yield Request((*TRAIN, "--reward", odd), fine)
    for exit_code, bodies in REWARDS.items():
        for body in bodies:
            yield Request((*TRAIN, *SMALL, "--reward", "r.py:f"), code(body, "r.py"), (exit_code,))
    for change in CHANGES:
        body = f"import os, random, numpy, torch\ndef f(completions):\n    {change}\n    return map(len, completions)"
        arguments = (*TRAIN, *SMALL, "--reward", "r.py:f", "--run-dir", "runs/one")
        yield Request(arguments, code(body, "r.py"), (0,), names=("the reward function f changed",))


def games() -> Iterator[Request]:
    for odd in ("g.py", "g.py:", "nosuch.py:G", "g.py:H", "g.py:G:x"):
        yield Request(("train", odd, *TRAIN[2:]), code(GAME.format(body="pass"), "g.py"))
    for body in NO_GAMES:
        yield Request(("train", "g.py:G", *TRAIN[2:]), code(body, "g.py"), (1, 2))
        yield Request(("list", "games", "g.py:G"), code(body, "g.py"), (0, 1, 2))
    for body in GAMES:
        codes = (1, 2) if "umpire" in body else (1,)
        yield Request(("train", "./g.py:G", *TRAIN[2:], *SMALL), code(GAME.format(body=body), "g.py"), codes)


def tasks() -> Iterator[Request]:
    for odd in ("t.py", "t.py:", "nosuch.py:f", "t.py:g", "t.py:f:x", "t.py:f:x=1"):
        yield Request(("train", "agon", "--model", "tiny", "--tasks", odd), code(TASKS[2], "t.py"))
    for body in TASKS:
        arguments = ("train", "agon", "--model", "tiny", "--tasks", "t.py:f", "--steps", "1", *SMALL)
        yield Request(arguments, code(body, "t.py"), (1, 2))
        yield Request(("eval", "tiny", "--tasks", "t.py:f"), code(body, "t.py"), (1, 2))


REQUESTS = [*rewards(), *games(), *tasks()]
