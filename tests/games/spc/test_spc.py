"""SPC's game: every fate of a step by a script, the switches, and a run of `tiny` killed in every step."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Episode, Problem, Restore, Snapshot
from lite_selfplay.games import make_game
from lite_selfplay.games.collections import EXAMPLE, Collection
from lite_selfplay.games.spc import cases as cases_module
from lite_selfplay.games.spc import rounds
from lite_selfplay.games.spc.cases import KINDS, Critique, Rewrite, read_cases
from lite_selfplay.games.spc.spc import PHASES, Spc
from lite_selfplay.runs.api import resume
from lite_selfplay.runs.checkpoints import find_checkpoints
from lite_selfplay.testing import ScriptedTable
from tests.games.test_golden import check_golden, shown
from tests.made import jsonl, play

# What becomes of the only step of each of these problems' solutions.
STORIES = ("fooled", "caught", "harmless", "unstable", "undecided", "refused", "rejected", "unsolved")
SLIP = "So there are 7."


def problems(draws: int = 3) -> list[Problem]:
    """As many as a round draws, so many times."""
    return [
        Problem(f"{name}{n or ''}", f"Story {name}: how many{' now' * n}?", "4")
        for n in range(draws)
        for name in STORIES
    ]


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
        # Of four critiques the second and the fourth are of the other opinion, so that there are pairs.
        accepts ^= judged[prompt] % 2 == 1
        judged[prompt] += 1
        return f"Checked. <answer>{'Correct' if accepts else 'Incorrect'}</answer>"

    return line


def play_out(game: Spc, table: ScriptedTable) -> list[tuple[dict[str, Any], Episode]]:
    """Every step to the end, each by a game that was restored from the state of the one before."""
    played: list[tuple[dict[str, Any], Episode]] = []
    while not game.over():
        assert len(played) < 60
        state = json.loads(json.dumps(game.state()))
        again = Spc(game.options, group_size=game.group_size, problems_per_step=game.problems_per_step)
        again.restore(state)
        played.append((state, play(again, table, len(played))))
        game.restore(again.state())
    return played


class Unwritten(ScriptedTable):
    """A table without a file of solutions: the solver writes them."""

    def everything(self, source: str) -> Sequence[Problem]:
        return [] if source == "solutions" else super().everything(source)


@pytest.fixture
def table() -> Iterator[ScriptedTable]:
    with contextlib.closing(Unwritten(scripted(), problems())) as table:
        yield table


def game(**options: Any) -> Spc:
    made = make_game("spc", {"epochs": 1, "batch": 4, **options}, problems_per_step=len(STORIES))
    assert isinstance(made, Spc)
    return made


def by_phase(played: list[tuple[dict[str, Any], Episode]]) -> dict[tuple[str, int], Episode]:
    return {(state["phase"], state["round"]): episode for state, episode in played}


def written(table: ScriptedTable, number: int, name: str) -> Path:
    return table.folder / f"round-{number}" / f"{name}.jsonl"


def test_every_fate_of_a_step(table: ScriptedTable):
    played = play_out(game(rounds=1), table)
    found = by_phase(played)
    cases = {case.problem.id: case for case in read_cases(written(table, 1, "5-critiques"))}
    assert "unsolved" not in cases  # its solution is wrong
    assert "unstable" not in cases
    fates = {name: case.fate() for name, case in cases.items()}
    assert fates == {
        "fooled": "fooled",
        "caught": "caught",
        "harmless": "harmless",
        "undecided": "undecided",
        "refused": "refused",
        "rejected": "caught",
    }
    assert found["solutions", 1].log["steps"] == 7
    assert (found["validation", 1].log["steps"], found["validation", 1].log["stable"]) == (7, 6)
    assert found["sneaky", 1].log["refused"] == {"off_format": 1}
    assert found["sneaky validation", 1].log["attack_success"] == 4 / 6
    assert (found["critiques", 1].log["judged_errors"], found["critiques", 1].log["judged_correct"]) == (4, 4)
    judged = [sample for group in found["critiques", 1].streams[1].groups for sample in group.samples]
    assert len(judged) == 8 * 4
    assert {s.verdict.reason for s in judged if s.verdict} == {"accepted", "rejected", "off_format", ""}
    assert all(s.masked and s.verdict and s.reward == (1.0 if s.verdict.correct else -1.0) for s in judged)
    collected = found["collection", 1].log
    # Fooled 1 of 3 that were decided; the undecided one is an error, and no game.
    assert collected["attack"]["valid"] == 4
    assert (collected["pairing"]["games"], collected["pairing"]["sneaky_wins"]) == (3, 1)
    assert collected["pairing"]["undecided"] == 1
    assert collected["win_rate"] == 1 / 3
    # One that won, one that was caught, one that was no error.
    assert collected["sneaky_rows"] == 3
    rows = list(Collection(written(table, 1, "sneaky")))
    assert sorted(row.kind for row in rows) == ["caught", "invalid", "won"]
    assert sorted(round(row.advantage, 6) for row in rows) == [-0.666667, -0.666667, 1.333333]
    critics = list(Collection(written(table, 1, "critic")))
    by_step: dict[str, list[str]] = {}
    for row in critics:
        by_step.setdefault(row.id, []).append(row.kind)
        assert row.completion.seat == "critic@round-0"
        assert len(row.completion.logprobs) == len(row.completion.token_ids)
    assert by_step
    assert all(sorted(kinds) == ["right", "wrong"] for kinds in by_step.values())
    assert {round(row.advantage, 6) for row in critics} == {1.0, -1.0}


def seats_of(table: ScriptedTable) -> tuple[set[str], set[str]]:
    """Who attacked in the second round, and who judged."""
    cases = read_cases(written(table, 2, "5-critiques"))
    return {c.attack.seat for c in cases if c.attack}, {c.critiques[0].seat for c in cases if c.critiques}


def test_phases_actions_and_snapshots_of_the_asymmetric_schedule(table: ScriptedTable):
    played = play_out(game(rounds=2), table)
    phases = list(dict.fromkeys((state["round"], state["phase"]) for state, _ in played))
    one = ["solutions", "validation", "sneaky", "sneaky validation", "critiques", "collection", "sneaky learns",
           "critic learns"]  # fmt: skip
    assert phases == [
        *((number, phase) for number in (1, 2) for phase in one),
        *((3, phase) for phase in (*one[:4], "pairings")),
    ]
    found = by_phase(played)
    assert list(found["collection", 1].actions) == [
        Restore("sneaky", "sneaky@round-0", reset_optimizer=True),
        Restore("critic", "critic@round-0", reset_optimizer=True),
    ]
    assert list(found["collection", 2].actions) == [
        Restore("sneaky", "sneaky@round-1", reset_optimizer=True),
        Restore("critic", "critic@round-0", reset_optimizer=True),  # trained anew, on both rounds
    ]
    kept = [action for _, episode in played for action in episode.actions if isinstance(action, Snapshot)]
    assert kept == [Snapshot(seat, f"{seat}@round-{n}") for n in (1, 2) for seat in ("sneaky", "critic")]
    rounds = {row.round for row in Collection(written(table, 2, "critic"))}
    assert rounds <= {1, 2}
    assert {row.round for row in Collection(written(table, 2, "sneaky"))} == {2}
    # The newest sneaky generator meets the first critic.
    assert seats_of(table) == ({"sneaky@round-1"}, {"critic@round-0"})
    last = found["pairings", 3].log
    assert len(last["pairings"]) == 9
    assert len(last["win_rates"]) == 9
    assert set(last["attack_successes"]) == {f"sneaky@round-{n}" for n in range(3)}
    assert [episode.measure for _, episode in played].count(True) == 2


def test_the_symmetric_schedule_plays_the_newest_of_both(table: ScriptedTable):
    played = play_out(game(rounds=2, schedule="symmetric", tournament=False), table)
    assert seats_of(table) == ({"sneaky@round-1"}, {"critic@round-1"})
    assert Restore("critic", "critic@round-1", reset_optimizer=True) in by_phase(played)["collection", 2].actions
    assert played[-1][0]["phase"] == "critic learns"


def test_unpaired_and_without_the_solvers_reward(table: ScriptedTable):
    play_out(game(rounds=1, pairing=False, solver_reward=False, tournament=False), table)
    sneaky = [row.kind for row in Collection(written(table, 1, "sneaky"))]
    assert sorted(sneaky) == ["caught", "won"]
    critics = [row.kind for row in Collection(written(table, 1, "critic"))]
    assert critics.count("right") == critics.count("wrong") > 0


def test_examples_are_mixed_in_and_only_where_they_can_be_written(table: ScriptedTable):
    solved = [Problem(p.id, p.text, p.answer, extra={"solution": "1 + 3 = 4. 4 - 0 = 4."}) for p in problems()]
    table._problems = solved
    played = by_phase(play_out(game(rounds=1, sft_weight=0.15, tournament=False), table))
    rows = list(Collection(written(table, 1, "critic")))
    examples = [row for row in rows if row.kind == EXAMPLE]
    assert len(examples) == len(rows) / 2 > 0
    assert {row.advantage for row in examples} == {0.15}
    assert played["collection", 1].log["critic_examples"] == len(examples)
    assert sum(s.is_example for g in played["critic learns", 1].streams[0].groups for s in g.samples) > 0
    # Where nothing can be written, it is said.
    table._problems = problems()
    log = by_phase(play_out(weighted := game(rounds=1, sft_weight=0.15, tournament=False), table))["collection", 1].log
    assert log["critic_examples"] == 0
    assert "game.sft_weight asks for examples, and there are none for critic" in weighted.warnings(log)[-1]


def test_what_taught_a_seat_comes_again(tmp_path: Path):
    class Kept(Unwritten):
        folder = tmp_path / "collections"

    taught = [
        {"role": role, "prompt": "p", "completion": f"{role} {n}", "origin": "file"}
        for role in ("sneaky", "critic")
        for n in range(3)
    ]
    jsonl(tmp_path / "cold_start.jsonl", *taught)
    with contextlib.closing(Kept(scripted(), problems())) as table:
        play_out(game(rounds=1, sft_weight=0.15, tournament=False), table)
    for seat in ("sneaky", "critic"):
        rows = list(Collection(tmp_path / "collections" / "round-1" / f"{seat}.jsonl"))
        again = [row.completion.text for row in rows if row.kind == EXAMPLE]
        assert set(again) == {f"{seat} {n}" for n in range(3)}
        assert len(again) == len(rows) / 2


def test_no_rounds_only_measure_what_cold_start_made(table: ScriptedTable):
    played = play_out(game(rounds=0), table)
    phases = ["solutions", "validation", "sneaky", "sneaky validation", "pairings"]
    assert [state["phase"] for state, _ in played] == phases
    assert played[-1][1].log["win_rates"] == {"sneaky@round-0 against critic@round-0": 1 / 3}
    assert play_out(game(rounds=0, tournament=False), table) == []


def test_several_solvers_write_and_each_goes_on_from_its_own(table: ScriptedTable):
    made = game(rounds=1, solvers=["base", "solver"], samples=2, tournament=False)
    assert made.trained_seats() == ("sneaky", "critic", "solver")
    play_out(made, table)
    cases = read_cases(written(table, 1, "1-solutions"))
    assert [case.solver for case in cases] == ["base"] * 14 + ["solver"] * 14
    assert len({case.id for case in cases}) == 28


def test_solutions_of_a_file(table: ScriptedTable):
    rows = [
        Problem("caught", "Story caught: how many?", "4", extra={"solution": "1 + 3 = 4.\n\nSo 4."}),
        Problem("fooled", "Story fooled: how many?", "4", extra={"solution": "It is \\boxed{5}."}),  # another answer
        Problem("harmless", "Story harmless: how many?", "4", extra={}),
    ]
    table.everything = lambda source: rows if source == "solutions" else problems()  # type: ignore[method-assign]
    table.draw = lambda source, n: rows[:n]  # type: ignore[method-assign]
    episode = play(game(rounds=1), table)
    assert episode.log["steps"] == 1
    (case,) = read_cases(written(table, 1, "1-solutions"))
    assert (case.problem.id, case.solver) == ("caught", "base")


def test_a_seat_with_nothing_to_learn_from_stays_and_is_kept(table: ScriptedTable):
    table._problems = [problem for problem in problems() if problem.id in ("harmless", "unstable")]
    played = play_out(game(rounds=1, tournament=False), table)
    assert [state["phase"] for state, _ in played][-1] == "collection"
    last = played[-1][1]
    assert list(last.actions)[2:] == [Snapshot("sneaky", "sneaky@round-1"), Snapshot("critic", "critic@round-1")]
    warnings = game().warnings(last.log)
    assert warnings == [
        "no rewritten step misled the solver, so the critic has nothing to judge in this round",
        "there is nothing for sneaky and critic to learn from in this round",
    ]
    early = {state["phase"]: game().warnings(episode.log) for state, episode in played}
    assert (early["solutions"], early["validation"]) == ([], [])


def test_the_last_attack_is_on_steps_that_no_seat_was_trained_on(table: ScriptedTable):
    new = Problem("new", "Story fooled: how many others?", "4")
    drawn = iter([problems(1), [*problems(1)[:7], new]])
    table.draw = lambda source, n: next(drawn)  # type: ignore[method-assign]
    played = by_phase(play_out(game(rounds=1), table))
    files = [written(table, n, "1-solutions") for n in (1, 2)]
    first, last = ({(case.problem.text, case.steps) for case in read_cases(file)} for file in files)
    assert new.text in {text for text, _ in last}
    assert not first & last
    log = played["solutions", 2].log
    assert (log["solutions"], log["steps"]) == (8, len(last))
    assert log["steps"] < 7  # some of the seven right ones had been attacked before


def test_golden_playthrough_of_every_fate(table: ScriptedTable):
    steps = [shown(episode) for _, episode in play_out(game(rounds=1), table)]
    check_golden("spc-fates", steps)


# On a model: killed in every step


def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny` writes neither tags nor verdicts: what it says counts by its length."""

    def rewrite(said: Any, original: str) -> Rewrite:
        step = original + " So." if len(said.text) % 3 == 0 else "So there are some."
        return Rewrite(step, KINDS[0])

    def critique(said: Any) -> Critique:
        return Critique("correct" if sum(said.token_ids) % 2 else "incorrect")

    monkeypatch.setattr(cases_module, "read_rewrite", rewrite)
    monkeypatch.setattr(cases_module, "read_critique", critique)
    monkeypatch.setattr(rounds, "read_critique", critique)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., RunConfig]:
    rows = [(str(a), {"answer": str(a + 2), "solution": f"It is \\boxed{{{a + 2}}}."}) for a in range(6)]
    path = jsonl(tmp_path / "solutions.jsonl", *({"id": f"p{a}", "problem": f"{a} + 2?", **row} for a, row in rows))

    def make(folder: Path, **more: Any) -> RunConfig:
        return RunConfig(
            game={"name": "spc", "rounds": 1, "epochs": 2, "batch": 6, "rollouts": 2, "critiques": 2, **more},
            model="tiny",
            precision="fp32",
            tasks="arithmetic:max=3,terms=2,ops=+",
            solutions=str(path),
            cold_start=False,
            problems_per_step=6,
            max_completion_tokens=12,
            seats={"*": {"lr": 1e-2}},
            seed=1,
            run_dir=str(folder),
        )

    return make


