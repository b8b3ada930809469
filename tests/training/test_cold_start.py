import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.config import ColdStartSection, RoleConfig, SeatConfig
from lite_selfplay.data import Example, Problem
from lite_selfplay.errors import Interrupted, TrainingError
from lite_selfplay.games import make_game
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.sources.tiny import build_tiny
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.tasks import Source, Task, load_task
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.training.cold_start import cold_start, lr_share, playing_config, within_limits
from lite_selfplay.training.examples import ExamplePool, PooledExample, gather
from lite_selfplay.training.guarded import LossScale
from lite_selfplay.training.loaded import Loaded
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import SelfPlayTrainer
from lite_selfplay.training.trl import make_loss
from lite_selfplay.verify import Verifier
from tests.made_runs import Ear, loop_of, read_lines, same, seat_weights
from tests.near import near

SEATS = {"A": SeatConfig(rank=4), "B": SeatConfig(rank=4, init="gaussian")}
LETTERS = {"game": "agon", "model": "tiny", "tasks": "letters", "precision": "fp32"}


def trainer(backend: Any, path: Path, game: str = "agon", *, microbatch_tokens: int = 1024, **parts: Any) -> Any:
    """The trainer of a run that is about to begin."""
    roles = dict.fromkeys(make_game(game, {}).roles, RoleConfig())
    sizes = {"steps": 1, "max_completion_tokens": 64, "microbatch_tokens": microbatch_tokens}
    config = RunConfig(
        **{**LETTERS, "game": game}, roles=roles, seats={seat: {} for seat in backend.adapters.seats}, run=sizes
    )
    loss = make_loss(backend, config, Chat.load(path).tokenizer, tempfile.mkdtemp())
    return SelfPlayTrainer(backend=backend, loss=loss, config=config, **parts)


def run(backend: Any, path: Path, game: str = "agon", pool: ExamplePool | None = None, **keys: Any) -> Any:
    played, chat = make_game(game, {}), Chat.load(path)
    parts, options = (
        {name: keys.pop(name) for name in names if name in keys}
        for names in (("progress", "poll", "microbatch_tokens"), ("seed", "steps_that_fit"))
    )
    section = ColdStartSection(enabled=True, source="worked", **keys)
    if pool is None:
        pool = gather(played, section, load_task("stories"), ScriptedTable({}), seed=0)
    return cold_start(trainer(backend, path, game, **parts), chat, played, pool, section, **{"seed": 0, **options})


def weights(backend: Any) -> dict[str, torch.Tensor]:
    """Every parameter of the base and of all seats."""
    return {name: p.detach().clone() for name, p in backend.adapters.model.named_parameters()}


# Learning


def test_both_seats_learn_the_examples_and_the_base_stays(make_backend: Callable[..., Any], tiny_path: Path):
    backend, told = make_backend(seats=SEATS), Ear()
    before = weights(backend)
    report = run(backend, tiny_path, steps=12, examples_per_step=4, lr=1e-2, progress=told)
    assert list(report) == ["A", "B"]
    assert told.phases == [("cold start of A", 12), ("cold start of B", 12)]
    assert [done for done, _ in told.notes] == [*range(1, 13)] * 2
    for seat, line in zip(report.values(), told.said, strict=True):
        assert seat.last_loss < 0.8 * seat.first_loss
        assert (seat.roles, seat.examples) == (("drafter", "challenger"), 48)
        assert 48 * 30 < seat.tokens < 48 * 60
        assert line.startswith(
            f"cold start of {seat.seat} as drafter and challenger, 48 examples of {seat.tokens:,} tokens"
        )
        assert line.endswith(f": loss {seat.first_loss:.2f} -> {seat.last_loss:.2f}")
    assert told.notes[0] == (1, f"loss {report['A'].first_loss:.2f}")
    after = weights(backend)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert backend.adapters.versions == {"A": 0, "B": 0}
    assert all(p.grad is None for p in backend.adapters.model.parameters())
    assert not backend.adapters.model.training  # as it was found


def test_a_cold_start_is_cut_short_for_all_seats_after_the_first_batch(
    make_backend: Callable[..., Any], tiny_path: Path
):
    asked: list[int] = []

    def two(seats: int) -> int:
        asked.append(seats)
        return 2

    backend, told = make_backend(seats=SEATS), Ear()
    before = weights(backend)
    report = run(backend, tiny_path, steps=9, examples_per_step=2, lr=1e-2, progress=told, steps_that_fit=two)
    assert asked == [2]  # once, for both seats
    assert told.phases == [("cold start of A", 9), ("cold start of A", 2), ("cold start of B", 2)]
    assert [done for done, _ in told.notes] == [1, 2, 1, 2]
    assert told.said[0] == "2 of 9 batches of the cold start fit into the minutes of the run"
    assert [(seat.roles, seat.examples) for seat in report.values()] == [(("drafter", "challenger"), 4)] * 2
    after = weights(backend)
    for seat in "AB":
        assert any(not torch.equal(before[name], after[name]) for name in before if f".{seat}." in name)


