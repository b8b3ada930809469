"""The command line as a program, and as a module for launchers: `python -m lite_selfplay_cli`."""

import os
import sys

from lite_selfplay.training.interrupts import NOTHING_SAVED, Interrupts


def main() -> None:
    """Run a command; a signal during its imports also ends it with a sentence."""
    try:
        with Interrupts(patient="RANK" in os.environ):
            from lite_selfplay_cli.app import main as run

            run()
    except KeyboardInterrupt:
        print(NOTHING_SAVED, file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
