"""The pre-flight: what it says and refuses, and that it leaves the run as it was."""

import json
import random
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay import RunConfig, load_run, resume, train
from lite_selfplay.config.user_files import unnoticed
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream, Verdict
from lite_selfplay.errors import PreflightError, RunFolderError
from lite_selfplay.games import find_game, make_game
from lite_selfplay.runs import preflight as looking
from lite_selfplay.runs.defaults import is_demo, wanted
from lite_selfplay.runs.folder import PREFLIGHT
from lite_selfplay.runs.preflight import (
    Enough,
    Played,
    RecordingTable,
    _differs_by_form,
    doubts,
    refusal,
    small_game,
    unsettled,
)
from lite_selfplay.runs.report.diagnosis import diagnose
from lite_selfplay.stats import is_above
from lite_selfplay.training.progress import OutOfTime, Progress
from lite_selfplay.training.rollout import LiveTable
from tests.made import completion
from tests.made_runs import Ear, read_lines

AGON = find_game("agon")


def config(folder: Path, game: Any = "agon", **changes: Any) -> RunConfig:
    small = {"model": "tiny", "precision": "fp32", "tasks": "letters", "steps": 2, "preflight": True}
    sizes = {"group_size": 4, "problems_per_step": 2, "max_completion_tokens": 8}
    return RunConfig(**{**small, **sizes, "game": game, "run_dir": folder, **changes})


def without_times(path: Path) -> list[Any]:
    return [{**row, "wall_s": None} for row in read_lines(path / "metrics.jsonl")]


def trained(settings: RunConfig, progress: Progress) -> Path:
    """A run that goes on where the pre-flight of a random model refuses it."""
    try:
        return train(settings, progress=progress).path
    except PreflightError:
        assert settings.run.dir is not None
        return resume(settings.run.dir, progress=progress).path


LONG = [pytest.param(game, marks=pytest.mark.long) for game in ("sqlm", {"name": "pasodoble", "mode": "offline"})]


@pytest.mark.parametrize("game", ["agon", *LONG])
def test_the_run_is_the_same_with_it_and_without(tmp_path: Path, game: Any):
    settings: dict[str, Any] = {"tasks": "arithmetic"}
    if game == "agon":
        settings = {"eval": {"tasks": "letters", "limit": 3}, "roles": {"*": {"beta": 0.1}}}
    if isinstance(game, dict):
        (tmp_path / "notes.jsonl").write_text('{"text": "Two and two are four."}\n' * 3)
        settings["knowledge"] = str(tmp_path / "notes.jsonl")
    looked = trained(config(tmp_path / "looked", game, **settings), Ear())
    plain = trained(config(tmp_path / "plain", game, **settings, preflight=False), Ear())
    assert [(run / PREFLIGHT).is_file() for run in (looked, plain)] == [True, False]
    assert without_times(looked) == without_times(plain)
    assert (looked / "episodes.jsonl").read_bytes() == (plain / "episodes.jsonl").read_bytes()
    for name in ("optimizer.safetensors", "state.json", "adapters/A/adapter_model.safetensors"):
        last = [run / "checkpoints" / "step-2" / name for run in (looked, plain)]
        assert not last[1].exists() or last[0].read_bytes() == last[1].read_bytes()


def test_it_says_what_it_saw_and_why_shows_it(tmp_path: Path):
    ear = Ear()
    run = train(config(tmp_path / "run", steps=1), progress=ear)
    found = json.loads((run.path / PREFLIGHT).read_text())
    assert found["samples"] == sum(stream["completions"] for stream in found["streams"].values()) >= 8
    assert found["seconds"] < 60
    assert found["streams"]["drafter"]["groups"] >= 1
    assert list(diagnose(run.path).preflight) == found["lines"]
    assert f"pre-flight: {found['samples']} completions in " in "".join(found["lines"])
    assert "groups with variance" in "".join(found["lines"])
    assert all(line in ear.said for line in found["lines"])


