"""Runs an experiment: trains and evaluates each arm (training method) with each seed, and skips pairs of arm and seed
that are already done. The experiment's folder OUT contains these files, in which ARM is an arm's name:

OUT/experiment.yaml              the experiment; another experiment needs another folder
OUT/search/                      the search for each arm's learning rate, as an experiment of its own
OUT/seed-0/cold-start/           the run of the shared cold start, from whose adapters trained arms start
OUT/seed-0/cold-start-GAME/      the same for arms that start from the cold start of another game, GAME
OUT/seed-0/ARM/                  the run folder of the arm's training
OUT/seed-0/ARM.json              the record of the arm's training and evaluations; complete or absent
OUT/table.md, figure.png         the results of all arms; also in results.json

Several processes may run the same experiment in one folder at the same time. Each works on pairs of arm and seed that
no other process is working on.
"""

import contextlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from filelock import FileLock, Timeout

from lite_selfplay.config.layers import FILE_LIMIT, parse_mapping
from lite_selfplay.config.user_files import read_utf8
from lite_selfplay.errors import ConfigError, Interrupted, RunFolderError
from lite_selfplay.evaluation.result import Evaluation, mean_pass_rate
from lite_selfplay.extras.reproduce.experiment import COLD_START, EVALUATION, RATE, ArmSection, Experiment
from lite_selfplay.extras.reproduce.findings import means_of, write_findings
from lite_selfplay.runs.api import Run, cold_start, load_run, resume, train
from lite_selfplay.runs.checkpoints import Checkpoint, dotted, holds_seats_of, is_taught, newest_whole
from lite_selfplay.runs.defaults import filled_in
from lite_selfplay.runs.evaluating import evaluate_all
from lite_selfplay.runs.folder import CHECKPOINTS, CONFIG, ENVIRONMENT, RunFolder, last_step
from lite_selfplay.runs.planning import draws_problems, plan
from lite_selfplay.tasks.files import JSON_LIMIT, read_json, write_errors, write_whole
from lite_selfplay.training.progress import Progress

EXPERIMENT, SEARCH = "experiment.yaml", "search"


def conduct(
    experiment: Experiment, out: Path, *, data_dir: str | None = None, progress: Progress
) -> list[dict[str, Any]]:
    """Run an experiment in the folder `out`, or continue it. Returns one record for each pair of an arm (training
    method) and a seed. A record describes the arm's training and holds the results of its evaluations. It is also
    written to `ARM.json` in the seed's folder, where ARM is the arm's name. `data_dir` is the path of the folder of
    downloaded data sets, and may be another path when the experiment is continued. None means `tasks.data_dir` of the
    experiment's configuration. Raises ConfigError if the comparison is unfair (see `require_fair`), and any error that
    training or evaluating raises. Raises RunFolderError if `out` holds another experiment, arms over another base, or
    files but no `experiment.yaml`. Raises Interrupted after a signal; calling `conduct` again with the same arguments
    continues the experiment."""
    require_fair(experiment)
    _claim(experiment, out)
    if experiment.search is not None:
        tried = experiment.at_every_rate()
        found = conduct(tried, out / SEARCH, data_dir=data_dir, progress=progress)
        write_findings(tried, found, out / SEARCH)
        experiment = experiment.at(chosen_rates(experiment, found))
    experiment = experiment.having({"tasks": {"data_dir": data_dir}} if data_dir else {})
    # The base does not depend on the training seed, so it is measured with the first only.
    every = [
        (seed, name, arm, out / f"seed-{seed}" / f"{name}.json")
        for seed in experiment.seeds
        for name, arm in experiment.arms.items()
        if seed in (experiment.seeds[:1] if arm.start == "base" else arm.seeds or experiment.seeds)
    ]
    try:
        for patience in (0, -1):  # skip arms of other processes; wait for them at the end
            for seed, name, arm, path in every:
                with contextlib.suppress(Timeout), _lock(path.parent / (arm.of or name), patience):
                    if not path.is_file():
                        progress.say(f"{experiment.name}, seed {seed}: {name}")
                        record = _record(experiment, name, arm, seed, out, progress)
                        _require_one_base([record, *(read_json(other) for *_, other in every if other.is_file())], out)
                        write_whole(
                            path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n", JSON_LIMIT
                        )
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted(f"{str(stop) or 'stopped'}; the same command continues {out}") from None
    return [read_json(path) for *_, path in every]


