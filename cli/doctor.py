"""`lite-selfplay doctor`: what this machine is, and what would run on it."""

from dataclasses import asdict

import typer

from lite_selfplay_cli import flags


def doctor(as_json: flags.Json = False) -> None:
    """Say what this machine is, and what would run on it and why: card, backend, precision, sandbox, free space.

    Exit code 1 where something has to be mended first. Whether versions fit together `pip check` says; whether a run is
    whole, `lite-selfplay train --resume RUN`, which names what is damaged before it changes anything.
    """
    from lite_selfplay.extras.doctor import machine

    findings = machine()
    healthy = all(finding.fine for finding in findings)
    width = max(len(finding.part) for finding in findings)
    flags.show(
        as_json,
        {"findings": [asdict(finding) for finding in findings], "healthy": healthy},
        (f"{each.part:<{width}}  {'' if each.fine else 'PROBLEM: '}{each.text}" for each in findings),
    )
    raise typer.Exit(0 if healthy else 1)