def content(folder: Path) -> dict[str, bytes]:
    parts = ["adapters/*/*.safetensors", "collections/*/*.jsonl", "episodes.jsonl"]
    found = {str(path.relative_to(folder)): path.read_bytes() for part in parts for path in folder.glob(part)}
    last = find_checkpoints(folder / "checkpoints")[-1].path
    return found | {f"last/{path.name}": path.read_bytes() for path in last.glob("*.safetensors")}


@pytest.mark.parametrize(("phases", "most"), [(["critic learns"], 1), pytest.param(PHASES, 99, marks=pytest.mark.long)])
def test_a_kill_in_each_step_resumes_to_the_same_weights(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: Sequence[str], most: int
):
    usable(monkeypatch)
    whole = train(config(tmp_path / "whole"))
    rows = whole.metrics_rows()
    assert rows[-1]["over"] is True
    assert {row["game"]["phase"] for row in rows} >= {"sneaky learns", "critic learns", "pairings"}
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
        train(config(folder))
    for _ in range(len(rows) + 1):
        lost = max(killed) - find_checkpoints(folder / "checkpoints")[-1].step
        phase = rows[max(killed)]["game"]["phase"]
        # A phase is saved when it is over, and so is an epoch: no more than that is repeated.
        assert lost < rows[max(killed)]["game"].get("batches", 1), phase
        try:
            resume(folder)
        except RuntimeError:
            continue
        break
    assert len(killed) == min(most, sum(row["game"]["phase"] in phases for row in rows))
    assert content(folder) == content(tmp_path / "whole")