def test_a_run_that_cannot_learn_is_refused_and_goes_on_where_that_is_wanted(tmp_path: Path, call: Callable[..., Any]):
    flags = "--model tiny --precision fp32 --tasks arithmetic --steps 1 --max-completion-tokens 4 --preflight"
    sizes = "--group-size 4 --problems-per-step 2 --eval-tasks arithmetic --eval-limit 3 --run-dir run"
    ended = call("train", "agon", *flags.split(), *sizes.split())
    assert ended.code == 2
    for words in (
        "completions were cut off at the token limit, and no group has variance",
        "--config run/config.yaml --max-completion-tokens 8. To train anyway",
        "lite-selfplay train --resume run, or --no-preflight",
    ):
        assert words in ended.err
    assert "--cold-start" not in ended.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not list((tmp_path / "run" / "eval").glob("*"))  # nothing is evaluated before it
    told = call("why", "run").out
    assert all(words in told for words in ("agon on tiny, before its first step:", "! The run was refused: "))
    assert json.loads(call("why", "run", "--json").out)["steps"] is None
    assert call("why", "run", "--step", "1").code == 2
    gone_on = call("train", "--resume", "run")
    assert (gone_on.code, "pre-flight" in gone_on.out) == (0, False)
    assert "before the first step:" in call("why", "run").out
    assert list(load_run(tmp_path / "run").evaluations()) == [-1, 0, 1]


@pytest.mark.parametrize("content", ["[]", '{"lines": 3, "findings": [], "refused": ""}'])
def test_a_file_that_is_none_of_its_own_is_an_error(tmp_path: Path, content: str):
    (tmp_path / "config.yaml").write_text("game: agon\nmodel: tiny\n")
    (tmp_path / PREFLIGHT).write_text(content)
    with pytest.raises(RunFolderError):
        diagnose(tmp_path)


# What is judged: by bounds


def stream(**values: Any) -> dict[str, Any]:
    counts = {"completions": 40, "judged": 40, "groups": 10, "zero_variance_groups": 10, "by_form": 0}
    shares = dict.fromkeys(("accuracy", "well_formed", "truncated", "loops", "reward_mean"), 0.0)
    return {"seat": "A", "tokens_mean": 9.0, **counts, **shares, **values}


FEW = {"completions": 8, "judged": 8, "groups": 2, "zero_variance_groups": 2}
CUT, COLD = "--max-completion-tokens 16", "--cold-start"


def played(*streams: dict[str, Any]) -> Played:
    return Played(1.0, dict(zip(("drafter", "challenger"), streams, strict=False)))


def test_a_share_is_above_a_bound_below_it_or_neither():
    # Of 8, none: at most 1 - 0.025 ** (1 / 8) = 36.9% with 95% confidence; of 36, 1 - 0.025 ** (1 / 36) = 9.7%.
    assert [is_above(0.0, n, 0.1) for n in (8, 35, 36)] == [None, None, False]
    assert is_above(1.0, 8, 0.5) is True  # at least 0.025 ** (1 / 8) = 63%
    assert is_above(0.875, 16, 0.5) is True
    assert is_above(0.5, 8, 0.5) is is_above(0.0, 0, 0.5) is None


@pytest.mark.parametrize(
    ("streams", "flag"),
    [
        ([stream(), stream()], COLD),
        ([stream(**FEW), stream(**FEW)], ""),  # 16 of 16 wrong: up to 21% may be right
        ([stream(**FEW, truncated=1.0)], CUT),
        ([stream(truncated=0.875), stream(truncated=0.875)], CUT),  # and none well-formed, which follows from it
        ([stream(truncated=1.0, loops=1.0)], COLD),
        ([stream(truncated=1.0, accuracy=0.5)], ""),  # half are right in spite of it
        ([stream(accuracy=0.1), stream()], ""),
        ([stream(well_formed=0.1), stream()], ""),
        ([stream(zero_variance_groups=9), stream()], ""),
        ([stream(accuracy=1.0, well_formed=1.0)], ""),  # too easy, which is only doubtful
        ([stream(judged=0, accuracy=None, well_formed=None, groups=0, zero_variance_groups=0)], ""),
        ([], ""),
    ],
)
def test_what_is_refused_and_how_sure_it_is(tmp_path: Path, streams: list[dict[str, Any]], flag: str):
    found, settings = played(*streams), config(tmp_path)
    refused = refusal(found, doubts(found, settings, AGON, tmp_path))
    assert bool(refused) == bool(flag)
    assert [word for word in (CUT, COLD) if word in refused] == ([flag] if flag else [])
    sure = "none of 80 completions was right or well-formed (with 95% confidence at most 5% are)"
    assert sure in refusal(played(stream(), stream()), [])


