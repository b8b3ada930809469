"""What is done to a process of a run before it begins: a random model's talk as questions, and faults of one process.

`play=("nan", 1, 0)` calls `nan(0)` in process 1 alone; `play=("anything_goes", None)` is for all of them.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any


def nothing() -> None:
    """Everything as it is."""


def anything_goes(rank: int = 0, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Whatever a random model says is a question, and an answer, 0 more often than 1: there is something to reward, and
    every seat has a gradient."""
    from lite_selfplay import verify
    from lite_selfplay.data import Completion, Problem, Verdict
    from lite_selfplay.games import absolute_zero, spice
    from lite_selfplay.games.baselines import rzero
    from lite_selfplay.games.cpmobius import cpmobius
    from lite_selfplay.games.pasodoble import pasodoble
    from lite_selfplay.games.propose_solve.questions import Proposal
    from lite_selfplay.games.sqlm import sqlm

    def proposed(completion: Completion, *_: Any) -> Proposal:
        return Proposal(completion, completion.text or "?", answer(completion))

    def answer(completion: Completion) -> str:
        return "10"[min(1, sum(completion.token_ids) % 4)]

    def check(pairs: Sequence[tuple[Completion, Problem]], *_: Any) -> list[Verdict]:
        return [Verdict(answer(c) == p.answer, float(answer(c) == p.answer), answer(c), True) for c, p in pairs]

    put(sqlm, "read_question", lambda topic, completion: proposed(completion))

    def task(kind: Any, earlier: Any, completion: Completion, count: int) -> Proposal:
        inputs = ["1"] * (count if kind == "induction" else 1)
        return replace(proposed(completion), task=absolute_zero.Triple(kind, completion.text or "?", inputs, []))

    def call(pairs: Sequence[tuple[Completion, Problem]], *_: Any) -> list[Verdict]:
        outputs = [json.dumps(["1" for _ in problem.answer.get("inputs", ())]) for _, problem in pairs]
        right = ["inputs" in problem.answer or answer(completion) == "1" for completion, problem in pairs]
        return [Verdict(yes, float(yes), said, True) for yes, said in zip(right, outputs, strict=True)]

    put(absolute_zero, "read_task", task)
    put(spice, "read_question", proposed)
    for module, name in ((cpmobius, "read_task"), (rzero, "boxed_question"), (pasodoble, "to_proposal")):
        put(module, name, proposed)
    put(verify.Verifier, "read_answer", lambda self, completion: answer(completion))
    put(verify._CHECKERS, "known", {**verify._CHECKERS.known, "math": lambda: check, "call": lambda: call})


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of another one, which it is given before the arguments."""
    whole = getattr(owner, name)

    def put(function: Callable[..., Any]) -> None:
        setattr(owner, name, lambda *arguments, **options: function(whole, *arguments, **options))

    return put


def nan(step: int) -> None:
    """A loss that is not finite, at one step."""
    from lite_selfplay.training.losses import Loss
    from lite_selfplay.training.trainer import SelfPlayTrainer

    @around(SelfPlayTrainer, "update")
    def update(whole: Any, self: Any, number: int, *rest: Any) -> Any:
        before = self.loss.of
        if number == step:
            self.loss.of = lambda micro, logprobs, *_: Loss(logprobs.sum() * math.nan, None, None)
        try:
            return whole(self, number, *rest)
        finally:
            self.loss.of = before


def drift(step: int) -> None:
    """Weights that differ in a bit."""
    import torch

    from lite_selfplay.training.trainer import SelfPlayTrainer

    @around(SelfPlayTrainer, "update")
    def update(whole: Any, self: Any, number: int, *rest: Any) -> Any:
        if number == step:
            with torch.no_grad():
                next(iter(self.adapters.parameters("A").values()))[0, 0] += 1e-3
        return whole(self, number, *rest)


def out_of_memory(most: int) -> None:
    """No room for more than so many rows at once in updates."""
    import torch

    from lite_selfplay.training.trainer import SelfPlayTrainer

    @around(SelfPlayTrainer, "_backward")
    def backward(whole: Any, self: Any, micro: Any) -> Any:
        if len(micro.rows) > most:
            raise torch.OutOfMemoryError("no room")
        return whole(self, micro)


def other_package() -> None:
    """Another version of a package."""
    from lite_selfplay.runs import build

    around(build, "versions")(lambda whole, names: {**whole(names), "trl": "0.0.1"})


def other_device() -> None:
    """Another card."""
    from lite_selfplay.runs.resources import Resources

    around(Resources, "facts")(lambda whole, self: {**whole(self), "device": "another card"})


def other_argument(argument: str) -> None:
    sys.argv += [argument]


def ends(how: str, name: str, times: int) -> None:
    """A signal as a function begins or ends for the so-manieth time: `update`, `after sum`, ..."""
    from lite_selfplay.runs import loop, saving
    from lite_selfplay.training import ranks, rollout
    from lite_selfplay.training.trainer import SelfPlayTrainer

    owner, function = {
        "sum": (ranks.Ranks, "add_up"),
        "ask": (rollout.LiveTable, "sample"),
        "update": (SelfPlayTrainer, "update"),
        "lines": (loop.RunLoop, "_write_down"),
        "save": (saving, "save_checkpoint"),
    }[name.removeprefix("after ")]
    calls = count(1)

    @around(owner, function)
    def counted(whole: Any, *arguments: Any, **options: Any) -> Any:
        now = next(calls) == times
        if now and not name.startswith("after"):
            os.kill(os.getpid(), getattr(signal, how))
        found = whole(*arguments, **options)
        if now and name.startswith("after"):
            os.kill(os.getpid(), getattr(signal, how))
        return found


def slow_clock() -> None:
    """A clock that stands still."""
    from lite_selfplay.runs import build, loop

    frozen = time.monotonic()
    for module in (build, loop):
        module.time = SimpleNamespace(monotonic=lambda: frozen, perf_counter=time.perf_counter)
