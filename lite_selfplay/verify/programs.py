"""Programs as answers, where the extra that runs and judges them is there: its names, found when they are asked for.

    from lite_selfplay.verify.programs import run_program, run_tests

Without it, what asks for one is refused in a sentence.
"""

from typing import TYPE_CHECKING, Any

from lite_selfplay.scan import extra

if TYPE_CHECKING:
    from lite_selfplay.extras.programs import *  # noqa: F403

KIND = "program"
"""The kind of problems whose answer is a program."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(extra("programs", "an answer that is a program"), name)