@pytest.mark.parametrize(
    ("streams", "names"),
    [
        ([stream(**FEW)], []),  # all wrong, in groups without variance, and too few to say so
        ([stream(groups=17, zero_variance_groups=17)], ["format", "no variance"]),
        ([stream(groups=17, zero_variance_groups=17), stream(groups=3, zero_variance_groups=2)], ["format", "format"]),
        ([stream(truncated=0.9)], ["truncation"]),  # what was cut off says nothing of the format
        ([stream(truncated=0.5, well_formed=0.5)], []),
        ([stream(truncated=0.9, loops=0.9)], ["loops"]),  # which no limit cures
        ([stream(truncated=0.9, loops=0.1)], ["truncation"]),
    ],
)
def test_what_is_doubtful(tmp_path: Path, streams: list[dict[str, Any]], names: list[str]):
    assert [cause.name for cause in doubts(played(*streams), config(tmp_path), AGON, tmp_path)] == names


def test_groups_that_are_paid_for_the_form_alone(tmp_path: Path):
    formed, plain, right = Verdict(False, 0.0, well_formed=True), Verdict(False, 0.0), Verdict(True, 1.0)
    one = completion("!")
    for pairs, alone in (
        ([(formed, 0.5), (plain, 0.0), (plain, 0.0)], True),
        ([(formed, 0.5), (plain, 0.0), (right, 2.0)], False),  # one is right
        ([(formed, 0.5), (formed, 0.5)], False),  # no variance
        ([(formed, 3.5), (formed, 2.5), (plain, 2.0)], False),  # something else differs, too
        ([(None, 1.0), (None, 0.0)], False),  # not judged
    ):
        assert _differs_by_form(Group([Sample(one, reward, verdict) for verdict, reward in pairs])) is alone

    few = stream(well_formed=0.3, zero_variance_groups=2, by_form=5)
    assert "8 of 10 groups with variance, 5 by the form alone," in played(few).lines(AGON)[1]
    (cause,) = doubts(played(few), config(tmp_path), AGON, tmp_path)
    assert cause.sentence == "5 of the drafter's 8 groups with variance are paid for the form alone."
    assert cause.next.startswith("--set game.format_weight=0")
    assert doubts(played({**few, "by_form": 4}), config(tmp_path), AGON, tmp_path) == []


def test_it_is_played_until_everything_is_decided():
    varied = {"zero_variance_groups": 9, "well_formed": 1.0}
    ends, shaped = "that the drafter's answers end", "that the drafter's answers have the format"
    differ = "that rewards differ"
    for values, assumed in (
        (varied, []),
        ({**varied, "truncated": 0.5}, ["that the drafter's answers are cut off"]),
        ({**varied, "truncated": 0.4}, []),  # of forty, and fewer than half
        ({**varied, "truncated": 0.4, "completions": 20}, [ends]),
        ({**varied, "well_formed": 0.1}, [shaped]),
        ({**varied, "well_formed": 0.175}, []),  # seven of forty: 7% at least, and what the card saw for a minute
        ({**varied, "well_formed": 0.175, "judged": 35}, [shaped]),
        ({"well_formed": 1.0}, [differ]),  # ten silent groups: 69% at least
        ({"well_formed": 1.0, "groups": 17, "zero_variance_groups": 17}, []),
        (FEW, [shaped, differ]),
    ):
        assert unsettled({"drafter": stream(**values)}) == assumed
    assert unsettled({}) == ["that answers end and have the format"]


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [("tiny", None, False), (" Tiny", None, False), ("tiny", True, True), ("smollm2-135m", None, True)],
)
def test_it_is_for_bases_that_are_not_random(model: str, asked: bool | None, expected: bool):
    settings = RunConfig(game="agon", model=model, run={"preflight": asked})
    assert wanted(settings) is expected
    assert not wanted(RunConfig.of(settings.chosen(), {"run": {"preflight": False}}))


