"""Evaluates a run or a base model on several tasks and in several modes; an interrupted evaluation can be repeated.

All problems are loaded and checked before the base. Answers are saved as they come
(`lite_selfplay.evaluation.examiner`), so that after a signal or a kill the same call continues with them.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.config import RunConfig, TasksSection
from lite_selfplay.config.user_files import task_of
from lite_selfplay.data import NOT_JUDGED, EvalSpec, Problem
from lite_selfplay.errors import Interrupted, ProcessLost, RequestError, RunFolderError, TaskError
from lite_selfplay.evaluation import Evaluation, Settings, headline
from lite_selfplay.evaluation.examiner import SUFFIX, Answers, Exam, key_of, measure, problem_keys, require_enough
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.build import require_shareable
from lite_selfplay.runs.folder import EVALUATIONS
from lite_selfplay.runs.planning import fitted
from lite_selfplay.runs.targets import Target, find_task, texts_trained_on, trained_on, write_result
from lite_selfplay.tasks import Task, data_facts, evaluation_set, fingerprint, without
from lite_selfplay.tasks.split import overlap
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Monitor, Progress, ProgressLike
from lite_selfplay.training.ranks import joined
from lite_selfplay.verify import Verifier, programs

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable

# Kinds of problems whose checker needs a reference answer; others have rules of their own.
_NEED_ANSWERS = ("math", "letters", "choice", programs.KIND)


def evaluate(
    target: Path | str,
    tasks: "str | Iterable[Any] | None" = None,
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

    `target`: a run folder, or a model's name. `tasks`: as in training (also rows), not needed for a game without
    problems; a benchmark's data must be in `data_dir`. `mode`: a name in `lite_selfplay.games.modes.MODES`; None is the
    game's, or `single` for a model. `Settings` explains `limit` to `trained_on`. With `write`, a run's result is
    written to a new file in its `eval/`.

    Raises RequestError if the request is invalid (an unknown mode, seat, task or model, a run without its adapters or
    over another base), Interrupted if a signal stopped it: the same call then continues.
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
    spec = task_of(tasks)
    return evaluate_all(target, [spec] if spec else [], [mode], settings, write=write, progress=progress)[0]


def evaluate_all(
    target: Path | str,
    tasks: Sequence[str] | Mapping[str, int],
    modes: Sequence[str | None] = (None,),
    settings: Settings | None = None,
    *,
    write: bool = True,
    progress: ProgressLike = None,
) -> list[Evaluation]:
    """Evaluate a run or a base model on each task in each mode, task by task; see `evaluate`.

    `tasks` may map each task to its number of samples, used unless `settings` has one. Modes share answers to equal
    prompts: the drafts of a cascade are the answers of `single`. With `write`, answers are kept in `eval/` (of the run,
    or of the current folder for a model) until everything is done, so that the same call can continue.
    """
    settings = settings or Settings()
    with joined() as ranks:
        monitor = Monitor(progress, ranks)
        shown = monitor.progress
        found = Target.of(target, settings, shown.warn)
        if not tasks:
            if found.folder is None or found.config.tasks.train is not None:
                raise RequestError("an evaluation needs --tasks or --suite")
            tasks = [found.config.game.name]  # a game that draws no problems is its own task
        specs = [found.spec(mode, settings.seats) for mode in dict.fromkeys(modes)]
        found.require_adapters()
        run = found.folder
        # A base model's training data are unknown.
        learned = cache(lambda: (trained_on(found.config, shown), [*texts_trained_on(run, shown)]) if run else ([], []))
        samples = tasks if isinstance(tasks, Mapping) and settings.samples is None else {}
        chosen = [
            _choose(
                spec,
                settings.model_copy(update={"samples": samples.get(spec, settings.samples)}),
                specs,
                found,
                learned,
                shown,
            )
            for spec in dict.fromkeys(tasks)
        ]
        section = found.config.model
        require_shareable(ranks, section)
        import_first(section)
        with quiet(), Interrupts(patient=ranks.world > 1) as interrupts:
            monitor.stop = interrupts.poll
            model = found.base(shown)
            asked = {
                "base model": model.identity,
                "set of adapters": found.weights(),
                "set of problems": [[c.tasks, c.about["data"]["asked"], c.samples, asdict(c.sampling)] for c in chosen],
                "choice of modes": [[spec.mode, *spec.seats] for spec in specs],
            }
            answers = _answers(found, asked, settings, shown) if write and ranks.main else Answers()
            tokens = max(each.sampling.max_tokens for each in chosen)
            found = replace(found, config=fitted(found.config, model.path, tokens, shown.warn))
            with found.table(model, tokens, monitor) as table:
                answers.lines = ranks.from_main("the earlier answers", lambda: answers.lines)
                ranks.require_same(asked)
                monitor.stop()  # from here on a signal raises Interrupted here
                try:
                    if found.weights() != asked["set of adapters"]:
                        raise RunFolderError(f"{found.name} was saved again meanwhile: repeat the command")
                    about = {
                        "model": model.name,
                        "precision": section.precision,
                        "weights": asked["set of adapters"],
                        "answer_from": found.config.tasks.answer_from,
                    }
                    evaluations = _evaluations(found, about, table, chosen, specs, answers, monitor)
                except (Interrupted, ProcessLost) as stop:
                    if answers.path is None or not answers.path.is_file():
                        raise
                    kept = f"{answers.path} has the answers so far: repeat the command to continue"
                    raise type(stop)(f"{stop}; {kept}") from None
        if write and found.folder is not None and ranks.main:
            for evaluation in evaluations:
                shown.say(f"written: {write_result(found.folder, evaluation.to_json())}")
        answers.remove()
        return evaluations


def _graded_otherwise(found: Evaluation, tasks: TasksSection, poll: Callable[[], None]) -> Evaluation:
    """Add `otherwise`: each seat's and direction's pass@1 if answers were read only in the `<answer>` block instead of
    anywhere, or the other way round. Unchanged if a problem needs no answer."""
    if any(problem.kind not in _NEED_ANSWERS for problem in found.problems.values()):
        return found
    problems, block_only = list(found.problems.values()), tasks.answer_from != "block"
    with Verifier(poll=poll, block_only=block_only, unsafe_code=tasks.unsafe_code) as verifier:
        otherwise = {
            name: fmean(v.correct for v in found_again if v.reason != NOT_JUDGED)
            for name, rows in found.rows.items()
            if (pairs := list(zip(problems, rows, strict=True)))
            and (found_again := verifier.verify([(a.completion, p) for p, row in pairs for a in row]))
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
    """The problems of one task, and their sampling. Raises TaskError if one lacks an answer, or the run was trained on
    all."""
    readers = {find_mode(each.mode).tasks for each in specs}
    if len(readers) > 1:
        raise RequestError("these modes need tasks of different kinds: give one --mode at a time")
    task, name = find_task(spec, settings.data_dir, settings.seed, *readers)
    for note in filter(None, (*task.notes, task.caution)):
        progress.say(f"{task.name}: {note}")
    chosen = evaluation_set(task, settings.limit, settings.seed)
    # Named before any is skipped, so that other runs, which skip others, have the same names.
    chosen = [replace(problem, id=key) for problem, key in zip(chosen, problem_keys(chosen), strict=True)]
    if any(problem.kind == programs.KIND for problem in chosen):
        programs.shared_sandbox(unsafe_code=target.config.tasks.unsafe_code)  # raises before anything is loaded
    missing = next((p.id for p in chosen if p.answer is None and p.kind in _NEED_ANSWERS), None)
    if missing is not None:
        raise TaskError(f"an evaluation needs an answer to every problem; {missing} of {task.name} has none")
    if settings.limit is not None and len(chosen) < settings.limit:
        progress.say(f"{task.name} has only {len(chosen)} different problems")
    # The two sides of a generated task never overlap.
    problems, seen = (
        (chosen, {})
        if task.procedural
        else _unseen(task, chosen, target.name, *learned(), progress, settings.trained_on)
    )
    # The same in all modes, so that they share their first stage.
    samples = settings.samples or max(task.samples, *(settings.k or ()), *(find_mode(it.mode).samples for it in specs))
    for each in specs:
        require_enough(each, find_mode(each.mode), samples, settings.k or ())
    tokens = settings.max_completion_tokens or _limit(target.config, spec, task)
    sampling = settings.sampling_of(target.config, specs, tokens)
    data = {**data_facts(task), "asked": fingerprint(problems)}
    if repeated := data.get("repeated"):
        progress.say(f"{repeated} of {data['rows']} rows of {task.name} repeat another row and are skipped")
    return Exam(
        problems,
        sampling,
        samples,
        settings.k or ((1, samples) if samples > 1 else ()),
        settings.shots,
        settings.seed,
        name,
        {"data": data, **({"overlap": seen} if seen else {})},
    )


def _limit(config: RunConfig, spec: str, task: Task) -> int:
    """The tokens of an answer: the run's limit for its own tasks, for others at least what the task suggests."""
    own, suggested = config.run.max_completion_tokens or 0, task.max_completion_tokens
    of_the_run = {spec, os.path.realpath(spec)} & {config.tasks.train, config.eval.tasks}
    return own or suggested if of_the_run else max(own, suggested)


