import dataclasses
import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.config import ColdStartSection, SeatConfig
from lite_selfplay.data import Example, Problem
from lite_selfplay.errors import Interrupted, TrainingError
from lite_selfplay.games import make_game
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources.tiny import TEMPLATE, build_tiny, byte_tokenizer
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.tasks import Source, Task, load_task
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.training.cold_start import cold_start, playing_config, teaching_rate, within_limits
from lite_selfplay.training.examples import ExamplePool, PooledExample, gather
from lite_selfplay.training.losses import make_loss
from lite_selfplay.training.progress import Monitor
from lite_selfplay.training.rollout import LiveTable, Loaded
from lite_selfplay.training.trainer import SelfPlayTrainer
from lite_selfplay.verify import Verifier
from tests.made import same_weights
from tests.made_runs import Ear, loop_of, read_lines, seat_weights

SEATS = {"A": SeatConfig(rank=4), "B": SeatConfig(rank=4, init="gaussian")}
LETTERS = {"game": "agon", "model": "tiny", "tasks": "letters", "precision": "fp32"}


class Pupils:
    """Seats over the random model before a cold start, and the reported progress."""

    def __init__(self, backend: Any, path: Path):
        self.backend, self.chat, self.told = backend, Chat.load(path), Ear()
        self.before = self.weights()

    def weights(self) -> dict[str, torch.Tensor]:
        """Every parameter of the base and of all seats."""
        return {name: p.detach().clone() for name, p in self.backend.adapters.model.named_parameters()}

    def learn(self, game="agon", pool=None, *, options=None, tokens=1024, progress=None, poll=None, **keys):
        """A cold start by a new run's trainer, in microbatches of so many tokens."""
        played, section = make_game(game, options or {}), ColdStartSection(enabled=True, source="worked", **keys)
        roles, seats = ({name: {} for name in names} for names in (played.roles, self.backend.adapters.seats))
        sizes = {"steps": 1, "max_completion_tokens": 64, "microbatch_tokens": tokens}
        config = RunConfig(**{**LETTERS, "game": game}, roles=roles, seats=seats, run=sizes, cold_start=section)
        loss = make_loss(self.backend, config, self.chat.tokenizer, tempfile.mkdtemp())
        monitor = Monitor(progress or self.told, stop=poll or (lambda: None))
        trainer = SelfPlayTrainer(backend=self.backend, loss=loss, config=config, monitor=monitor)
        pool = pool or gather(played, config, load_task("stories"), ScriptedTable({}), Monitor())
        return cold_start(trainer, self.chat, played, pool, section, seed=0)

    def moved(self) -> set[str]:
        """The parameters that have changed, under the seats' names."""
        changed = {name for name, p in self.weights().items() if not torch.equal(self.before[name], p)}
        return {name.replace(".seat-0.", ".A.").replace(".seat-1.", ".B.") for name in changed}

    def at_rest(self) -> bool:
        """Whether no update is counted, no gradient remains, and the model is in its first state."""
        adapters = self.backend.adapters
        none = all(p.grad is None for p in adapters.model.parameters())
        return none and not adapters.model.training and not any(adapters.versions.values())


@pytest.fixture
def pupils(make_backend: Callable[..., Any], tiny_path: Path) -> Callable[..., Pupils]:
    return lambda seats=SEATS: Pupils(make_backend(seats=seats), tiny_path)


def numbers(line: str, start: str) -> tuple[float, ...]:
    """The tokens, the first and the last loss in a line."""
    found = re.fullmatch(rf"{start}, ([\d,]+) tokens in all: loss ([\d.]+) -> ([\d.]+)", line)
    assert found, line
    return tuple(float(text.replace(",", "")) for text in found.groups())


# Learning


class Watch(Ear):
    """Notes in each phase and at the end which parameters have changed since."""

    def __init__(self, made: Pupils):
        super().__init__()
        self.made, self.moved = made, list[set[str]]()

    def phase(self, name: str, total: int | None = None) -> None:
        super().phase(name, total)
        self.moved.append(self.made.moved())
        self.made.before = self.made.weights()


