"""`lite-selfplay doctor`: what this machine is, and what would run on it."""

from dataclasses import asdict

import typer

from lite_selfplay_cli import flags


def doctor(as_json: flags.Json = False) -> None:
    """Say what this machine is, and what would run on it and why: card, backend, precision, sandbox, free space.

    Exit code 1 where something has to be mended first. Whether versions fit together `pip check` says; whether a run is
    whole, `lite-selfplay train --resume RUN`, which names what is damaged before it changes anything.
    """
    from lite_selfplay.runs.doctor import machine
    from lite_selfplay.training.progress import printable

    findings = machine()
    healthy = all(finding.fine for finding in findings)
    if as_json:
        flags.echo_json({"findings": [asdict(finding) for finding in findings], "healthy": healthy})
    else:
        width = max(len(finding.part) for finding in findings)
        for finding in findings:
            mark = "" if finding.fine else "PROBLEM: "
            typer.echo(f"{finding.part:<{width}}  {mark}{printable(finding.text)}")
    raise typer.Exit(0 if healthy else 1)
