"""The examples of a cold start: kept and dropped samples by hand, files and their errors, each seat's share."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig
from lite_selfplay.config import ColdStartSection
from lite_selfplay.data import Episode, Group, Problem, Sample, Stream
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.games import Game, make_game
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources.tiny import build_tiny
from lite_selfplay.tasks import Task
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.training.examples import (
    ExamplePool,
    PooledExample,
    RoleCounts,
    gather,
    read_examples,
    require_examples,
    source_of,
)
from lite_selfplay.training.progress import Monitor
from tests.made import jsonl
from tests.made_runs import Ear

SUMS = [Problem(f"p{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(1, 5)]
WORKED = [Problem(f"w{i}", f"{i} and 3?", str(i + 3), extra={"solution": f"{i} + 3 = {i + 3}."}) for i in range(1, 41)]
MOVE = Problem("m", "a match", "")
LETTERS = [Problem("l", "Write one of: ab", "ab", kind="letters")]


def section(**keys: Any) -> ColdStartSection:
    return ColdStartSection(**{"enabled": True, "source": "self", "top_up": None, **keys})


def task(problems: list[Problem]) -> Task:
    return Task("sums", problems)


def gathered(game: Game, script: Any, problems: list[Problem] = SUMS, given: Any = None, **keys: Any) -> ExamplePool:
    """The examples gathered with a scripted base; `given` is a progress, a seed or for `gather`, the keys are the
    section's."""
    with contextlib.closing(ScriptedTable(script, problems)) as table:
        chosen = dict(given or {})
        monitor, seed = Monitor(chosen.pop("progress", None)), chosen.pop("seed", 0)
        config = RunConfig(game="grpo", model="tiny", tasks="letters", seed=seed, cold_start=section(**keys))
        return gather(game, config, task(problems), table, monitor, **chosen)


def worked(problems: list[Problem], game: str = "grpo", given: Any = None, **keys: Any) -> ExamplePool:
    return gathered(make_game(game, {}), {}, problems, given, **{"source": "worked", **keys})


def single(group_size: int) -> Game:
    return make_game("grpo", {"budget": "single"}, group_size=group_size, problems_per_step=1)


def found(pool: ExamplePool, role: str) -> set[tuple[str, str]]:
    return {(example.prompt, example.completion) for example in pool.of(role)}


# Self-distillation


def test_what_is_right_well_formed_and_ended_is_kept():
    said = [
        "It is two. <answer>2</answer>",  # kept
        "<answer>3</answer>",  # wrong
        "It is \\boxed{2}",  # right, without the format
        "It is two. <answer>2</answer>",  # a duplicate
        "<answer>2</answer> and on",  # not well-formed
        "<answer>2.0</answer>",  # kept
        "So <answer>2</answer>",  # a third one of this problem
        "x" * 600 + "<answer>2</answer>",  # cut off
    ]
    game = single(8)
    pool = gathered(game, {"solver": said}, rounds=1)
    asked = replace(SUMS[0], extra={"solution": "1"})
    prompt = game.cold_start("solver", asked, None, thinks=False).prompt
    assert found(pool, "solver") == {(prompt, said[0]), (prompt, said[5])}
    assert pool.counts["solver"] == RoleCounts(sampled=8, right=4, own=2)
    assert pool.lines() == ["solver: 4 of 8 samples of the base were right and well-formed, 2 of them kept"]
    assert {example.origin for example in pool.of("solver")} == {"self"}


def test_a_challenger_learns_from_right_and_wrong_attempts():
    script = {
        "drafter": ["One and one are 2. <answer>2</answer>", "One and one, maybe 7. <answer>7</answer>"],
        "challenger": ["<answer>2</answer>", "I say <answer>2</answer>"],
    }
    pool = gathered(make_game("agon", {}, group_size=2, problems_per_step=1), script, SUMS[:1], rounds=1)
    assert [completion for _, completion in found(pool, "drafter")] == ["One and one are 2. <answer>2</answer>"]
    right, wrong = sorted((prompt for prompt, _ in found(pool, "challenger")), key=lambda text: "maybe 7." in text)
    assert "One and one are 2." in right
    assert "One and one, maybe 7." in wrong


