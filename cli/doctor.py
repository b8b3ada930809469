"""`lite-selfplay doctor`: what state a run folder, or this machine, is in."""

from pathlib import Path
from typing import Annotated

import typer


def doctor(run: Annotated[Path | None, typer.Argument(help="A run folder; without one, this machine.")] = None) -> None:
    """Check a run folder and say what is damaged, whether it can be resumed, and how.

    Every line, adapter and checkpoint is read, with the SHA-256 of its files; nothing is written. The base model is not
    looked for. Exit codes: 0 the run is finished or can be resumed, 1 it cannot, or not yet, 2 there is no run folder.

    Without a folder: versions, devices, and the room for models.
    """
    from lite_selfplay.doctor import examine, machine
    from lite_selfplay.listener import printable

    report = None if run is None else examine(run)
    findings = report.findings if report else machine()
    width = max(len(finding.part) for finding in findings)
    for finding in findings:
        mark = "" if finding.fine else "DAMAGED: " if finding.text != "none" else "MISSING: "
        typer.echo(f"{finding.part:<{width}}  {mark}{printable(finding.text)}")
    if report is not None:
        typer.echo(f"\n{printable(report.verdict)}")
        if not report.healthy:
            raise typer.Exit(1)
