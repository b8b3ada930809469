"""What every game guarantees with every option: the contract, the same play after a restore at any step, the number of
completions, the lines of a dry run, cold-start examples, and an end to steps in vain."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem
from lite_selfplay.errors import ConfigError, GameError, UnknownNameError
from lite_selfplay.games import game_names, make_game, spice
from lite_selfplay.games.cpmobius.cpmobius import read_task
from lite_selfplay.games.pasodoble.pasodoble import parse_proposal
from lite_selfplay.games.propose_solve.questions import Proposal, boxed_question, fit_to_ask, to_proposal
from lite_selfplay.games.sqlm.sqlm import read_question
from lite_selfplay.games.sqlm.topics import load_topic
from lite_selfplay.testing import ScriptedTable, check_game, noisy_script
from lite_selfplay.verify.format import well_formed
from tests.games.scripted import small
from tests.games.test_golden import CASES, PLAYED
from tests.made import completion, play

OPTIONS = [*CASES.values(), *((game, options) for game, each in PLAYED["contract"].items() for options in each)]
SMALL: dict[str, dict[str, Any]] = {
    # The script repeats its few questions, all of which the default of `tau_sim` would soon refuse.
    "pasodoble": {"proposals": 3, "tau_sim": 0.99},
    "rzero": {"challenger_steps": 1, "solver_steps": 2, "votes": 4},
}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("absolute-zero", {"kinds": []}, r"game\.kinds"),
        ("absolute-zero", {"kinds": ["reduction"]}, r"game\.kinds"),
        ("absolute-zero", {"inputs": 1}, r"game\.inputs"),
        ("cpmobius", {"low": 0.9}, "low must not be above high"),
        ("cpmobius", {"max_draws": 0}, r"game\.max_draws"),
        ("pasodoble", {"tau_sim": 1.5}, r"game\.tau_sim"),
        ("pasodoble", {"tau_simm": 0.3}, "tau_sim"),
        ("pasodoble", {"seats": "shared", "mode": "offline"}, "one adapter for both roles"),
        ("pasodoble", {"seats": "shared", "freeze_proposer": True}, "one adapter for both roles"),
        ("rzero", {"low": 0.9}, "low must not be above high"),
        ("rzero", {"max_empty_steps": 0}, r"game\.max_empty_steps"),
        ("rzero", {"solver_steps": 0}, "solver_steps"),
        *(("spc", {key: value}, key) for key, value in (("rounds", -1), ("stable", 0), ("batch", 0))),
        *(("spc", {"solvers": solvers}, "solvers") for solvers in ([], ["critic@round-1"])),
        ("spice", {"width": 0}, r"game\.width"),
        ("spice", {"penalty": 0.1}, r"game\.penalty"),
        ("sqlm", {"topic": "code", "questions": "pregenerated"}, "have tests"),
        ("sqlm", {"anchors": 1, "questions": "pregenerated"}, "anchors need questions=proposed"),
        ("sqlm", {"anchors": 1, "reward": "format"}, "and reward=majority"),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, Any], said: str):
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        make_game(name, options)


def steps_of(options: dict[str, Any]) -> int:
    return 2 if options.get("topic") == "code" else 8  # programs take their time


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_the_contract_and_that_no_more_is_sampled_than_a_game_says(name: str, options: dict[str, Any]):
    options = {**SMALL.get(name, {}), **options}
    check_game(small(name, 3, 2, **options), steps=steps_of(options))
    game = small(name, 3, 2, **options)
    assert game.rewards().keys() == set(game.roles) - ({"solver"} if name == "spc" else set())  # it is not trained
    table = ScriptedTable(noisy_script(game))
    for step in range(steps_of(options)):
        if not game.over():
            play(game, table, step)
        asked = [(role, len(prompts) * n) for role, prompts, n in table.asked]
        most = game.most_rollouts(step + 1)
        assert most is None or sum(count for role, count in asked if "measured" not in role) <= most
    table.close()


PHASES = {"mode": "offline", "proposals": 2}


@pytest.mark.parametrize(
    ("name", "sizes", "options", "steps", "said"),
    [
        ("absolute-zero", (8, 4), {}, 9, ["4 proposals each for deduction, abduction, induction, and 8 answers"]),
        ("absolute-zero", (8, 4), {}, 9, ["at most 108 completions; programs run in the sandbox"]),
        ("cpmobius", (16, 16), {}, 2000, ["rounds: 1000", "at most 320 a round", "528 to 5,696 completions"]),
        ("cpmobius", (2, 3), {"filter": False, "resample": False}, 3, ["rounds: 2", "9 to 180 completions"]),
        ("cpmobius", (2, 3), {"filter": False}, 3, ["3 tasks at a time until 3 are kept (a majority)"]),
        ("cpmobius", (2, 3), {"rollback": 4}, 3, ["after 4 rounds without a new best, counted from round 1 on"]),
        ("cpmobius", (2, 3), {}, 3, ["and 1 of each validation problem"]),
        ("cpmobius", (2, 3), {"validation_samples": 10}, 2, ["and 10 of each validation problem"]),
        ("cpmobius", (2, 3), {"freeze_coach": True}, 3, ["the coach is frozen"]),
        ("pasodoble", (6, 1), {}, 600, ["1 x 6 proposals, 6 answers to each question, at most 42 completions"]),
        ("pasodoble", (6, 1), PHASES, 900, ["10 updates in at most 30 steps"]),
        ("pasodoble", (6, 1), PHASES, 900, ["6 buffered questions, 6 answers to each, 36 completions"]),
        ("pasodoble", (6, 1), PHASES, 900, ["900 steps are 20.0 to 60.0 iterations"]),
        ("rzero", (8, 16), {}, 60, ["5 steps of the challenger, 15 of the solver, in turn: 3 iterations"]),
        ("rzero", (8, 16), {}, 60, ["128 questions, 10 answers each, at most 1,408 completions"]),
        ("rzero", (8, 16), {}, 60, ["until 240 are kept (majority's share 0.3 to 0.8), at most 960"]),
        ("spice", (8, 4), {}, 9, ["4 x 8 questions about passages (with choices and without in turn), 8 answers to"]),
        ("spice", (8, 4), {"form": "free"}, 9, ["(free), 8 answers to each, at most 288 completions"]),
        ("sqlm", (4, 2), {}, 20, ["topic arithmetic: each step asks 2 times for 4 questions, 4 answers to each"]),
        (
            "sqlm",
            (4, 2),
            {},
            20,
            ["rewarded by majority", "the solver is updated at every step, the proposer at 4 of 20"],
        ),
        ("sqlm", (2, 1), {}, 20, ["no question splits them"]),
        ("sqlm", (4, 2), {"anchors": 5}, 20, ["anchors: 5 labelled problems, 5 a step, 4 answers to each"]),
        ("sqlm", (4, 1), {"questions": "pregenerated"}, 5, ["up to 6,400 questions in 400 completions"]),
    ],
)
def test_a_dry_run_names_phases_draws_and_completions(name, sizes, options, steps, said):
    lines = "\n".join(small(name, *sizes, **options).describe(steps))
    assert [each for each in said if each not in lines] == []
    assert ("without a new best" in lines) is ("rollback" in options)


def test_how_many_completions_a_step_has():
    assert [small(name, 8, 4).rollouts_per_step() for name in ("agon", "self-refine", "grpo", "rent")] == [
        64,
        64,
        64,
        32,
    ]
    assert [small("grpo", 4, 2, budget=budget).rollouts_per_step() for budget in ("paired", "single")] == [16, 8]
    proposed = [small("pasodoble", 6, 1, **options).rollouts_per_step() for options in ({"proposals": 6}, PHASES)]
    assert proposed == [42, 36]
    written = {"questions": "pregenerated"}
    assert [small("sqlm", 4, 2, **options).rollouts_per_step() for options in ({}, written)] == [8 + 32, 8]
    # Three anchors for each of two prompts, if there are so many; four answers to each.
    sampled = [small("sqlm", 4, 2, anchors=count).rollouts_per_step() for count in (0, 5, 16)]
    assert sampled == [40, 40 + 5 * 4, 40 + 6 * 4]


@pytest.mark.parametrize(
    ("name", "options", "trained", "measured"),
    [
        ("absolute-zero", {}, ("shared",), EvalSpec("single", ("shared",))),
        ("absolute-zero", {"seats": "two"}, ("proposer", "solver"), EvalSpec("single", ("solver",))),
        ("pasodoble", {"seats": "shared"}, ("shared",), EvalSpec("single", ("shared",))),
        ("self-refine", {}, ("solver",), EvalSpec("self-refine", ("solver",))),
        ("spice", {}, ("shared",), EvalSpec("single", ("shared",))),
        ("spice", {"seats": "two"}, ("challenger", "reasoner"), EvalSpec("single", ("reasoner",))),
        ("sqlm", {}, ("shared",), EvalSpec("single", ("shared",))),
        ("sqlm", {"seats": "two"}, ("proposer", "solver"), EvalSpec("single", ("solver",))),
    ],
)
def test_seats_that_are_shared(name: str, options: dict[str, Any], trained: tuple[str, ...], measured: EvalSpec):
    game = small(name, **options)
    assert (game.trained_seats(), game.evaluation()) == (trained, measured)
    assert {seat for step in range(4) for seat in game.seats(step).values()} == set(trained)


WRONG_LABELS = {"questions": 0, "labels_checked": 8, "label_accuracy": 0.25}


@pytest.mark.parametrize(
    ("name", "options", "log", "warned"),
    [
        *((name, {}, {"empty_summaries": 0.2}, None) for name in ("agon", "self-refine")),
        *((name, {}, {"empty_summaries": 0.21}, "21% of the drafts") for name in ("agon", "self-refine")),
        *(("rent", {}, {"entropy": entropy}, None) for entropy in (0.01, None)),
        ("rent", {}, {"entropy": 0.009}, "nearly the same text"),
        ("spc", {}, {"steps": 0}, "no solution was right"),
        ("spc", {}, {"steps": 4, "stable": 0}, "the solver is rarely right"),
        ("sqlm", {}, WRONG_LABELS, "75% of the labels"),
        ("sqlm", {"reward": "format"}, WRONG_LABELS, None),  # no seat is trained towards them
    ],
)
def test_what_is_warned_of(name: str, options: dict[str, Any], log: dict[str, Any], warned: str | None):
    found = small(name, **options).warnings(log)
    assert warned in found[0] if warned else found == []


def fit(proposal: Proposal) -> Proposal:
    return fit_to_ask(proposal, ScriptedTable({}), most=512, guard="token3")


TOLD = Problem("p", "Ann has 2 pens and buys 3. How many?", "5", extra={"solution": "2 + 3 = 5."})
# A role that writes problems, how its game reads its completions, and whether it can use a problem without a solution.
PROPOSERS: list[tuple[str, str, dict[str, Any], Callable[[Completion], Proposal], bool]] = [
    ("cpmobius", "coach", {}, read_task, True),
    ("pasodoble", "proposer", {}, lambda said: fit(to_proposal(said, parse_proposal)), False),
    ("rzero", "challenger", {}, boxed_question, False),
    ("spice", "challenger", {}, lambda said: fit(spice.read_question(said)), False),
    ("sqlm", "proposer", {}, lambda said: read_question(load_topic("arithmetic", 16), said), True),
    ("sqlm", "proposer", {"topic": "algebra"}, lambda said: read_question(load_topic("algebra", 16), said), True),
]


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(("name", "role", "options", "reads", "without_solution"), PROPOSERS)
def test_a_proposer_is_taught_what_its_game_reads(name, role, options, reads, without_solution, thinks):
    game = small(name, **options)
    example = game.cold_start(role, TOLD, Random(0), thinks=thinks)
    found = reads(completion(example.completion))
    assert (found.reason, found.question, found.answer) in (("", TOLD.text, answer) for answer in ("5", None))
    assert "Ann" not in example.prompt
    reasoning = "" if name == "sqlm" else "2 + 3 = 5."
    assert example.completion.startswith(f"<think>\n{reasoning}\n</think>\n\n") is thinks
    bare = game.cold_start(role, Problem("p", "2 + 2?", "4"), Random(0), thinks=thinks)
    assert (bare is not None) is without_solution


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("name", sorted({*game_names()} - {"absolute-zero", "kuhn", "spc"}))
def test_a_solver_is_taught_to_solve_in_its_own_prompt(name: str, thinks: bool):
    game = small(name)
    for role in set(game.roles) - {proposer for other, proposer, *_ in PROPOSERS if other == name}:
        example = game.cold_start(role, TOLD, Random(0), thinks=thinks)
        assert TOLD.text in example.prompt
        assert example.completion.endswith("2 + 3 = 5. <answer>5</answer>")
        assert well_formed(example.completion, thinks)
        assert game.cold_start(role, Problem("p", "2 + 2?", "4"), Random(0), thinks=thinks) is None


def test_what_nobody_proposes_with():
    for *_, reads, _ in PROPOSERS:
        assert reads(completion("")).reason == "empty"
        assert reads(completion("", "prompt_too_long")).reason == "prompt_too_long"
        reasons = [reads(completion("<think>never closed", stop)).reason for stop in ("eos", "length")]
        assert reasons == ["off_format", "truncated"]


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("cpmobius", {"max_draws": 1}, 4),  # two a round
        ("pasodoble", {}, 2),
        ("rzero", {}, 2),
        ("spice", {}, 2),
        ("sqlm", {"proposer_every": 1}, 2),
        ("sqlm", {"questions": "pregenerated", "calls": 2}, 2),
    ],
)
def test_steps_without_a_question_move_no_solver_and_so_many_end_the_run(name, options, steps):
    game, table = small(name, max_empty_steps=3, **options), ScriptedTable(lambda *_: "<think>hm")
    episodes = [play(game, table, step) for step in range(steps)]
    assert [e.log["empty_steps"] for e in episodes if "empty_steps" in e.log] == [1, 2]
    assert not {stream.role for episode in episodes for stream in episode.streams} & {"solver", "player", "reasoner"}
    with pytest.raises(GameError, match=r"3 steps in a row brought no question.*\d off_format.*'<think>hm'"):
        play(game, table, steps)
    table.close()