def test_the_cap_of_a_problem_holds_over_the_rounds():
    pool = gathered(single(3), lambda role, prompt, index: f"{index}: <answer>2</answer>", SUMS[:1], rounds=4)
    assert {completion[:2] for _, completion in found(pool, "solver")} == {"0:", "1:"}
    assert pool.counts["solver"].sampled == 12


class Remembers(Game):
    """Counts its steps, and is interrupted in step `stopped_in`."""

    roles = ("solver", "judge")
    steps = 5
    stopped_in = 0

    def seats(self, step: int) -> Mapping[str, str]:
        return {"solver": "S", "judge": "base"}

    def trained_seats(self) -> tuple[str, ...]:
        return ("S",)

    def play(self, step: int, table: Any) -> Episode:
        self.steps += 1
        if self.steps == self.stopped_in:
            raise KeyboardInterrupt
        (problem,) = table.draw("problems", 1)
        streams = []
        for role in self.roles:
            ((said,),) = table.ask(role, [f"{role}, {problem.text}"])
            (verdict,) = table.verify([(said, problem)])
            assert said.seat == "base"
            samples = [Sample(said, 1.0, verdict), Sample(said, 0.0)]  # nobody judged the second one
            streams.append(Stream(role, [Group(samples)]))
        return Episode(streams)

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def test_the_base_plays_every_role_and_the_game_forgets_it():
    def right(role: str, prompt: str, index: int) -> str:
        return f"<answer>{int(prompt.split()[-1][:-1]) * 2}</answer>"

    game, told = Remembers(), Ear()
    # 8 readings, each own sample may be read three times: three examples are enough.
    pool = gathered(game, right, given={"progress": told}, steps=2, examples_per_step=4)
    assert game.steps == 5
    assert pool.roles == ("solver",)  # nobody learns the judge's role
    assert pool.counts == {"solver": RoleCounts(sampled=6, right=3, own=3)}
    assert told.phases == [("the base plays for examples", 8)]
    assert told.notes == [(1, "1 kept"), (2, "2 kept"), (3, "3 kept")]
    game.stopped_in = 7
    with pytest.raises(KeyboardInterrupt):
        gathered(game, right)
    assert game.steps == 5


def test_too_few_are_topped_up_by_worked_examples():
    said = {"solver": ["<answer>2</answer>", "no", "no", "no"]}
    pool = gathered(single(4), said, SUMS[:1], rounds=2, top_up="stories:max=10", steps=3, examples_per_step=10)
    assert pool.counts["solver"] == RoleCounts(sampled=8, right=2, own=1, worked=9)  # 10 of 30 readings
    assert pool.lines() == [
        "solver: 2 of 8 samples of the base were right and well-formed, 1 of them kept; 9 examples written by rule"
    ]
    assert sum("in the end?" in prompt for prompt, _ in found(pool, "solver")) == 9


def test_held_out_problems_do_not_top_up(tmp_path: Path):
    rows = [{"problem": p.text, "answer": p.answer, "solution": p.extra["solution"]} for p in WORKED[:6]]
    file = jsonl(tmp_path / "worked.jsonl", *rows)
    keys = {"top_up": str(file), "rounds": 1, "steps": 3, "examples_per_step": 10}
    given = {"held_out": WORKED[:4], "progress": Ear()}
    pool = gathered(single(4), {"solver": ["no"]}, given=given, source="auto", **keys)
    asked = "0 of the 10 requested examples are the base's own"
    assert given["progress"].warned == [f"cold start of solver: {asked}, 2 are written by rule instead"]
    assert pool.counts["solver"].worked == 2
    assert all("5 and 3?" in prompt or "6 and 3?" in prompt for prompt, _ in found(pool, "solver"))
    with pytest.raises(ConfigError, match=r"nothing to learn from as solver \(solver: 0 of 4 samples"):
        gathered(single(4), {"solver": ["no"]}, **keys)


# Worked examples


def test_each_seats_readings_are_worked_examples_of_their_own_by_the_seed():
    # Two seats, 16 readings each, in two roles.
    first, again, other = (worked(WORKED, "agon", {"seed": s}, steps=2, examples_per_step=8) for s in (0, 0, 1))
    assert [len(found(first, role)) for role in ("drafter", "challenger")] == [16, 16]
    assert first.lines() == ["drafter: 16 examples written by rule", "challenger: 16 examples written by rule"]
    assert [first.of(role) for role in first.roles] == [again.of(role) for role in again.roles]
    assert found(first, "drafter") != found(other, "drafter")
    # Few problems are used up, and not repeated.
    assert len(worked([*WORKED[:3], *SUMS], steps=5, examples_per_step=4).of("solver")) == 3


