"""A warm parent: it has imported everything, and forks the processes of a run for every line it reads.

A line is a JSON object: `argv`, `world`, `output` (a folder for what each process writes, into `RANK.txt`), `cwd`,
`port`, and, where they are wanted, `play` (a name in `plays.py` that is called with the rank, before anything else) and
`environment`. It is answered by `{"pids": [...]}`. A line `{"wait": [pids], "seconds": s}` is answered by
`{"codes": [...]}` when these have ended; the code of one that a signal ended is that signal's number, negative; None
for one that did not end in time, which is killed.

Each process finds in its environment what torchrun would have put there, and runs what a user runs.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from warm_parent import warm_up


def serve() -> dict[str, Any] | None:
    """Fork for every job. Returns the job in a child, with its rank; None in the parent when no line is left."""
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        if "wait" in job:
            print(json.dumps({"codes": wait(job["wait"], job["seconds"])}), flush=True)
            continue
        pids = []
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                return {**job, "rank": rank}
            pids.append(pid)
        print(json.dumps({"pids": pids}), flush=True)
    return None


def wait(pids: list[int], seconds: float) -> list[int | None]:
    """How processes ended; one that has not by then is killed."""
    codes: dict[int, int | None] = {}
    limit = time.monotonic() + seconds
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > limit:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    codes[pid] = None
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def become(job: dict[str, Any]) -> None:
    """Be a process of a run: its arguments, its output, and its place among the others."""
    rank = job["rank"]
    output = os.open(f"{job['output']}/{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    source = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((source, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.chdir(job["cwd"])
    if job["world"] > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job["world"], "LOCAL_WORLD_SIZE": job["world"]}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])})
    os.environ.update(job.get("environment", {}))
    sys.argv = ["lite-selfplay", *job["argv"]]
    if "play" in job:
        import plays

        name, *arguments = job["play"]
        getattr(plays, name)(rank, *arguments)


if __name__ == "__main__":
    warm_up()
    import torch.distributed  # noqa: F401

    mine = serve()
    if mine is not None:
        become(mine)
        from lite_selfplay_cli.app import main

        main()