def test_only_the_seat_that_learns_moves(make_backend: Callable[..., Any], tiny_path: Path):
    backend = make_backend(seats=SEATS)
    start, seen = weights(backend), []

    class Watch(Ear):
        def phase(self, name: str, total: int | None = None) -> None:
            seen.append(weights(backend))

    run(backend, tiny_path, steps=2, examples_per_step=2, progress=Watch())
    seen.append(weights(backend))
    for (before, after), seat in zip(
        [(start, seen[0]), (seen[0], seen[1]), (seen[1], seen[2])], ["", "A", "B"], strict=True
    ):
        for name in before:
            if not seat or f".{seat}." not in name:
                assert torch.equal(before[name], after[name]), name
        assert not seat or any(not torch.equal(before[n], after[n]) for n in before if f".{seat}." in n)


def test_the_first_loss_is_the_plain_negative_log_likelihood(make_backend: Callable[..., Any], tiny_path: Path):
    backend, chat = make_backend(seats={"solver": SeatConfig(rank=4)}), Chat.load(tiny_path)
    pool = ExamplePool([PooledExample("solver", f"p{i}", "c" * i, "file") for i in (1, 5, 20)])
    report = run(backend, tiny_path, "grpo", pool, steps=1, examples_per_step=3, lr=1e-9)
    total, count = 0.0, 0
    for example in pool.of("solver"):
        row = chat.conversation(example.prompt, example.completion)
        assert row.completion_ids[-1] == chat.eos_ids[0]
        with torch.no_grad(), backend.adapters.speaking("solver"):
            ids = torch.tensor([row.prompt_ids + row.completion_ids], device=backend.device)
            logits = backend.adapters.model(input_ids=ids).logits.cpu()
        log_p = logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
        total -= log_p.gather(-1, torch.tensor(row.completion_ids)[:, None]).sum().item()
        count += len(row.completion_ids)
    assert count == 1 + 5 + 20 + 3
    assert report["solver"].first_loss == pytest.approx(total / count, abs=1e-5)
    assert report["solver"].tokens == count


def gradient(make_backend: Callable[..., Any], path: Path, monkeypatch: Any, budget: int) -> dict[str, torch.Tensor]:
    """The gradient that the first step hands to the optimizer, before it is clipped."""
    found: dict[str, torch.Tensor] = {}
    backend = make_backend(seats={"solver": SeatConfig(rank=4, init="gaussian", init_std=0.1)})
    parameters = backend.adapters.parameters("solver")

    def clip(given: Any, bound: float, norm: torch.Tensor) -> None:
        assert bound == 1.0
        assert {id(p) for p in given} == {id(p) for p in parameters.values()}
        found.update({name: p.grad.clone() for name, p in parameters.items()})

    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", clip)
    run(backend, path, "grpo", steps=1, examples_per_step=7, microbatch_tokens=budget)
    return found


def test_microbatches_add_up_to_the_gradient_of_the_batch(make_backend, tiny_path, monkeypatch):
    whole, parts, singles = (gradient(make_backend, tiny_path, monkeypatch, n) for n in (1_000_000, 1000, 1))
    assert max(g.abs().max() for g in whole.values()) > 1e-3
    for name, expected in whole.items():
        assert near(parts[name], expected)
        assert near(singles[name], expected)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    shares = [lr_share(step, 8) for step in range(8)]
    assert shares == pytest.approx([0.5, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1])
    assert [lr_share(step, 20) for step in (0, 4, 5, 19)] == pytest.approx([0.2, 1.0, 0.94, 0.1])
    assert [lr_share(0, 1), lr_share(0, 2), lr_share(1, 2)] == pytest.approx([1.0, 1.0, 0.1])


@pytest.mark.parametrize(
    ("roles", "warned"),
    [(None, ["there are no examples for A: it starts without a cold start"]), (("challenger",), [])],
)
def test_a_seat_without_examples_is_left_as_it_is(
    make_backend: Callable[..., Any], tiny_path: Path, roles: Any, warned: list[str]
):
    """Without a word where its roles are not named."""
    backend, told = make_backend(seats=SEATS), Ear()
    before = weights(backend)
    fixed = make_game("agon", {"rotate": False})
    section = ColdStartSection(source="worked", steps=1, examples_per_step=1, roles=roles)
    pool = ExamplePool([PooledExample("challenger", "p", "c", "file")])
    taught = trainer(backend, tiny_path, progress=told)
    report = cold_start(taught, Chat.load(tiny_path), fixed, pool, section, seed=0)
    assert (list(report), report["B"].roles, told.warned) == (["B"], ("challenger",), warned)
    moved = {name for name, p in weights(backend).items() if not torch.equal(before[name], p)}
    assert moved
    assert all(".B." in name for name in moved)


