"""Whole runs of the random model, from a configuration to a folder."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lite_selfplay import Run, RunConfig, load_run, resume, train
from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError, RewardError, RunFolderError, UnknownNameError
from lite_selfplay.games import Game, find_game
from lite_selfplay.models.sources import resolve
from lite_selfplay.runs.build import free_folder
from lite_selfplay.training.rollout import LiveTable
from tests.made import same_weights
from tests.made_runs import Ear, loop_of, seat_weights

SMALL = {"game": "agon", "model": "tiny", "tasks": "letters", "group_size": 4, "problems_per_step": 2, "steps": 4}


def config(folder: Path, **changes: Any) -> RunConfig:
    return RunConfig(**{**SMALL, "precision": "fp32", "save_every": 2, "run_dir": folder, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps in four bits, with checkpoints after two and after four."""
    return train(config(tmp_path_factory.mktemp("runs") / "agon", precision="4bit"))


def test_metrics_hold_a_line_a_step(trained: Run):
    rows = trained.metrics_rows()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert set(row["wall_s"]) >= {"generate", "verify", "update"}
        assert row["tokens"]["generated"] == sum(s["tokens_generated"] for s in row["streams"].values()) > 0
        drafter = row["streams"]["drafter"]
        assert (drafter["seat"], drafter["groups"], drafter["completions"]) == ("BA"[row["step"] % 2], 2, 8)
        assert 0 <= drafter["accuracy"] <= 1
        assert {"conversions", "regressions", "empty_summaries"} <= set(row["game"])
    assert trained.metrics().loc[0, "streams.drafter.seat"] == "A"


def test_episodes_hold_a_line_a_completion_and_name_the_draft(trained: Run):
    rows = trained.episodes()
    assert len(rows) == 4 * 2 * 8
    drafts = {(r["step"], r["group"], r["sample"]): r for r in rows if r["role"] == "drafter"}
    for row in (r for r in rows if r["role"] == "challenger"):
        draft = drafts[row["step"], row["group"], row["draft"]]
        assert (draft["problem_id"], draft["correct"]) == (row["problem_id"], row["draft_correct"])
        ladder = {(False, False): 0, (False, True): 0, (True, True): 2, (True, False): 3}
        assert row["reward"] == ladder[row["correct"], draft["correct"]] + 0.5 * row["well_formed"]


def test_a_run_shows_itself_in_a_notebook(trained: Run):
    page = trained.transcripts(1)
    assert (page._repr_markdown_(), page.count("\n## ")) == (page, 1)
    assert trained.game() is find_game("agon")
    pictures = trained.plot()
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert pictures._repr_html_().count("<img ") == len(pictures) >= 2


def test_a_run_of_a_game_that_cannot_be_had_warns_and_is_shown_without_it(trained: Run, tmp_path: Path):
    path = shutil.copytree(trained.path, tmp_path / "run")
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("name: agon", "name: nogame"))
    with pytest.warns(UserWarning, match="without its game's own figures and words: unknown game 'nogame'"):
        assert load_run(path).game() is Game


def test_both_seats_moved_and_their_adapters_load_in_plain_peft(trained: Run):
    with loop_of(trained.config, trained.path) as loop:
        start = {seat: loop.resources.loaded.adapters.state(seat) for seat in "AB"}
    plain = AutoModelForCausalLM.from_pretrained(resolve("tiny").path)
    ids = torch.arange(20, 40)[None]
    for seat in "AB":
        assert not same_weights(seat_weights(trained.path, seat), start[seat])
        base = AutoModelForCausalLM.from_pretrained(resolve("tiny").path)
        model = PeftModel.from_pretrained(base, trained.seats[seat])
        with torch.no_grad():
            assert not torch.allclose(model(ids).logits, plain(ids).logits)


def test_its_config_repeats_it_elsewhere_and_another_seed_gives_another_run(trained: Run, tmp_path: Path):
    assert str(trained.path) not in (trained.path / "config.yaml").read_text()
    assert load_run(trained.path).config == trained.config
    again = train(RunConfig.of(trained.config.model_dump(mode="json"), {"run": {"dir": str(tmp_path / "again")}}))
    assert all(same_weights(seat_weights(again.path, seat), seat_weights(trained.path, seat)) for seat in "AB")
    texts = [r["text"] for r in trained.episodes()]
    assert [r["text"] for r in again.episodes()] == texts
    other = [r["text"] for r in train(config(tmp_path / "other", precision="4bit", seed=1, steps=1)).episodes()]
    assert other != texts[: len(other)]


def timeless(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]