def chosen_rates(experiment: Experiment, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """For each trained arm (training method), the learning rate with the highest pass@1 in the experiment's search, as
    a mean over the search's evaluations and seeds. The lowest of several equally good rates is chosen. `records` is the
    result of `conduct` for the search, with one record for each arm, rate and seed."""
    assert experiment.search is not None
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record["arm"], []).extend(map(mean_pass_rate, record["evaluations"]))
    rates = sorted(experiment.search.rates)
    return {arm: max(rates, key=lambda rate: fmean(found[f"{arm} at {rate:g}"])) for arm in experiment.trained()}


def _require_one_base(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Raise RunFolderError if a base differs between arms, such as one that was pretrained anew on another machine."""
    bases = sorted({(record["training"].get("environment") or {}).get("base") or "" for record in records} - {""})
    if len({base.rpartition(":")[0] for base in bases}) < len(bases):
        raise RunFolderError(f"{out}: its arms have different bases, {' and '.join(bases)}: choose another --out")


def _lock(path: Path, patience: float) -> FileLock:
    """A lock that lets one process at a time work on the folder `path` of an arm or a cold start. Entering the lock
    raises Timeout after `patience` seconds of waiting. A negative `patience` waits without a limit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"), timeout=patience)


def require_fair(experiment: Experiment) -> None:
    """Raise ConfigError if the comparison of trained arms (training methods) is unfair. By default all arms must sample
    the same number of completions; an arm whose number is not known in advance is exempt. If the experiment's
    `budget` is `steps`, all arms must have the same number of steps instead. If the `budget` is `recipes`, both numbers
    may differ. No arm may have a limit in minutes, since its number of steps would then depend on the machine. If the
    experiment names a training task (`tasks.train`), at least one arm must use it."""
    budgets: dict[str, int] = {}
    drawn = not experiment.trained() or experiment.shared.tasks.train is None
    for name in experiment.trained():
        config, game = filled_in(experiment.config(name, experiment.seeds[0], Path("run"), None))
        if config.run.minutes:
            raise ConfigError(
                f"{experiment.name}: arms need a fixed number of steps, but {name} has a limit of "
                f"{config.run.minutes:g} minutes: remove run.minutes"
            )
        drawn |= draws_problems(config, game)
        if (each := 1 if experiment.budget == "steps" else game.rollouts_per_step()) is not None:
            budgets[name] = each * config.run.steps
    if len(set(budgets.values())) > 1 and experiment.budget != "recipes":
        listed = ", ".join(f"{name} {count:,}" for name, count in budgets.items())
        raise ConfigError(f"{experiment.name}: the arms do not have the same number of {experiment.budget}: {listed}")
    if not drawn:
        raise ConfigError(f"{experiment.name}: no arm uses tasks.train, {experiment.shared.tasks.train}: remove it")


def costs(experiment: Experiment, data_dir: str | None) -> list[str]:
    """Lines of text that describe the experiment before its start: its seeds, its evaluations, and for each trained arm
    (training method) the plan of the run, as `lite_selfplay.runs.planning.plan` makes it. `data_dir` is the folder of
    downloaded data sets; None means `tasks.data_dir` of the experiment's configuration. Loads no model and writes
    nothing. Raises ConfigError if the comparison is unfair: `require_fair` says which numbers the trained arms must
    have in common. Raises TaskError if a task cannot be loaded."""
    require_fair(experiment)
    experiment = experiment.having({"tasks": {"data_dir": data_dir}} if data_dir else {})
    lines = [experiment.about, f"seeds: {', '.join(map(str, experiment.seeds))}"]
    if (search := experiment.search) is not None:
        runs = len(experiment.trained()) * len(search.rates) * len(search.seeds)
        lines.append(f"first, {runs} runs choose each arm's learning rate out of {len(search.rates)}")
    for name, arm in experiment.arms.items():
        if arm.game is None:
            lines.append(f"{name}: {f'the seats of {arm.of}' if arm.of else arm.start}, not trained")
        else:
            config = experiment.config(name, experiment.seeds[0], Path("run"), None)
            if experiment.starts_taught(name):
                taught = experiment.cold_start_config(experiment.teaching(name), experiment.seeds[0], Path("run"))
                config = config.model_copy(update={"cold_start": taught.cold_start})
            lines += [f"{name}, for each seed:", *(f"  {line}" for line in plan(config).lines())]
    for evaluation in experiment.evaluations:
        asked = "all problems" if evaluation.limit is None else f"{evaluation.limit} problems"
        lines.append(
            f"each measured on {asked} of {', '.join(evaluation.specs)}; samples: {evaluation.samples or 'the default'}"
        )
    return lines


def _claim(experiment: Experiment, out: Path) -> None:
    """Create the folder `out` for the experiment, and write the experiment to `experiment.yaml` in it. If that file
    exists, the experiment may only add arms (training methods) and seeds to the one in the file, which is then written
    again with them. Raises RunFolderError if the file holds another experiment, or if there is no such file and the
    folder is not empty. Raises ConfigError if the existing file is not a YAML mapping."""
    path, values = out / EXPERIMENT, experiment.model_dump(mode="json")
    with write_errors(f"to {out}"):
        if path.is_file():
            before = parse_mapping(read_utf8(path, RunFolderError, FILE_LIMIT), str(path))
            if before == values:
                return
            known = {
                "arms": {name: arm for name, arm in values["arms"].items() if name in before.get("arms", ())},
                "seeds": [seed for seed in values["seeds"] if seed in before.get("seeds", ())],
                "scale": before.get("scale"),
            }
            if {**values, **known} != before:
                raise RunFolderError(
                    f"{out} holds another experiment, or another size of this one: choose another --out"
                )
        elif out.exists() and any(out.iterdir()):
            raise RunFolderError(f"{out} is not empty and holds no experiment: choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _record(
    experiment: Experiment, name: str, arm: ArmSection, seed: int, out: Path, progress: Progress
) -> dict[str, Any]:
    """Evaluate the seats of the arm (training method) `arm` for one seed. The seats come from one run: the arm's own
    training, the training of another arm (`arm.of`), or a cold start (supervised steps before training). If that run is
    not complete, it is started or resumed first. Returns the record of the arm and seed, which the caller writes to a
    file. `name` is the arm's name, and `out` the experiment's folder."""
    folder = out / f"seed-{seed}"
    if arm.start == "base":
        target = experiment.shared.model.name
    elif arm.start == COLD_START:
        target = str(_cold_start_run(experiment, experiment.teaching(name), seed, folder, progress))
    else:
        target = str(_trained_run(experiment, arm.of or name, seed, folder, progress))
    # The record of training comes first, since evaluations add to the run folder.
    spent = _training_record(Path(target), experiment.curve) if arm.game is not None else {}
    evaluations = []
    for evaluation in experiment.evaluations:
        settings = evaluation.settings(experiment.shared, arm)
        found = evaluate_all(target, evaluation.specs, [evaluation.mode or arm.mode], settings, progress=progress)
        evaluations += [
            {
                **{key: value for key, value in each.to_json().items() if key != "answers"},
                "seconds": round(each.seconds, 1),
                "lengths": _lengths(each),
            }
            for each in found
        ]
    chosen = {"rate": arm.set.get(RATE)} if experiment.search is not None else {}
    return {"arm": name, "seed": seed, **chosen, "training": spent, "evaluations": evaluations}


def _lengths(found: Evaluation) -> dict[str, float]:
    """For each problem in the evaluation `found`, by the problem's id, the mean number of tokens of the judged
    completions. In the direction `A->B`, in which seat B answers after reading A's answer, these are B's completions.
    The mean is over the samples and over the evaluated seats or directions."""
    every = [[fmean(answer.tokens for answer in row) for row in found.rows[name]] for name in found.scores]
    return {key: fmean(row) for key, row in zip(found.per_problem, zip(*every, strict=True), strict=True)}


def _cold_start_run(experiment: Experiment, game: str, seed: int, folder: Path, progress: Progress) -> Path:
    """The folder of the run that does the cold start (supervised steps before training) of `game` with this seed. The
    run folder is inside `folder`, the folder of the seed. If the cold start is not complete, this function first runs
    it from the beginning."""
    path = folder / (COLD_START if game == experiment.teaching() else f"{COLD_START}-{game}")
    with _lock(path, -1):
        saved = _newest(path)
        if saved is None or not holds_seats_of(path, saved):
            _aside(path)
            cold_start(experiment.cold_start_config(game, seed, path), progress=progress)
    return path


def _trained_run(experiment: Experiment, name: str, seed: int, folder: Path, progress: Progress) -> Path:
    """The folder of the run that trains the arm (training method) `name` with this seed. The run folder is inside
    `folder`, the folder of the seed. If the training is not complete, this function first starts or resumes it."""
    path, init = folder / name, None
    if experiment.starts_taught(name):
        init = _cold_start_run(experiment, experiment.teaching(name), seed, folder, progress)
    config = experiment.config(name, seed, path, init)
    saved = _newest(path)
    last = None if saved is None else last_step(path)
    if saved is None:
        _aside(path)
        train(config, progress=progress)
    elif not holds_seats_of(path, saved) or (
        saved.step < config.run.steps and not (last and last["step"] == saved.step and last.get("over"))
    ):
        resume(
            path,
            rollouts=config.rollouts.model_dump(mode="json") if config.rollouts.servers else None,
            report_to=config.run.report_to,
            trust_remote_code=config.model.trust_remote_code,
            unsafe_code=config.tasks.unsafe_code,
            progress=progress,
        )
    return path


def _newest(path: Path) -> Checkpoint | None:
    """The newest complete checkpoint in the run folder `path`; None if there is no run, no checkpoint, or only one from
    within the cold start."""
    last = newest_whole(path / CHECKPOINTS) if (path / CONFIG).is_file() else None
    return last if last is not None and is_taught(last) else None


def _aside(path: Path) -> None:
    """Rename the folder `path`, if it exists, to `NAME-stopped-1`, or to the next free number. The caller must have
    checked that its run ended before its first complete checkpoint, or before its cold start was saved, which a resume
    would do again, so that it starts again in a new folder."""
    if path.exists():
        names = (path.with_name(f"{path.name}-stopped-{number}") for number in count(1))
        path.rename(next(name for name in names if not name.exists()))


def _training_record(path: Path, curve: str) -> dict[str, Any]:
    """The entry `training` of a record, made from the run folder `path` of a finished run. It has the number of steps,
    seconds and sampled tokens of the run, for each role the number of completions used in training, for each seat the
    number of updates, the game's statistics, and the versions of the software. `curve` names the metric whose values
    over the steps are recorded (see `_curve`)."""
    run, steps = load_run(path), RunFolder.open(path).steps()
    (last,) = deque(steps, maxlen=1)
    trained = Counter[str]()
    for row in steps:
        trained.update({role: each["rows_trained"] for role, each in row["streams"].items()})
    return {
        "steps": sum(1 for _ in steps),
        "seconds": round(sum(row["wall_s"]["total"] for row in steps), 1),
        "tokens": sum(row["tokens"]["generated"] for row in steps),
        "rows": dict(trained),
        "updates": {seat: each["updates"] for seat, each in last["seats"].items()},
        "game": {key: round(mean, 4) for key, mean in means_of(row.get("game", {}) for row in steps).items()},
        "closing": run.game().closing(last.get("game", {})),
        "last_step": last.get("game", {}),
        "environment": read_json(path / ENVIRONMENT),
        "curve": _curve(run, steps, curve),
    }


def _curve(run: Run, steps: Iterable[Mapping[str, Any]], curve: str) -> list[tuple[int, float]]:
    """The values of one metric over a run's steps, as (step, value) pairs. `curve` is a key of `metrics.jsonl`, such as
    `game.nash_conv`, or `evaluation` for pass@1 in the evaluations during training. The result is empty if the run did
    not record the metric. `steps` are the rows of `metrics.jsonl`."""
    if curve == EVALUATION:  # without the untouched base
        return [(step, mean_pass_rate(each)) for step, each in run.evaluations().items() if step >= 0]
    return [(row["step"], value) for row in steps if (value := dict(dotted(row)).get(curve)) is not None]
