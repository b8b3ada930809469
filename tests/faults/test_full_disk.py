"""A disk that is full at any write of a run: what is whole stays whole, and a resume ends as the untouched run.

Twice for every write: from then on the file system has no room (a small one in memory, which takes root to mount), or
that write alone fails.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lite_selfplay.runs.checkpoints import list_checkpoints

from .conftest import NO_CHECKPOINT, refusal

SPARE = (0, 0, 4096, 4 * 4096, 40 * 4096, 100 * 4096)
"""Bytes that are left: none, or so many that a later file of a save is the first one cut."""
SHORT = (0.5,)
"""Where among its writes a run is tried in the short form."""


def tried(lab: Any, run: Path, at: int, fault: dict[str, Any], relieve: Callable[[], None]) -> tuple[str, list[str]]:
    """How a run ended whose disk was full at one of its writes, and what was wrong with that or with its resume."""
    process = lab.train(run, at=at, **fault)
    ended = process.wait()
    wrong = []
    if ended.code not in (0, 1, 2):
        wrong.append(f"ended with {ended.code}: {ended.said[-400:]}")
    elif refusal(ended.said) != (None if ended.code else "it gives 0 sentences"):
        wrong.append(f"ended with {ended.code} and {ended.said[-1000:]}")
    wrong += [
        f"{found.path.name}: {found.problem}"
        for found in list_checkpoints(run / "checkpoints", full=True)
        if found.problem
    ]
    relieve()
    if ended.code:
        again = lab.resume(run).wait()
        if again.code == 2 and any(sentence in again.said for sentence in NO_CHECKPOINT):
            if list(run.glob("checkpoints/step-*")):
                wrong.append(f"a checkpoint is not found: {again.said}")
            shutil.rmtree(run, ignore_errors=True)
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


def check(title: str, found: dict[int, tuple[str, list[str]]], show: Callable[..., None] | None) -> None:
    if show is not None:
        ends = Counter(end for end, _ in found.values())
        fine = Counter(end for end, wrong in found.values() if not wrong)
        rows = [[end, number, fine[end]] for end, number in sorted(ends.items())]
        show(title, [["the run", "writes", "as it is to be"], *rows, ["all", len(found), sum(fine.values())]])
    broken = {at: wrong for at, (_, wrong) in found.items() if wrong}
    assert not broken, "\n".join(f"write {at}: {'; '.join(wrong)}" for at, wrong in broken.items())


def test_a_disk_that_is_full_from_a_write_on(lab: Any, mount: Path, count: int, show: Callable[..., None]):
    rng = random.Random(11)
    found = {}
    for at in points(lab, count):
        fault = {"fault": "fill", "mount": str(mount), "spare": rng.choice(SPARE)}
        found[at] = tried(lab, mount / "run", at, fault, lambda: (mount / "filler").unlink(missing_ok=True))
    check("a disk that is full from a write on", found, show if count else None)


def test_a_disk_that_is_full_for_one_write(lab: Any, count: int, show: Callable[..., None]):
    found = {at: tried(lab, lab.new(), at, {"fault": "fail"}, lambda: None) for at in points(lab, count)}
    check("a disk that is full for one write", found, show if count else None)
