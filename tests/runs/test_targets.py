"""Evaluating the random model, and runs of it."""

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, errors, load_run, train
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError, TaskError, UnknownNameError
from lite_selfplay.evaluation import Settings
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.targets import find_task, texts_trained_on, trained_on, write_result
from lite_selfplay.tasks import content_key, evaluation_set, load_task
from tests.made_runs import Ear, write_lines

from .conftest import LONG, problem_file


@pytest.fixture(scope="session")
def agon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"group_size": 2, "problems_per_step": 1, "steps": 2, "precision": "fp32"}
    folder = tmp_path_factory.mktemp("runs") / "agon"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", run_dir=folder, **sizes)).path


@pytest.fixture
def copy(agon: Path, tmp_path: Path) -> Path:
    return shutil.copytree(agon, tmp_path / "agon")


def test_a_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ear = Ear()
    found = evaluate("tiny", "letters:named=6", limit=12, progress=ear)
    result = found.to_json()
    assert (result["mode"], result["tasks"], result["n"], result["best"]) == ("single", "letters:named=6", 12, "base")
    assert (result["temperature"], result["top_p"], result["max_completion_tokens"]) == (0.6, 0.95, 16)
    assert (result["model"], result["precision"], list(result["seats"])) == ("tiny", "4bit", ["base"])
    assert 0 <= result["ci95"][0] <= result["pass_at_1"] <= result["ci95"][1] <= 1
    assert 1 <= result["tokens_final_mean"] == result["tokens_total_mean"] <= 16
    held_out = evaluation_set(load_task("letters:named=6", held_out=True), 12)
    assert list(result["per_problem"]) == [problem.id for problem in held_out]
    assert ear.phases == [("evaluation of tiny on letters:named=6", 12)]
    assert ear.ticks == len(ear.tokened) >= 16
    assert ear.tokened == [(done, 16) for done in range(16)]
    ((name, told, line),) = ear.results
    assert (name, told) == ("tiny", result)
    assert re.search(r"; 12 problems; [\d.]+% of base's answers were cut off at 16 tokens$", line)
    assert list(tmp_path.iterdir()) == []


def test_another_seed_measures_anew_and_greedy_needs_none():
    def measured(**options: Any) -> Any:
        return evaluate("tiny", "letters:named=6", limit=6, precision="fp32", **options)

    cold, other = measured(temperature=0, samples=2), measured(temperature=0, seed=1)
    assert cold.to_json()["temperature"] == 0
    assert {float(row["base"]) for row in cold.per_problem.values()} <= {0.0, 1.0}
    assert cold.per_problem.keys() != other.per_problem.keys()


def test_a_run_is_measured_as_its_game_says_and_keeps_the_result(copy: Path):
    ear = Ear()
    found = load_run(copy).evaluate("letters:named=6", limit=6, progress=ear)
    result = found.to_json()
    assert (result["mode"], result["precision"], result["max_completion_tokens"]) == ("cascade", "fp32", 16)
    assert (list(result["seats"]), list(result["directions"])) == (["A", "B"], ["A->B", "B->A"])
    assert ear.phases == [(f"evaluation of {copy} on letters:named=6", 24)]
    path = copy / "eval" / "cascade-letters-named-6-6.json"
    assert json.loads(path.read_text()) == result
    assert ear.said[-1] == f"written: {path}"
    assert evaluate(copy, "letters:named=6", limit=6) == found
    assert {path.stem.removeprefix("cascade-letters-named-6-6") for path in path.parent.iterdir()} == {"", "-2"}
    alone = evaluate(copy, "letters:named=6", limit=6, mode="single", seats=["B", "base"], write=False)
    assert list(alone.seats) == ["B", "base"]
    assert alone.seats["B"] == found.seats["B"]
    # It is the newest whole checkpoint that speaks, not an older copy of it; without checkpoints the copy does.
    shutil.copytree(copy / "checkpoints/step-0/adapters", copy / "adapters", dirs_exist_ok=True)
    assert evaluate(copy, "letters:named=6", limit=6, mode="single", write=False).seats == found.seats
    shutil.copytree(copy / "checkpoints/step-2/adapters", copy / "adapters", dirs_exist_ok=True)
    shutil.rmtree(copy / "checkpoints")
    (copy / "adapters" / "A").rename(copy / "adapters" / "C")
    (copy / "adapters" / "B").rename(copy / "adapters" / "A")
    (copy / "adapters" / "C").rename(copy / "adapters" / "B")
    swapped = evaluate(copy, "letters:named=6", limit=6, mode="single", write=False)
    assert (swapped.seats["A"], swapped.seats["B"]) == (alone.seats["B"], found.seats["A"])
    assert alone.seats["B"] != found.seats["A"]


