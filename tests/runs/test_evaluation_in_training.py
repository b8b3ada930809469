"""Evaluations of a run in training, cold start as a command, and runs that start from another's seats."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lite_selfplay import Run, RunConfig, cold_start, evaluate, resume, train
from lite_selfplay.config import preset_about, preset_layer, preset_names
from lite_selfplay.errors import ConfigError, Interrupted, RunFolderError
from lite_selfplay.evaluation import Exam
from lite_selfplay.evaluation.examiner import LiveExaminer
from lite_selfplay.extras.talk import speakers_of
from lite_selfplay.models.sources.tiny import build_tiny
from lite_selfplay.runs import loop
from lite_selfplay.runs.checkpoints import BEST
from lite_selfplay.runs.folder import state_of
from lite_selfplay.runs.planning import evaluation_steps, plan
from lite_selfplay.tasks import content_key
from tests.made import same_weights
from tests.made_runs import Ear, read_lines, seat_weights, write_lines
from tests.models.small import change

LETTERS = "letters:named=6"
SMALL: dict[str, Any] = {"game": "agon", "model": "tiny", "tasks": LETTERS, "precision": "fp32", "group_size": 4}
SMALL |= {"problems_per_step": 2, "steps": 2, "eval": {"tasks": LETTERS, "limit": 12, "every": 1}}
TAUGHT = {"tasks": "stories:max=5", "max_completion_tokens": 80, "eval": {"tasks": "stories:max=5", "limit": 4}}
TAUGHT |= {"cold_start": {"enabled": True, "steps": 1, "examples_per_step": 2}}


def config(folder: Path, **changes: Any) -> RunConfig:
    return RunConfig(**{**SMALL, "run_dir": folder, **changes})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(tmp_path_factory.mktemp("runs") / "agon"))


def test_a_run_is_measured_before_in_between_and_after(measured: Run):
    found = measured.evaluations()
    assert list(found) == [-1, 0, 1, 2]
    assert (found[-1]["mode"], list(found[-1]["seats"])) == ("single", ["base"])
    for result in list(found.values())[1:]:
        assert (result["mode"], result["n"], result["temperature"], result["top_p"]) == ("cascade", 12, 0.6, 0.95)
        assert (set(result["seats"]), set(result["directions"])) == ({"A", "B"}, {"A->B", "B->A"})
    assert "after 2 steps" in (measured.path / "README.md").read_text()
    assert measured.comparison().splitlines()[0] == "|  | untouched | before training | after 1 steps | after 2 steps |"
    assert "after 1 steps -> after 2 steps: A->B" in measured.comparison()


def test_what_was_answered_once_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A has nothing added to the base yet, and B a little: A's answers are the base's, in time as in number."""
    asked, ask = list[tuple[str, str, int]](), LiveExaminer._asked

    def counted(self: LiveExaminer, seat: str, prompts: Any, block: Any, stage: str) -> Any:
        asked.append((str(self.exam.about.get("moment", "timed")), seat, len(block)))
        return ask(self, seat, prompts, block, stage)

    monkeypatch.setattr(LiveExaminer, "_asked", counted)
    run = train(config(tmp_path / "run", steps=1, minutes=10, eval={"tasks": LETTERS, "limit": 30}))
    n = run.evaluations()[-1]["n"]
    untouched = [("timed", "A", 20), *([("untouched", "base", n - 20)] if n > 20 else [])]
    before = [*untouched, *(("before training", seat, n) for seat in "BBA")]  # B's drafts, and the challenges
    assert asked[: len(before)] == before
    found = run.evaluations()
    assert found[0]["seats"]["A"] == found[-1]["seats"]["base"]
    assert sorted(asked[len(before) :]) == sorted(("after 1 steps", seat, n) for seat in "AABB")


def test_measuring_changes_nothing_of_the_run(measured: Run, tmp_path: Path):
    plain = train(config(tmp_path / "plain", eval={}))
    assert not plain.evaluations()
    assert plain.comparison() == "No evaluation was made in training."
    assert [(run.path / "checkpoints" / BEST).exists() for run in (measured, plain)] == [True, False]
    assert [row["text"] for row in plain.episodes()] == [row["text"] for row in measured.episodes()]
    assert all(same_weights(seat_weights(plain.path, seat), seat_weights(measured.path, seat)) for seat in "AB")


