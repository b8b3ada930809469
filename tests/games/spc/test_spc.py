"""SPC's game: every fate of a step by a script, the switches, and a run of `tiny` killed in every step."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Episode, Problem, Restore, Snapshot
from lite_selfplay.games import make_game
from lite_selfplay.games.collections import EXAMPLE, CollectedRow, Collection, read_objects
from lite_selfplay.games.spc import cases as cases_module
from lite_selfplay.games.spc import rounds
from lite_selfplay.games.spc.cases import KINDS, Case, Critique, Rewrite
from lite_selfplay.games.spc.spc import Phase, Spc
from lite_selfplay.runs.api import resume
from lite_selfplay.runs.checkpoints import find_checkpoints
from lite_selfplay.testing import ScriptedTable
from tests.games.test_golden import check_golden, shown
from tests.made import jsonl, play

PHASES: tuple[Phase, ...] = get_args(Phase)
# The outcome of the only step of each of these problems' solutions.
STORIES = ("fooled", "caught", "harmless", "unstable", "undecided", "refused", "rejected", "unsolved")
SLIP = "So there are 7."


def problems(draws: int = 3) -> list[Problem]:
    """The problems of `draws` rounds."""
    numbered = [(name, n) for n in range(draws) for name in STORIES]
    return [Problem(f"{name}{n or ''}", f"Story {name}: how many{' now' * n}?", "4") for name, n in numbered]


def scripted() -> Callable[[str, str, int], str]:
    """Replies by the name of the story."""
    judged: Counter[str] = Counter()

    def line(role: str, prompt: str, index: int) -> str:
        name = next(name for name in STORIES if f"Story {name}:" in prompt)
        if role == "solver":
            begun = prompt.partition("end of the last one.")[2]
            if not begun:
                return "\\boxed{5}" if name == "unsolved" else "So there are 4 of them. The answer is \\boxed{4}."
            ends_well = name != "unstable" if SLIP not in begun else name == "harmless"
            return f"The answer is \\boxed{{{4 if ends_well else 7}}}."
        if role == "sneaky":
            return "no tags" if name == "refused" else f"<error>{KINDS[0]}</error><change>x</change><step>{SLIP}</step>"
        if name == "undecided" and SLIP in prompt:
            return "no verdict"
        accepts = name == "fooled" if SLIP in prompt else name != "rejected"
        # Of four critiques the second and the fourth disagree, so that there are pairs.
        accepts ^= judged[prompt] % 2 == 1
        judged[prompt] += 1
        return f"Checked. <answer>{'Correct' if accepts else 'Incorrect'}</answer>"

    return line


class Unwritten(ScriptedTable):
    """A table without a file of solutions: the solver writes them."""

    def everything(self, source: str) -> Sequence[Problem]:
        return [] if source == "solutions" else super().everything(source)


@pytest.fixture
def table() -> Iterator[ScriptedTable]:
    with contextlib.closing(Unwritten(scripted(), problems())) as table:
        yield table


def spc(**options: Any) -> Spc:
    """A game, by default of one round and one epoch, without a tournament."""
    chosen = {"rounds": 1, "tournament": False, "epochs": 1, "batch": 4, **options}
    return make_game("spc", chosen, problems_per_step=len(STORIES))  # type: ignore[return-value]


def play_out(table: ScriptedTable, **options: Any) -> dict[tuple[int, str], list[Episode]]:
    """Every step to the end, by round and phase, each by a game that was restored from the state of the one before."""
    game, played = spc(**options), dict[tuple[int, str], list[Episode]]()
    for step in range(60):
        if game.over():
            return played
        state = json.loads(json.dumps(game.state()))
        game = spc(**options)
        game.restore(state)
        played.setdefault((state["round"], state["phase"]), []).append(play(game, table, step))
    raise AssertionError("the game does not end")


def cases_of(table: ScriptedTable, number: int, name: str) -> list[Case]:
    return read_objects(table.folder / f"round-{number}" / f"{name}.jsonl", Case.from_json, "case")


def collected(table: ScriptedTable, seat: str, number: int = 1) -> list[CollectedRow]:
    return list(Collection(table.folder / f"round-{number}" / f"{seat}.jsonl"))


def test_every_fate_of_a_step(table: ScriptedTable):
    played = {phase: episode for (number, phase), (episode, *_) in play_out(table).items() if number == 1}
    # The solution of "unsolved" is wrong, and the solver is not right from the step of "unstable".
    fates = {case.problem.id: case.fate() for case in cases_of(table, 1, "5-critiques")}
    assert fates == {name: name for name in STORIES[:6] if name != "unstable"} | {"rejected": "caught"}
    judged = [sample for group in played["critiques"].streams[1].groups for sample in group.samples]
    assert len(judged) == 8 * 4  # four rewritten steps that are errors, and as many right ones
    assert {s.verdict.reason for s in judged if s.verdict} == {"accepted", "rejected", "off_format", ""}
    assert all(s.masked and s.verdict and s.reward == (1.0 if s.verdict.correct else -1.0) for s in judged)
    # Fooled by 1 of 3 that were decided; the undecided one is an error, but no game.
    log = played["collection"].log
    assert (log["attack"]["valid"], log["win_rate"]) == (4, 1 / 3)
    # One that won, one that was caught, one that was no error.
    rows = sorted((row.kind, round(row.advantage, 6)) for row in collected(table, "sneaky"))
    assert rows == [("caught", -0.666667), ("invalid", -0.666667), ("won", 1.333333)]
    by_step: dict[str, list[tuple[str, float]]] = {}
    for row in collected(table, "critic"):
        by_step.setdefault(row.id, []).append((row.kind, row.advantage))
        assert row.completion.seat == "critic@round-0"
        assert len(row.completion.logprobs) == len(row.completion.token_ids)
    assert by_step
    assert all(sorted(pair) == [("right", 1.0), ("wrong", -1.0)] for pair in by_step.values())


def seats_of(table: ScriptedTable) -> tuple[set[str], set[str]]:
    """The attacker and the judge of the second round."""
    cases = cases_of(table, 2, "5-critiques")
    return {c.attack.seat for c in cases if c.attack}, {c.critiques[0].seat for c in cases if c.critiques}


def test_phases_actions_and_snapshots_of_the_asymmetric_schedule(table: ScriptedTable):
    played = play_out(table, rounds=2, tournament=True)
    first, learning = PHASES[:4], PHASES[4:8]
    assert list(played) == [
        *((number, phase) for number in (1, 2) for phase in (*first, *learning)),
        *((3, phase) for phase in (*first, "pairings")),
    ]
    # The critic is trained again, on both rounds.
    for number, sneaky in ((1, "sneaky@round-0"), (2, "sneaky@round-1")):
        restored = [("sneaky", sneaky), ("critic", "critic@round-0")]
        (episode,) = played[number, "collection"]
        assert list(episode.actions) == [Restore(*names, reset_optimizer=True) for names in restored]
    episodes = [episode for several in played.values() for episode in several]
    kept = [action for episode in episodes for action in episode.actions if isinstance(action, Snapshot)]
    assert kept == [Snapshot(seat, f"{seat}@round-{n}") for n in (1, 2) for seat in ("sneaky", "critic")]
    assert {row.round for row in collected(table, "critic", 2)} <= {1, 2}
    assert {row.round for row in collected(table, "sneaky", 2)} == {2}
    # The newest sneaky generator meets the first critic.
    assert seats_of(table) == ({"sneaky@round-1"}, {"critic@round-0"})
    (last,) = played[3, "pairings"]
    assert len(last.log["pairings"]) == len(last.log["win_rates"]) == 9
    assert set(last.log["attack_successes"]) == {f"sneaky@round-{n}" for n in range(3)}
    assert [episode.measure for episode in episodes].count(True) == 2


def test_the_symmetric_schedule_plays_the_newest_of_both(table: ScriptedTable):
    played = play_out(table, rounds=2, schedule="symmetric")
    assert seats_of(table) == ({"sneaky@round-1"}, {"critic@round-1"})
    assert Restore("critic", "critic@round-1", reset_optimizer=True) in played[2, "collection"][0].actions
    assert list(played)[-1] == (2, "critic learns")


def test_unpaired_and_without_the_solvers_reward(table: ScriptedTable):
    play_out(table, pairing=False, solver_reward=False)
    assert sorted(row.kind for row in collected(table, "sneaky")) == ["caught", "won"]
    critics = [row.kind for row in collected(table, "critic")]
    assert critics.count("right") == critics.count("wrong") > 0


def test_examples_are_mixed_in_and_only_where_they_can_be_written(table: ScriptedTable):
    table._problems = [replace(p, extra={"solution": "1 + 3 = 4. 4 - 0 = 4."}) for p in problems()]
    played = play_out(table, sft_weight=0.15)
    rows = collected(table, "critic")
    examples = [row for row in rows if row.kind == EXAMPLE]
    assert len(examples) == len(rows) / 2 > 0
    assert {row.advantage for row in examples} == {0.15}
    assert played[1, "collection"][0].log["critic_examples"] == len(examples)
    assert any(s.is_example for g in played[1, "critic learns"][0].streams[0].groups for s in g.samples)
    # If nothing can be written, there is a warning.
    table._problems = problems()
    log = play_out(table, sft_weight=0.15)[1, "collection"][0].log
    assert log["critic_examples"] == 0
    said = "game.sft_weight asks for examples, and there are none for critic"
    assert said in spc(sft_weight=0.15).warnings(log)[-1]


def test_what_taught_a_seat_comes_again(tmp_path: Path):
    class Kept(Unwritten):
        folder = tmp_path / "collections"

    taught = [(role, f"{role} {n}") for role in ("sneaky", "critic") for n in range(3)]
    rows = [{"role": role, "prompt": "p", "completion": text, "origin": "file"} for role, text in taught]
    jsonl(tmp_path / "cold_start.jsonl", *rows)
    with contextlib.closing(Kept(scripted(), problems())) as table:
        play_out(table, sft_weight=0.15)
    for seat in ("sneaky", "critic"):
        again = [row.completion.text for row in collected(table, seat) if row.kind == EXAMPLE]
        assert set(again) == {text for role, text in taught if role == seat}
        assert len(again) == len(collected(table, seat)) / 2


def test_no_rounds_only_measure_what_cold_start_made(table: ScriptedTable):
    played = play_out(table, rounds=0, tournament=True)
    assert list(played) == [(1, phase) for phase in (*PHASES[:4], "pairings")]
    assert played[1, "pairings"][0].log["win_rates"] == {"sneaky@round-0 against critic@round-0": 1 / 3}
    assert play_out(table, rounds=0) == {}


def test_several_solvers_write_and_each_goes_on_from_its_own(table: ScriptedTable):
    options = {"solvers": ["base", "solver"], "samples": 2}
    assert spc(**options).trained_seats() == ("sneaky", "critic", "solver")
    play_out(table, **options)
    cases = cases_of(table, 1, "1-solutions")
    assert [case.solver for case in cases] == ["base"] * 14 + ["solver"] * 14
    assert len({case.id for case in cases}) == 28


def test_solutions_of_a_file(table: ScriptedTable):
    solutions = {"caught": "1 + 3 = 4.\n\nSo 4.", "fooled": "It is \\boxed{5}."}  # another answer
    rows = [
        Problem(name, f"Story {name}: how many?", "4", extra={"solution": solutions[name]} if name in solutions else {})
        for name in ("caught", "fooled", "harmless")
    ]
    table.everything = lambda source: rows if source == "solutions" else problems()  # type: ignore[method-assign]
    table.draw = lambda source, n: rows[:n]  # type: ignore[method-assign]
    assert play(spc(), table).log["steps"] == 1
    (case,) = cases_of(table, 1, "1-solutions")
    assert (case.problem.id, case.solver) == ("caught", "base")


def test_a_seat_with_nothing_to_learn_from_stays_and_is_kept(table: ScriptedTable):
    table._problems = [problem for problem in problems() if problem.id in ("harmless", "unstable")]
    played = {phase: episode for (_, phase), (episode,) in play_out(table).items()}
    assert list(played)[-1] == "collection"
    last = played["collection"]
    assert list(last.actions)[2:] == [Snapshot("sneaky", "sneaky@round-1"), Snapshot("critic", "critic@round-1")]
    assert spc().warnings(last.log) == [
        "no rewritten step misled the solver, so the critic has nothing to judge in this round",
        "there is nothing for sneaky and critic to learn from in this round",
    ]
    assert [spc().warnings(played[phase].log) for phase in ("solutions", "validation")] == [[], []]


def test_the_last_attack_is_on_steps_that_no_seat_was_trained_on(table: ScriptedTable):
    new = Problem("new", "Story fooled: how many others?", "4")
    drawn = iter([problems(1), [*problems(1)[:7], new]])
    table.draw = lambda source, n: next(drawn)  # type: ignore[method-assign]
    log = play_out(table, tournament=True)[2, "solutions"][0].log
    first, last = ({(c.problem.text, c.steps) for c in cases_of(table, n, "1-solutions")} for n in (1, 2))
    assert new.text in {text for text, _ in last}
    assert not first & last
    assert (log["solutions"], log["steps"]) == (8, len(last))
    assert log["steps"] < 7  # some of the seven right ones had been attacked before


def test_golden_playthrough_of_every_fate(table: ScriptedTable):
    played = play_out(table, tournament=True).values()
    check_golden("spc-fates", [shown(episode) for episodes in played for episode in episodes])


def content(folder: Path) -> dict[str, bytes]:
    parts = ["adapters/*/*.safetensors", "collections/*/*.jsonl", "episodes.jsonl"]
    found = {str(path.relative_to(folder)): path.read_bytes() for part in parts for path in folder.glob(part)}
    last = find_checkpoints(folder / "checkpoints")[-1].path
    return found | {f"last/{path.name}": path.read_bytes() for path in last.glob("*.safetensors")}


@pytest.mark.parametrize(("phases", "most"), [(["critic learns"], 1), pytest.param(PHASES, 99, marks=pytest.mark.long)])
def test_a_kill_in_each_step_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: Any, phases: Any, most: int):
    # `tiny` writes neither tags nor verdicts: its replies count by their length.
    def rewrite(said: Any, original: str) -> Rewrite:
        return Rewrite("So there are some." if len(said.text) % 3 else f"{original} So.", KINDS[0])

    def critique(said: Any) -> Critique:
        return Critique("correct" if sum(said.token_ids) % 2 else "incorrect")

    monkeypatch.setattr(cases_module, "read_rewrite", rewrite)
    monkeypatch.setattr(cases_module, "read_critique", critique)
    monkeypatch.setattr(rounds, "read_critique", critique)
    solved = [(str(a), str(a + 2)) for a in range(6)]
    problems = [
        {"id": f"p{a}", "problem": f"{a} + 2?", "answer": total, "solution": f"It is \\boxed{{{total}}}."}
        for a, total in solved
    ]
    settings = {
        "game": {"name": "spc", "rounds": 1, "epochs": 2, "batch": 6, "rollouts": 2, "critiques": 2}
        | {"tournament": most > 1},
        "model": "tiny",
        "precision": "fp32",
        "tasks": "arithmetic:max=3,terms=2,ops=+",
        "solutions": str(jsonl(tmp_path / "solutions.jsonl", *problems)),
        "cold_start": False,
        "problems_per_step": 6,
        "max_completion_tokens": 12,
        "seats": {"*": {"lr": 1e-2}},
        "seed": 1,
    }
    whole = train(RunConfig(**settings, run_dir=tmp_path / "whole"))
    rows = whole.metrics_rows()
    assert rows[-1]["over"] is True
    assert {row["game"]["phase"] for row in rows} >= {"sneaky learns", "critic learns"}
    assert ("pairings" in {row["game"]["phase"] for row in rows}) is (most > 1)
    assert rows[-1]["seats"]["critic"]["updates"] > 1
    killed: set[int] = set()
    play = Spc.play

    def dying(self: Spc, step: int, table: Any) -> Episode:
        episode = play(self, step, table)  # its files are written
        if step not in killed and len(killed) < most and rows[step]["game"]["phase"] in phases:
            killed.add(step)
            raise RuntimeError("killed")
        return episode

    monkeypatch.setattr(Spc, "play", dying)
    folder = tmp_path / "killed"
    with pytest.raises(RuntimeError, match="killed"):
        train(RunConfig(**settings, run_dir=folder))
    for _ in range(len(rows) + 1):
        lost = max(killed) - find_checkpoints(folder / "checkpoints")[-1].step
        phase = rows[max(killed)]["game"]["phase"]
        # Finished phases and epochs are saved, so no more than one is repeated.
        assert lost < rows[max(killed)]["game"].get("batches", 1), phase
        try:
            resume(folder)
        except RuntimeError:
            continue
        break
    assert len(killed) == min(most, sum(row["game"]["phase"] in phases for row in rows))
    assert content(folder) == content(tmp_path / "whole")