@pytest.mark.parametrize(("name", "problems", "plainly"), [("kuhn", [MOVE], True), ("grpo", WORKED[:3], False)])
def test_few_examples_are_worth_a_warning_unless_a_game_has_no_more(name: str, problems: list[Problem], plainly: bool):
    ear = Ear()
    worked(problems, name, {"progress": ear}, steps=10, examples_per_step=40)
    told, silent = (ear.said, ear.warned) if plainly else (ear.warned, ear.said)
    assert len(told) == len(make_game(name, {}).roles)
    assert all("requested examples; they are repeated" in sentence for sentence in told)
    assert silent == []


def test_examples_that_are_too_long_are_skipped_and_counted():
    def fits(role: str, example: Any) -> bool:
        return "=" in example.completion and " 1" not in example.completion

    pool = worked(WORKED[:10], given={"fits": fits})
    skipped = pool.counts["solver"].too_long
    assert len(pool.of("solver")) + skipped == 10
    assert skipped > 0
    assert f"; {skipped} skipped, longer than the run allows" in pool.lines()[0]
    with pytest.raises(ConfigError, match=r"every example .* is longer than the run allows: .*max_completion_tokens"):
        worked(WORKED[:10], given={"fits": lambda *_: False})


def test_only_the_roles_that_are_named_are_taught():
    pool = worked(WORKED, "cpmobius", roles=["coach"], steps=2, examples_per_step=8)
    assert (pool.roles, len(pool.of("coach")), set(pool.counts)) == (("coach",), 16, {"coach"})
    assert [len(walk(pool, seat, 16, "cpmobius")) for seat in ("coach", "player")] == [16, 0]
    # Both seats of Agon play both roles: all their 16 readings are of the one that is taught.
    pool = worked(WORKED, "agon", roles=["challenger"], steps=2, examples_per_step=8)
    assert (pool.roles, len(pool.of("challenger"))) == (("challenger",), 32)
    assert len(walk(pool, "B", 16)) == 16


def test_roles_to_teach_are_checked():
    with pytest.raises(UnknownNameError, match="unknown role 'coech': did you mean coach"):
        require_examples(section(source="worked", roles=["coech"]), task(WORKED), make_game("cpmobius", {}))
    with pytest.raises(ConfigError, match=r"cold_start\.roles"):
        RunConfig(game="cpmobius", model="tiny", cold_start={"enabled": True, "roles": []})

    class Deaf(Game):
        roles = ("coach", "player")

        def cold_start(self, role: str, problem: Problem, rng: Any, *, thinks: bool) -> Any:
            return make_game("cpmobius", {}).cold_start(role, problem, rng, thinks=thinks) if role == "coach" else None

    require_examples(section(source="worked", roles=["coach"]), task(WORKED), Deaf())
    with pytest.raises(ConfigError, match="has none for the roles it teaches"):
        require_examples(section(source="worked", roles=["player"]), task(WORKED), Deaf())
    auto = (section(source="auto", roles=[role]) for role in Deaf.roles)
    assert [source_of(keys, task(WORKED), Deaf()) for keys in auto] == ["worked", "self"]


# Files


def test_a_file_has_examples_for_every_role_or_for_one(tmp_path: Path):
    rows = [{"prompt": "p", "completion": "c"}, {"role": "drafter", "prompt": "q", "completion": "d", "note": 1}]
    path = jsonl(tmp_path / "own.jsonl", *rows)
    path.write_text(path.read_text().replace("\n", "\n\n"))  # empty lines are ignored
    pool = worked(SUMS, "agon", source=str(path))
    assert found(pool, "drafter") == {("p", "c"), ("q", "d")}
    assert found(pool, "challenger") == {("p", "c")}
    assert pool.lines() == ["drafter: 2 from the file", "challenger: 1 from the file"]