def _unseen(
    task: Task,
    chosen: Sequence[Problem],
    name: str,
    learned: Sequence[Problem],
    read: Sequence[str],
    progress: Progress,
    even_so: bool,
) -> tuple[Sequence[Problem], dict[str, list[str]]]:
    """The problems that equal no training problem; the ids of those skipped, and of others that resemble one.

    If all are training problems, `even_so` returns them anyway, with their ids as `trained_on`.
    """
    unseen = without(chosen, learned)
    if not unseen and even_so:
        progress.warn(f"{name} was trained on every one of these problems of {task.name}")
        return chosen, {"trained_on": [problem.id for problem in chosen]}
    if not unseen:
        raise TaskError(f"{name} was trained on every one of these problems of {task.name}: choose others")
    left = {id(problem) for problem in unseen}
    left_out = [problem.id for problem in chosen if id(problem) not in left]
    if left_out:
        ids = ", ".join(left_out[:10]) + (", ..." if len(left_out) > 10 else "")
        count = f"{len(left_out)} of {len(chosen)} problems of {task.name}"
        progress.warn(f"{count} were in training and are skipped: {ids}")
    alike = overlap(unseen, [*learned, *read])
    if (sentence := alike.warning()) is not None:
        progress.warn(f"{task.name}: {sentence}")
    found = {"left_out": left_out, "same": list(alike.same), "shared": list(alike.shared)}
    return unseen, found if any(found.values()) else {}