def test_what_is_measured_is_never_trained_on(tmp_path: Path):
    rows = [{"problem": f"What is {a} + {b}?", "answer": a + b} for a in range(5) for b in range(5)]
    rows.append({"problem": "what is  0 + 0?", "answer": 0, "id": "the first one again"})
    file = write_lines(tmp_path / "sums.jsonl", rows)
    ready = plan(config(tmp_path / "x", tasks=str(file), eval={"tasks": str(file), "limit": 10}))
    held_out = {content_key(problem) for problem in ready.held_out}
    assert (len(ready.held_out), len(held_out)) == (8, 7)  # a third of them; both wordings of the first one are asked
    trained = {content_key(problem) for problem in ready.task.problems}
    assert not held_out & trained
    assert trained | held_out == {" ".join(r["problem"].lower().split()) for r in rows}
    assert len(plan(config(tmp_path / "x", tasks=str(file), eval={"tasks": str(file)})).held_out) == 8
    same = write_lines(tmp_path / "same.jsonl", [*rows, {"problem": "9 + 9?", "answer": 18}])
    with pytest.raises(ConfigError, match="every problem of sums is held out"):
        plan(config(tmp_path / "x", tasks=str(file), eval={"tasks": str(same)}))
    one, other = (plan(config(tmp_path / "x", seed=seed)).held_out for seed in (0, 1))
    assert [problem.text for problem in one] == [problem.text for problem in other]  # whatever the run


def test_what_is_measured_is_not_taught_by_a_top_up_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def worked(name: str, *numbers: int) -> str:
        rows = [{"problem": f"{n} and 3?", "answer": n + 3, "solution": f"{n} + 3 = {n + 3}."} for n in numbers]
        write_lines(tmp_path / name, rows)
        return name

    monkeypatch.chdir(tmp_path)
    section = {"enabled": True, "source": "auto", "tasks": "letters", "rounds": 1, "steps": 1, "examples_per_step": 4}
    taught = {**section, "top_up": worked("worked.jsonl", *range(8))}
    asked = {"tasks": worked("asked.jsonl", *range(6))}
    run = cold_start(config(tmp_path / "run", game="grpo", max_completion_tokens=80, cold_start=taught, eval=asked))
    assert run.config.cold_start.top_up == str(tmp_path / "worked.jsonl")  # so that it is found from anywhere
    examples = read_lines(run.path / "cold_start.jsonl")
    prompts = [row["prompt"] for row in examples if row["origin"] == "worked"]
    assert prompts
    assert all("6 and 3?" in prompt or "7 and 3?" in prompt for prompt in prompts)


@pytest.mark.parametrize(("steps", "every", "expected"), [(4, None, [0, 4]), (5, 2, [0, 2, 4, 5]), (3, 9, [0, 3])])
def test_when_a_run_is_measured(tmp_path: Path, steps: int, every: int | None, expected: list[int]):
    assert evaluation_steps(config(tmp_path / "x", steps=steps, eval={"tasks": LETTERS, "every": every})) == expected


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return cold_start(config(tmp_path_factory.mktemp("runs") / "taught", **TAUGHT))


def test_a_cold_start_teaches_and_stops(taught: Run):
    moments = [found["moment"] for found in taught.evaluations().values()]
    assert (taught.metrics_rows(), moments) == ([], ["untouched", "after cold start"])
    assert (taught.path / "checkpoints" / "step-0" / "manifest.json").is_file()
    assert (state_of(taught.path).stage, state_of(taught.path).resume) == ("cold start", None)
    examples = read_lines(taught.path / "cold_start.jsonl")
    assert {row["role"] for row in examples} == {"drafter", "challenger"}
    assert any(tensor.any() for name, tensor in seat_weights(taught.path, "A").items() if "lora_B" in name)


