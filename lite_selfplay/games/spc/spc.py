"""SPC: a sneaky generator against a critic ("SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning").

Rounds of play, collection and offline reinforcement. A phase is a step, and so is a batch of training:

    solutions           y ~ solver for each problem; of each right one a random step t_k is drawn
    validation          t_k is a correct step if >= 75% of N completions from it are right
    sneaky              t' ~ sneaky(problem, t_1 .. t_k-1, t_k): a kind of error, and the step rewritten
    sneaky validation   t' is an error if none of N completions from it is right
    critiques           4 critiques of each error, and of equally many original steps
    collection          sneaky: equally many that fooled the critic (+1), were caught (-1) and were no errors (-1)
                        critic: pairs of a right (+1) and a wrong (-1) critique of the same step; A = R - mean(R)
    sneaky learns, critic learns   epochs of batches: ratio to the stored log-probabilities, clipped

After the last round its sneaky generator attacks once more, on steps that neither seat was trained on, and every
snapshot meets every other.

Kept from the paper: the rules above, the asymmetric schedule (section 3.5: the newest sneaky generator meets the first
critic, which is trained again on all rounds' critiques) and the symmetric one, the KL inside the advantage.
Changed: the seats are adapters over one base, and the paper trains all weights of two models; the solvers are the base
and its seats, and the paper's are several models (a file of solutions can add others').
Ours, where the paper is silent: how many completions validate a step, the rewards of unreadable replies, how many
correct steps are judged, rounds after the second, learning rates. The code names each where it decides it.
Each phase writes its cases to a file in the run's folder, atomically; `state` holds the game's progress.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from lite_selfplay.data import BASE, Completion, Episode, EvalSpec, Example, Group, Problem, Restore, Snapshot, Stream
from lite_selfplay.games.base import Game
from lite_selfplay.games.collections import Collection, read_objects, replayed, write_objects
from lite_selfplay.games.presentation import Accuracy, Pairing, Row
from lite_selfplay.games.spc import cases as phases
from lite_selfplay.games.spc import rounds
from lite_selfplay.games.spc.cases import CRITIC, SNEAKY, Case, Fate
from lite_selfplay.games.spc.corruptor import corruptions
from lite_selfplay.games.spc.steps import StepPair
from lite_selfplay.games.spc.stepsets import read_pairs
from lite_selfplay.games.table import Table

Phase = Literal[
    "solutions",
    "validation",
    "sneaky",
    "sneaky validation",
    "critiques",
    "collection",
    "sneaky learns",
    "critic learns",
    "pairings",
    "over",
]
# The cases of a phase, its log, and its streams.
_Played = tuple[Sequence[Case], dict[str, Any], Sequence[Stream]]
_STATE = ("phase", "round", "epoch", "batch", "order")
# The seat that learns in a phase.
_LEARNERS: Mapping[Phase, str] = {"sneaky learns": SNEAKY, "critic learns": CRITIC}


class Spc(Game):
    """The sneaky generator rewrites correct steps into wrong ones; the critic judges steps."""

    roles = (SNEAKY, CRITIC, "solver")
    sources: tuple[str, ...] = ("problems", "solutions")
    about = "SPC: a sneaky generator rewrites correct steps into wrong ones, and a critic learns to catch them"
    Options = rounds.SpcOptions
    open_ended = True
    accuracy: ClassVar[Mapping[str, Accuracy]] = {
        SNEAKY: Accuracy("mislead", "attack success", "no errors", "misleads the solver", "misleads nobody"),
        CRITIC: Accuracy("right", "right judgements", "not right", "judges rightly", "judges wrongly"),
    }
    pairing = Pairing(
        SNEAKY,
        "rewrite",
        {
            (True, False): "the critic is fooled",
            (True, True): "the critic catches the error",
            (False, False): "no error, judged wrongly",
            (False, True): "no error, judged rightly",
        },
    )
    figures = rounds.FIGURES
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {name: {"beta": 0.1, "kl": "advantage", "clip_ratio": 0.2} for name in (SNEAKY, CRITIC)},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 2e-6}},
        "cold_start": {"enabled": True},
        "eval": {"temperature": 0.0, "top_p": 1.0},
        "run": {"problems_per_step": 64, "steps": 1_000_000},
    }

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        chosen = self.options
        self._phase: Phase = "solutions" if chosen.rounds or chosen.tournament else "over"
        self._has_solver = any(name.startswith("solver") for name in chosen.solvers)
        self._round = 1
        self._epoch = self._batch = self._order = 0
        self._opened: dict[str, Collection] = {}
        self._pairs: list[StepPair] | None = None

    def seats(self, step: int) -> Mapping[str, str]:
        return {SNEAKY: SNEAKY, CRITIC: CRITIC, "solver": "solver" if self._has_solver else self.options.solvers[0]}

    def trained_seats(self) -> tuple[str, ...]:
        return (SNEAKY, CRITIC, "solver") if self._has_solver else (SNEAKY, CRITIC)

    def kept_at_start(self) -> Sequence[Snapshot]:
        return [Snapshot(seat, rounds.snapshot_name(seat, 0)) for seat in self.trained_seats()]

    def evaluation(self) -> EvalSpec:
        return EvalSpec("critic", (CRITIC,))

    def other_evaluations(self) -> Mapping[str, tuple[str, ...]]:
        return {"search": ("solver" if self._has_solver else BASE, CRITIC), "single": self.trained_seats()}

    def over(self) -> bool:
        return self._phase == "over"

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        """The solver's example is a worked solution, step by step; the others' is one of its steps with an error made
        by rule, or a pair of the file `pairs`."""
        if role == "solver":
            return phases.solver_example(problem, thinks=thinks)
        if self.options.pairs is not None and self._pairs is None:
            self._pairs = read_pairs(Path(self.options.pairs))
        pairs = list(corruptions(problem, rng)) if self._pairs is None else self._pairs
        if not pairs:
            return None
        pair = rng.choice(pairs)
        if role == SNEAKY:
            return phases.sneaky_example(pair, thinks=thinks)
        return rng.choice(phases.critic_examples(pair, thinks=thinks))

    # A step

    def play(self, step: int, table: Table) -> Episode:
        phase, number = self._phase, self._round
        others = {"collection": self._collect, "pairings": self._meet, "over": lambda table: Episode()}
        play = self._learn if phase in _LEARNERS else others.get(phase, self._play_cases)
        found = play(table)
        return replace(found, log={"phase": phase, "round": number, **found.log})

    def _play_cases(self, table: Table) -> Episode:
        """A phase that reads the previous phase's cases, adds its results and writes them to its own file."""
        file, before, after, play = _CASES[self._phase]
        cases, log, streams = play(self, table, self._cases_of(table, before) if before else [])
        write_objects(self._file(table, file), cases)
        self._phase = "pairings" if self._only_attacks and after == "critiques" else after
        return Episode(streams, log=log, save=True)

    @property
    def _only_attacks(self) -> bool:
        """Whether the rounds are over, and the newest sneaky generator attacks once more."""
        return self._round > self.options.rounds

    def _solutions(self, table: Table, _: Sequence[Case]) -> _Played:
        """A random step of each right solution; in the last attack only steps that no seat was trained on."""
        groups: list[Group] = []
        if written := len(table.everything("solutions")):
            problems = table.draw("solutions", min(written, self.problems_per_step))
            right = phases.written_solutions(table, problems, self.options.solvers[0])
        else:
            problems = table.draw("problems", self.problems_per_step)
            right, groups = phases.sampled_solutions(table, problems, self.options.solvers, self.options.samples)
        asked = sum(len(group.samples) for group in groups) if groups else len(problems)
        cases = phases.cases_of(right, f"round-{self._round}", table.rng)
        if self._only_attacks:
            former = (case for number in range(1, self._round) for case in self._cases_of(table, "solutions", number))
            seen = {(case.problem.text, case.steps) for case in former}
            cases = [case for case in cases if (case.problem.text, case.steps) not in seen]
        log = {"solutions": asked, "steps": len(cases)}
        return cases, log, [Stream("solver", groups, replay=True)] if groups else []

    def _validation(self, table: Table, cases: Sequence[Case]) -> _Played:
        cases = phases.tried(table, cases, self.options.rollouts, "original")
        stable = sum(case.is_stable(self.options.stable) for case in cases)
        return cases, {"steps": len(cases), "stable": stable, "completions": len(cases) * self.options.rollouts}, ()

    def _sneaky(self, table: Table, cases: Sequence[Case]) -> _Played:
        cases = [case for case in cases if case.is_stable(self.options.stable)]
        cases = phases.rewritten(
            partial(self._ask, table, SNEAKY, rounds.snapshot_name(SNEAKY, self._round - 1), 1), cases
        )
        refused = Counter(case.rewrite.reason for case in cases if case.rewrite.reason)
        return cases, {"attacks": len(cases), "refused": dict(sorted(refused.items()))}, ()

    def _sneaky_validation(self, table: Table, cases: Sequence[Case]) -> _Played:
        cases = phases.tried(table, cases, self.options.rollouts, "sneaky")
        tried = sum(case.sneaky is not None for case in cases)
        valid = sum(case.is_valid for case in cases)
        log = {"attacks": len(cases), "valid": valid, "completions": tried * self.options.rollouts}
        return cases, log | ({"attack_success": valid / len(cases)} if cases else {}), ()

    def _critiques(self, table: Table, cases: Sequence[Case]) -> _Played:
        ask = partial(
            self._ask, table, CRITIC, rounds.players(self._round, self.options.schedule)[1], self.options.critiques
        )
        cases = phases.judged_untouched(ask, phases.judged(ask, cases), table.rng)
        log = {
            "judged_errors": sum(bool(case.critiques) for case in cases),
            "judged_correct": sum(bool(case.untouched) for case in cases),
        }
        return cases, log, rounds.record(cases, self.options.stable)

    # Collection

    def _collect(self, table: Table) -> Episode:
        """Write the collections that the seats learn from, and restore the snapshots that learning starts from."""
        cases = self._cases_of(table, "critiques")
        pairing = rounds.players(self._round, self.options.schedule)
        critiques = rounds.with_old_logprobs(table, rounds.critic_rows(cases, self._round))
        write_objects(self._file(table, "critiques-as-rows"), critiques)
        numbers = range(1, self._round + 1)
        every = [row for number in numbers for row in Collection(self._file(table, "critiques-as-rows", number))]
        rows = {SNEAKY: rounds.sneaky_rows(cases, self._round, self.options.stable), CRITIC: critiques}
        kept = {
            SNEAKY: rounds.sneaky_set(rows[SNEAKY], table.rng, solver_reward=self.options.solver_reward),
            CRITIC: rounds.critic_set(every, table.rng, pairing=self.options.pairing),
        }
        kept[SNEAKY] = rounds.with_old_logprobs(table, kept[SNEAKY])
        log = rounds.counts_of_round(cases, rows, kept, pairing, self.options.stable)
        for seat, chosen in kept.items():
            wanted = len(chosen) if self.options.sft_weight else 0
            examples = rounds.example_rows(table, seat, partial(self.cold_start, thinks=table.thinks), wanted)
            log[f"{seat}_examples"] = len(chosen) if examples else 0
            write_objects(self._file(table, seat), rounds.mixed(chosen, examples, table.rng, self.options.sft_weight))
        self._order = table.rng.getrandbits(32)
        self._opened.clear()
        actions = [Restore(seat, name, reset_optimizer=True) for seat, name in zip(kept, pairing, strict=True)]
        self._phase = "sneaky learns"
        kept_as = self._finished(table, learned=False)
        return Episode(actions=[*actions, *kept_as], log=log, save=True, measure=len(kept_as) == 2)

    # Offline training

    def _learn(self, table: Table) -> Episode:
        seat = _LEARNERS[self._phase]
        collection = self._collection(table, seat)
        batches = collection.batches(self.options.batch, seed=self._order, epoch=self._epoch)
        rows = collection.rows(batches[self._batch])
        log = {"epoch": self._epoch + 1, "batch": self._batch + 1, "batches": len(batches)}
        self._batch += 1
        ends = self._batch == len(batches)
        if ends:
            self._epoch, self._batch = self._epoch + 1, 0
        actions = self._finished(table, learned=self._epoch == self.options.epochs)
        measured = any(action.seat == CRITIC for action in actions)
        return Episode([replayed(seat, rows)], actions=actions, log=log, save=ends, measure=measured)

    def _finished(self, table: Table, *, learned: bool) -> list[Snapshot]:
        """Snapshots of the seats that are done with this round: the current one if it has `learned`, and following ones
        without rows to learn from. Continues with the next seat, the next round, or the end."""
        kept = []
        while (seat := _LEARNERS.get(self._phase)) and (learned or not len(self._collection(table, seat))):
            kept.append(Snapshot(seat, rounds.snapshot_name(seat, self._round)))
            self._epoch = self._batch = 0
            learned = False
            if seat == SNEAKY:
                self._phase = "critic learns"
            elif self._round < self.options.rounds or self.options.tournament:
                self._phase, self._round = "solutions", self._round + 1
            else:
                self._phase = "over"
        return kept

    # Every snapshot meets every other

    def _meet(self, table: Table) -> Episode:
        """Have every critic snapshot judge the errors of every sneaky snapshot once, unless the two have met."""
        played: list[tuple[str, str, Fate]] = []
        success, stable, snapshots = {}, self.options.stable, range(self.options.rounds + 1)
        for number in snapshots:
            sneaky, judged = rounds.snapshot_name(SNEAKY, number), number < self.options.rounds
            cases = self._cases_of(table, "critiques" if judged else "sneaky validation", number + 1)
            success[sneaky] = rounds.attack_success([case.fate(stable) for case in cases])
            known = rounds.players(number + 1, self.options.schedule)[1] if judged else None
            for critic in (rounds.snapshot_name(CRITIC, other) for other in snapshots):
                met = cases if critic == known else phases.judged(partial(self._ask, table, CRITIC, critic, 1), cases)
                played += [(sneaky, critic, case.fate(stable)) for case in met if case.is_valid]
        self._phase = "over"
        found = rounds.win_rates(played)
        shown = {f"{row['sneaky']} against {row['critic']}": row["win_rate"] for row in found if row["games"]}
        attacks = {name: row["success"] for name, row in success.items() if row["success"] is not None}
        log = {"win_rates": shown, "attack_successes": attacks, "pairings": found, "attacks_in_full": success}
        return Episode(log=log, save=True)

    # Sampling and files

    def _ask(self, table: Table, role: str, name: str, n: int, prompts: Sequence[str]) -> list[list[Completion]]:
        """`n` completions of each prompt by a snapshot of a role's seat; they name the snapshot."""
        held = rounds.snapshot_name(role, self._round - 1)
        rows = table.ask(role, prompts, n=n, seat=None if name == held else name)
        own: dict[str, Any] = {"seat": name, "weights_version": -1}
        return [[replace(said, **own) if said.seat == role else said for said in row] for row in rows]

    def _file(self, table: Table, name: str, round_: int | None = None) -> Path:
        return table.folder / f"round-{round_ or self._round}" / f"{name}.jsonl"

    def _cases_of(self, table: Table, phase: Phase, round_: int | None = None) -> list[Case]:
        return read_objects(self._file(table, _CASES[phase][0], round_), Case.from_json, "step under attack")

    def _collection(self, table: Table, seat: str) -> Collection:
        if seat not in self._opened:
            self._opened[seat] = Collection(self._file(table, seat))
        return self._opened[seat]

    # A run and its display

    def most_rollouts(self, steps: int) -> int:
        return sum(rounds.most_completions(self.options, self.problems_per_step).values())

    def rewards(self) -> Mapping[str, str]:
        return {
            SNEAKY: "1 for a wrong step that the critic accepts, -1 for one that it catches or that is not wrong",
            CRITIC: "1 for a right verdict on a step, -1 for a wrong one",
        }

    def describe(self, steps: int) -> list[str]:
        return rounds.described(self.options, self.problems_per_step)

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        collected = (SNEAKY, CRITIC) if log.get("phase") == "collection" else ()
        idle = [seat for seat in collected if not log[f"{seat}_rows"]]
        return [
            *super().warnings(log),
            *([f"there is nothing for {' and '.join(idle)} to learn from in this round"] if idle else []),
            *(
                f"game.sft_weight asks for examples, and there are none for {seat}: a cold start provides some"
                for seat in collected
                if seat not in idle and self.options.sft_weight and not log[f"{seat}_examples"]
            ),
        ]

    @classmethod
    def trains(cls, log: Mapping[str, Any]) -> bool:
        return log.get("phase") in _LEARNERS

    @classmethod
    def step_words(cls, log: Mapping[str, Any]) -> list[str]:
        batch = f", epoch {log.get('epoch')}, batch {log.get('batch')}/{log.get('batches')}"
        place = f"round {log.get('round')}, {log.get('phase')}{batch if cls.trains(log) else ''}"
        return [place, *super().step_words(log)]

    @classmethod
    def closing(cls, log: Mapping[str, Any]) -> list[str]:
        return rounds.results(log)

    @classmethod
    def problem_in(cls, prompt: str) -> str:
        found = prompt.partition("Problem:\n")[2].partition("\n\nBeginning of the solution:")[0]
        return found or prompt.split("\n\n")[0]

    @classmethod
    def verdict(cls, row: Row) -> str:
        ends = {"caught": ", is caught", "fooled": ", fools the critic", "undecided": ", is not judged"}
        return super().verdict(row) + ends.get(str(row.get("fate")), "")

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update({f"_{name}": state[name] for name in _STATE})
        self._opened.clear()


# For each phase with cases: its file, the phase whose cases it takes, the next phase, and its method.
_CASES: Mapping[Phase, tuple[str, Phase | None, Phase, Callable[[Spc, Table, Sequence[Case]], _Played]]] = {
    "solutions": ("1-solutions", None, "validation", Spc._solutions),
    "validation": ("2-validation", "solutions", "sneaky", Spc._validation),
    "sneaky": ("3-sneaky", "validation", "sneaky validation", Spc._sneaky),
    "sneaky validation": ("4-sneaky-validation", "sneaky", "critiques", Spc._sneaky_validation),
    "critiques": ("5-critiques", "sneaky validation", "collection", Spc._critiques),
}