def test_messages_and_marks_of_a_template_are_read_as_such(tmp_path: Path):
    user, assistant = {"role": "user", "content": "p"}, {"role": "assistant", "content": "c"}
    rows = [{"messages": [user, assistant]}, {"prompt": [{**user, "content": "q"}], "completion": [assistant]}]
    path = jsonl(tmp_path / "own.jsonl", *rows, {"prompt": "<s>user\nr</s>\n<s>assistant\n", "completion": "c</s>"})
    build_tiny(tmp_path / "base")
    said, chat = Ear(), Chat.load(tmp_path / "base")
    pool = worked(SUMS, source=str(path), given={"plain": chat.plain, "progress": said})
    assert found(pool, "solver") == {("p", "c"), ("q", "c"), ("r", "c")}
    assert [line.partition(": ")[2][:22] for line in said.said] == ["1 of 3 examples have m"]
    with pytest.raises(ConfigError, match="line 1: 'prompt' must be a text that is not empty, or one message"):
        read_examples(jsonl(tmp_path / "two.jsonl", {"messages": [user, assistant, user, assistant]}), ("solver",))


def test_of_a_long_file_as_much_is_taken_as_will_be_read(tmp_path: Path):
    path = jsonl(tmp_path / "own.jsonl", *({"prompt": f"p{i}", "completion": "c"} for i in range(50)))
    pools = [worked(SUMS, given={"seed": s}, source=str(path), steps=3, examples_per_step=4) for s in (0, 1)]
    assert [len(found(pool, "solver")) for pool in pools] == [12, 12]
    assert found(pools[0], "solver") != found(pools[1], "solver")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{", "not JSON"),
        (b'{"prompt": "p"}', "'completion' must be a text that is not empty"),
        (b'{"prompt": " ", "completion": "c"}', "'prompt' must be a text that is not empty"),
        (b'{"prompt": "p", "completion": 3}', "'completion' must be a text"),
        (b'{"prompt": "p", "completion": "c", "role": "draftr"}', "unknown role 'draftr': did you mean drafter"),
        ('{"prompt": "é", "completion": "c"}'.encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: bytes, message: str):
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"prompt": "p", "completion": "c"}\n\n' + row)
    with pytest.raises(ConfigError) as error:
        read_examples(path, ("drafter", "challenger"))
    assert str(error.value).startswith(f"{path}, line 3: {message}")


