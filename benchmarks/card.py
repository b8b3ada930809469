"""A card's minutes: lists of jobs, each a process with a limit of its own, whose figures are written as they come.

    python benchmarks/card.py --base qwen2.5-coder-0.5b.gguf --data data --out card --seconds 560

The jobs stand in `benchmarks/jobs/*.yaml`, which are worked through in the order of their names. A card is lent for
minutes and may be taken away at any moment: a job has one JSON line in OUT/results.jsonl as soon as it has ended, and
its output in OUT/logs with the second of every line; what is done is left out the next time; nothing begins that the
time does not suffice for; and a job of several `slices` is stopped at its limit and given again until it is complete.

Everything lies under OUT, which is the folder that jobs run in, and may be carried to another machine of the same kind.
"""

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
import yaml
from card_jobs import FIGURES
from card_process import ROOT, Memory, begin, card_name, commit_of, kill
from card_results import Line, figures, from_log, packed, records_into, unpacked
from harness import BenchmarkError, say, show

from lite_selfplay.evaluation.result import as_markdown

LISTS = ROOT / "benchmarks" / "jobs"
RESULTS = "results.jsonl"
MARGIN_S = 6.0
"""Kept back for writing down what the last job found."""
LEAST_SLICE_S = 60.0
"""A job that goes on where it stopped is not begun for less: loading the base takes a third of it."""
BACK_EVERY_S = 20.0
"""How often records are copied to --back while a job runs."""
_SAID = 12


@dataclass(frozen=True)
class Job:
    """A process of at most `seconds`, and what was recorded of it before.

    `command` begins with `lite-selfplay`, `pytest` or `measure` (a part of card_jobs.py). In it stand {base}, the base
    that was asked for; {root}, this checkout; and {place}, a folder of the job's own. `tiny` is added to it on a CPU,
    `environment` to its environment. `slices`: how often it may be given, where it goes on with what it left.
    `least`: seconds that it is worth beginning for, where that is less than all. `after`: a job that has to be
    complete. `expect`: seconds in all. `recorded` has card, date, commit and figures.
    """

    name: str
    about: str
    command: str
    seconds: float
    tiny: str = ""
    slices: int = 1
    expect: float = 0.0
    least: float = 0.0
    after: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)

    def scaled(self, limits: float) -> "Job":
        """The same with other limits, such as those of a rehearsal."""
        whole = self.seconds if self.slices == 1 else min(self.seconds, LEAST_SLICE_S)
        return replace(self, seconds=self.seconds * limits, least=(self.least or whole) * limits)


@dataclass(frozen=True)
class Here:
    """Where jobs run: the base, the folder, the card by its name, and which code of which commit."""

    base: str
    out: Path
    card: str
    checkout: Path
    commit: str
    data: Path | None = None
    tiny: bool = False
    back: Path | None = None

    @property
    def given(self) -> dict[str, str]:
        """What jobs find in their environment."""
        return {
            **({"LITE_SELFPLAY_DATA": str(self.data)} if self.data else {}),
            **({"OMP_NUM_THREADS": "1"} if self.tiny else {}),
        }

    def lines(self, job: Job, *, others: bool = False) -> list[Line]:
        """What is known of a job here: of this base on this card, and of this commit unless it goes on; or of `others`
        alone."""
        path, same = self.out / RESULTS, (job.name, Path(self.base).name, self.card)
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()
        rows = (row for row in rows if (row["job"], row["base"], row["card"]) == same)
        return [row for row in rows if (job.slices > 1 or row["commit"] == self.commit) != others]

    def state(self, job: Job) -> str:
        """`done`, which a job of one slice also is at its limit; `failed`, which is not tried again; or `to do`."""
        found = [line for line in self.lines(job) if line["ended"] != "stopped"]
        if any(line["rc"] == 0 or (job.slices == 1 and line["ended"] != "by itself") for line in found):
            return "done"
        broken = any(line["ended"] == "by itself" for line in found)
        return "failed" if broken or len(found) >= job.slices else "to do"

    def words(self, job: Job) -> list[str]:
        """The command, filled in."""
        text = f"{job.command} {job.tiny if self.tiny else ''}"
        return shlex.split(text.format(base=self.base, root=ROOT, place=self.place(job)))

    def elsewhere(self, job: Job) -> str | None:
        """The kind of GPU that a job of several slices was begun on, where it is another one: bits would differ."""
        path, same = self.out / RESULTS, (job.name, Path(self.base).name)
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.is_file() else ()
        cards = [row["card"] for row in rows if (row["job"], row["base"]) == same and row["card"] != self.card]
        return cards[-1] if job.slices > 1 and cards else None

    def place(self, job: Job) -> str:
        """The folder of a job's own: of all its slices, else of this commit."""
        name = re.sub(r"[^\w.-]+", "-", job.name)
        return f"runs/{name}" if job.slices > 1 else f"runs/{name}-{self.commit}"