@pytest.mark.usefixtures("several_threads")
def test_a_resumed_run_ends_bit_equal_to_the_uninterrupted_one(tmp_path: Path):
    """With a reference snapshot; of every game: `tests/games/test_runs.py`."""
    whole = train(config(tmp_path / "whole", roles={"*": {"beta": 0.1}}))
    broken = tmp_path / "broken"
    shutil.copytree(whole.path, broken)
    shutil.rmtree(broken / "checkpoints" / "step-4")
    shutil.rmtree(broken / "adapters")
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "half')
    again = load_run(broken).resume()
    for seat in "AB":
        middle = seat_weights(whole.path / "checkpoints/step-2", seat)
        assert same_weights(seat_weights(again.path, seat), seat_weights(whole.path, seat))
        assert not same_weights(seat_weights(again.path, seat), middle)
    last = [run.path / "checkpoints/step-4" for run in (again, whole)]
    assert same_weights(*(load_file(path / "optimizer.safetensors") for path in last))
    assert (last[0] / "state.json").read_text() == (last[1] / "state.json").read_text()
    assert timeless(again.metrics_rows()) == timeless(whole.metrics_rows())
    assert again.episodes() == whole.episodes()


def test_resume_goes_on_to_more_steps_and_refuses_fewer(trained: Run, tmp_path: Path):
    path = shutil.copytree(trained.path, tmp_path / "run")
    more = resume(path, steps=5)
    assert [row["step"] for row in more.metrics_rows()] == [1, 2, 3, 4, 5]
    assert more.config.run.steps == 5
    with pytest.raises(RunFolderError, match="already at step 5"):
        resume(path, steps=4)
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(RunFolderError, match="no complete checkpoint"):
        resume(path)


# At the rate of the random model in so many steps, and at twice that in half of them.
@pytest.mark.parametrize(("steps", "lr"), [(12, 1e-2), pytest.param(24, 5e-3, marks=pytest.mark.long)])
def test_both_seats_learn_the_letters(tmp_path: Path, steps: int, lr: float):
    whole = {"game": "agon", "model": "tiny", "tasks": "letters", "precision": "fp32", "seats": {"*": {"lr": lr}}}
    run = train(RunConfig(**whole, steps=steps, run_dir=tmp_path / "run"))
    for seat in "AB":
        streams = [stream for row in run.metrics_rows() for stream in row["streams"].values()]
        right = [stream["accuracy"] for stream in streams if stream["seat"] == seat]
        assert sum(right[:3]) / 3 < 0.75
        assert sum(right[-5:]) / 5 > 0.85


def test_a_reward_function_takes_the_checkers_place_and_trains_the_one_seat_of_grpo(tmp_path: Path):
    seen: list[int] = []

    def odd(completions: list[str], answer: list[str]) -> list[float]:
        seen.append(len(answer))
        return [float(sum(map(ord, text)) % 2) for text in completions]

    def broken(completions: list[str]) -> list[float]:
        return [1.0]

    run = train(config(tmp_path / "run", game="grpo", steps=1), reward=odd)
    assert seen == [16]
    assert all(row["reward"] == 2.0 * (sum(map(ord, row["text"])) % 2) for row in run.episodes())
    assert set(run.seats) == {"solver"}
    assert any(tensor.any() for name, tensor in seat_weights(run.path, "solver").items() if "lora_B" in name)
    with pytest.raises(RewardError, match="broken returned 1 values for 16 completions"):
        train(config(tmp_path / "bad", game="grpo", steps=1), reward=broken)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LiveTable]:
    seats = {"*": {"init": "gaussian", "init_std": 0.1, "rank": 4, "alpha": 8}}
    with loop_of(config(tmp_path / "run", roles={"*": {"temperature": 0.7}}, seats=seats), tmp_path) as loop:
        loop.table.open(0, {"drafter": "A", "challenger": "B"})
        yield loop.table


def test_asking_twice_says_new_things_and_asking_again_the_same(table: LiveTable):
    first, second = (table.ask("drafter", ["Say something."], n=2) for _ in range(2))
    assert first != second
    table.open(0, {"drafter": "A", "challenger": "B"})
    assert table.ask("drafter", ["Say something."], n=2) == first
    table.open(1, {"drafter": "A", "challenger": "B"})
    assert table.ask("drafter", ["Say something."], n=2) != first


