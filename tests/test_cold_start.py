import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.cold_start import cold_start
from lite_selfplay.config import ColdStartSection, SeatConfig
from lite_selfplay.errors import ConfigError, Interrupted
from lite_selfplay.games import make_game
from lite_selfplay.models import resolve
from lite_selfplay.models.chat import Chat
from lite_selfplay.planning import plan
from lite_selfplay.records import RunFolder
from lite_selfplay.session import Session
from lite_selfplay.tasks import Source, load_task
from lite_selfplay.trainer import reference_name

SEATS = {"A": SeatConfig(rank=4), "B": SeatConfig(rank=4, init="gaussian")}


def run(backend: Any, path: Path, task: str, seats: str = "agon", **section: Any) -> list[str]:
    said: list[str] = []
    cold_start(
        backend,
        Chat.load(path),
        make_game(seats, {}),
        Source(load_task(task).problems, seed=0),
        ColdStartSection(enabled=True, **section),
        seed=0,
        say=said.append,
        poll=lambda: None,
    )
    return said


def test_both_seats_learn_the_examples_and_the_base_stays(make_backend: Callable[..., Any], tiny_path: Path):
    backend = make_backend(seats=SEATS)
    before = {seat: backend.adapters.state(seat) for seat in SEATS}
    base = {n: p.clone() for n, p in backend.adapters.model.named_parameters() if "lora_" not in n}
    said = run(backend, tiny_path, "stories", steps=12, examples_per_step=4, lr=1e-2)
    for line, seat in zip(said, SEATS, strict=True):
        assert f"cold start of {seat} as drafter and challenger" in line
        first, last = (float(text) for text in line.rpartition("loss ")[2].split(" -> "))
        assert last < 0.8 * first
        assert any(not torch.equal(before[seat][n], t) for n, t in backend.adapters.state(seat).items())
    assert all(torch.equal(base[n], p) for n, p in backend.adapters.model.named_parameters() if n in base)
    assert backend.adapters.versions == {"A": 0, "B": 0}
    assert all(p.grad is None for p in backend.adapters.model.parameters())


def test_the_first_loss_is_the_plain_negative_log_likelihood(make_backend: Callable[..., Any], tiny_path: Path):
    backend = make_backend(seats={"solver": SeatConfig(rank=4)})
    (line,) = run(backend, tiny_path, "stories", "grpo", steps=1, examples_per_step=3, lr=1e-9)
    chat, game = Chat.load(tiny_path), make_game("grpo", {})
    total, count = 0.0, 0
    for problem in Source(load_task("stories").problems, seed=0).draw(3):
        example = game.cold_start("solver", problem, None, thinks=False)
        row = chat.conversation(example.prompt, example.completion)
        assert row.completion_ids[-1] == chat.eos_ids[0]
        with torch.no_grad(), backend.adapters.speaking("solver"):
            logits = backend.adapters.model(input_ids=torch.tensor([row.prompt_ids + row.completion_ids])).logits
        log_p = logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        total -= log_p.gather(-1, torch.tensor(row.completion_ids)[:, None]).sum().item()
        count += len(row.completion_ids)
    assert f"loss {total / count:.2f} ->" in line


def test_tasks_without_solutions_are_refused(make_backend: Callable[..., Any], tiny_path: Path):
    with pytest.raises(ConfigError, match="cold start needs worked solutions"):
        run(make_backend(seats=SEATS), tiny_path, "letters", steps=1)


def test_a_run_starts_from_it_and_its_reference_is_the_seat_after_it(tmp_path: Path):
    config = RunConfig(
        game="grpo",
        model="tiny",
        tasks="letters",
        precision="fp32",
        steps=2,
        group_size=8,
        problems_per_step=2,
        save_every=1,
        cold_start={"enabled": True, "tasks": "stories", "steps": 2, "examples_per_step": 2},
        roles={"solver": {"beta": 0.1}},
        run_dir=tmp_path / "run",
    )
    said: list[str] = []
    done = train(config, say=said.append)
    assert any(line.startswith("cold start of solver") for line in said)
    assert (done.path / "checkpoints" / "step-0" / "manifest.json").is_file()
    # The KL term is 0 at the first step, whatever the cold start changed: the reference was taken after it.
    first, second = done.metrics_rows()
    assert first["streams"]["solver"]["kl"] == pytest.approx(0, abs=1e-6)
    assert second["streams"]["solver"]["kl"] > 0
    said.clear()
    resume(done.path, steps=3, say=said.append)
    assert not any("cold start" in line for line in said)


def test_a_cold_start_that_was_stopped_begins_again(tmp_path: Path):
    sections = {"cold_start": {"enabled": True, "tasks": "stories", "steps": 3, "examples_per_step": 2}}
    sizes = {"steps": 2, "group_size": 2, "problems_per_step": 1, "precision": "fp32"}
    base = {"game": "agon", "model": "tiny", "tasks": "letters", **sizes, **sections}
    whole = train(RunConfig(**base, run_dir=tmp_path / "whole"))
    stopped = RunFolder(tmp_path / "stopped")
    stopped.create(whole.config)
    polls = iter([None, None, None, None])  # in the middle of the second seat

    def poll() -> None:
        if next(polls, "stop") == "stop":
            raise Interrupted("stopped by a test")

    parts = plan(whole.config), resolve("tiny"), stopped
    session = Session(*parts, reward=None, say=print, poll=poll)
    with contextlib.closing(session), pytest.raises(Interrupted, match="saved before step 1"):
        session.run()
    again = resume(stopped.path)
    for seat in "AB":
        one, other = (load_file(run.seats[seat] / "adapter_model.safetensors") for run in (whole, again))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert [row["step"] for row in again.metrics_rows()] == [0, 1]


def test_reference_names_cannot_clash_with_seats():
    assert "@" in reference_name("A")