def test_a_file_that_is_missing_empty_or_begins_with_a_mark(tmp_path: Path):
    with pytest.raises(ConfigError, match="no file of examples at"):
        read_examples(tmp_path / "none.jsonl", ("solver",))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no example"):
        read_examples(tmp_path / "empty.jsonl", ("solver",))
    (tmp_path / "bom.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "p\xe2\x80\xa8", "completion": "c"}\r\n')
    assert read_examples(tmp_path / "bom.jsonl", ("solver",)) == [PooledExample("solver", "p\u2028", "c", "file")]


def test_a_pool_is_saved_and_read_as_it_is_and_serves_as_a_file(tmp_path: Path):
    examples = [PooledExample("drafter", "é\n", "c", "self"), PooledExample("challenger", "q", "d", "worked")]
    path = tmp_path / "cold_start.jsonl"
    ExamplePool([PooledExample("drafter", "older", "c", "file")]).save(path)
    ExamplePool(examples).save(path)
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {"role": "drafter", "prompt": "é\n", "completion": "c", "origin": "self"}
    assert [file.name for file in tmp_path.iterdir()] == ["cold_start.jsonl"]
    pool = worked(SUMS, "agon", source=str(path))
    assert [e for role in pool.roles for e in pool.of(role)] == [replace(e, origin="file") for e in examples]


# Each seat's share


def pool_of(sizes: Mapping[str, int]) -> ExamplePool:
    return ExamplePool([PooledExample(role, f"{role} {i}", "c", "file") for role, n in sizes.items() for i in range(n)])


def walk(pool: ExamplePool, seat: str, total: int, game: str | Game = "agon", seed: int = 0) -> list[str]:
    played = make_game(game, {}) if isinstance(game, str) else game
    return [example.prompt for example in pool.walk(played, seat, total, seed=seed)]


def test_the_roles_of_a_seat_take_turns_and_a_fixed_game_gives_it_one():
    pool = pool_of({"drafter": 9, "challenger": 9})
    assert [prompt.split()[0] for prompt in walk(pool, "A", 5)] == ["drafter", "challenger"] * 2 + ["drafter"]
    fixed = make_game("agon", {"rotate": False})
    assert [{prompt.split()[0] for prompt in walk(pool, seat, 4, fixed)} for seat in "AB"] == [
        {"drafter"},
        {"challenger"},
    ]
    assert walk(pool_of({"drafter": 4}), "B", 4, fixed) == []


@pytest.mark.parametrize("total", [1, 2, 7, 8])
def test_together_the_seats_read_all_of_a_pool_that_is_not_too_large(total: int):
    reads = {"drafter": -(-total // 2) * 2, "challenger": total // 2 * 2}
    for size in range(1, 9):
        pool = pool_of({role: min(size, n) for role, n in reads.items()})
        prompts = [*walk(pool, "A", total), *walk(pool, "B", total)]
        assert len(prompts) == 2 * total  # if there are as many, each is read once
        assert set(prompts) == {example.prompt for role in pool.roles for example in pool.of(role)}


def test_a_small_pool_is_read_again_in_another_order_and_by_each_seat_in_its_own():
    pool = pool_of({"drafter": 6})
    a, b = walk(pool, "A", 12), walk(pool, "B", 12)
    assert set(a[:6]) == set(a[6:]) == set(b[:6]) == {f"drafter {i}" for i in range(6)}
    assert a[:6] != a[6:]
    assert a != b
    assert walk(pool, "A", 12) == a
    assert walk(pool, "A", 12, seed=1) != a


# Before a model is loaded


def test_auto_takes_solutions_where_there_are_some():
    asked = [("auto", WORKED), ("auto", SUMS), ("self", WORKED), ("worked", SUMS), ("a/b.jsonl", WORKED)]
    taken = [source_of(section(source=source), task(problems), make_game("agon", {})) for source, problems in asked]
    assert taken == ["worked", "self", "self", "worked", "file"]


ASKED = [Problem("x", "1?", "1"), Problem("y", "2?", "2")]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems, one without an answer, and examples, in the working folder."""
    jsonl(tmp_path / "open.jsonl", {"problem": "1?", "answer": 1}, {"problem": "2?"})
    jsonl(tmp_path / "own.jsonl", {"prompt": "p", "completion": "c"})
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("keys", "held_out", "sentence"),
    [
        ({"source": "worked"}, [], r"needs worked solutions, but sums has none .*source=self"),
        ({"source": "worked", "tasks": "letters"}, [], "needs worked solutions, but letters has none"),
        ({"top_up": "storys"}, [], "unknown task 'storys'"),
        ({"source": "auto", "tasks": "storys"}, [], "unknown task 'storys'"),
        ({"source": "none.jsonl"}, [], "no file of examples"),
        ({"tasks": "open.jsonl"}, [], "open-2 has no answer"),
        ({"tasks": "open.jsonl"}, ASKED, "every problem of open is held out"),
        ({"top_up": "open.jsonl"}, ASKED, "every problem of open is held out"),
    ],
)
def test_what_cannot_work_is_refused(files: None, keys: Any, held_out: Any, sentence: str):
    with pytest.raises((ConfigError, UnknownNameError), match=sentence):
        require_examples(section(**keys), task(SUMS), make_game("agon", {}), held_out=held_out)


def test_what_may_work_is_let_through(files: None):
    for problems, keys in (
        (SUMS, {"enabled": False, "source": "worked"}),
        (LETTERS, {"source": "auto"}),
        (LETTERS, {"source": "worked", "tasks": "stories"}),
        (SUMS, {"source": "auto", "top_up": "stories"}),
        (SUMS, {"source": "own.jsonl"}),
    ):
        require_examples(section(**keys), task(problems), make_game("agon", {}))
    require_examples(section(tasks="open.jsonl"), task(SUMS), make_game("agon", {}), own_checker=True)


def test_the_section_names_its_sources(tmp_path: Path):
    assert ColdStartSection().source == "auto"
    assert ColdStartSection(source=tmp_path / "own.jsonl").source == str(tmp_path / "own.jsonl")
    for source, said in (("wurked", r"should be auto, .* \.jsonl file, got 'wurked'"), (3, ".*got 3")):
        with pytest.raises(ConfigError, match=rf"cold_start\.source: {said}"):
            RunConfig(game="agon", model="tiny", tasks="letters", cold_start={"source": source})
