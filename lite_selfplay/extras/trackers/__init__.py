"""TensorBoard, wandb and trackio, through accelerate: `tracker` tells them the curves of a run."""

from functools import partial
from typing import Any

from lite_selfplay.runs.plan import TRACKERS, Tracker


def _made(kind: str, *arguments: Any) -> Tracker:
    from lite_selfplay.extras.trackers.tracker import AccelerateTracker

    return AccelerateTracker(kind, *arguments)


TRACKERS.update({kind: partial(_made, kind) for kind in ("tensorboard", "wandb", "trackio")})
