"""What a game draws from: passages, validation problems, tasks of its own; and what a dry run says of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError, TaskError, UnknownNameError
from lite_selfplay.games import GAMES, Game, find_game
from lite_selfplay.runs import defaults, planning
from lite_selfplay.runs.planning import Plan, plan
from lite_selfplay.tasks.split import content_key
from lite_selfplay.verify import programs
from lite_selfplay.verify.programs import SandboxError
from tests.made import jsonl

pytestmark = pytest.mark.usefixtures("reading_game")


def planned(**values: Any) -> Plan:
    return plan(RunConfig(**{"game": "reader", "model": "tiny", "steps": 3, **values}))


def texts(problems: Iterable[Problem]) -> list[str]:
    return [problem.text for problem in problems]


@pytest.fixture
def three(tmp_path: Path) -> str:
    (tmp_path / "notes.txt").write_text("Something to know.")
    rows = [{"problem": f"{n} + {n}?", "answer": 2 * n} for n in (1, 2, 3)]
    return str(jsonl(tmp_path / "three.jsonl", *rows))


def test_a_plan_reads_its_game_and_its_options_once(monkeypatch: pytest.MonkeyPatch):
    made, whole = list[dict[str, Any]](), planning.make_game

    def noted(name: str, options: Any, **sizes: int) -> Game:
        made.append(sizes)
        return whole(name, options, **sizes)

    for module in (planning, defaults):
        monkeypatch.setattr(module, "make_game", noted)
    ready = planned(game="agon", tasks="letters", eval={"tasks": "letters"}, group_size=3)
    assert made == [{}]
    assert (ready.game.group_size, ready.game.problems_per_step) == (3, ready.config.run.problems_per_step)


def test_a_recipe_that_sets_switches_of_its_game_is_refused_and_not_half_obeyed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(find_game("agon"), "recipe", {"game": {"reward": "plain"}})
    with pytest.raises(ConfigError, match="recipe of DraftChallenge sets keys of game"):
        planned(game="agon", tasks="letters")


def test_a_dry_run_says_whom_a_cold_start_teaches():
    for cold_start, end in (({"enabled": True, "roles": ["coach"]}, ", as coach alone"), (True, "")):
        said = planned(game="cpmobius", tasks="stories", cold_start=cold_start).lines()
        (line,) = [line for line in said if line.startswith("cold start")]
        assert line.endswith(f"from worked solutions{end}")


def test_without_any_tasks_the_games_own_serve_for_everything():
    ready = planned()
    assert ready.config.tasks.train == "arithmetic"
    assert list(ready.sources) == ["passages", "validation"]
    assert len(ready.sources["validation"]) == 100
    assert ready.sources["passages"][0].text.startswith(ready.task.problems[0].text)


def test_tasks_of_the_user_come_before_the_games_own(three: str):
    ready = planned(tasks=three)
    assert ready.config.tasks.train == three
    assert texts(ready.sources["passages"]) == ["1 + 1?\n2", "2 + 2?\n4", "3 + 3?\n6"]
    assert texts(ready.sources["validation"]) == ["1 + 1?", "2 + 2?", "3 + 3?"]
    assert {"passages: three, 3", "validation: three, 3"} <= set(ready.lines())


def test_knowledge_and_validation_of_their_own(tmp_path: Path, three: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ready = planned(knowledge="notes.txt", validation="three.jsonl", tasks={"validation_limit": 2})
    assert ready.sources["passages"] == [Problem("notes-1", "Something to know.")]
    # By their whole paths, so that a resume finds them from elsewhere.
    assert ready.config.tasks.knowledge == str(tmp_path / "notes.txt")
    assert (ready.config.tasks.validation, ready.config.tasks.train) == (three, "arithmetic")
    said = ready.lines()
    assert {f"passages: {tmp_path / 'notes.txt'}, 1", f"validation: {three}, 2", "3 passages are read"} <= set(said)
    (line,) = [line for line in said if line.startswith("tasks: ")]
    assert line.startswith("tasks: arithmetic, not used: problems are written by a seat (the game's own; ")
    said = plan(RunConfig(game="grpo", model="tiny", tasks="letters")).lines()
    assert [line for line in said if line.startswith("tasks: letters, ")]
    assert not [line for line in said if line.startswith(("passages", "validation")) or "written by" in line]


@pytest.mark.parametrize(("rows", "held", "trained"), [(3, 1, 2), (30, 10, 20), (80, 26, 54), (150, 50, 100)])
@pytest.mark.parametrize("given", [{}, {"preset": "demo"}, {"eval_limit": 120}])
def test_two_thirds_of_a_small_file_are_trained_on(
    tmp_path: Path, rows: int, held: int, trained: int, given: dict[str, Any]
):
    lines = [{"problem": f"{n} + 1?", "answer": n + 1, "solution": f"{n + 1}"} for n in range(rows)]
    file = str(jsonl(tmp_path / "few.jsonl", *lines))
    values = {"game": "agon", "tasks": file, "eval": {"tasks": file}, **given}
    ready = plan(RunConfig(model="tiny", **values))
    assert (len(ready.held_out), len(ready.task.problems)) == (held, trained)
    (line,) = ready.chosen("evaluation")
    assert f"on {held} held-out problems of {file}" in line
    assert "at most a third of the file; the others are trained on" in line
    again = plan(RunConfig.of(ready.config.model_dump(mode="json")))  # as a resume plans
    assert again.held_out == ready.held_out


def test_other_problems_than_those_trained_on_are_all_held_out(tmp_path: Path):
    for name, count in (("train", 9), ("test", 6)):
        rows = [{"question": f"{name} {n}?", "answer": f"#### {n}"} for n in range(count)]
        jsonl(tmp_path / f"gsm8k_{name}.jsonl", *rows)
    ready = planned(game="grpo", tasks="gsm8k", eval={"tasks": "gsm8k"}, data_dir=str(tmp_path))
    assert (len(ready.held_out), len(ready.task.problems)) == (6, 9)


def test_held_out_problems_are_neither_read_nor_validated_on(tmp_path: Path, three: str):
    held_out = {"tasks": str(jsonl(tmp_path / "held_out.jsonl", {"problem": "2 + 2?", "answer": "4"}))}
    for ready in (planned(tasks=three, eval=held_out), planned(tasks=three, validation=three, eval=held_out)):
        assert texts(ready.sources["validation"]) == ["1 + 1?", "3 + 3?"]
        assert texts(ready.sources["passages"]) == ["1 + 1?\n2", "3 + 3?\n6"]
    with pytest.raises(ConfigError, match="every problem of three is held out"):
        planned(validation=three, eval={"tasks": three})


def test_procedural_validation_is_on_the_training_side():
    ready = planned(validation="letters", eval={"tasks": "letters", "limit": 5})
    held_out = set(map(content_key, ready.held_out))
    assert not held_out & set(map(content_key, ready.sources["validation"]))


def test_validation_needs_answers(tmp_path: Path):
    unanswered = str(jsonl(tmp_path / "open.jsonl", {"problem": "Why?"}))
    with pytest.raises(ConfigError, match="reader needs an answer to every problem; open-1 has none"):
        planned(validation=unanswered)
    assert texts(planned(knowledge=unanswered).sources["passages"]) == ["Why?"]  # which need none
    within = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"style": "rule", "ground_truth": "2"}}
    nested = str(jsonl(tmp_path / "nested.jsonl", within))
    with pytest.raises(ConfigError, match=r"nested-1 has none .*FILE:answer=reward_model\.ground_truth maps one"):
        planned(validation=nested)
    assert planned(validation=f"{nested}:answer=reward_model.ground_truth").sources["validation"][0].answer == "2"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"knowledge": "nowhere.txt"}, TaskError, "no passages at nowhere.txt"),
        ({"validation": "nowhere.jsonl"}, TaskError, "no task file at nowhere.jsonl"),
        ({"validation": "no-such-task"}, UnknownNameError, "unknown task 'no-such-task'"),
    ],
)
def test_what_is_not_there_is_named(three: str, values: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        planned(tasks=three, **values)


@pytest.mark.parametrize("game", ["pasodoble", "spice"])
def test_games_about_passages_are_refused_without_them(game: str):
    with pytest.raises(TaskError, match=r"no passages at nowhere\.txt"):
        plan(RunConfig(game=game, model="tiny", tasks="letters", knowledge="nowhere.txt"))


@pytest.mark.parametrize("game", ["absolute-zero", {"name": "sqlm", "topic": "code"}])
def test_games_that_run_programs_are_refused_without_a_sandbox(game: Any, monkeypatch: pytest.MonkeyPatch):
    def none(*, unsafe_code: bool) -> None:
        raise SandboxError(f"no sandbox here, unsafe {unsafe_code}")

    monkeypatch.setattr(programs, "shared_sandbox", none)
    with pytest.raises(SandboxError, match="no sandbox here, unsafe False"):
        plan(RunConfig(game=game, model="tiny"))


def test_a_reward_function_has_nothing_to_judge_where_labels_are_the_games_own():
    with pytest.raises(ConfigError, match="reader makes its own labels"):
        plan(RunConfig(game="reader", model="tiny"), own_checker=True)
    assert plan(RunConfig(game="grpo", model="tiny", tasks="letters"), own_checker=True)


def test_a_game_may_choose_its_sources_by_its_options(monkeypatch: pytest.MonkeyPatch):
    class Either(Game):
        roles = ("solver",)
        default_tasks = "letters"

        def __init__(self, options: Any = None, **sizes: int):
            super().__init__(options, **sizes)
            self.sources = ("problems", "validation")

    monkeypatch.setattr(GAMES, "known", {**GAMES.known})
    GAMES.add("either", Either)
    assert list(planned(game="either").sources) == ["problems", "validation"]


def test_a_game_of_matches_needs_no_tasks_and_has_a_rate_of_its_own():
    ready = plan(RunConfig(game="kuhn", model="tiny"))
    lines = ready.lines()
    assert "tasks: none are needed" in lines
    assert any(line.startswith("cold start: 40 steps of 16 examples a seat, from moves by rule") for line in lines)
    assert (ready.config.tasks.train, ready.config.seats["B"].lr) == (None, 3e-4)
    assert plan(RunConfig(game="grpo", model="tiny", tasks="letters")).config.seats["solver"].lr == 5e-3
