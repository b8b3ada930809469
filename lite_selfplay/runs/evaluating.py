"""Evaluating a run or a base model: on several tasks and in several modes at a time, and going on where that stopped.

All problems are found and checked before the base is loaded. Answers are written down as they come
(`lite_selfplay.evaluation.examiner`), so that the same call goes on with them after a signal or a kill.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.config import TasksSection
from lite_selfplay.data import EvalSpec, Problem
from lite_selfplay.errors import Interrupted, ProcessLost, RequestError, TaskError
from lite_selfplay.evaluation.examiner import SUFFIX, Answers, Exam, key_of, measure, require_enough
from lite_selfplay.evaluation.result import Evaluation, headline
from lite_selfplay.evaluation.suites import Settings
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.build import ProgressLike, require_shareable
from lite_selfplay.runs.folder import EVALUATIONS
from lite_selfplay.runs.targets import Target, find_task, texts_trained_on, trained_on, write_result
from lite_selfplay.tasks import Task, data_facts, evaluation_set, fingerprint, without
from lite_selfplay.tasks.split import overlap
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress, as_progress
from lite_selfplay.training.ranks import Ranks, joined
from lite_selfplay.verify import Verifier, programs

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable

# Kinds of problems whose checker compares with the answer; others have rules of their own.
_NEED_ANSWERS = ("math", "letters", "choice", programs.KIND)


def evaluate(
    target: Path | str,
    tasks: str | None = None,
    *,
    mode: str | None = None,
    limit: int | None = None,
    samples: int | None = None,
    k: Sequence[int] = (),
    shots: int = 0,
    temperature: float | None = None,
    top_p: float | None = None,
    max_completion_tokens: int | None = None,
    seats: Sequence[str] | None = None,
    seed: int = 0,
    precision: Literal["4bit", "bf16", "fp16", "fp32"] | None = None,
    data_dir: Path | str | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    answer_from: Literal["anywhere", "block"] | None = None,
    trained_on: bool = False,
    write: bool = True,
    progress: ProgressLike = None,
) -> Evaluation:
    """Measure the seats of a run, or a base model as the seat `base`, on problems that training held out.

    `target`: a run folder, or a model's name. `tasks`: as in training; a benchmark's data are looked for in `data_dir`.
    A run of a game that draws no problems, such as one of matches, needs none.
    `mode`: a name in `lite_selfplay.games.modes.MODES`; None takes the game's, `single` for a model.
    `limit` to `trained_on` are explained by `Settings`.
    The result is written to `eval/` in a run's folder unless `write` is off, never over another; none for a model.

    Raises RequestError where the request is wrong (a mode, seat, task or model that is not there, a run without its
    adapters or over another base), Interrupted where it was stopped by a signal: the same call then goes on.
    """
    settings = Settings(
        limit=limit,
        samples=samples,
        k=k,
        shots=shots,
        temperature=temperature,
        top_p=top_p,
        max_completion_tokens=max_completion_tokens,
        seats=seats,
        seed=seed,
        precision=precision,
        data_dir=data_dir,
        trust_remote_code=trust_remote_code,
        unsafe_code=unsafe_code,
        answer_from=answer_from,
        trained_on=trained_on,
    )
    return evaluate_all(target, [tasks] if tasks else [], [mode], settings, write=write, progress=progress)[0]


def evaluate_all(
    target: Path | str,
    tasks: Sequence[str] | Mapping[str, int],
    modes: Sequence[str | None] = (None,),
    settings: Settings | None = None,
    *,
    write: bool = True,
    progress: ProgressLike = None,
) -> list[Evaluation]:
    """Measure a run or a base model on each task in each mode, task by task; see `evaluate`.

    `tasks` may say of each how often its problems are answered where `settings` do not. Modes share what they ask in
    the same words: the drafts of a cascade are the answers of `single`. With `write`, answers are kept in `eval/` (of
    the run, or of the current folder for a model) until all is done, and the same call goes on with them.
    """
    with joined() as ranks:
        return _evaluate_all(
            ranks, target, tasks, modes, settings or Settings(), write, as_progress(progress if ranks.main else None)
        )


def _evaluate_all(
    ranks: Ranks,
    target: Path | str,
    tasks: Sequence[str] | Mapping[str, int],
    modes: Sequence[str | None],
    settings: Settings,
    write: bool,
    progress: Progress,
) -> list[Evaluation]:
    found = Target.of(
        target,
        settings.precision,
        settings.seed,
        settings.trust_remote_code,
        settings.unsafe_code,
        settings.answer_from,
    ).at(settings.seats or ())
    if not tasks:
        if found.folder is None or found.config.tasks.train is not None:
            raise RequestError("an evaluation takes --tasks, or --suite in its place: give one of them")
        tasks = [found.config.game.name]  # a game that draws no problems is its own task
    specs = [found.spec(mode, settings.seats) for mode in dict.fromkeys(modes)]
    found.require_adapters()
    run = found.folder
    # Nothing is known of what a base model learned from.
    learned = cache(
        lambda: (trained_on(found.config, progress), [*texts_trained_on(run, progress)]) if run else ([], [])
    )
    samples = tasks if isinstance(tasks, Mapping) and settings.samples is None else {}
    chosen = [
        _choose(
            spec,
            settings.model_copy(update={"samples": samples.get(spec, settings.samples)}),
            specs,
            found,
            learned,
            progress,
        )
        for spec in dict.fromkeys(tasks)
    ]
    section = found.config.model
    require_shareable(ranks, section)
    import_first(section)
    with quiet(), Interrupts(patient=ranks.world > 1) as interrupts:
        from lite_selfplay.models.sources import base_of

        model = base_of(section, progress)
        found.require_base(model.identity)
        asked = {
            "base model": model.identity,
            "set of adapters": found.weights(),
            "set of problems": [[c.tasks, c.about["data"]["asked"], c.samples, asdict(c.sampling)] for c in chosen],
            "choice of modes": [[spec.mode, *spec.seats] for spec in specs],
        }
        answers = _answers(found, asked, settings, progress) if write and ranks.main else Answers()
        progress.say(f"loading {model.name} in {section.precision}")
        tokens = max(each.sampling.max_tokens for each in chosen)
        poll = Poll(progress, interrupts.poll)
        with found.table(model, tokens, progress, poll, ranks) as table:
            ranks.poll = poll
            answers.lines = ranks.from_main("the answers to go on from", lambda: answers.lines)
            ranks.require_same(asked)
            interrupts.poll()  # from here on a signal raises Interrupted here
            try:
                about = {"model": model.name, "precision": section.precision, "weights": asked["set of adapters"]}
                about |= {"answer_from": found.config.tasks.answer_from}
                evaluations = _evaluations(found, about, table, chosen, specs, answers, progress, interrupts.poll)
            except (Interrupted, ProcessLost) as stop:
                begun = answers.path is not None and answers.path.is_file()
                kept = f"; {answers.path} keeps what was answered, and the same command goes on" if begun else ""
                raise type(stop)(f"{stop}{kept}") from None
    if write and found.folder is not None and ranks.main:
        for evaluation in evaluations:
            progress.say(f"written: {write_result(found.folder, evaluation.to_json())}")
    answers.remove()
    return evaluations


def _graded_otherwise(found: Evaluation, tasks: TasksSection, poll: Callable[[], None]) -> Evaluation:
    """With the pass@1 of each seat and direction had answers been read in the other place, as `otherwise`: in the
    `<answer>` block alone where they were read anywhere, and the other way round. As it is where none read them."""
    if any(problem.kind not in _NEED_ANSWERS for problem in found.problems.values()):
        return found
    problems, block_only = list(found.problems.values()), tasks.answer_from != "block"
    with Verifier(poll=poll, block_only=block_only, unsafe_code=tasks.unsafe_code) as verifier:
        otherwise = {
            name: fmean(v.correct for v in verifier.verify([(a.completion, p) for p, row in pairs for a in row]))
            for name, rows in found.rows.items()
            if (pairs := list(zip(problems, rows, strict=True)))
        }
    return replace(found, about={**found.about, "otherwise": otherwise})


def _choose(
    spec: str,
    settings: Settings,
    specs: Sequence[EvalSpec],
    target: Target,
    learned: Callable[[], tuple[list[Problem], list[str]]],
    progress: Progress,
) -> Exam:
    """The problems to measure on. Raises TaskError where one has no answer, and where the run was trained on all."""
    readers = {find_mode(each.mode).tasks for each in specs}
    if len(readers) > 1:
        raise RequestError("these modes are measured on tasks of different kinds: give one --mode at a time")
    task, name = find_task(spec, settings.data_dir, settings.seed, *readers)
    chosen = evaluation_set(task, settings.limit, settings.seed)
    if any(problem.kind == programs.KIND for problem in chosen):
        programs.shared_sandbox(unsafe_code=target.config.tasks.unsafe_code)  # refused before anything is loaded
    missing = next((p.id for p in chosen if p.answer is None and p.kind in _NEED_ANSWERS), None)
    if missing is not None:
        raise TaskError(f"an evaluation needs an answer to every problem; {missing} of {task.name} has none")
    if settings.limit is not None and len(chosen) < settings.limit:
        progress.say(f"{task.name} has no more than {len(chosen)} different problems")
    # The two sides of a task made by rule never overlap.
    problems, seen = (
        (chosen, {})
        if task.procedural
        else _unseen(task, chosen, target.name, *learned(), progress, settings.trained_on)
    )
    # The same in all modes, so that these share their first stage.
    samples = settings.samples or max(task.samples, *(settings.k or ()), *(find_mode(it.mode).samples for it in specs))
    for each in specs:
        require_enough(each, find_mode(each.mode), samples, settings.k or ())
    tokens = settings.max_completion_tokens or target.config.run.max_completion_tokens or task.max_completion_tokens
    sampling = settings.sampling_of(target.config, specs, tokens)
    data = {**data_facts(task), "asked": fingerprint(problems)}
    if repeated := data.get("repeated"):
        progress.say(f"{repeated} of {data['rows']} rows of {task.name} repeat another one and are not asked again")
    ks = settings.k or ((1, samples) if samples > 1 else ())
    about = {"data": data, **({"overlap": seen} if seen else {})}
    return Exam(problems, sampling, samples, ks, settings.shots, settings.seed, name, about)


def _unseen(
    task: Task,
    chosen: Sequence[Problem],
    name: str,
    learned: Sequence[Problem],
    read: Sequence[str],
    progress: Progress,
    even_so: bool,
) -> tuple[Sequence[Problem], dict[str, list[str]]]:
    """The problems that no training problem equals in content; the ids of those left out, and of others like them.
    Where all are training problems, these, if they are to be measured `even_so`, and their ids as `trained_on`."""
    unseen = without(chosen, learned)
    if not unseen and even_so:
        progress.warn(f"{name} was trained on every one of these problems of {task.name}")
        return chosen, {"trained_on": [problem.id for problem in chosen]}
    if not unseen:
        raise TaskError(f"{name} was trained on every one of these problems of {task.name}: take others")
    left = {id(problem) for problem in unseen}
    left_out = [problem.id for problem in chosen if id(problem) not in left]
    if left_out:
        ids = ", ".join(left_out[:10]) + (", ..." if len(left_out) > 10 else "")
        count = f"{len(left_out)} of {len(chosen)} problems of {task.name}"
        progress.warn(f"{count} were in training and are left out: {ids}")
    alike = overlap(unseen, [*learned, *read])
    if (sentence := alike.warning()) is not None:
        progress.warn(f"{task.name}: {sentence}")
    found = {"left_out": left_out, "same": list(alike.same), "shared": list(alike.shared)}
    return unseen, found if any(found.values()) else {}


def _answers(target: Target, asked: Mapping[str, Any], settings: Settings, progress: Progress) -> Answers:
    """What a former call of the same kind left, or nothing: of the same weights, problems, sampling and modes."""
    if target.folder is None and not os.access(".", os.W_OK):
        progress.warn("answers are not kept while they come: the current folder cannot be written")
        return Answers()
    config = target.config
    identity = {
        "version": version("lite-selfplay"),
        **asked,
        "model": config.model.model_dump(mode="json", exclude={"name", "trust_remote_code"}),
        "prompts": config.run.max_prompt_tokens,
        "answers": config.tasks.answer_from,
        "shots": settings.shots,
        "seed": settings.seed,
    }
    folder = (target.folder.path if target.folder else Path()) / EVALUATIONS
    names = [each[0] for key in ("choice of modes", "set of problems") for each in asked[key]]
    named = re.sub(r"[^\w.-]+", "-", "-".join(names))[:80]
    answers = Answers(identity, folder / f"{named.strip('-')}-{key_of(identity)[:12]}{SUFFIX}")
    if answers.lines:
        progress.say(f"going on with the answers to {len(answers.lines)} questions in {answers.path}")
    return answers


def _evaluations(
    target: Target,
    about: Mapping[str, Any],
    table: "LiveTable",
    chosen: Sequence[Exam],
    specs: Sequence[EvalSpec],
    answers: Answers,
    progress: Progress,
    poll: Callable[[], None],
) -> list[Evaluation]:
    """Each task in each mode, under one phase of the progress."""
    pairs = [(each, spec) for each in chosen for spec in specs]
    parts = [len(each.problems) * find_mode(spec.mode).stages(spec.seats) for each, spec in pairs]
    several, found = len(pairs) > 1, list[Evaluation]()
    if several:
        names = f"{', '.join(each.tasks for each in chosen)} in {', '.join(spec.mode for spec in specs)}"
        progress.phase(f"evaluation of {target.name} on {names}", sum(parts))
    for number, (each, spec) in enumerate(pairs):
        evaluation = measure(
            table,
            spec,
            replace(each, about={**about, **each.about}),
            name=f"{each.tasks}, {spec.mode}" if several else f"evaluation of {target.name} on {each.tasks}",
            answers=answers,
            rows_at_once=table.rows_at_once(each.sampling.max_tokens),
            progress=progress,
            begun=sum(parts[:number]) if several else None,
        )
        evaluation = _graded_otherwise(evaluation, target.config.tasks, poll)
        result = evaluation.to_json()
        what = f"{target.name}, {each.tasks}, {spec.mode}" if several else target.name
        progress.evaluated(what, result, headline(result))
        found.append(evaluation)
    return found
