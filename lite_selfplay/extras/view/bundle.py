"""A run as one HTML file that opens without a server or network: the page, its code and what it shows, in one."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.errors import ConfigError
from lite_selfplay.extras.view.answers import read_rows
from lite_selfplay.extras.view.cases import cases_of
from lite_selfplay.extras.view.overview import ViewedRun
from lite_selfplay.extras.view.server import page_file
from lite_selfplay.runs.folder import as_written
from lite_selfplay.tasks.files import write_errors, write_whole

NAME = "index.html"
LIMIT = 24_000_000
"""Characters of episodes in a file: what a phone still opens. Evenly spread steps are kept of a longer run."""


def write_bundle(runs: Sequence[ViewedRun], folder: Path) -> Path:
    """Write runs as `index.html` into a folder, which is made. Returns the file's path.

    Raises ConfigError where there is such a file, or it cannot be written; RunFolderError for a damaged run.
    """
    path = folder / NAME
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --bundle")
    text = bundle(runs)
    with write_errors(path, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path


def bundle(runs: Sequence[ViewedRun], limit: int = LIMIT) -> str:
    """The page with everything in it. Only its own code and style run there, and it may ask for nothing."""
    style, scripts = page_file("style.css"), [page_file("charts.js"), page_file("page.js")]
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {' '.join(repr(_hash(s)) for s in scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps([_held(run, limit // len(runs)) for run in runs], allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # nothing in a text can end the block that holds it
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = "\n".join(
        [f'<script type="application/json" id="held">{data}</script>', *(f"<script>{s}</script>" for s in scripts)]
    )
    page = re.sub(r"<link rel=\"stylesheet\"[^>]*>", lambda _: head, page_file("page.html"))
    return re.sub(r"(?:<script src=[^>]*></script>\s*)+", lambda _: body + "\n", page)


def _held(run: ViewedRun, limit: int) -> dict[str, Any]:
    """A run's overview and the cases of as many steps as there is room for, evenly spread, each with its texts."""
    overview = run.overview()
    order, held, size = _spread(list(run.index.steps())), dict[int, Any](), 0
    for step in order:
        with as_written(run.path):
            cases = cases_of(run.game, read_rows(run.index.of_step(step)), whole=True)
        size += len(json.dumps(cases))
        if size > limit and held:
            break
        held[step] = cases
    counts = [[step, count] for step, count in overview["steps"] if step in held]
    if len(counts) < len(overview["steps"]):
        sentence = f"This file holds the episodes of {len(counts)} of {len(overview['steps'])} steps, evenly spread."
        overview["remarks"] = [sentence, *overview["remarks"]]
    return {"overview": overview | {"steps": counts}, "cases": {step: held[step] for step, _ in counts}}


def _spread(steps: Sequence[int]) -> list[int]:
    """Steps in an order of which every beginning is spread evenly: the last, the first, the middle, the quarters."""
    order: dict[int, None] = dict.fromkeys([*steps[-1:], *steps[:1]])
    parts = 2
    while len(order) < len(steps):
        order |= dict.fromkeys(steps[len(steps) * i // parts] for i in range(1, parts))
        parts *= 2
    return list(order)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