def test_a_run_without_an_adapter_or_over_another_base_is_refused(copy: Path):
    path = copy / "environment.json"
    base = json.loads(path.read_text())["base"]
    other = f"over another base than tiny is now: it is {base!r} now, and was 'hub:other/base@1'"
    for text, said in (
        ('{"base": "hub:other/base@1"}', other),
        ("{}", "does not say which base"),
        (None, "does not say which base"),
    ):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(RunFolderError, match=said):
            evaluate(copy, "letters")
    shutil.rmtree(copy / "checkpoints")
    (copy / "adapters" / "B" / "adapter_model.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"no adapter of seat 'B': its adapter_model.safetensors is missing"):
        evaluate(copy, "letters")
    assert not (copy / "eval").exists()


def test_what_was_trained_on_is_left_out_and_what_is_like_it_is_named(of_a_file: Path, tmp_path: Path):
    run = shutil.copytree(of_a_file, tmp_path / "run")
    text = "The library lends nine books to each of its two hundred readers in the month of May"
    write_lines(run / "cold_start.jsonl", [{"role": "solver", "prompt": f"{text}?", "completion": "many"}])
    asked = ("new?", "TWO?", f"{LONG}, and sells five. How many are left?", f"{text} and June.")
    ear = Ear()
    tasks = str(problem_file(tmp_path / "mixed.jsonl", *asked))
    result = evaluate(run, tasks, max_completion_tokens=4, write=False, progress=ear).to_json()
    assert (result["mode"], result["n"], result["best"]) == ("single", 3, "solver")
    assert ear.warned == [
        "1 of 4 problems of mixed were in training and are skipped: mixed-2",
        "mixed: 2 of 3 evaluation problems occur in the training data (0 with the same content, 2 with 13 words in a "
        "row in common): mixed-3, mixed-4",
    ]
    assert result["overlap"] == {"left_out": ["mixed-2"], "same": [], "shared": ["mixed-3", "mixed-4"]}
    assert list(result["per_problem"]) == ["mixed-1", "mixed-3", "mixed-4"]
    with pytest.raises(TaskError, match="was trained on every one of these problems of trained"):
        evaluate(of_a_file, str(of_a_file.parent / "trained.jsonl"))
    # Asked for, these are measured all the same, and say so.
    asked_for = {"trained_on": True, "max_completion_tokens": 4, "write": False, "progress": ear}
    result = evaluate(of_a_file, str(of_a_file.parent / "trained.jsonl"), **asked_for).to_json()
    assert result["overlap"]["trained_on"] == list(result["per_problem"]) == ["trained-1", "trained-2", "trained-3"]
    assert ear.warned[-1].endswith("was trained on every one of these problems of trained")


def test_problems_of_one_id_are_named_before_any_is_skipped(of_a_file: Path, tmp_path: Path):
    """Another run, which skips others, has the same names for the same problems."""
    rows = [{"id": "q", "problem": text, "answer": "1"} for text in ("two?", "new?", "newer?")]
    tasks = str(write_lines(tmp_path / "mixed.jsonl", rows))
    result = evaluate(of_a_file, tasks, max_completion_tokens=4, write=False, progress=Ear()).to_json()
    assert result["overlap"]["left_out"] == ["q"]
    assert list(result["per_problem"]) == ["q (2)", "q (3)"]


PLAYED = {"name": "pasodoble", "knowledge": "none"}


@pytest.mark.parametrize(
    ("changes", "learned"),
    [
        ({}, ["one?", "two?"]),
        ({"game": PLAYED}, []),  # which draws no problems
        ({"game": PLAYED, "cold_start": True}, ["one?", "two?"]),
        ({"game": {**PLAYED, "knowledge": "passages"}}, ["one?", "two?"]),
        ({"cold_start": {"enabled": True, "tasks": "HERE/taught.jsonl"}}, ["one?", "two?", "other?"]),
        ({"cold_start": {"enabled": True, "top_up": "HERE/taught.jsonl"}}, ["one?", "two?", "other?"]),
        ({"tasks": {"solutions": "HERE/taught.jsonl"}}, ["one?", "two?", "other?"]),
        ({"eval": {"tasks": "HERE/held_out.jsonl"}}, ["two?"]),
        ({"tasks": "letters", "run": {"init": "HERE/before"}}, ["one?", "two?"]),  # what is made by rule is apart
        ({"tasks": "HERE/gone.jsonl"}, None),
    ],
)
def test_what_a_run_learned_from(tmp_path: Path, changes: dict[str, Any], learned: list[str] | None):
    for name, texts in (("trained", ["one?", "two?"]), ("taught", ["other?"]), ("held_out", ["one?"])):
        problem_file(tmp_path / f"{name}.jsonl", *texts)
    before = {"game": "grpo", "model": "tiny", "tasks": f"{tmp_path}/trained.jsonl"}
    RunFolder(tmp_path / "before").create(RunConfig(**before))
    ear, given = Ear(), json.loads(json.dumps(changes).replace("HERE", str(tmp_path)))
    assert [problem.text for problem in trained_on(RunConfig.of(before, given), ear)] == (learned or [])
    gone = "these may include problems that the run was trained on: no task file at"
    assert [sentence.startswith(gone) for sentence in ear.warned] == ([True] if learned is None else [])


def test_the_texts_of_a_cold_start_and_passages_were_read_as_well(tmp_path: Path):
    (tmp_path / "passages.txt").write_text("Every triangle.")
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(game="grpo", model="tiny", tasks="letters", knowledge=str(tmp_path / "passages.txt")))
    write_lines(folder.path / "cold_start.jsonl", [{"role": "solver", "prompt": "1?", "completion": "one"}])
    assert list(texts_trained_on(folder, Ear())) == ["1?\none", "Every triangle."]


