"""What the jobs of `card.py` found: figures of runs, experiments and tests; and how it is carried elsewhere."""

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness import BenchmarkError

Line = dict[str, Any]

PART_BYTES, PARTS, SUMS = 15 * 2**20, 2, "SHA256SUMS"


def figures(words: Sequence[str], out: Path, own: Path) -> Line:
    """A job's own figures, those of the run in its --run-dir, and those of the experiment in its --out."""
    found: Line = {}
    for line in _rows(own):
        found |= line
    for option, reader in (("--run-dir", of_run), ("--out", of_experiment)):
        if option in words:
            try:
                found |= reader(out / words[len(words) - words[::-1].index(option)])
            except (KeyError, TypeError, ValueError) as error:  # another commit's files must not end the queue
                found["unread"] = f"{type(error).__name__}: {error}"
    return found


def of_run(folder: Path) -> Line:
    """Seconds of a run's steps, the tokens they sampled, and the shares cut off."""
    rows = list(_rows(folder / "metrics.jsonl"))
    if not rows:
        return {}
    streams = [stream for row in rows for stream in row["streams"].values()]
    total = [row["wall_s"]["total"] for row in rows]
    return {
        "step_s": [round(value, 2) for value in total[:8]],
        "sampling_s": [round(row["wall_s"]["generate"], 2) for row in rows[:8]],
        "update_s": [round(row["wall_s"]["update"], 2) for row in rows[:8]],
        "step_median_s": round(median(total), 2),
        "steps": len(rows),
        "tokens": [row["tokens"]["generated"] for row in rows[:8]],
        "truncated": round(fmean(stream["truncated"] for stream in streams), 4) if streams else None,
    }


def of_experiment(folder: Path) -> Line:
    """What an experiment has measured, read anywhere and in the answer block alone; and how far its runs are."""
    scores: Line = {}
    for path in sorted(folder.glob("seed-*/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        first = record["evaluations"][0]
        named = first.get("directions") or first["seats"]
        shares = (
            [score["pass_at_1"] for score in named.values()],
            [first.get("otherwise", {}).get(name, 0.0) for name in named],
        )
        scores[f"{path.parent.name}/{path.stem}"] = [round(fmean(each), 4) for each in shares]
    runs = {
        str(path.parent.relative_to(folder)): len(list(_rows(path))) for path in folder.glob("seed-*/*/metrics.jsonl")
    }
    return {"pass_at_1": scores, "steps": dict(sorted(runs.items()))}


def _rows(path: Path) -> Iterator[Line]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):  # the last one may be cut off
            yield json.loads(line)


def from_log(log: str) -> Line:
    """When training began and the first step was complete, by the seconds before the lines; and how tests ended."""
    seen = {"training_s": r"training$", "first_step_s": r"step \d+/"}
    found = {key: re.search(rf"^ *([\d.]+) {start}", log, re.MULTILINE) for key, start in seen.items()}
    ended = re.findall(r"^ *[\d.]+ =* ?(\d+ \w+.*) in [\d.]+s", log, re.MULTILINE)[-1:]
    counts = re.findall(r"(\d+) (\w+)", "".join(ended))
    return {key: float(each[1]) for key, each in found.items() if each} | {what: int(n) for n, what in counts}


def packed(out: Path, to: Path) -> None:
    """Everything under OUT in files of at most `PART_BYTES`, `PARTS` to a folder, with their SHA-256 in SHA256SUMS, of
    which every folder has a copy. First the records, then the weights of each run, the one that was last at work
    first: whoever cannot bring all folders along brings the first ones. `unpacked` makes it again.
    """
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    files = _files(out)
    heavy = [path for path in files if _is_weight(path)]
    last = {path.parent: path.stat().st_mtime for path in files if path.name == "metrics.jsonl"}
    runs = sorted(last, key=lambda run: last[run], reverse=True)
    archives = {"records.tar.gz": [path for path in files if path not in set(heavy)]}
    archives |= {f"weights-{n}.tar": [p for p in heavy if run in p.parents] for n, run in enumerate(runs)}
    sums = []
    for name, chosen in archives.items():
        _archive(out, chosen, to / name)
        with (to / name).open("rb") as file:
            for number, part in enumerate(iter(lambda: file.read(PART_BYTES), b"")):
                folder = to / f"{len(sums) // PARTS:02d}"
                folder.mkdir(exist_ok=True)
                path = folder / f"{name}.{number:03d}"
                path.write_bytes(part)
                sums.append(f"{hashlib.sha256(part).hexdigest()}  {path.name}\n")
        (to / name).unlink()
    for folder in to.iterdir():
        (folder / SUMS).write_text("".join(sums), encoding="ascii")


def unpacked(parts: Path, out: Path) -> list[str]:
    """Make OUT of what `packed` wrote, wherever its files lie under `parts`; what is not all there, by name.

    Raises BenchmarkError for a file that is not what it was, before anything is written, and without the records.
    """
    there = {path.name: path for path in sorted(parts.rglob("*")) if path.is_file()}
    if SUMS not in there:
        raise BenchmarkError(f"{parts} holds no {SUMS}: --pack writes it")
    archives: dict[str, list[Path | None]] = {}
    for line in there[SUMS].read_text(encoding="ascii").splitlines():
        sha256, name = line.split("  ")
        if name in there and hashlib.sha256(there[name].read_bytes()).hexdigest() != sha256:
            raise BenchmarkError(f"{there[name]} is damaged, or of another set: bring it along again")
        archives.setdefault(name.rpartition(".")[0], []).append(there.get(name))
    whole = {name: [path for path in found if path] for name, found in archives.items() if None not in found}
    if "records.tar.gz" not in whole:
        raise BenchmarkError(f"{parts} lacks the records: bring the first folders along")
    out.mkdir(parents=True, exist_ok=True)
    for found in whole.values():
        data = b"".join(path.read_bytes() for path in found)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(out, filter="data")
    return [name for name in archives if name not in whole]


def records_into(out: Path, back: Path) -> None:
    """All that is no weight as one file, records.tar.gz, which is always whole: the former one until this one is."""
    back.mkdir(parents=True, exist_ok=True)
    _archive(out, [path for path in _files(out) if not _is_weight(path)], out / ".records.tar.gz")
    shutil.copyfile(out / ".records.tar.gz", back / ".records.tar.gz")
    (back / ".records.tar.gz").replace(back / "records.tar.gz")


def _files(out: Path) -> list[Path]:
    found = sorted(path for path in out.rglob("*") if path.is_file() and ".modules" not in path.parts)
    return [path for path in found if path.name != ".records.tar.gz"]


def _is_weight(path: Path) -> bool:
    return path.suffix == ".safetensors" or "checkpoints" in path.parts


def _archive(out: Path, chosen: Sequence[Path], to: Path) -> None:
    """Files in an archive; one that has been removed meanwhile is left out."""
    quick: dict[str, Any] = {"compresslevel": 1} if to.name.endswith("gz") else {}
    with tarfile.open(to, "w:gz" if to.name.endswith("gz") else "w", **quick) as archive:
        for path in chosen:
            with suppress(FileNotFoundError):
                archive.add(path, path.relative_to(out), recursive=False)
