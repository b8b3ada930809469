"""What tests of many folders make and read: completions, lines of JSON, played steps, seats of runs, shared data."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lite_selfplay.data import Completion, Episode, EvalSpec, Problem, Sample, Sampling, StopReason, Stream
from lite_selfplay.evaluation import Evaluation, Exam, measure
from lite_selfplay.games import Game
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.sqlm.topics import load_topic
from lite_selfplay.tasks.jsonl import read_jsonl
from lite_selfplay.testing import ScriptedTable

if TYPE_CHECKING:
    from torch import Tensor

    from lite_selfplay.models.backends.backend import Backend

DATA = Path(os.environ.get("LITE_SELFPLAY_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")


def evaluated(table: Any, spec: EvalSpec, problems: Sequence[Problem], **given: Any) -> Evaluation:
    """An evaluation; what `Exam` has a field for goes into it."""
    how = {each.name: given.pop(each.name) for each in fields(Exam) if each.name in given}
    return measure(table, spec, Exam(problems, **how), **given)


def shared(name: str) -> Path:
    """A file of real problems; where it is not at hand, the test is skipped."""
    path = DATA / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no benchmark file {path}: set LITE_SELFPLAY_TEST_DATA to the folder that holds it")
    return path


def shared_problems(name: str) -> list[Problem]:
    return [*read_jsonl(shared(name)).problems]


def module_of(path: Path) -> Any:
    """A script that lies outside every package, imported."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def completion(text: str, stop: StopReason = "eos", prefill: str = "", *, seat: str = "A") -> Completion:
    """A text of a token a byte, as a seat would have said it."""
    ids = tuple(text.encode())
    return Completion("p", text, (1,), ids, (-1.0,) * len(ids), stop, seat, 0, Sampling(), prefill)


def disagreeing(game: str) -> list[dict[str, str]]:
    """Two questions, and two answers to each: seats that learn them speak in the game's format, and disagree."""
    questions = ["1 + 2", "2 + 2"]
    rows = [
        {"role": "solver", "prompt": fill("solver", problem=question), "completion": f"<answer>{value}</answer>"}
        for question in questions
        for value in (3, 4)
    ]
    if game != "sqlm":
        return [{key: text for key, text in row.items() if key != "role"} for row in rows]
    prompt = load_topic("arithmetic", 16).prompt
    return [*rows, *({"role": "proposer", "prompt": prompt, "completion": question} for question in questions)]


class Unread(ScriptedTable):
    """A table at which prompts that hold the word `long` are too long to be read."""

    def ask(self, role: str, prompts: Sequence[str], n: int = 1, sampling: Sampling | None = None) -> Any:
        said = super().ask(role, prompts, n, sampling)
        unread = {"text": "", "token_ids": (), "logprobs": (), "stop": "prompt_too_long"}
        return [[replace(c, **unread) if "long" in c.prompt else c for c in row] for row in said]


def play(game: Game, table: ScriptedTable, step: int = 0) -> Episode:
    table.open(step, game.seats(step))
    return game.play(step, table)


def plays(game: Game, table: ScriptedTable, steps: int) -> list[Episode]:
    """The first steps of a game, at a table that is closed afterwards."""
    episodes = [play(game, table, step) for step in range(steps)]
    table.close()
    return episodes


def stream(episode: Episode, role: str) -> Stream:
    (found,) = [stream for stream in episode.streams if stream.role == role]
    return found


def samples(episode: Episode, role: str) -> list[Sample]:
    return [sample for group in stream(episode, role).groups for sample in group.samples]


def rewards(episode: Episode, role: str) -> list[list[float]]:
    return [[sample.reward for sample in group.samples] for group in stream(episode, role).groups]


def seat_weights(run: Path, step: int, seat: str) -> "dict[str, Tensor]":
    """A seat's weights after so many steps of a run that keeps its checkpoints."""
    from safetensors.torch import load_file  # which loads torch: most tests do without

    return load_file(run / "checkpoints" / f"step-{step}" / "adapters" / seat / "adapter_model.safetensors")


def same_weights(one: "dict[str, Tensor]", other: "dict[str, Tensor]") -> bool:
    """Whether tensors are equal, bit for bit."""
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def as_sampled(episode: Episode, backend: "Backend") -> Episode:
    """An episode of made-up completions, with the log-probabilities that a sampler would have stored for them.

    They are those of the seats' current weights, since a trainer refuses any others. Replays keep what they stored, and
    so do samples with a log-probability that is not finite.
    """

    def noted(sample: Sample) -> Sample:
        made = sample.completion
        if not made.token_ids or not all(map(math.isfinite, made.logprobs)):
            return sample
        (scores,) = backend.score(made.seat, [(made.prompt_ids, made.token_ids)], made.sampling.temperature or 1.0)
        return replace(sample, completion=replace(made, logprobs=tuple(scores.logprobs)))

    streams = [
        stream
        if stream.replay
        else replace(stream, groups=[replace(g, samples=[*map(noted, g.samples)]) for g in stream.groups])
        for stream in episode.streams
    ]
    return replace(episode, streams=streams)
