"""Runs the hostile programs in one tier, as whoever and wherever this process is, and prints what got out as JSON.

python -m tests.verify.programs.harness seccomp,landlock [--quick]
"""

import json
import os
import sys
from contextlib import closing

from lite_selfplay.verify.programs import SandboxError, open_sandbox, run_program
from tests.verify.programs.outside import ENDLESS, World, hostile, play


def main() -> None:
    asked = tuple(sys.argv[1].split(","))
    chosen = [each for each in hostile() if "--quick" not in sys.argv or each.name not in ENDLESS]
    try:
        with closing(World()) as world, closing(open_sandbox(size=1, layers=asked, marks=("-X", world.tag))) as sandbox:
            out = play(world, sandbox, chosen)
            alive = run_program("print(6 * 7)", sandbox=sandbox).stdout == b"42\n"
    except SandboxError as error:
        print(json.dumps({"refused": str(error)}))
        return
    report = {"uid": os.getuid(), "layers": sandbox.layers, "missing": sandbox.missing, "programs": len(chosen)}
    print(json.dumps({**report, "out": out, "alive": alive}))


if __name__ == "__main__":
    main()
