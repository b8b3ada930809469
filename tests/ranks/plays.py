"""What is done to a process of a run before it begins: faults of one, and a random model's talk as questions."""

import math
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any


def nothing(rank: int) -> None:
    """Everything as it is."""


def anything_goes(rank: int, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Whatever a random model says is a question, and an answer, 0 more often than 1: there is something to reward, and
    every seat has a gradient."""
    from lite_selfplay import verify
    from lite_selfplay.data import Completion, Problem, Verdict
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
    for module, name in ((cpmobius, "read_task"), (rzero, "read_question"), (pasodoble, "read")):
        put(module, name, proposed)
    put(verify.Verifier, "read_answer", lambda self, completion: answer(completion))
    put(verify._CHECKERS, "known", {**verify._CHECKERS.known, "math": lambda: check})


def nan(rank: int, where: int, step: int) -> None:
    """A loss that is not finite in one process, at one step."""

    from lite_selfplay.training.losses import Loss
    from lite_selfplay.training.trainer import SelfPlayTrainer

    whole = SelfPlayTrainer.update

    def update(self: Any, number: int, *rest: Any) -> Any:
        if rank == where and number == step:
            self.loss.of, before = lambda micro, logprobs, *_: Loss(logprobs.sum() * math.nan, None, None), self.loss.of
            try:
                return whole(self, number, *rest)
            finally:
                self.loss.of = before
        return whole(self, number, *rest)

    SelfPlayTrainer.update = update


def drift(rank: int, where: int, step: int) -> None:
    """Weights of one process that differ in a bit."""
    import torch

    from lite_selfplay.training.trainer import SelfPlayTrainer

    whole = SelfPlayTrainer.update

    def update(self: Any, number: int, *rest: Any) -> Any:
        if rank == where and number == step:
            with torch.no_grad():
                next(iter(self.adapters.parameters("A").values()))[0, 0] += 1e-3
        return whole(self, number, *rest)

    SelfPlayTrainer.update = update


def out_of_memory(rank: int, where: int, most: int) -> None:
    """No room for more than so many rows at once in the updates of one process."""
    import torch

    from lite_selfplay.training.trainer import SelfPlayTrainer

    whole = SelfPlayTrainer._logprobs

    def logprobs(self: Any, micro: Any, **options: Any) -> Any:
        if rank == where and len(micro.rows) > most:
            raise torch.OutOfMemoryError("no room")
        return whole(self, micro, **options)

    SelfPlayTrainer._logprobs = logprobs


def other_package(rank: int, where: int) -> None:
    """Another version of a package in one process."""
    from lite_selfplay.runs import build

    whole = build.versions
    if rank == where:
        build.versions = lambda names: {**whole(names), "trl": "0.0.1"}


def ends(rank: int, where: int, how: str, name: str, times: int) -> None:
    """One process gets a signal as a function begins or ends for the so-manieth time: `update`, `before save`, ..."""
    from lite_selfplay.runs import loop
    from lite_selfplay.runs.saving import Saver
    from lite_selfplay.training import ranks, rollout
    from lite_selfplay.training.trainer import SelfPlayTrainer

    owner, function = {
        "gather": (ranks.Ranks, "gather"),
        "sum": (ranks.Ranks, "add_up"),
        "ask": (rollout.LiveTable, "speak"),
        "update": (SelfPlayTrainer, "update"),
        "move": (SelfPlayTrainer, "_move"),
        "lines": (loop.RunLoop, "_write_down"),
        "save": (Saver, "save"),
    }[name.partition(" ")[2] or name]
    whole, done = getattr(owner, function), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        done += 1
        now = rank == where and done == times
        if now and not name.startswith("after"):
            os.kill(os.getpid(), getattr(signal, how))
        found = whole(*arguments, **options)
        if now and name.startswith("after"):
            os.kill(os.getpid(), getattr(signal, how))
        return found

    setattr(owner, function, counted)


def other_device(rank: int, where: int) -> None:
    """Another card in one process."""
    from lite_selfplay.runs.resources import Resources

    whole = Resources.facts
    if rank == where:
        Resources.facts = lambda self: {**whole(self), "device": "another card"}


def other_argument(rank: int, where: int, argument: str) -> None:
    """Another argument for one process."""
    import sys

    if rank == where:
        sys.argv += [argument]


def slow_clock(rank: int, where: int) -> None:
    """A clock that stands still in one process."""
    import time

    if rank == where:
        frozen = time.monotonic()
        from lite_selfplay.runs import build, loop

        for module in (build, loop):
            module.time = type(
                "Still", (), {"monotonic": staticmethod(lambda: frozen), "perf_counter": time.perf_counter}
            )