def test_a_benchmark_is_found_by_its_bare_name(tmp_path: Path):
    problem_file(tmp_path / "gsm8k_test.jsonl", "one?")
    problem_file(tmp_path / "letters.jsonl", "two?")
    for spec in ("gsm8k_test", "gsm8k_test.jsonl", str(tmp_path / "gsm8k_test.jsonl")):
        task, name = find_task(spec, tmp_path, 0)
        assert (name, task.problems[0].text) == ("gsm8k_test", "one?")
    assert find_task("letters", tmp_path, 0)[0].problems[0].text == "two?"
    assert find_task("stories", tmp_path, 0)[1] == "stories"
    held_out, trained = find_task("letters", None, 0)[0], load_task("letters")
    assert not set(map(content_key, held_out.problems[:20])) & set(map(content_key, trained.problems[:20]))
    with pytest.raises(UnknownNameError, match="unknown task 'gsm8k_tset'"):
        find_task("gsm8k_tset", tmp_path, 0)
    with pytest.raises(TaskError, match="no folder of data at"):
        find_task("letters", tmp_path / "none", 0)


def test_a_set_that_is_read_from_a_file_says_where_that_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    had = r"read from the file deltabench.jsonl, {}. Download it from https://github.com/\S+, put it into a folder"
    with pytest.raises(TaskError, match=had.format("and no folder of data is given")):
        load_task("deltabench")
    with pytest.raises(TaskError, match=had.format(f"which is not in {tmp_path}")):
        find_task("deltabench", tmp_path, 0)
    monkeypatch.setenv("LITE_SELFPLAY_DATA", str(tmp_path))
    with pytest.raises(TaskError, match=had.format(f"which is not in {tmp_path}")):
        find_task("deltabench", None, 0)
    problem_file(tmp_path / "deltabench.jsonl", "one?")
    assert find_task("deltabench", None, 0)[1] == "deltabench"


