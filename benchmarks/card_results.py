"""What the jobs of `card.py` found: figures of runs, experiments and tests; and how it is carried elsewhere."""

import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

Line = dict[str, Any]

PART_BYTES, PARTS = 15 * 2**20, 4


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


def packed(out: Path, to: Path, *, weights: bool = True) -> None:
    """Everything under OUT in files of at most `PART_BYTES`, `PARTS` to a folder. `cat TO/*/records.* | tar -xz` and
    `cat TO/*/weights.* | tar -x` make it again. Of `weights`, those of the run that was last at work: whatever is
    complete was measured before the next run began. TO is replaced once the new one is whole.
    """
    new = to.with_name(f"{to.name}-new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    files = sorted(path for path in out.rglob("*") if path.is_file() and ".modules" not in path.parts)
    heavy = {path for path in files if path.suffix == ".safetensors" or "checkpoints" in path.parts}
    runs = {path: path.parent for path in files if path.name == "metrics.jsonl"}
    last = runs[max(runs, key=lambda path: path.stat().st_mtime)] if runs else out
    whole = {"records.tar.gz": sorted(set(files) - heavy)}
    whole |= {"weights.tar": sorted(p for p in heavy if last in p.parents)} if weights else {}
    number = 0
    for name, chosen in whole.items():
        with tarfile.open(new / name, "w:gz" if name.endswith("gz") else "w", **_quick(name)) as archive:
            for path in chosen:
                with suppress(FileNotFoundError):  # a job that is at work may remove what it no longer needs
                    archive.add(path, path.relative_to(out), recursive=False)
        with (new / name).open("rb") as file:
            while part := file.read(PART_BYTES):
                folder = new / f"{number // PARTS:02d}"
                folder.mkdir(exist_ok=True)
                (folder / f"{name}.{number:03d}").write_bytes(part)
                number += 1
        (new / name).unlink()
    shutil.rmtree(to, ignore_errors=True)
    new.rename(to)


def _quick(name: str) -> dict[str, Any]:
    return {"compresslevel": 1} if name.endswith("gz") else {}
