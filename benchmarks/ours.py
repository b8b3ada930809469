"""This library as a contender: its generation, its training loop, and the memory of its seats."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if sys.argv[1:2] and sys.argv[1].endswith("-unsloth"):
    from lite_selfplay.models.backends import import_unsloth

    import_unsloth()  # before the libraries that it patches

import torch
from contender import NEVER, HashReward, Memory, Parent, about, answer_rounds, clock, give_back, main, resident
from harness import Setting
from timers import ARRANGING, PARTS, Timers
from torch.optim.optimizer import register_optimizer_step_post_hook

from lite_selfplay import Game, Progress, RunConfig, register_game, train
from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.data import Episode, Sampling, Stream
from lite_selfplay.games.baselines.grpo import judged
from lite_selfplay.games.prompts import fill
from lite_selfplay.models.backends import choose_backend
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.models.sources import resolve
from lite_selfplay.tasks.task import derived_seed


def rollouts(parent: Parent, setting: Setting) -> None:
    """Completions by `TransformersBackend.generate`. Saves the adapter that TRL starts with."""
    memory, model = Memory(), resolve(setting.model)
    chat = Chat.load(model.path)
    backend: Any = choose_backend(
        model.path,
        ModelSection(**_model(setting)),
        {"A": SeatConfig(**_seat(setting))},
        seed=0,
        eos_ids=[NEVER] if setting.uniform else chat.eos_ids,
    )
    backend.adapters.save("A", Path(setting.adapter))
    backend.trainer_parent()  # a run has TRL in memory

    def play(number: int, group_size: int, cap: int, prompts: Sequence[Sequence[int]]) -> list[int]:
        seeds = [[derived_seed(0, number, p, k) for k in range(group_size)] for p in range(len(prompts))]
        groups = backend.generate(GenerationRequest("A", prompts, group_size, Sampling(max_tokens=cap), seeds))
        return [len(row.token_ids) for group in groups for row in group]

    answer_rounds(parent, setting, memory, play, {**about(backend.compute_dtype), "path": str(model.path)})


def training(parent: Parent, setting: Setting, *, game: str, backend: str = "transformers") -> None:
    """Steps of a game by `lite_selfplay.train`: one warm-up step, the timed ones, and one with timers.

    `grpo` saves its untrained adapter, which TRL starts with.
    """
    timers = Timers()
    timers.install()
    _when_loaded(setting, timers)
    config = _run_config(setting, game, steps=setting.rounds + 2, backend=backend)
    train(config, HashReward(), progress=Turns(parent, timers))


class Turns(Progress):
    """Tells of every step when it is complete, and lets the next one begin when it is told to."""

    def __init__(self, parent: Parent, timers: Timers) -> None:
        self._parent, self._timers, self._memory = parent, timers, Memory()
        self._since = clock()

    def phase(self, name: str, total: int | None = None) -> None:
        if name == "training":
            self._memory.loaded()
            self._since = clock()

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        seconds = clock() - self._since
        self._timers.enabled = False
        self._parent.tell(
            seconds=seconds,
            tokens=metrics["tokens"]["generated"],
            generate_s=metrics["wall_s"]["generate"],
            update_s=metrics["wall_s"]["update"],
            moved=all(stream["rows_trained"] for stream in metrics["streams"].values()),
            parts={part: self._timers.seconds.get(part, 0.0) for part in PARTS},
            arranging=self._timers.seconds.get(ARRANGING, 0.0),
            memory=self._memory.report(),
            **about(self._timers.dtype),
        )
        message = self._parent.hear()
        self._timers.enabled = message["profile"]
        self._since = clock()


def _when_loaded(setting: Setting, timers: Timers) -> None:
    """Attach the timers to the backend's model and, for uniform lengths, remove its end-of-sequence tokens."""
    make = TransformersBackend.__init__

    def make_and_watch(self: TransformersBackend, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **({**options, "eos_ids": [NEVER]} if setting.uniform else options))
        timers.watch(self.adapters.model, self.compute_dtype)

    TransformersBackend.__init__ = make_and_watch


class Seats(Game):
    """Every seat answers the same problems and learns from its own answers."""

    def play(self, step: int, table: Any) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        prompts = [fill("solver", problem=problem.text) for problem in problems]
        answers = {role: table.ask(role, prompts, n=self.group_size) for role in self.roles}
        return Episode([Stream(role, judged(table, problems, answers[role], 0.0)) for role in self.roles])


def seats(parent: Parent, setting: Setting) -> None:
    """One update of every seat: the bytes of weights, gradients and optimizer state, and the resident memory then."""
    names = tuple(f"S{i}" for i in range(setting.seats))
    register_game("seats", type("SomeSeats", (Seats,), {"roles": names}))
    counted: dict[str, int] = {}

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        give_back()
        counted["resident"] = resident("VmRSS")
        held = [p for group in optimizer.param_groups for p in group["params"]]
        states = [value for p in held for value in optimizer.state[p].values()]
        counted["weights"] = sum(p.nbytes for p in held)
        counted["gradients"] = sum(p.grad.nbytes for p in held if p.grad is not None)
        counted["optimizer"] = sum(value.nbytes for value in states if isinstance(value, torch.Tensor))

    register_optimizer_step_post_hook(count)
    run = train(_run_config(setting, "seats", steps=1), HashReward())
    # In float32 a weight, its gradient and Adam's two moments take sixteen bytes per number in a seat's file.
    numbers = [_numbers(folder) for folder in run.seats.values()]
    parent.tell(**counted, predicted=[16 * count for count in numbers], peak=resident("VmHWM"))


def _numbers(folder: Path) -> int:
    from safetensors.torch import load_file

    return sum(tensor.numel() for tensor in load_file(folder / "adapter_model.safetensors").values())


def _run_config(setting: Setting, game: str, steps: int, backend: str = "transformers") -> RunConfig:
    place = f"{game}-{setting.seats}" if backend == "transformers" else f"{game}-{setting.seats}-{backend}"
    return RunConfig(
        game=game,
        model={
            **_model(setting),
            "backend": backend,
            "gradient_checkpointing": "auto" if setting.checkpointing is None else setting.checkpointing,
        },
        tasks=setting.tasks,
        seats={"*": _seat(setting)},
        run={
            "steps": steps,
            "group_size": setting.group_size,
            "problems_per_step": setting.prompts,
            "max_completion_tokens": setting.cap,
            "dir": Path(setting.folder) / place,
            "save_every": 10**6,
            "preflight": False,
            "save_minutes": 0,
        },
    )


def _model(setting: Setting) -> dict[str, Any]:
    return {"name": setting.model, "precision": setting.precision, "compute_dtype": setting.compute_dtype}


def _seat(setting: Setting) -> dict[str, Any]:
    start = {"init": "gaussian", "init_std": setting.init_std}
    return {"rank": setting.rank, "alpha": setting.alpha, "lr": setting.lr, **start}


if __name__ == "__main__":
    main(
        {
            "rollouts": rollouts,
            "seats": seats,
            **{game: partial(training, game=game) for game in ("agon", "grpo")},
            **{f"{game}-unsloth": partial(training, game=game, backend="unsloth") for game in ("agon", "grpo")},
        }
    )