def test_one_seat_after_the_other_learns_the_examples_and_the_base_stays(pupils: Callable[..., Pupils]):
    made = pupils()
    told = Watch(made)
    made.learn(steps=12, examples_per_step=4, lr=1e-2, progress=told)
    assert told.phases == [("cold start of A", 12), ("cold start of B", 12)]
    assert [done for done, _ in told.notes] == [*range(1, 13)] * 2
    for seat, line in zip("AB", told.said, strict=True):
        tokens, first, last = numbers(line, f"cold start of {seat} as drafter and challenger, 48 examples")
        assert last < 0.8 * first
        assert 48 * 30 < tokens < 48 * 60
        assert (1, f"loss {first:.2f}") in told.notes
    nothing, by_a, by_b = (*told.moved, made.moved())
    assert not nothing
    for seat, names in (("A", by_a), ("B", by_b)):
        assert names
        assert all("lora_" in name and f".{seat}." in name for name in names)
    assert made.at_rest()


def test_the_first_loss_is_the_plain_negative_log_likelihood(pupils: Callable[..., Pupils]):
    made = pupils({"solver": SeatConfig(rank=4)})
    backend, chat = made.backend, made.chat
    pool = ExamplePool([PooledExample("solver", f"p{i}", "c" * i, "file") for i in (1, 5, 20)])
    made.learn("grpo", pool, steps=1, examples_per_step=3, lr=1e-9)
    total, count = 0.0, 0
    for example in pool.of("solver"):
        prompt, learned = chat.conversation(example.prompt, example.completion)
        assert learned[-1] == chat.eos_ids[0]
        with torch.no_grad(), backend.adapters.inference("solver"):
            ids = torch.tensor([prompt.ids + learned], device=backend.device)
            logits = backend.adapters.model(input_ids=ids).logits.cpu()
        log_p = logits[0, len(prompt.ids) - 1 : -1].log_softmax(-1)
        total -= log_p.gather(-1, torch.tensor(learned)[:, None]).sum().item()
        count += len(learned)
    assert count == 1 + 5 + 20 + 3
    tokens, loss, _ = numbers(made.told.said[0], "cold start of solver as solver, 3 examples")
    assert (tokens, loss) == (count, pytest.approx(total / count, abs=0.0051))  # it is printed with two decimals


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    seat = SeatConfig(lr=2.0)
    rates = [teaching_rate(seat, step, 8) for step in range(8)]
    assert rates == pytest.approx([1.0, 2.0, 1.7, 1.4, 1.1, 0.8, 0.5, 0.2])
    assert [teaching_rate(seat, step, 20) for step in (0, 4, 5, 19)] == pytest.approx([0.4, 2.0, 1.88, 0.2])
    assert [teaching_rate(seat, *of) for of in ((0, 1), (0, 2), (1, 2))] == pytest.approx([2.0, 2.0, 0.2])


@pytest.mark.parametrize("roles", [None, ("challenger",)])
def test_a_seat_without_examples_is_left_as_it_is(pupils: Callable[..., Pupils], roles: Any):
    """Without a warning if its roles are excluded."""
    made = pupils()
    pool = ExamplePool([PooledExample("challenger", "p", "c", "file")])
    made.learn("agon", pool, options={"rotate": False}, steps=1, examples_per_step=1, roles=roles)
    warned = [] if roles else ["there are no examples for A: it starts without a cold start"]
    assert made.told.warned == warned
    assert [line.partition(",")[0] for line in made.told.said] == ["cold start of B as challenger"]
    assert made.moved()
    assert all(".B." in name for name in made.moved())


def stopping(after: int) -> Callable[[], None]:
    """A poll that stops after so many calls."""
    polls = iter(range(after))

    def poll() -> None:
        if next(polls, None) is None:
            raise Interrupted("stopped by a test")

    return poll


def test_poll_stops_between_microbatches(pupils: Callable[..., Pupils]):
    made = pupils()
    with pytest.raises(Interrupted):
        made.learn(steps=2, examples_per_step=4, tokens=1, poll=stopping(after=3))
    assert not made.moved()  # the fourth example was not read
    assert made.at_rest()


def test_a_loss_that_is_not_finite_names_seat_and_step(pupils: Callable[..., Pupils]):
    made = pupils()

    class Break(Ear):
        def advance(self, done: int, note: str = "") -> None:
            if done == 2:
                next(iter(made.backend.adapters.parameters("A").values())).data.fill_(torch.nan)

    with pytest.raises(TrainingError, match=r"a weight of seat A is not finite at step 3 of the cold start of A"):
        made.learn(steps=4, examples_per_step=2, progress=Break())