def _answers(target: Target, asked: Mapping[str, Any], settings: Settings, progress: Progress) -> Answers:
    """The answers of an earlier call with the same weights, problems, sampling and modes; empty without one."""
    if target.folder is None and not os.access(".", os.W_OK):
        progress.warn("answers are not saved during the evaluation: the current folder cannot be written")
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
        progress.say(f"continuing with the answers to {len(answers.lines)} questions in {answers.path}")
    return answers


def _evaluations(
    target: Target,
    about: Mapping[str, Any],
    table: "LiveTable",
    chosen: Sequence[Exam],
    specs: Sequence[EvalSpec],
    answers: Answers,
    monitor: Monitor,
) -> list[Evaluation]:
    pairs = [(each, spec) for each in chosen for spec in specs]
    parts = [len(each.problems) * find_mode(spec.mode).stages(spec.seats) for each, spec in pairs]
    several, found = len(pairs) > 1, list[Evaluation]()
    if several:
        names = f"{', '.join(each.tasks for each in chosen)} in {', '.join(spec.mode for spec in specs)}"
        monitor.progress.phase(f"evaluation of {target.name} on {names}", sum(parts))
    for number, (each, spec) in enumerate(pairs):
        part = f"{each.tasks}, {spec.mode}"
        evaluation = measure(
            table,
            spec,
            replace(each, about={**about, **each.about}),
            name=part if several else f"evaluation of {target.name} on {each.tasks}",
            answers=answers,
            rows_at_once=table.rows_at_once(each.sampling.max_tokens),
            progress=monitor.progress,
            begun=sum(parts[:number]) if several else None,
        )
        found.append(_graded_otherwise(evaluation, target.config.tasks, monitor.stop))
        result = found[-1].to_json()
        monitor.progress.evaluated(f"{target.name}, {part}" if several else target.name, result, headline(result))
    return found