def test_a_run_starts_from_the_seats_of_another(taught: Run, tmp_path: Path):
    changes = {**TAUGHT, "eval": {}, "steps": 1, "init": str(taught.path)}
    run = train(config(tmp_path / "run", **changes))
    assert not run.config.cold_start.enabled  # they were taught there
    assert read_lines(run.path / "cold_start.jsonl") == read_lines(taught.path / "cold_start.jsonl")
    start = run.path / "checkpoints" / "step-0"
    assert all(same_weights(seat_weights(start, seat), seat_weights(taught.path, seat)) for seat in "AB")
    one = cold_start(config(tmp_path / "one", **{**TAUGHT, "eval": {}, "game": "grpo"}))
    both = train(config(tmp_path / "both", **{**changes, "init": str(one.path)}))
    start = both.path / "checkpoints" / "step-0"
    assert all(same_weights(seat_weights(start, seat), seat_weights(one.path, "solver")) for seat in "AB")


def test_seats_that_do_not_fit_are_refused(taught: Run, tmp_path: Path):
    with pytest.raises(RunFolderError, match="has no seat 'solver': it has A, B"):
        train(config(tmp_path / "grpo", game="grpo", init=str(taught.path), eval={}))
    for name, value in (("rank", 4), ("alpha", 1)):
        was = rf".*and seat 'A' has {name} {value}: set seats\.A\.{name}=\d+, with --set or"
        with pytest.raises(RunFolderError, match=rf"adapter_config\.json: (r|lora_alpha) is \d+, {was}"):
            train(config(tmp_path / name, seats={"*": {name: value}}, init=str(taught.path), eval={}))
    with pytest.raises(RunFolderError, match="not a run folder"):
        train(config(tmp_path / "none", init=str(tmp_path), eval={}))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="fresh seats"):
        cold_start(config(tmp_path / "twice", init=str(taught.path), eval={}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_starts_from_an_adapter_that_peft_wrote(tiny_path: Path, tmp_path: Path, dtype: str):
    base = AutoModelForCausalLM.from_pretrained(tiny_path)
    made = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj"]))
    for name, weight in made.named_parameters():
        weight.data = (torch.randn_like(weight) if "lora_B" in name else weight).to(getattr(torch, dtype))
    made.save_pretrained(tmp_path / "peft")
    brought: dict[str, Any] = {"init": str(tmp_path / "peft"), "eval": {}, "steps": 1}
    with pytest.raises(RunFolderError, match=r"lora_alpha is 12, and seat 'A' has alpha 32: set seats\.A\.alpha=12"):
        train(config(tmp_path / "alpha", seats={"*": {"rank": 4}}, **brought))
    said: list[str] = []
    run = train(config(tmp_path / "run", seats={"*": {"rank": 4, "alpha": 12}}, **brought), progress=said.append)
    start, weights = run.path / "checkpoints" / "step-0", load_file(tmp_path / "peft" / "adapter_model.safetensors")
    for seat in "AB":
        found = seat_weights(start, seat)
        assert all(torch.equal(found[name], weight.float()) for name, weight in weights.items())
        assert not any(found[name].any() for name in found.keys() - weights.keys() if "lora_B" in name)
    assert any("says that its base is" in line for line in said)
    half = {
        name: weight for name, weight in weights.items() if not name.endswith("layers.0.self_attn.q_proj.lora_B.weight")
    }
    save_file(half, tmp_path / "peft" / "adapter_model.safetensors")
    with pytest.raises(
        RunFolderError, match=r"the file has no .*layers\.0\.self_attn\.q_proj\.lora_B\.weight \(1 differ"
    ):
        train(config(tmp_path / "half", seats={"*": {"rank": 4, "alpha": 12}}, **brought))


def test_what_defines_a_seat_is_compared_with_its_files(tmp_path: Path, taught: Run):
    said: list[str] = []
    train(config(tmp_path / "run", precision="bf16", steps=1, init=str(taught.path), eval={}), progress=said.append)
    was = "was made with model.precision=fp32, this run has bf16: --set model.precision=fp32"
    assert sum(was in line for line in said) == 1
    evaluate(taught.path, LETTERS, limit=2, precision="bf16", write=False, progress=said.append)
    assert any("was made with model.precision=fp32, and its base is held in bf16" in line for line in said)
    other = shutil.copytree(taught.path, tmp_path / "other")
    file, text = other / "config.yaml", (other / "config.yaml").read_text()
    file.write_text(text.replace("alpha: 32", "alpha: 1"))
    with pytest.raises(RunFolderError, match=r"seat 'A' has alpha 1: set seats\.A\.alpha=32, .*config\.yaml"):
        evaluate(other, LETTERS, limit=2, write=False)
    with pytest.raises(RunFolderError, match=r"seats\.A\.alpha is 1, and was 32; .*which a run must keep"):
        resume(other)
    file.write_text(text)
    shutil.rmtree(other / "checkpoints")  # without which `adapters/` is read
    for seat in "AB":
        change(other / "adapters" / seat / "adapter_config.json", alpha_pattern={"q_proj": 64})
    with pytest.raises(RunFolderError, match=r"alpha_pattern is \{'q_proj': 64\}, which a seat cannot have: merge"):
        evaluate(other, LETTERS, limit=2, write=False)


def test_another_end_or_template_of_the_base_is_named_with_both_values(tmp_path: Path):
    build_tiny(tmp_path / "base")
    base = {"model": str(tmp_path / "base"), "eval": {}, "steps": 1}
    run = train(config(tmp_path / "run", **base))
    change(tmp_path / "base" / "generation_config.json", eos_token_id=[258, 10])
    words = r"generation_config\.json in its folder changed since \(eos_token_id is \[258, 10\] now, and was \[258\]\)"
    for again in (
        lambda: resume(run.path, steps=2),
        lambda: evaluate(run.path, LETTERS, limit=2, write=False),
        lambda: train(config(tmp_path / "more", init=str(run.path), **base)),
        lambda: speakers_of(str(run.path)).__enter__(),
    ):
        with pytest.raises(RunFolderError, match=words):
            again()


def test_a_run_stopped_while_it_is_measured_goes_on_as_if_it_had_not(measured: Run, tmp_path: Path, monkeypatch):
    """Each evaluation of the seats is stopped once: before training, in between and at the end."""
    whole, left = loop.measure, {0, 1, 2}

    def stop(table: Any, spec: Any, exam: Exam, **options: Any) -> Any:
        if (step := exam.about["step"]) in left:
            left.remove(step)
            raise Interrupted("stopped by SIGINT")
        return whole(table, spec, exam, **options)

    monkeypatch.setattr(loop, "measure", stop)
    with pytest.raises(Interrupted, match="saved before step 1"):
        train(config(tmp_path / "run"))
    for step in (2, 3):
        with pytest.raises(Interrupted, match=f"saved before step {step}"):
            resume(tmp_path / "run")
    run = resume(tmp_path / "run")
    assert [row["text"] for row in run.episodes()] == [row["text"] for row in measured.episodes()]
    assert all(same_weights(seat_weights(run.path, seat), seat_weights(measured.path, seat)) for seat in "AB")
    assert run.evaluations() == measured.evaluations()


def test_held_out_answers_are_judged_by_the_checker_whatever_the_reward(tmp_path: Path):
    run = train(config(tmp_path / "run", game="grpo", steps=1), reward=lambda completions: [1.0] * len(completions))
    assert run.metrics_rows()[0]["streams"]["solver"]["accuracy"] == 1.0
    assert all(found["pass_at_1"] < 1 for found in run.evaluations().values())


def test_presets_of_machines_are_of_any_game_and_say_what_they_are_for():
    assert all(map(preset_about, preset_names()))
    for name in ("consumer-24gb", "cpu", "datacenter-80gb", "demo", "t4"):
        layer = preset_layer(name)
        tasks = {"train": "letters", **layer.get("tasks", {})}
        assert plan(RunConfig.of(layer, {"game": "agon", "tasks": tasks})).config.run.group_size == 8
    assert RunConfig(preset="t4", game="agon", tasks="letters").model.compute_dtype == "fp16"
    demo = RunConfig(preset="demo", game="agon", steps=3)
    assert (demo.run.steps, demo.run.preset) == (3, "demo")
    assert "\npreset" not in demo.to_yaml()


def test_a_limit_of_an_evaluation_that_is_not_asked_for_is_said_to_do_nothing(tmp_path: Path):
    ear = Ear()
    train(config(tmp_path / "run", steps=1, eval={"limit": 3}), progress=ear)
    assert "eval.limit does nothing without problems to evaluate on: --eval-tasks T names them" in ear.warned