def test_the_demos_own_problems_need_none():
    asked = [{}, {"tasks": "arithmetic"}, {"model": "sums-1m"}, {"preflight": True}]
    assert [wanted(RunConfig(game="agon", preset="demo", **given)) for given in asked] == [False, True, True, True]


def test_it_ends_in_time_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SECONDS", 0.0)
    ear = Ear()
    run = train(config(tmp_path / "run", steps=1), progress=ear)
    assumed = "time ran out before this was certain; assumed: that answers end and have the format"
    assert assumed in ear.said
    assert len(run.metrics_rows()) == 1


@pytest.mark.parametrize(("minutes", "seconds"), [(10, 30.0), (0, 60.0)])
def test_it_takes_a_minute_or_a_twentieth_of_the_time(minutes: int, seconds: float):
    assert looking.most_seconds(RunConfig(game="grpo", model="tiny", run={"minutes": minutes})) == seconds


def test_a_small_game_samples_no_more_than_it_may():
    settings = RunConfig(game="agon", model="tiny", group_size=8, problems_per_step=4)
    sizes = [small_game(make_game("agon", {}), settings.run, most).rollouts_per_step() for most in (100, 16, 9, 4, 1)]
    assert sizes == [32, 16, 8, 4, 4]


def bare_table() -> RecordingTable:
    """A table where nothing is loaded but the token that ends an answer."""
    table: Any = RecordingTable.__new__(RecordingTable)
    table.most, table.until, table.thinks, table.role = 10**9, inf, False, "drafter"
    table.completions, table.verdicts, table.episodes = {}, {}, []
    table._loaded = SimpleNamespace(chat=SimpleNamespace(eos_ids=[END]))
    return table


def test_a_table_ends_the_game_once_enough_was_said(monkeypatch: pytest.MonkeyPatch):
    def sample(self: Any, seat: str, prompts: Any, n: int, sampling: Any, seeds: Any, *rest: Any) -> Any:
        assert [len(row) for row in seeds] == [n] * len(prompts)
        return [[Completion(p, "", (1,), (2,), (), "eos", seat, 0, sampling) for _ in range(n)] for p in prompts]

    monkeypatch.setattr(LiveTable, "sample", sample)
    table = bare_table()
    table.most = 5
    assert len(table.sample("A", ["a", "b"], 2, Sampling(), [[1, 2], [3, 4]])) == 2
    with pytest.raises(Enough):
        table.sample("A", ["c", "d"], 3, Sampling(), [[1, 2, 3], [4, 5, 6]])
    assert [c.prompt for c in table.completions["drafter"]] == ["a", "a", "b", "b", "c"]
    with pytest.raises(Enough):
        table.sample("A", ["e"], 1, Sampling(), [[1]])


END = 0


def side_by_side(ends: dict[int, Any], most: int, ticks: Callable[[], None] = lambda: None) -> Any:
    """Rows that get a token each in turn, as they are sampled: row k ends after `ends[k]` of them, by its end or by a
    stop reason of its own, of which whoever listens is told nothing."""

    def sample(self: Any, seat: str, prompts: Any, n: int, sampling: Any, seeds: Any, starts: Any, hear: Any) -> Any:
        said: dict[int, Any] = dict.fromkeys(range(n), (None, "length"))
        for number in range(1, most + 1):
            if not (running := [k for k, (length, _) in said.items() if length is None]):
                break
            ticks()
            for k in running:
                length, stop = ends.get(k, (most + 1, "length"))
                ends_here = number == length and stop == "eos"
                wanted = hear(0, k, number, END if ends_here else 7)
                if number in (length, most) or not wanted:
                    said[k] = (number, stop if number == length else "length")
        rows = [Completion("p", "", (1,), (7,) * n, (), stop, seat, 0, sampling) for n, stop in said.values()]
        return [rows]

    return sample