def test_a_loss_scale_changes_nothing(
    make_backend: Callable[..., Any], tiny_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ends = []
    for needed in (False, True):  # in float16 gradients are scaled up; in float32 that must leave no trace
        monkeypatch.setattr("lite_selfplay.training.guarded.LossScale", lambda _, on=needed: LossScale(on))
        backend = make_backend(seats={"solver": SeatConfig(rank=4)})
        run(backend, tiny_path, "grpo", steps=4, examples_per_step=2, lr=1e-2)
        ends.append(weights(backend))
    for name, expected in ends[0].items():
        torch.testing.assert_close(ends[1][name], expected, rtol=1e-4, atol=1e-5)


# Stopping


def test_poll_stops_between_microbatches(make_backend: Callable[..., Any], tiny_path: Path):
    backend = make_backend(seats=SEATS)
    before = weights(backend)
    polls = iter(range(3))

    def poll() -> None:
        if next(polls, None) is None:
            raise Interrupted("stopped by a test")

    with pytest.raises(Interrupted):
        run(backend, tiny_path, steps=2, examples_per_step=4, microbatch_tokens=1, poll=poll)
    after = weights(backend)
    assert all(torch.equal(before[name], after[name]) for name in before)  # the fourth example was not read
    assert backend.adapters.versions == {"A": 0, "B": 0}
    assert all(p.grad is None for p in backend.adapters.model.parameters())
    assert not backend.adapters.model.training


def test_a_loss_that_is_not_finite_names_seat_and_step(make_backend: Callable[..., Any], tiny_path: Path):
    backend = make_backend(seats=SEATS)

    class Break(Ear):
        def advance(self, done: int, note: str = "") -> None:
            if done == 2:
                next(iter(backend.adapters.parameters("A").values())).data.fill_(torch.nan)

    with pytest.raises(TrainingError, match=r"a weight of seat A is not finite at step 3 of the cold start of A"):
        run(backend, tiny_path, steps=4, examples_per_step=2, progress=Break())


def test_a_gradient_that_is_not_finite_moves_nothing(make_backend, tiny_path, monkeypatch):
    backend = make_backend(seats=SEATS)
    before = weights(backend)
    endless = torch.tensor(torch.inf, device=backend.device)
    monkeypatch.setattr("lite_selfplay.training.trainer.gradient_norm", lambda gradients: endless)
    with pytest.raises(TrainingError, match=r"\(seat A\) has the norm inf at step 1 of the cold start of A"):
        run(backend, tiny_path, steps=2, examples_per_step=2)
    assert all(torch.equal(before[name], p) for name, p in weights(backend).items())


# What a run hands in


def test_limits_count_the_end_of_sequence_token(tiny_path: Path):
    config = RunConfig(**LETTERS, roles={"drafter": {"max_completion_tokens": 4}, "challenger": {}})
    fits = within_limits(Chat.load(tiny_path), config, 10)
    assert fits("drafter", Example("p", "abc"))  # three bytes and the end
    assert not fits("drafter", Example("p", "abcd"))
    assert fits("challenger", Example("p", "abcdefghi"))
    assert not fits("challenger", Example("p", "abcdefghij"))
    assert not fits("drafter", Example("p" * 3000, "a"))


def test_the_base_plays_at_its_own_temperature_and_seed():
    config = RunConfig(**LETTERS, cold_start={"temperature": 0.7}, roles={"drafter": {"beta": 0.1}, "challenger": {}})
    playing = playing_config(config)
    assert {role.temperature for role in playing.roles.values()} == {0.7}
    assert playing.roles["drafter"].beta == 0.1
    assert playing.run.seed != config.run.seed
    assert config.roles["drafter"].temperature == 1.0


def test_the_live_base_plays_for_its_examples(make_backend: Callable[..., Any], tiny_path: Path):
    backend, chat, game = make_backend(seats=SEATS), Chat.load(tiny_path), make_game("agon", {}, problems_per_step=2)
    section = {"source": "self", "top_up": None, "rounds": 1, "steps": 1}
    config = RunConfig(**LETTERS, cold_start=section, roles={role: {} for role in game.roles})
    task = Task("letters", [Problem(f"l{i}", f"{i}: write one of abc", "abc", kind="letters") for i in range(2)])
    with Verifier() as verifier:
        asked: list[str] = []

        class Table(LiveTable):
            def speak(self, seat: str, prompts: Any, n: int, sampling: Any, seeds: Any, beginnings: Any = None) -> Any:
                asked.append(seat)
                # A random model keeps no format: its tokens are replaced, as if it did.
                said = super().speak(seat, prompts, n, sampling, seeds, beginnings)
                return [
                    [
                        dataclasses.replace(c, text=f"<answer>{'abc'[i % 3]}</answer>", stop="eos")
                        for i, c in enumerate(row)
                    ]
                    for row in said
                ]

        sources = {"problems": Source(task.problems, seed=0)}
        table = Table(Loaded(chat, backend, verifier), sources, playing_config(config), max_completion_tokens=8)
        pool = gather(game, config.cold_start, task, table, seed=0, fits=within_limits(chat, config, 100))
    assert set(asked) == {"base"}
    assert len(pool.of("drafter")) == 4  # two of each problem
    assert {example.origin for role in pool.roles for example in pool.of(role)} == {"self"}


@pytest.mark.parametrize("template", ["thinking", "opens_think"])
def test_reasoning_is_taught_where_the_template_thinks(tmp_path: Path, template: Any):
    build_tiny(tmp_path, template=template)
    chat, game, table = Chat.load(tmp_path), make_game("grpo", {}), ScriptedTable({}, thinks=True)
    section = ColdStartSection(source="worked", steps=1, examples_per_step=1)
    (example,) = gather(game, section, load_task("stories"), table, seed=0).of("solver")
    row = chat.conversation(example.prompt, example.completion)
    whole = chat.decode(row.prompt_ids + row.completion_ids)
    assert whole.count("<think>") == whole.count("</think>") == 1
    recap = whole.partition("</think>")[2].partition("<answer>")[0]
    assert "=" in recap


# Through a run


def test_a_run_starts_from_it_and_its_reference_is_the_seat_after_it(tmp_path: Path):
    config = RunConfig(
        **{**LETTERS, "game": "grpo"},
        steps=2,
        group_size=8,
        problems_per_step=2,
        max_completion_tokens=64,
        save_every=1,
        cold_start={"enabled": True, "tasks": "stories", "steps": 2, "examples_per_step": 2},
        roles={"solver": {"beta": 0.1}},
        run_dir=tmp_path / "run",
    )
    said: list[str] = []
    done = train(config, progress=said.append)
    assert any(line.startswith("cold start of solver as solver") for line in said)
    assert "solver: 4 written by rule" in said
    kept = read_lines(done.path / "cold_start.jsonl")
    assert [(row["role"], row["origin"]) for row in kept] == [("solver", "worked")] * 4
    assert (done.path / "checkpoints" / "step-0" / "manifest.json").is_file()
    # The KL term is 0 at the first step, whatever the cold start changed: the reference was taken after it.
    first, second = done.metrics_rows()
    assert first["streams"]["solver"]["kl"] == pytest.approx(0, abs=1e-6)
    assert second["streams"]["solver"]["kl"] > 0
    said.clear()
    resume(done.path, steps=3, progress=said.append)
    assert not any("cold start" in line for line in said)


def test_a_cold_start_that_was_stopped_begins_again(tmp_path: Path):
    sections = {"cold_start": {"enabled": True, "tasks": "stories", "steps": 3, "examples_per_step": 2}}
    sizes = {"steps": 2, "group_size": 2, "problems_per_step": 1, "max_completion_tokens": 64}
    base = {**LETTERS, **sizes, **sections}
    whole = train(RunConfig(**base, run_dir=tmp_path / "whole"))
    stopped = RunFolder(tmp_path / "stopped")
    stopped.create(whole.config)
    polls = iter([None, None, None, None])  # in the middle of the second seat

    def poll() -> None:
        if next(polls, "stop") == "stop":
            raise Interrupted("stopped by a test")

    with (
        loop_of(whole.config, stopped.path, poll=poll) as loop,
        pytest.raises(Interrupted, match="saved before step 1"),
    ):
        loop.run()
    again = resume(stopped.path)
    assert (again.path / "cold_start.jsonl").read_bytes() == (whole.path / "cold_start.jsonl").read_bytes()
    for seat in "AB":
        assert same(seat_weights(again.path, seat), seat_weights(whole.path, seat))
    assert [row["step"] for row in again.metrics_rows()] == [1, 2]


def test_tasks_without_solutions_are_distilled_and_topped_up(tmp_path: Path):
    sizes = {"steps": 1, "group_size": 2, "problems_per_step": 1, "max_completion_tokens": 64}
    section = {"enabled": True, "steps": 2, "examples_per_step": 3, "rounds": 1}
    said: list[str] = []
    train(RunConfig(**LETTERS, **sizes, cold_start=section, run_dir=tmp_path / "run"), progress=said.append)
    # A random model keeps no format. Two seats read three examples of each role, where the base's own would be read
    # three times: two are enough.
    assert "drafter: 0 of 2 samples of the base were right and well-formed; 2 written by rule" in said
    assert "challenger: 0 of 2 samples of the base were right and well-formed; 2 written by rule" in said