def main(
    base: Annotated[str, typer.Option(help="A .gguf file or a folder.")] = "",
    out: Annotated[Path, typer.Option(help="Where everything is kept, and gone on with.")] = Path("card"),
    data: Annotated[Path | None, typer.Option(help="The folder of downloaded data.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="It ends by itself before these are over.")] = 540,
    only: Annotated[list[str] | None, typer.Option(help="Jobs by name. Repeatable. [default: all]")] = None,
    lists: Annotated[list[Path] | None, typer.Option("--list", help="Files of jobs. [default: jobs/*.yaml]")] = None,
    checkout: Annotated[Path, typer.Option(help="Run the code of another checkout, such as a former commit's.")] = ROOT,
    commit: Annotated[str, typer.Option(help="Its commit, where git cannot say.")] = "",
    tiny: Annotated[bool, typer.Option("--tiny", help="Every job on a CPU, with the random model.")] = False,
    pack: Annotated[Path | None, typer.Option(help="Also pack --out here, to go on with elsewhere.")] = None,
    unpack: Annotated[
        Path | None, typer.Option(help="Begin with what --pack wrote elsewhere, where --out is new.")
    ] = None,
    back: Annotated[Path | None, typer.Option(help="Copy records here, packed, while jobs are at work.")] = None,
    limits: Annotated[float, typer.Option(min=0.001, help="Multiply every limit, for a rehearsal.")] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what each job costs, and start nothing.")] = False,
) -> None:
    """Work through lists of jobs on a card, and print what was recorded before beside what was measured now."""
    until = time.monotonic() + seconds
    chosen = lists or sorted(LISTS.glob("*.yaml"))
    every = {job.name: job.scaled(limits) for path in chosen for job in load_jobs(path)}
    if unknown := set(only or ()) - set(every):
        raise BenchmarkError(f"there is no job {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    jobs = [job for name, job in every.items() if not only or name in only]
    if not base and not tiny and not dry_run:
        raise BenchmarkError("--base names the base, a .gguf file or a folder (or give --tiny)")
    place = Path(base).resolve() if Path(base).exists() and base else base
    here = Here(
        base="tiny" if tiny else str(place or "BASE"),
        out=out.resolve(),
        card="CPU" if tiny else card_name(),
        checkout=checkout.resolve(),
        commit=commit or commit_of(checkout),
        data=None if data is None else data.resolve(),
        tiny=tiny,
        back=None if back is None else back.resolve(),
    )
    if dry_run:
        show(as_markdown(["job", "state", "at most, s", "expected, s", "samples", "what"], costs(jobs, here)))
        return
    if unpack is not None and not here.out.exists():
        lacking = unpacked(unpack, here.out)
        say(f"unpacked {unpack}" + (f", without {', '.join(lacking)}, which did not come whole" if lacking else ""))
    here.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work(jobs, every, here, until)
    page = f"{here.card}, {here.base}, commit {here.commit}\n\n{as_markdown(*table(jobs, here))}\n"
    (here.out / "table.md").write_text(page, encoding="utf-8")
    bring_back(here)
    show(page)
    if pack is not None:
        packed(here.out, pack)


def load_jobs(path: Path) -> list[Job]:
    """The jobs of a file: a list under `jobs`, over what `defaults` gives to all. Raises BenchmarkError."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return [Job(**{**listed.get("defaults", {}), **row}) for row in listed["jobs"]]
    except (TypeError, KeyError, AttributeError) as error:
        raise BenchmarkError(f"{path}: no list of jobs: {error}") from None


def work(jobs: Sequence[Job], every: Mapping[str, Job], here: Here, until: float) -> None:
    """Do what is to be done and fits, in its order; each slice's line is written when it has ended."""
    for job in jobs:
        while here.state(job) == "to do":
            if job.after in every and here.state(every[job.after]) != "done":
                say(f"{job.name}: left out, since {job.after} is not complete")
                break
            if (begun := here.elsewhere(job)) is not None:
                say(f"{job.name}: left out, since it was begun on {begun}: give another --out to begin it anew")
                break
            left = until - time.monotonic() - MARGIN_S
            if left < job.least:
                say(f"{job.name}: left out, since it needs {job.least:.0f} s and {max(0.0, left):.0f} are left")
                break
            line = carry_out(job, here, min(job.seconds, left))
            with (here.out / RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            bring_back(here)
            say(f"{job.name}: {line['seconds']:.0f} s, exit code {line['rc']}, ended {line['ended']}")
            if line["ended"] == "stopped":
                return


def carry_out(job: Job, here: Here, limit: float) -> Line:
    """Run a job to its end or its limit, and tell of it."""
    words, began, date = here.words(job), time.monotonic(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    name = Path(here.place(job)).name
    raw, own, log = (here.out / "logs" / file for file in (f".{name}.output", f".{name}.figures", f"{name}.log"))
    log.parent.mkdir(exist_ok=True)
    own.unlink(missing_ok=True)
    if job.slices == 1:  # what a stopped one left
        shutil.rmtree(here.out / here.place(job), ignore_errors=True)
    say(f"{job.name}: {shlex.join(words)}, at most {limit:.0f} s")
    given = {FIGURES: str(own), **here.given, **job.environment}
    process, copied = begin(words, here.out, here.checkout, raw, given, warm=here.tiny), began
    memory, ended = Memory(here.tiny), "by itself"
    with raw.open(encoding="utf-8", errors="replace") as output, log.open("a", encoding="utf-8") as kept:
        kept.write(f"$ {shlex.join(words)}    # {date}, {here.card}, commit {here.commit}\n")
        try:
            while (rc := process.poll()) is None:
                over = time.monotonic() - began - limit
                if over > 0:
                    ended = "killed"
                    kill(process.pid)
                elif over > -min(20.0, limit / 4) and ended == "by itself":
                    ended = "at its limit"
                    process.send_signal(signal.SIGTERM)
                memory.look()
                _copy(output, kept, began)
                if time.monotonic() - copied > BACK_EVERY_S:
                    bring_back(here)
                    copied = time.monotonic()
                time.sleep(0.05)
        except KeyboardInterrupt:
            ended = "stopped"
            process.send_signal(signal.SIGTERM)
            until = time.monotonic() + MARGIN_S
            while (rc := process.poll()) is None and time.monotonic() < until:
                time.sleep(0.05)
        kill(process.pid)  # and what it left running
        _copy(output, kept, began)
    text = log.read_text(encoding="utf-8").rpartition("\n$ ")[2]
    return {
        "job": job.name,
        "base": Path(here.base).name,
        "card": here.card,
        "commit": here.commit,
        "date": date,
        "command": shlex.join(words),
        "limit_s": round(limit),
        "seconds": round(time.monotonic() - began, 1),
        "rc": rc,
        "ended": ended,
        "figures": {**figures(words, here.out, own), **from_log(text), **memory.figures()},
        "said": [line[9:] for line in text.splitlines()[1:][-_SAID:]],
    }


def bring_back(here: Here) -> None:
    """Copy the records of all jobs to --back, if there is one; a full disk or a file that vanishes ends nothing."""
    if here.back is not None:
        try:
            records_into(here.out, here.back)
        except OSError as error:
            say(f"records were not copied to {here.back}: {error}")


def _copy(output: Any, kept: Any, began: float) -> None:
    """New lines of output, each after the second at which it was seen."""
    for line in output:
        kept.write(f"{time.monotonic() - began:8.1f} {line.rstrip()}\n")
    kept.flush()


# What is printed


def costs(jobs: Sequence[Job], here: Here) -> list[list[str]]:
    """For every job its state, limit and slices, the seconds it is expected to take, and what it samples."""
    rows = []
    for job in jobs:
        slices = f"{job.slices} x " if job.slices > 1 else ""
        expected = job.expect or job.seconds
        row = [
            job.name,
            here.state(job),
            f"{slices}{job.seconds:.0f}",
            f"{expected:.0f}",
            samples(job, here),
            job.about,
        ]
        rows.append(row)
    to_do = [(job, row) for job, row in zip(jobs, rows, strict=True) if row[1] == "to do"]
    at_most, expected = sum(job.seconds for job, _ in to_do), sum(float(row[3]) for _, row in to_do)
    return [*rows, ["all", "", f"{at_most:.0f}", f"{expected:.0f}", "", "of what is to do, a slice each"]]


def samples(job: Job, here: Here) -> str:
    """How many completions an experiment trains on; nothing of other jobs."""
    words = shlex.split(f"{job.command} {job.tiny if here.tiny else ''}".format_map(_Blank(root=ROOT)))
    if "reproduce" not in words:
        return ""
    from lite_selfplay.extras.reproduce.experiment import load_experiment
    from lite_selfplay.runs.defaults import filled_in

    scale = words[len(words) - words[::-1].index("--scale")] if "--scale" in words else "full"
    experiment = load_experiment(words[words.index("reproduce") + 1], scale)
    trained = 0
    for name, arm in experiment.trained().items():
        config, game = filled_in(experiment.config(name, experiment.seeds[0], Path("run"), None))
        trained += len(arm.seeds or experiment.seeds) * config.run.steps * (game.rollouts_per_step() or 0)
    return f"{trained:,} completions"


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return key


def table(jobs: Sequence[Job], here: Here) -> tuple[list[str], list[list[str]]]:
    """Every figure of every job: of another commit, measured here or else recorded, and of this one."""
    rows = []
    for job in jobs:
        now, other = (next(iter(here.lines(job, others=others)[::-1]), None) for others in (False, True))
        known = other or job.recorded
        before, figures_now = known.get("figures", {}), now["figures"] if now else {}
        of = " ".join(str(known[key]) for key in ("card", "date", "commit") if key in known)
        state = "not run" if now is None else f"exit code {now['rc']}, {now['ended']}, {now['seconds']:.0f} s"
        rows.append([job.name, of, state])
        rows += [
            [f"- {key}", shown(before.get(key)), shown(figures_now.get(key))]
            for key in dict.fromkeys((*before, *figures_now))
        ]
    return ["", "before", "now"], rows


def shown(value: Any) -> str:
    """A figure in a cell."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {shown(each)}" for key, each in value.items() if not isinstance(each, Mapping))
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return "" if value is None else str(value)


if __name__ == "__main__":
    harness.run(main)
