"""The live table beyond asking: beginnings of replies, other seats, examples, a game's folder; games that end."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Episode, Example, Group, Problem, Sample, Sampling, Snapshot, Stream
from lite_selfplay.errors import ConfigError, GameError
from lite_selfplay.games import GAMES, Game
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.runs.api import resume
from lite_selfplay.runs.checkpoints import find_checkpoints
from lite_selfplay.training.rollout import LiveTable, Loaded
from lite_selfplay.verify import Verifier
from tests.near import near


@pytest.fixture
def table(make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path) -> LiveTable:
    given = {"roles": {"drafter": {"temperature": 0.8}}, "run": {"max_prompt_tokens": 80}}
    loaded, config = (
        Loaded(Chat.load(tiny_path), make_backend(), Verifier()),
        RunConfig(game="agon", model="tiny", **given),
    )
    found = LiveTable(loaded, {}, config, max_completion_tokens=6, folder=tmp_path / "own")
    found.open(0, {"drafter": "A"})
    return found


def test_a_reply_continues_from_its_beginning(table: LiveTable):
    (plain,), (begun,) = table.ask("drafter", ["2 + 2?", "2 + 2?"], beginnings=["", "First, 2.\n\n"])
    added = table.tokenize("First, 2.\n\n")
    assert list(begun.prompt_ids) == [*plain.prompt_ids, *added]
    assert (plain.prefill, begun.prefill) == ("", "First, 2.\n\n")
    (read,) = table.verify([(begun, Problem("p", "2 + 2?", "4"))])
    assert read.answer is None
    boxed = table.ask("drafter", ["2 + 2?"], beginnings=["It is \\boxed{4}.\n\n"])[0][0]
    (read,) = table.verify([(boxed, Problem("p", "2 + 2?", "4"))])
    assert read.correct  # the whole turn is read
    prompts, beginnings = ["x" * 100, "2 + 2?", "2 + 2?"], ["", "x" * 100, ""]
    *long, short = (said for (said,) in table.ask("drafter", prompts, beginnings=beginnings))
    assert [(said.stop, said.token_ids) for said in long] == [("prompt_too_long", ())] * 2
    assert short.token_ids
    with pytest.raises(ValueError, match="zip"):
        table.ask("drafter", ["a", "b"], beginnings=["x"])


def test_another_seat_or_a_snapshot_samples_and_scores(table: LiveTable):
    adapters = table._loaded.backend.adapters
    adapters.snapshot("A", "A@before")
    for parameter in adapters.parameters("A").values():
        parameter.data.add_(0.05)
    now, was, b = (table.ask("drafter", ["2 + 2?"], n=2, seat=seat)[0] for seat in (None, "A@before", "B"))
    assert [row[0].seat for row in (now, was, b)] == ["A", "A@before", "B"]
    assert was[0].weights_version == -1
    (own,) = table.score("drafter", [was[0]], seat="A@before")
    (other,) = table.score("drafter", [was[0]])
    assert near(own.logprobs, was[0].logprobs)
    assert other.logprobs != pytest.approx(was[0].logprobs, abs=1e-3)


def test_a_completion_is_scored_after_another_prompt(table: LiveTable):
    """Each token has the probability that it has after that prompt, and a prompt over the limit has no scores."""
    (one, two) = (said for (said,) in table.ask("drafter", ["2 + 2?", "3 + 3?"]))
    long = "x" * 100
    found = table.score("drafter", [one, two, one], seat="base", after=["It is 4. 2 + 2?", long, "2 + 2?"])
    backend, encode = table._loaded.backend, table._loaded.chat.encode
    rows = [(encode(prompt).ids, one.token_ids) for prompt in ("It is 4. 2 + 2?", "2 + 2?")]
    other, own = backend.score("base", rows, 0.8)
    assert near(found[0].logprobs, other.logprobs)
    assert (found[1].logprobs, found[1].entropies) == ((), ())
    assert near(found[2].logprobs, own.logprobs)
    assert near(found[2].logprobs, table.score("drafter", [one], seat="base")[0].logprobs)
    assert found[0].logprobs != pytest.approx(found[2].logprobs, abs=1e-3)


def test_an_example_is_a_completion_nobody_sampled(table: LiveTable):
    said = table.completed(Example("2 + 2?", "It is 4."))
    (asked,) = table.ask("drafter", ["2 + 2?"])[0]
    assert said.prompt_ids == asked.prompt_ids
    assert table.detokenize(said.token_ids) == "It is 4."
    assert (said.logprobs, said.weights_version, said.stop) == ((), -1, "eos")


def test_a_games_folder(table: LiveTable, tmp_path: Path):
    assert table.folder == tmp_path / "own"
    assert table.folder.is_dir()
    table._folder = None
    with pytest.raises(GameError, match="this table has no run"):
        _ = table.folder


class Ending(Game):
    """Ends after four steps; two of them train nothing, and after two it asks to be saved."""

    roles = ("player",)
    open_ended = True
    default_tasks = "letters"
    done = 0

    def over(self) -> bool:
        return self.done == 4

    @classmethod
    def trains(cls, log: Mapping[str, Any]) -> bool:
        return not log["plays"]

    def play(self, step: int, table: Any) -> Episode:
        self.done += 1
        (table.folder / f"step-{step}").write_text("here")
        if step % 2 == 0:
            return Episode(actions=[Snapshot("player", f"player@{step}")], log={"plays": True}, save=True)
        (row,) = table.ask("player", ["Say something."], n=4, sampling=Sampling(max_tokens=6))
        samples = [Sample(said, float(i)) for i, said in enumerate(row)]
        return Episode([Stream("player", [Group(samples)])], log={"plays": False}, measure=step == 1)

    def state(self) -> dict[str, Any]:
        return {"done": self.done}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., RunConfig]:
    """A run of that game: `config(steps=2)`."""
    monkeypatch.setitem(GAMES.known, "ending", lambda: Ending)
    small = {"model": "tiny", "precision": "fp32", "max_completion_tokens": 8, "run_dir": str(tmp_path / "run")}
    return lambda **more: RunConfig(game="ending", **small, **more)


def test_a_game_that_ends_by_itself(config: Callable[..., RunConfig]):
    lines: list[str] = []
    run = train(config(eval_tasks="letters", eval_limit=2), progress=lines.append)
    rows = run.metrics_rows()
    assert [row.get("over") for row in rows] == [None, None, None, True]
    assert rows[-1]["skipped_steps"] == 0  # a step that only plays does not count as skipped
    assert [line.split(" | ")[0] for line in lines if line.startswith("step ")] == [f"step {n}" for n in range(1, 5)]
    assert not any("no signal" in line or "left" in line for line in lines if line.startswith("step "))
    # It asked for a checkpoint after steps 1 and 3, and was evaluated after step 2; step 4 is the last.
    assert [checkpoint.step for checkpoint in find_checkpoints(run.path / "checkpoints")][-3:] == [2, 3, 4]
    assert "step-000002.json" in {path.name for path in (run.path / "eval").iterdir()}
    assert sorted(path.name for path in (run.path / "collections").iterdir()) == [f"step-{n}" for n in range(4)]
    assert "after 4 steps" in (run.path / "README.md").read_text()
    assert len(resume(run.path).metrics_rows()) == 4  # no step remains


def test_fewer_steps_than_the_game_has_but_no_minutes(config: Callable[..., RunConfig]):
    run = train(config(steps=2))
    assert len(run.metrics_rows()) == 2
    assert len(resume(run.path, steps=50).metrics_rows()) == 4
    with pytest.raises(ConfigError, match="ends by itself"):
        train(config(minutes=5))