def test_limits_count_the_end_of_sequence_token(tiny_path: Path):
    config = RunConfig(**LETTERS, roles={"drafter": {"max_completion_tokens": 4}, "challenger": {}})
    fits = within_limits(Chat.load(tiny_path), config, 10)
    longest = {"drafter": "abc", "challenger": "abcdefghi"}  # so many bytes, and the end-of-sequence token
    assert all(fits(role, Example("p", text)) for role, text in longest.items())
    assert not any(fits(role, Example("p", f"{text}j")) for role, text in longest.items())
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
    asked: list[str] = []

    class Table(LiveTable):
        def sample(self, seat: str, *arguments: Any) -> Any:
            asked.append(seat)
            # A random model has no format: its texts are replaced.
            texts = itertools.cycle(f"<answer>{letter}</answer>" for letter in "abc")
            said = super().sample(seat, *arguments)
            return [[dataclasses.replace(c, text=next(texts), stop="eos") for c in row] for row in said]

    with Verifier() as verifier:
        sources = {"problems": Source(task.problems, seed=0)}
        table = Table(Loaded(chat, backend, verifier), sources, playing_config(config), max_completion_tokens=8)
        pool = gather(game, config, task, table, Monitor(), fits=within_limits(chat, config, 100))
    assert set(asked) == {"base"}
    assert len(pool.of("drafter")) == 4  # two of each problem
    assert {example.origin for role in pool.roles for example in pool.of(role)} == {"self"}


def test_reasoning_is_taught_where_the_template_thinks(tmp_path: Path):
    build_tiny(tmp_path)
    byte_tokenizer(TEMPLATE.replace("assistant\n", "assistant\n<think>\n")).save_pretrained(tmp_path)
    chat, game, table = Chat.load(tmp_path), make_game("grpo", {}), ScriptedTable({}, thinks=True)
    section = {"source": "worked", "steps": 1, "examples_per_step": 1}
    config = RunConfig(**{**LETTERS, "game": "grpo"}, cold_start=section)
    (example,) = gather(game, config, load_task("stories"), table, Monitor()).of("solver")
    prompt, learned = chat.conversation(example.prompt, example.completion)
    whole = chat.decode(prompt.ids + learned)
    assert whole.count("<think>") == whole.count("</think>") == 1
    recap = whole.partition("</think>")[2].partition("<answer>")[0]
    assert "=" in recap


# Through a run

TAUGHT = {"enabled": True, "tasks": "stories", "examples_per_step": 2}


def test_a_run_starts_from_it_and_its_reference_is_the_seat_after_it(tmp_path: Path):
    config = RunConfig(
        **{**LETTERS, "game": "grpo"},
        run={"steps": 2, "group_size": 8, "problems_per_step": 2, "max_completion_tokens": 64, "save_every": 1},
        preflight=False,
        cold_start={**TAUGHT, "steps": 2},
        roles={"solver": {"beta": 0.1}},
        run_dir=tmp_path / "run",
    )
    said: list[str] = []
    done = train(config, progress=said.append)
    assert any(line.startswith("cold start of solver as solver") for line in said)
    assert "solver: 4 examples written by rule" in said
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
    sizes = {"steps": 1, "group_size": 2, "problems_per_step": 1, "max_completion_tokens": 64}
    base = {**LETTERS, **sizes, "cold_start": {**TAUGHT, "steps": 3}, "preflight": False}
    whole = train(RunConfig(**base, run_dir=tmp_path / "whole"))
    stopped = RunFolder(tmp_path / "stopped")
    stopped.create(whole.config)
    stop = stopping(after=4)  # in the middle of the second seat
    with loop_of(whole.config, stopped.path, stop=stop) as loop, pytest.raises(Interrupted, match="before step 1"):
        loop.run()
    again = resume(stopped.path)
    assert (again.path / "cold_start.jsonl").read_bytes() == (whole.path / "cold_start.jsonl").read_bytes()
    for seat in "AB":
        assert same_weights(seat_weights(again.path, seat), seat_weights(whole.path, seat))
    assert [row["step"] for row in again.metrics_rows()] == [1]