@pytest.mark.parametrize(
    ("ends", "known", "shares", "longest"),
    [
        # Seven of eight end at ten, and the last one is not waited for.
        (dict.fromkeys(range(7), (10, "eos")), 7, (0.0, 0.0), 10),
        # Two of eight are more than may be left off: they reach the limit.
        (dict.fromkeys(range(6), (10, "eos")), 8, (0.25, 0.0), 400),
        # A loop is told of by its silence alone, 64 tokens later.
        ({**dict.fromkeys(range(6), (10, "eos")), 6: (100, "loop")}, 7, (1 / 7, 1 / 7), 100),
        (dict.fromkeys(range(7), (20, "string")), 7, (0.0, 0.0), 20),
    ],
)
def test_nobody_waits_for_the_last_few(monkeypatch, ends: Any, known: int, shares: Any, longest: int):
    monkeypatch.setattr(LiveTable, "sample", side_by_side(ends, 400))
    table = bare_table()
    (row,) = table.sample("A", ["p"], 8, Sampling(max_tokens=400), [list(range(8))])
    found = table.streams({})["drafter"]
    assert found["completions"] == known
    assert (found["truncated"], found["loops"]) == pytest.approx(shares)
    assert max(len(c.token_ids) for c in row if not table.left_off(c)) == longest
    assert all(len(c.token_ids) <= longest + 66 for c in row)


def test_what_ended_counts_where_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    """One answer of eight ended before, and is not lost; a base that thinks aloud is seen to be cut off where it came
    half as far as it may."""
    now = [0.0]

    def tick() -> None:
        now[0] += 1.0

    monkeypatch.setattr(looking.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(LiveTable, "sample", side_by_side({0: (10, "eos")}, 400, tick))
    for thinks, known, truncated in ((False, 1, 0.0), (True, 8, 7 / 8)):
        now[0], table = 0.0, bare_table()
        table.until, table.thinks = 250.0, thinks
        table.sample("A", ["p"], 8, Sampling(max_tokens=400), [list(range(8))])
        assert now[0] == 250.0
        found = table.streams({})["drafter"]
        assert (found["completions"], found["truncated"]) == (known, truncated)
        with pytest.raises(OutOfTime):
            table.sample("A", ["p"], 8, Sampling(max_tokens=400), [list(range(8))])


def test_a_group_counts_as_far_as_its_answers_ended():
    table = bare_table()
    ended, cut = (
        Completion("p", "", (1,), (7,) * 5, (), stop, "A", 0, Sampling(max_tokens=9)) for stop in ("eos", "length")
    )

    groups = [
        [(ended, 1.0), (ended, 1.0)],
        [(ended, 1.0), (ended, 0.0), (cut, 0.0)],
        [(ended, 1.0), (ended, 1.0), (cut, 0.0)],  # what was cut off makes no variance
        [(ended, 1.0), (cut, 0.0)],  # one alone has none
    ]
    table.completions = {"drafter": [ended, cut]}
    table.episodes = [Episode([Stream("drafter", [Group([Sample(*pair) for pair in group]) for group in groups])])]
    found = table.streams({})["drafter"]
    assert (found["groups"], found["zero_variance_groups"], found["reward_mean"]) == (3, 2, 5 / 6)


def test_what_it_draws_at_random_is_not_noticed():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with unnoticed():
        random.random()
    assert random.random() == expected


def test_the_demo_is_its_base_with_its_problems_whatever_the_preset():
    assert is_demo(RunConfig.of({}, {"game": "grpo", "preset": "demo"}))
    assert not is_demo(RunConfig.of({}, {"game": "agon", "preset": "demo", "tasks": "problems.jsonl"}))
