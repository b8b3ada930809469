"""For authors of games: a table whose completions come from a script, and a check of the contract with the trainer.

>>> from lite_selfplay.testing import ScriptedTable, check_game
>>> check_game(MyGame())                                   # raises GameError, naming the first violation
>>> table = ScriptedTable({"solver": ["<answer>4</answer>"]}, problems=[Problem("p", "2 + 2?", "4")])
"""

import itertools
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.data import (
    Blend,
    Completion,
    Episode,
    Example,
    Problem,
    Restore,
    Sampling,
    Snapshot,
    StopReason,
    Stream,
    TokenScores,
    Verdict,
)
from lite_selfplay.errors import GameError, UnknownNameError
from lite_selfplay.games.base import Game
from lite_selfplay.games.modes import MODES
from lite_selfplay.tasks.task import derived_rng
from lite_selfplay.training.on_policy import require_on_policy
from lite_selfplay.verify import Verifier

Script = Callable[[str, str, int], str] | Mapping[str, Sequence[str]]

EOS = 256


class ScriptedTable:
    """A table whose completions come from a script; token ids are the UTF-8 bytes of the text, then 256 for the end.

    `script` is either a function of (role, prompt, number of the role's completion) or maps each role to a list of
    texts, used cyclically. For a function, the beginning of a reply is added to the prompt. The key `ROLE, measured`
    may have a separate list for `evaluate`. Every source has the same `problems`, drawn cyclically. `asked` records the
    (role, prompts, n) of each call of `ask` and `evaluate`. Entropies are made up from the token ids.
    """

    def __init__(
        self,
        script: Script,
        problems: Sequence[Problem] = (),
        *,
        seed: int = 0,
        thinks: bool = False,
        seats: Mapping[str, str] | None = None,
    ):
        self._script, self._seed, self.thinks = script, seed, thinks
        self._problems = list(problems) or [Problem(f"sum-{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(1, 6)]
        self._verifier = Verifier()
        self._drawn: dict[str, Iterator[Problem]] = {}
        self._completions: dict[str, int] = {}
        self.asked: list[tuple[str, list[str], int]] = []
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self.open(0, seats or {})

    def open(self, step: int, seats: Mapping[str, str]) -> None:
        self._seats = dict(seats)
        self.rng: random.Random = derived_rng(self._seed, step, "game")

    def draw(self, source: str, n: int) -> list[Problem]:
        return list(itertools.islice(self._drawn.setdefault(source, itertools.cycle(self._problems)), n))

    @property
    def folder(self) -> Path:
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(prefix="lite-selfplay-")
        return Path(self._files.name)

    def ask(
        self,
        role: str,
        prompts: Sequence[str],
        n: int = 1,
        sampling: Sampling | None = None,
        *,
        beginnings: Sequence[str] | None = None,
        seat: str | None = None,
    ) -> list[list[Completion]]:
        self.asked.append((role, list(prompts), n))
        pairs = zip(prompts, beginnings or [""] * len(prompts), strict=True)
        return [[self._complete(role, p, sampling or Sampling(), start, seat) for _ in range(n)] for p, start in pairs]

    def completed(self, example: Example) -> Completion:
        ids = tuple(example.completion.encode())
        prompt_ids = tuple(example.prompt.encode())
        return Completion(example.prompt, example.completion, prompt_ids, (*ids, EOS), (), "eos", "", -1, Sampling())

    def _complete(
        self, role: str, prompt: str, sampling: Sampling, beginning: str = "", seat: str | None = None
    ) -> Completion:
        index = self._completions.get(role, 0)
        self._completions[role] = index + 1
        if callable(self._script):
            text = self._script(role, prompt + beginning, index)
        elif role in self._script:
            text = self._script[role][index % len(self._script[role])]
        else:
            raise UnknownNameError("role", role, self._script)
        ids = [*text.encode(), EOS]
        stop: StopReason = "eos" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(
            prompt=prompt,
            text=text,
            prompt_ids=tuple((prompt + beginning).encode()),
            token_ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            stop=stop,
            seat=seat or self._seats.get(role, role),
            weights_version=0,
            sampling=sampling,
            prefill=beginning,
        )

    def everything(self, source: str) -> Sequence[Problem]:
        return self._problems

    def evaluate(self, role: str, prompts: Sequence[str], problems: Sequence[Problem], n: int = 1) -> list[Verdict]:
        self.asked.append((f"{role}, measured", list(prompts), n))
        own = isinstance(self._script, Mapping) and f"{role}, measured" in self._script
        name = f"{role}, measured" if own else role
        pairs = zip(prompts, problems, strict=True)
        return self.verify([(self._complete(name, prompt, Sampling()), p) for prompt, p in pairs for _ in range(n)])

    def score(
        self, role: str, completions: Sequence[Completion], *, seat: str | None = None, after: Sequence[str] = ()
    ) -> list[TokenScores]:
        other = [len(prompt) % 8 / 4 - 1 for prompt in after] or [0.0] * len(completions)
        return [
            TokenScores(
                [logprob + more * (i % 3) for logprob, i in zip(c.logprobs, c.token_ids, strict=False)],
                [i % 8 / 4 for i in c.token_ids],
            )
            for c, more in zip(completions, other, strict=True)
        ]

    def read_answer(self, completion: Completion) -> str | None:
        return self._verifier.read_answer(completion)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        return self._verifier.verify(pairs, thinks=self.thinks)

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenize(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def close(self) -> None:
        """Stop the checker's processes, and remove the game's files."""
        self._verifier.close()
        if self._files is not None:
            self._files.cleanup()


_LINES = (
    "<answer>2</answer>",
    "1 + 1 = 2. <answer>2</answer>",
    "<answer>7</answer>",
    "no idea",
    "",
    "<think>never closed",
    "<think>x</think>So it is four. <answer>4</answer>",
    "\\boxed{6}",
)


_LISTS = (
    "1. What is 3 + 4?\n2. What is 5 * 2?\n3. What is 12 - 7?",
    "Here they are:\n1) What is 9 - 6?\n2) **What is 1 + 1?**",
    "no list",
    "<think>1. never closed",
)
_QUESTIONS = (
    "What is 2 + 5?",
    "What is 12 * 5 - 7?",
    "One of three.\n**Selected Question:** What is 9 - 4?",
    "Selected Question: A farmer has 3 hens and buys 4. How many are there?",
    "<think>scratch</think>What is 3 + 4?",
    "",
    "<think>never closed",
)
_PROGRAMS = (
    "Add them.\n<answer>\nprint(sum(map(int, input().split())))\n</answer>",
    "<answer>```python\nprint(max(map(int, input().split())))\n```</answer>",
    "<answer>\nprint(len(input().split())\n</answer>",
    "<answer>print(0)</answer>",
    "I cannot do that.",
    "",
    "<think>never closed",
)
# Replies of every kind, by a text in the prompt.
_MARKED = {
    "||| <output>": (
        "Problem Description:\nPrint the sum of the numbers.\nTest Cases:\n1 2 ||| 3\n4 ||| 4\n0 0 ||| 0",
        "**Problem Description:**\nPrint the largest number.\n\n**Test Cases:**\n1 2 ||| 2\\n\n3 1 ||| 3",
        "Problem Description:\nPrint something else.\nTest Cases:\n1 2 ||| 77",
        "Print the sum.\nTest Cases:\n1 2: 3",
        "Problem Description:\nPrint the sum.",
        "",
        "<think>never closed",
    ),
    "<program> and </program>": (
        "<program>\ndef f(a):\n    return str(a) + 'x'\n</program>\n<input>2</input>",
        "I double it. <program>```python\ndef f(a, b=2):\n    return [a] * b\n```</program><input>'a', 3</input>",
        "<program>def f(a): return a[</program><input>1</input>",
        "<program>import random\ndef f(a): return random.random()</program><input>1</input>",
        "<program>def f(a): return a</program><input>__import__('os')</input>",
        "<program>def f(a): return a</program>",
        "def f(a): return a",
        "",
        "<think>never closed",
    ),
    "<message> and </message>": (
        "".join(f"<input>{number}</input>" for number in range(10)) + "<message>Look at each.</message>",
        "<input>1</input> <input>[2]</input> <message>Two alone.</message>",
        "<message>No inputs.</message>",
        "<input>1</input>",
        "",
    ),
    "What does f(": (
        "It is <answer>'2x'</answer>",
        "<answer>'Hello world'</answer>",
        "<answer>2 +</answer>",
        "no idea",
    ),
    "arguments does f return": ("<answer>2</answer>", "<answer>'Hello world'</answer>", "<answer></answer>", "2"),
    "Write a function f": (
        "As it is.\n<answer>\ndef f(a):\n    return a\n</answer>",
        "<answer>def f(a): return str(a) + 'x'</answer>",
        "<answer>print(0)</answer>",
        "no idea",
    ),
    "whole program in Python": _PROGRAMS,
    "</step>": (
        "<error>arithmetic slip</error>\n<change>I change a sum.</change>\n<step>Both together are 3.</step>",
        "<error>Invalid inference.</error><change>x</change><step>So there is nothing left.</step>",
        "<error>a riddle</error><step>So there are 5.</step>",
        "<error>invalid inference</error><step>This is wrong on purpose: 5.</step>",
        "<step>So there are 5.</step>",
        "",
        "<think>never closed",
    ),
    "<answer>Correct</answer>": (
        "It adds up. <answer>Correct</answer>",
        "It does not add up.\n<answer>incorrect</answer>",
        "<answer>Correct</answer> or <answer>Incorrect</answer>",
        "<answer>perhaps</answer>",
        "",
    ),
    "Leave a blank line": (
        "1 + 1 = 2.\n\nSo it is \\boxed{2}.",
        "First, both are alike.\n\nTwice 2 is 4.\n\n\\boxed{4}",
        "The answer is \\boxed{6}.",
        "no idea",
        "",
    ),
    "begins with its number": _LISTS,
    "Kuhn ": ("p", "b", "Pass", " bet ", "<answer>b</answer>", "I think. <answer>fold</answer>", "no idea", ""),
}
_PROPOSALS = (
    "<{tag}>What is 1 + 1?</{tag}><answer>1 + 1 = 2, so \\boxed{{2}}.</answer>",
    "<{tag}>A farmer has 3 hens and buys 4. How many are there?</{tag}<answer>never closed",
    "<{tag}>A farmer has 3 hens and buys 4. How many are there?</{tag}> \\boxed{{7}} <answer>\\boxed{{7}}</answer>",
    "<{tag}></{tag}> \\boxed{{1}} <answer>\\boxed{{1}}</answer>",
    "<think>scratch</think>Selected Question: What is 2 * 3? <{tag}>What is 2 * 3?</{tag}> \\boxed{{6}} "
    "<answer>\\boxed{{6}}</answer>",
    "What is 2 + 5?",
    "",
    "<think>never closed",
)


def noisy_script(game: Game) -> Script:
    """A script with completions of every kind: right, wrong, malformed, empty, with unclosed reasoning.

    Roles that propose write questions: in a tag if the prompt names one, as a numbered list if it asks for several.
    """

    def line(role: str, prompt: str, index: int) -> str:
        rng = derived_rng("noisy", role, index)
        for mark, lines in _MARKED.items():
            if mark in prompt:
                return rng.choice(lines)
        tag = next((tag for tag in ("problem", "question") if f"<{tag}>" in prompt), None)
        if tag is not None:
            return rng.choice(_PROPOSALS).format(tag=tag)
        return rng.choice(_QUESTIONS if game.accuracy_of(role).proposals else _LINES)

    return line


def check_game(game: Game, *, steps: int = 6, script: Script | None = None, problems: Sequence[Problem] = ()) -> None:
    """Play a game with a script (by default `noisy_script`) and check the contract between games and the trainer.

    At every step: `seats` covers the roles; each stream has a role of the game, and no two streams the same one;
    completions come from the table and from the seat of their role; rewards are finite or None; the log and `state` are
    JSON; a new game, restored from `state`, plays exactly as the first one. Once: what `kept_at_start` returns are
    snapshots of seats that the game trains; its evaluation mode is known; `accuracy` and `pairing` name its roles.
    Raises GameError, naming the first violation.
    """
    script = script or noisy_script(game)
    _require(
        game.roles and len(set(game.roles)) == len(game.roles), f"roles must be distinct names, got {game.roles!r}"
    )
    for kept in game.kept_at_start():
        trained = isinstance(kept, Snapshot) and kept.seat in game.trained_seats()
        _require(trained, f"kept_at_start() holds {kept!r}, which is not a snapshot of a seat that the game trains")
    _check_declared(game)
    table = ScriptedTable(script, problems)
    twin_table = ScriptedTable(script, problems)
    try:
        for step in range(steps):
            if game.over():
                break
            saved = _json(game.state(), "state()")
            episode = _play(game, step, table)
            twin = type(game)(game.options, group_size=game.group_size, problems_per_step=game.problems_per_step)
            twin.restore(json.loads(saved))
            same = _play(twin, step, twin_table) == episode and twin.state() == game.state()
            _require(same, f"step {step}: a game restored from state() does not continue as the first one did")
    finally:
        table.close()
        twin_table.close()


def _check_declared(game: Game) -> None:
    named = [*game.accuracy, *game.rewards(), *([game.pairing.first] if game.pairing else [])]
    unknown = ", ".join(sorted(set(named) - set(game.roles)))
    _require(not unknown, f"accuracy, rewards or pairing name {unknown}, which is not a role of this game")
    mode = game.evaluation().mode
    _require(mode in MODES.names(), f"evaluation(): unknown evaluation mode {mode!r}: {', '.join(MODES.names())}")


def _play(game: Game, step: int, table: ScriptedTable) -> Episode:
    seats = game.seats(step)
    missing = ", ".join(sorted(set(game.roles) - set(seats)))
    _require(not missing, f"step {step}: seats() has no seat for {missing}")
    table.open(step, seats)
    episode = game.play(step, table)
    _require(isinstance(episode, Episode), f"step {step}: play() returned {type(episode).__name__}, not an Episode")
    _json(dict(episode.log), f"step {step}: the log")
    roles = [stream.role for stream in episode.streams]
    unknown = ", ".join(sorted(set(roles) - set(game.roles)))
    _require(not unknown, f"step {step}: a stream of {unknown}, which is not a role of this game")
    _require(len(set(roles)) == len(roles), f"step {step}: a role has two streams")
    for stream in episode.streams:
        _check_stream(stream, seats[stream.role], f"step {step}, {stream.role}")
    for action in episode.actions:
        _require(isinstance(action, Snapshot | Restore | Blend), f"step {step}: {action!r} is not an action")
    return episode


def _check_stream(stream: Stream, seat: str, where: str) -> None:
    _require(stream.groups, f"{where}: a stream without groups; omit the stream instead")
    for group in stream.groups:
        _require(group.samples, f"{where}: a group without samples")
        for sample in group.samples:
            whose = sample.completion.seat
            _require(math.isfinite(sample.reward or 0.0), f"{where}: a reward of {sample.reward}")
            _require(stream.replay or whose == seat, f"{where}: seat {seat!r} would train on a completion of {whose!r}")
    try:
        require_on_policy(stream, seat)
    except GameError as error:
        raise GameError(f"{where}: {error}") from None


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise GameError(otherwise)


def _json(values: Any, what: str) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GameError(f"{what} must be JSON: {error}") from None
