"""A disk that is full at any write of a run: what is whole stays whole, and a resume ends as the untouched run.

Twice for every write: from then on the file system has no room (a small one in memory, which takes root to mount), or
that write alone fails.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lite_selfplay.runs.checkpoints import list_checkpoints

from .conftest import only_long, refusal

SPARE = (0, 0, 4096, 4 * 4096, 40 * 4096, 100 * 4096)
"""Bytes that are left: none, or so many that a later file of a save is the first one cut."""
SHORT = (0.23, 0.5)
"""Where among its writes a run is tried in the short form: at the evaluation of the base, and in the middle."""


def tried(lab: Any, run: Path, at: int, fault: dict[str, Any], relieve: Callable[[], None]) -> tuple[str, list[str]]:
    """How a run ended whose disk was full at one of its writes, and what was wrong with that or with its resume."""
    process = lab.train(run, at=at, **fault)
    ended = process.wait()
    wrong = []
    if ended.code not in (0, 1, 2):
        wrong.append(f"ended with {ended.code}: {ended.said[-400:]}")
    elif refusal(ended.said) != (None if ended.code else "it gives 0 sentences"):
        wrong.append(f"ended with {ended.code} and {ended.said[-1000:]}")
    checkpoints = list_checkpoints(run / "checkpoints", full=True)
    wrong += [f"{found.path.name}: {found.problem}" for found in checkpoints if found.problem]
    relieve()
    if ended.code:
        again = lab.went_on(run)
        if again is None:
            return "stopped, nothing saved yet", wrong
        if again.code:
            wrong.append(f"resume ends with {again.code}: {again.said[-400:]}")
            shutil.rmtree(run, ignore_errors=True)
            return "stopped", wrong
    # The best checkpoint is one of those that could be saved.
    differences = [name for name in lab.differences(run) if name != "best.json" or "saving before" not in ended.said]
    if differences:
        wrong.append(f"other {', '.join(differences)}")
    if left := [path.name for path in run.rglob(".*")]:
        wrong.append(f"left behind: {', '.join(left)}")
    shutil.rmtree(run)
    return "stopped" if ended.code else "went on", wrong


def points(lab: Any, count: int) -> list[int]:
    return list(range(1, lab.writes + 1)) if count else [int(lab.writes * share) for share in SHORT]


@only_long
def test_a_disk_that_is_full_from_a_write_on(lab: Any, mount: Path, count: int, tally: Callable[..., None]):
    rng = random.Random(11)
    tries = []
    for at in points(lab, count):
        fault = {"fault": "fill", "mount": str(mount), "spare": rng.choice(SPARE)}
        end, wrong = tried(lab, mount / "run", at, fault, lambda: (mount / "filler").unlink(missing_ok=True))
        tries.append((end, f"write {at}", wrong))
    tally("a disk that is full from a write on", "the run", tries)


def test_a_disk_that_is_full_for_one_write(lab: Any, count: int, tally: Callable[..., None]):
    tries = []
    for at in points(lab, count):
        end, wrong = tried(lab, lab.new(), at, {"fault": "fail"}, lambda: None)
        tries.append((end, f"write {at}", wrong))
    tally("a disk that is full for one write", "the run", tries)