def test_results_are_never_overwritten(tmp_path: Path):
    result = {"mode": "single", "tasks": "reasoning-gym:chain_sum,max=3", "n": 5}
    paths = [write_result(RunFolder(tmp_path), result) for _ in range(3)]
    assert [path.stem.removeprefix("single-reasoning-gym-chain_sum-max-3-5") for path in paths] == ["", "-2", "-3"]
    assert set((tmp_path / "eval").iterdir()) == set(paths)
    with pytest.raises(ValueError, match="Out of range float"):
        write_result(RunFolder(tmp_path), {**result, "pass_at_1": float("nan")})


WRONG: dict[str, Any] = {"limit": 0, "samples": 0, "k": (0,), "shots": 6, "temperature": float("nan"), "top_p": 0.0}
WRONG |= {"max_completion_tokens": 0, "seed": 2**32, "precision": "3bit", "answer_from": "box"}


@pytest.mark.parametrize(
    ("target", "tasks", "options", "error", "sentence"),
    [
        ("tiny", "letters", {"mode": "votes"}, UnknownNameError, "There are single, cascade, "),
        ("tiny", "letters", {"mode": "vote", "samples": 1}, RequestError, "the mode vote needs at least 2 samples"),
        ("tiny", "letters", {"mode": "swap-seats"}, RequestError, "needs 2 seats, and there is only base"),
        ("tiny", "letters", {"k": (1, 4), "samples": 2}, RequestError, "each k must be from 1 to .* 2, got 1, 4"),
        ("tiny", "letters", {"seats": ["A"]}, UnknownNameError, "unknown seat 'A': known: base"),
        ("tinny", "letters", {}, UnknownNameError, "unknown model 'tinny': did you mean tiny"),
        ("./nowhere", "letters", {}, errors.ModelNotFoundError, "no model folder at nowhere"),
        ("tiny", "lettres", {}, UnknownNameError, "unknown task 'lettres'"),
        ("tiny", "none.jsonl", {}, TaskError, "no task file at none.jsonl"),
        ("tiny", "NO ANSWER", {}, TaskError, "needs an answer to every problem; sums-1 of sums has none"),
        ("RUN", "letters", {"seats": "C"}, UnknownNameError, "unknown seat 'C': known: A, B, base"),
        *(("tiny", "letters", {key: WRONG[key]}, ConfigError, f"^{key}.*should be .*, got ") for key in WRONG),
    ],
)
def test_wrong_requests(target: str, tasks: str, options: Any, error: Any, sentence: str, agon: Path, tmp_path: Path):
    given = {"NO ANSWER": problem_file(tmp_path / "sums.jsonl", "one?", answer=None), "RUN": agon}
    with pytest.raises(error, match=sentence):
        evaluate(given.get(target, target), str(given.get(tasks, tasks)), **options)


def test_every_setting_is_a_keyword_that_an_editor_completes_with_its_default():
    keywords = inspect.signature(evaluate).parameters
    for name, field in Settings.model_fields.items():
        assert (keywords[name].default or None) == (field.default or None)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in keywords.values())
    _, *own = inspect.signature(Run.evaluate).parameters.values()
    assert own == list(keywords.values())[1:]


def test_progress_may_be_a_function_of_lines():
    said = list[str]()
    evaluate("tiny", "letters:named=1,of=3", limit=50, precision="fp32", progress=said.append)
    assert "evaluation of tiny on letters:named=1,of=3" in "".join(said)
    assert "has only 1 different problems" in "".join(said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("elsewhere/ago", r"there is no run at elsewhere/ago\. The nearest run is elsewhere/agon$"),
        ("agoon", r"unknown model 'agoon': .*\. The nearest run is (elsewhere|runs)/agon$"),
        ("./runs/none/x", r"no model folder at .*\. The nearest run is "),
    ],
)
def test_a_path_that_is_not_there_is_a_run_and_no_model_of_a_hub(agon, tmp_path, monkeypatch, name, said):
    for place in ("runs", "elsewhere"):
        shutil.copytree(agon, tmp_path / place / "agon")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=said):
        evaluate(name, "letters")
    monkeypatch.chdir(tmp_path / "runs" / "agon")  # no runs here
    with pytest.raises(RequestError) as refused:
        evaluate("nobody/ago", "letters")
    assert "run" not in str(refused.value)
