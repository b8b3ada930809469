"""A warm parent (`tests/warm_parent.py`) for runs of several processes.

A job has a `port` where the processes meet, and may have `environment` and `play` (a name in `plays.py` that is called
with the rank, before anything else). Each finds in its environment what torchrun would have put there.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from warm_parent import serve


def become(job: dict[str, Any]) -> None:
    """Be a process of a run, with its place among the others."""
    rank, world = job["rank"], len(job["outputs"])
    if world > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])})
    os.environ.update(job.get("environment", {}))
    if "play" in job:
        import plays

        name, *arguments = job["play"]
        getattr(plays, name)(rank, *arguments)


if __name__ == "__main__":
    serve(become)