def test_measuring_has_the_same_seeds_at_every_step_one_an_answer(table: LiveTable, monkeypatch: pytest.MonkeyPatch):
    heard, sample = list[Any](), LiveTable.sample

    def listening(self: LiveTable, *arguments: Any) -> Any:
        heard.append(sample(self, *arguments))
        return heard[-1]

    monkeypatch.setattr(LiveTable, "sample", listening)
    problems = [Problem(f"p{i}", f"Write one of: {letters}", letters, kind="letters") for i, letters in enumerate("ax")]
    prompts = [problem.text for problem in problems]
    verdicts, said = list[Any](), list[Any]()
    for step, seat, n in ((0, "A", 3), (7, "A", 3), (7, "A", 1), (7, "B", 3)):
        table.open(step, {"drafter": seat})
        table.ask("drafter", ["Something else."])
        verdicts.append([verdict.correct for verdict in table.evaluate("drafter", prompts, problems, n)])
        said.append([[completion.text for completion in row] for row in heard[-1]])
        assert {completion.seat for row in heard[-1] for completion in row} == {seat}
    assert len(heard) == 8  # each measured in one call
    three, again, one, of_b = said
    assert all(len(set(row)) == 3 for row in three)
    assert three[0] != three[1]
    assert three == again != of_b
    assert one == [row[:1] for row in three]
    assert verdicts[0] == verdicts[1] == ["a" in text for text in three[0]] + ["x" in text for text in three[1]]
    assert verdicts[2] == [verdicts[0][0], verdicts[0][3]]
    with pytest.raises(UnknownNameError, match="unknown role 'challenger'"):
        table.evaluate("challenger", prompts, problems)
    with pytest.raises(ValueError, match="zip"):
        table.evaluate("drafter", prompts[:1], problems)


@pytest.mark.parametrize("most", [16, None])
def test_progress_shows_what_is_done_between_tokens(tmp_path: Path, most: int | None):
    ear: Any = Ear()
    ear.activity = ear.tokened.append
    settings = config(tmp_path / "run", run={} if most else {"generation_tokens": 1})  # one completion after the other
    with loop_of(settings, tmp_path, progress=ear) as loop:
        loop.table.open(0, {"drafter": "A", "challenger": "B"})
        said = loop.table.ask("drafter", ["Say something.", "And you?"], n=2)
        loop.table.verify([(said[0][0], Problem("p", "?", "1"))])
    first, *steps, last = ear.tokened
    assert (first, last) == ("A samples as drafter", "answers are checked")
    assert steps == [(done, most) for done in range(len(steps))]
    longest = max(len(completion.token_ids) for row in said for completion in row)
    assert len(steps) == longest if most else len(steps) > longest


def test_steps_without_any_signal_are_counted_and_said(tmp_path: Path):
    said: list[str] = []

    def indifferent(completions: list[str]) -> list[float]:
        return [1.0] * len(completions)

    run = train(config(tmp_path / "run", game="grpo", steps=4), reward=indifferent, progress=said.append)
    assert [row["skipped_steps"] for row in run.metrics_rows()] == [1, 2, 3, 4]
    assert sum("3 steps in a row" in line for line in said) == 1
    (stream,) = run.metrics_rows()[0]["streams"].values()
    assert (stream["rows_trained"], stream["sampler_gap"], stream["base_gap"]) == (0, None, None)
    assert all(row["seats"]["solver"]["updates"] == 0 for row in run.metrics_rows())
    assert not any(tensor.any() for name, tensor in seat_weights(run.path, "solver").items() if "lora_B" in name)


def test_problems_given_as_objects_become_a_file_of_the_run(tmp_path):
    """A resume, also of a folder that was moved, goes on with them."""
    notes = {"1 + 1?": "g.py:f", "2 + 1?": "n" * 5000}
    rows = [{"problem": problem, "answer": "2", "note": note} for problem, note in notes.items()]
    rows += [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in (3, 4)]
    small: dict[str, Any] = {"game": "grpo", "group_size": 2, "problems_per_step": 1, "steps": 1}
    said: list[str] = []
    made = train(config(tmp_path / "made", **small, tasks=rows, eval={"tasks": rows}), progress=said.append)
    assert not any('{"problem"' in line for line in said)
    assert [moment["n"] for moment in made.evaluations().values()] == [1] * 3
    path = shutil.move(made.path, tmp_path / "moved")
    run = resume(path, steps=2)
    places = [str(tmp_path / "moved" / name / "tasks.jsonl") for name in ("", "held_out")]
    assert [run.config.tasks.train, run.config.eval.tasks] == places
    assert [json.loads(line) for line in (path / "tasks.jsonl").read_text().splitlines()] == rows
    assert {row["problem_id"] for row in run.episodes()} < {"tasks-1", "tasks-2", "tasks-3", "tasks-4"}
    for result in (
        run.evaluate(rows, max_completion_tokens=4),
        run.evaluate([("7 + 7?", 14)], max_completion_tokens=4),
    ):
        assert (result.to_json()["tasks"], result.to_json()["n"]) == ("tasks", 1)


def test_two_runs_in_one_second_have_two_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig(game="grpo", model="tiny", tasks="letters")
    assert len({free_folder(config) for _ in range(5)}) == 5


def test_a_run_of_no_configuration_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"takes a RunConfig, not a dict: train\(RunConfig\(game="):
        train({"game": "agon", "model": "tiny"})  # type: ignore[arg-type]
