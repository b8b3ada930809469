"""What a bare command chooses: problems, an evaluation, a size; and what a probe decides."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from lite_selfplay import RunConfig, load_run, resume, train
from lite_selfplay.errors import PreflightError
from lite_selfplay.games import game_names, make_game
from lite_selfplay.models.memory import CARDS, GIB, Card
from lite_selfplay.runs import defaults as choosing
from lite_selfplay.runs.defaults import after_probe, choices_of, layer_of, left_open, open_questions, shorter, size
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks import hub_data
from tests.made import jsonl
from tests.thinker import build_thinker

T4, RTX4090, H100, V100 = CARDS["t4"], CARDS["rtx4090"], CARDS["h100"], Card("V100", 32 * GIB, bf16=False)


@pytest.fixture(autouse=True)
def _no_answer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_data, "_answers", {})


def chosen(game: str = "agon", model: str = "Qwen3-0.6B", **values: Any) -> dict[str, Any]:
    """The keys that are chosen of a configuration, by their paths."""
    found = choices_of(RunConfig(game=game, model=model, **values), make_game(game, {}))
    return {key: value for choice in found for key, value in choice.values.items()}


def said(text: Any, *words: str) -> bool:
    return all(word in text for word in words)


# Problems


@pytest.mark.parametrize(
    ("model", "reachable", "preset", "tasks"),
    [
        ("tiny", True, None, "letters"),
        ("smollm2-135m", True, None, "arithmetic"),
        ("Qwen3-0.6B", True, None, "gsm8k"),
        ("Qwen3-0.6B", True, "agon-paper", "deepmath"),
        ("Qwen3-0.6B", False, None, "stories"),
        ("Qwen3-0.6B", False, "agon-paper", "stories"),
    ],
)
def test_problems_fit_the_base_and_are_public_where_they_can_be_had(monkeypatch, model, reachable, preset, tasks):
    monkeypatch.setattr(choosing, "missing", lambda name, folder: "" if reachable else "no hub")
    found = chosen(model=model, **({"preset": preset} if preset else {}))
    assert found["tasks.train"] == found["eval.tasks"] == tasks
    assert found.get("eval.limit") == (None if preset else 100)  # 300 in the preset


def test_a_presets_measured_problems_thinking_and_cold_start_are_the_papers():
    config = RunConfig(preset="agon-paper")
    assert open_questions(config, make_game("agon", {})) == {}
    assert (config.eval.limit, config.model.thinking, config.cold_start.enabled) == (300, "on", False)


def test_what_was_said_is_not_chosen_and_a_file_that_is_given_for_both_is_divided():
    found = chosen(tasks="stories")
    assert not {"tasks.train", "eval.tasks"} & found.keys()
    assert "eval.tasks" not in chosen(eval_tasks="none")
    assert "eval.limit" not in chosen(eval={"limit": 7})
    assert chosen("sqlm", "tiny")["tasks.train"] == make_game("sqlm", {}).default_tasks
    assert "eval.tasks" not in chosen("spc", "tiny")  # measured on solutions with labelled steps
    same = {"tasks": "mine.jsonl", "eval_tasks": "mine.jsonl"}
    mapped = dict.fromkeys(same, "mine.csv:problem=prompt,answer=result")
    assert [chosen(**both)["eval.limit"] for both in (same, mapped)] == [100, 100]
    for other in ({"eval_limit": 7}, {"eval_tasks": "other.jsonl"}, {"tasks": "letters", "eval_tasks": "letters"}):
        assert "eval.limit" not in chosen(**{**same, **other})


def test_a_base_that_is_known_never_to_have_the_format_is_taught_it():
    assert chosen(model="smollm2-135m")["cold_start.enabled"] is True
    assert chosen(model="smollm2-135m", cold_start={"lr": 1e-4})["cold_start.steps"] == 7
    for said in ({"cold_start": False}, {"tasks": "stories"}, {"model": "tiny"}):
        assert "cold_start.enabled" not in chosen(**{"model": "smollm2-135m", **said})


def test_data_in_a_folder_need_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for split in ("train", "test"):
        rows = [{"question": f"What is {n} + {len(split)}?", "answer": f"#### {n + len(split)}"} for n in range(9)]
        jsonl(tmp_path / f"gsm8k_{split}.jsonl", *rows)
    config = RunConfig(game="grpo", model="Qwen3-0.6B", data_dir=str(tmp_path))
    ready = plan(config)
    assert (ready.config.tasks.train, len(ready.task.problems), len(ready.held_out)) == ("gsm8k", 9, 9)
    (tmp_path / "gsm8k_train.jsonl").unlink()
    assert plan(config).config.tasks.train == "stories"


@pytest.mark.parametrize("how", ["silent", "nowhere"])
def test_without_network_it_is_said_in_seconds_with_retries_on(call, tmp_path: Path, monkeypatch, how: str):
    asked, within = list[float](), hub_data.within
    monkeypatch.setattr(hub_data, "within", lambda seconds, work: asked.append(seconds) or within(seconds, work))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if how == "silent" else 9
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        begun = time.process_time()
        ended = call("train", "agon", "--model", "Qwen3-0.6B")
        # The hub is waited for once, and the rest is work, which a busy machine does more slowly.
        assert sum(asked) + time.process_time() - begun < 10
        assert asked == [4.0]
        assert ended.code == 2
        assert said(ended.out, "tasks: stories, 20,000 problems", "instead of gsm8k: the hub could not be reached (")
        assert said(ended.err, "Qwen/Qwen3-0.6B is neither a local folder nor", "the hub could not be reached (")
        assert not (tmp_path / "runs").exists()
        if how == "nowhere":  # a benchmark that was asked for
            hub_data._answers.clear()
            begun = time.perf_counter()
            ended = call("train", "grpo", "--model", "tiny", "--tasks", "gsm8k", "--dry-run")
            assert time.perf_counter() - begun < 10
            assert said(ended.err, "cannot get openai/gsm8k@", "the hub could not be reached (")
    assert constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    ("model", "gpu", "preset"),
    [
        ("Qwen3-0.6B", None, "cpu"),
        ("Qwen3-0.6B", T4, "t4"),
        ("Qwen3-0.6B", V100, "t4"),  # it has no bf16
        ("Qwen3-1.7B", RTX4090, "consumer-24gb"),
        ("Qwen3-8B", RTX4090, "consumer-24gb"),  # with fewer rows side by side, in places of two lengths
        ("Qwen3-1.7B", H100, "datacenter-80gb"),
        ("smollm2-135m", T4, "cpu"),
    ],
)
def test_the_size_is_that_of_the_preset_that_fits(model: str, gpu: Any, preset: str):
    (choice,) = size(RunConfig(game="agon", model=model), make_game("agon", {}), gpu)
    assert choice.values["run.preset"] == preset
    assert not {"model.name", "model.compute_dtype"} & choice.values.keys()


def test_a_base_that_is_too_large_at_a_size_gets_the_next_smaller(tmp_path: Path):
    shape = {"hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 25600, "vocab_size": 151936}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}  # of 32 billion parameters
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **shape, **heads}))
    (choice,) = size(RunConfig(game="agon", model=str(tmp_path)), make_game("agon", {}), RTX4090)
    assert choice.values["run.preset"] == "t4"


def test_sizes_that_were_said_and_those_of_a_recipe_stay():
    said = RunConfig(game="cpmobius", model="Qwen3-0.6B", steps=3, precision="bf16")
    (choice,) = size(said, make_game("cpmobius", {}), T4)
    assert not {"run.steps", "run.group_size", "run.problems_per_step", "model.precision"} & choice.values.keys()
    assert choice.values["run.max_completion_tokens"] == 1024
    whole = RunConfig(game="agon", model="Qwen3-0.6B", steps=3, group_size=4, problems_per_step=2)
    assert size(whole, make_game("agon", {}), T4) == []
    assert size(RunConfig(game="agon", preset="demo"), make_game("agon", {}), T4) == []


# A probe of the base


def stream(truncated: float, well_formed: float, n: int = 40, loops: float = 0.0) -> dict[str, Any]:
    return {"completions": n, "judged": n, "truncated": truncated, "well_formed": well_formed, "loops": loops}


ALL = ("thinking", "the token limit", "a cold start")


@pytest.mark.parametrize(
    ("asked", "thinks", "limit", "stream", "expected"),
    [
        (ALL, True, 8192, stream(0.9, 0.0), {"model.thinking": "off"}),
        (ALL, False, 8192, stream(0.9, 0.0), {"run.max_completion_tokens": 2048}),
        (ALL[1:], True, 8192, stream(0.9, 0.0), {"run.max_completion_tokens": 2048}),
        (ALL, False, 2047, stream(0.9, 0.0), None),  # and no cold start, which would not mend it
        (ALL[2:], True, 8192, stream(0.9, 0.0), None),
        (ALL, True, 8192, stream(0.0, 0.0), {"cold_start.enabled": True}),
        (ALL, True, 8192, stream(0.0, 0.0, 8), None),  # of 8, up to 37% may have it
        (ALL[:2], True, 8192, stream(0.0, 0.0), None),
        (ALL, True, 8192, stream(0.0, 0.5), None),
        (ALL, True, 8192, stream(0.15, 0.9), None),  # of 40 answers 6: open, and fewer than a fifth
        (ALL, True, 8192, stream(0.25, 0.9, 16), {"model.thinking": "off"}),
        (ALL, False, 8192, stream(0.9, 0.5, loops=0.8), None),  # no limit cures a loop
        (ALL, False, 8192, stream(0.9, 0.5, loops=0.4), {"run.max_completion_tokens": 2048}),
        (ALL, False, 8192, stream(0.9, 0.0, loops=0.8), {"cold_start.enabled": True}),
        (ALL, True, 8192, stream(0.9, 0.5, loops=0.8), {"model.thinking": "off"}),
    ],
)
def test_what_a_probe_decides(asked: Any, thinks: bool, limit: int, stream: Any, expected: Any):
    choice = after_probe(asked, 1024, limit, thinks, {"solver": stream})
    assert (None if choice is None else dict(choice.values)) == expected


def test_one_role_that_never_has_the_format_is_enough():
    choice: Any = after_probe(ALL, 64, 512, False, {"coach": stream(0.0, 0.0), "player": stream(0.0, 1.0)})
    assert choice.why == "0 of 40 answers of the base had the format"


def test_a_probe_goes_on_until_it_is_decided():
    shaped, cut = "that the solver's answers have the format", "that the solver's answers are cut off"
    for seen, assumed in (
        (stream(0.0, 0.0, 8), ["that the solver's answers end", shaped]),
        (stream(0.2, 1.0), [cut]),
        (stream(0.15, 1.0), []),  # of forty
        (stream(0.0, 0.0, 36), []),
        (stream(0.0, 0.05), [shaped]),
        (stream(0.0, 0.18), []),  # as it seems of so many
        (stream(1.0, 0.0, 8), []),  # which is mended first
        ({**stream(0.0, 0.0), "judged": 0}, []),
    ):
        assert left_open({"solver": seen}) == assumed


def test_the_sizes_of_a_shorter_step():
    large = {"preset": "datacenter-80gb", "group_size": 8, "problems_per_step": 16, "max_completion_tokens": 4096}
    for run, length, times, flags in (
        (large, 322.0, 4.0, "--problems-per-step 4 or --max-completion-tokens 1024 or --preset consumer-24gb"),
        (large, 600.0, 4.0, "--problems-per-step 4 or --preset consumer-24gb"),  # answers need the tokens
        ({**large, "preset": "cpu", "problems_per_step": 4}, 3000.0, 2.0, "--problems-per-step 2"),
        ({**large, "preset": "t4", "problems_per_step": 1}, 3000.0, 2.0, "--problems-per-step 1 --group-size 4"),
    ):
        assert shorter(RunConfig(game="agon", model="tiny", run=run), length, times) == flags


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({}, ALL),
        ({"cold_start": False}, ALL[:2]),
        ({"max_completion_tokens": 100}, ("thinking", "a cold start")),
        ({"model": {"name": "Qwen3-0.6B", "thinking": "auto"}}, ALL[1:]),
        ({"preflight": False}, ()),
        ({"model": "tiny"}, ()),
        ({"model": "smollm2-135m"}, ()),  # whose needs are known
        ({"model": "smollm2-135m", "tasks": "stories"}, ALL[1:]),
        ({"model": "tiny", "preflight": True, "tasks": "letters"}, ALL[2:]),
        ({"rollouts": "http://a:1"}, ()),
        ({"init": "runs/taught"}, ()),
        ({"game": "spc"}, ALL[:2]),  # whose recipe teaches
    ],
)
def test_what_a_probe_is_asked(values: dict[str, Any], asked: Any):
    settings = RunConfig(**{"game": "agon", "model": "Qwen3-0.6B", **values})
    assert tuple(open_questions(settings, make_game(settings.game.name, {}))) == asked


LONG = [pytest.param(name, marks=pytest.mark.long) for name in game_names() if name not in ("agon", "sqlm")]


@pytest.mark.parametrize("game", ["agon", "sqlm", *LONG])
def test_the_bare_command_of_every_game_trains_a_step(call, monkeypatch: pytest.MonkeyPatch, game: str):
    monkeypatch.setattr(choosing, "DEFAULT_LIMIT", 4)  # problems of each evaluation
    short = {"kuhn": ("--set", "cold_start.steps=8"), "spc": ("--set", "cold_start.steps=1")}
    ended = call("train", game, "--model", "tiny", "--steps", 1, "--run-dir", "run", *short.get(game, ()))
    assert ended.code == 0, ended.err
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 1
    assert Path("run/episodes.jsonl").read_text()
    assert said(ended.out, "tasks: ", "--tasks T changes that") != make_game(game, {}).without_tasks


def test_everything_chosen_is_written_down_and_a_resume_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "DEFAULT_LIMIT", 4)
    run = train(RunConfig(game="grpo", model="tiny", steps=1, run_dir=tmp_path / "run"))
    config, game = run.config, make_game("grpo", {})
    assert (config.tasks.train, config.eval.tasks, config.run.preset) == ("letters", "letters", "cpu")
    assert config.cold_start.enabled is False
    assert list(run.evaluations()) == [-1, 0, 1]
    assert (choices_of(config, game), open_questions(config, game), layer_of({})) == ([], {}, {})
    monkeypatch.setattr(choosing, "TOYS", {})  # another hub, or another version, would choose other problems
    assert resume(run.path, steps=2).config.tasks.train == "letters"


def test_a_dry_run_of_the_bare_command_shows_all_of_it(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "missing", lambda name, folder: "no hub")
    ended = call("train", "agon", "--model", "Qwen3-0.6B", "--dry-run")
    assert ended.code == 0
    for line in (
        "tasks: stories, 20,000 problems, 4 a step (instead of gsm8k: no hub; --tasks T changes that)",
        "before the first step: a probe of the base decides on thinking, the token limit, a cold start (no setting ",
        "(sizes of the preset cpu, for runs on a CPU; --preset P changes that)",
        "evaluation: A and B (mode cascade) on 100 held-out problems of stories, 2 times 400 completions",
    ):
        assert line in ended.out


def test_a_base_that_never_has_the_format_is_taught_it_by_itself(tmp_path: Path):
    build_thinker(tmp_path / "base", answers=("one", "two"))
    lines, model = list[str](), {"name": str(tmp_path / "base"), "precision": "fp32", "thinking": "off"}
    sizes = {"group_size": 2, "problems_per_step": 1, "steps": 1, "max_completion_tokens": 60}
    config = RunConfig(game="grpo", model=model, tasks="stories", run_dir=tmp_path / "run", **sizes)
    config = RunConfig.of(config.chosen(), {"cold_start": {"steps": 1}})
    with contextlib.suppress(PreflightError):  # a step of examples does not teach it
        train(config, progress=lines.append)
    assert load_run(tmp_path / "run").config.cold_start.enabled is True
    found = next(line for line in lines if line.startswith("cold start: 1 steps of 16"))
    assert "0 of 36 answers of the base had the format; --no-cold-start changes that" in found
    assert lines.index("probe of the base") < lines.index("cold start of solver") < lines.index("pre-flight")
