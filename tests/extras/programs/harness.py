"""Runs the hostile programs in one tier, as whoever and wherever this process is, and prints what got out as JSON.

python -m tests.extras.programs.harness seccomp,landlock [--quick]
"""

import json
import os
import sys

from lite_selfplay.extras.programs import SandboxError, open_sandbox, run_program
from tests.extras.programs.outside import ENDLESS, World, hostile, play


def main() -> None:
    asked = tuple(sys.argv[1].split(","))
    chosen = [each for each in hostile() if "--quick" not in sys.argv or each.name not in ENDLESS]
    world = World()
    try:
        sandbox = open_sandbox(size=1, layers=asked, marks=("-X", world.tag))
        try:
            out = play(world, sandbox, chosen)
            alive = run_program("print(6 * 7)", sandbox=sandbox).stdout == b"42\n"
        finally:
            sandbox.close()
    except SandboxError as error:
        print(json.dumps({"refused": str(error)}))
        return
    finally:
        world.close()
    report = {"uid": os.getuid(), "layers": sandbox.layers, "missing": sandbox.missing, "programs": len(chosen)}
    print(json.dumps({**report, "out": out, "alive": alive}))


if __name__ == "__main__":
    main()
