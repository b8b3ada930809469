"""The roles of a confined process: run a program, answer calls with it, or test a program in another process.

No role has more than it needs: a program's process has no tests or expected values, and a test's process never runs
code of the program.
"""

import atexit
import builtins
import contextlib
import json
import sys
import threading
import types
from collections.abc import Mapping
from functools import partial
from typing import Any

from lite_selfplay.verify.programs.inside.border import Border, ProgramLost, class_of, write
from lite_selfplay.verify.programs.inside.names import add_modules, asking_for_classes, names_of_program
from lite_selfplay.verify.programs.inside.values import PROGRAM, TEST, Unwritable, canonical, pack, unpack

Job = Mapping[str, Any]
Space = dict[str, Any]
_FILLING: list[Any] = []


def main_module(name: str) -> Space:
    """The namespace of a new module, for executing code."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module.__dict__


def execute(source: str, space: Space) -> None:
    exec(compile(source, "program.py", "exec", dont_inherit=True), space)


def run(job: Job) -> None:
    """Run a whole program as a script: wait for its threads, and call its exit functions."""
    execute(job["program"], main_module("__main__"))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def answer_calls(job: Job, reply: int) -> None:
    """Write each call's result, one per line, as canonical text or packed as JSON. They are compared in the library's
    process, which knows the expected results."""
    space = main_module(PROGRAM)
    if job.get("elsewhere"):
        # All processes are copies of one, in which an object would have the same address.
        _FILLING.extend([[], {}, (n,), {n}, n + 0.5, bytes(n), object(), lambda: None] for n in range(512))
    execute(job["program"], space)
    for arguments in job["calls"]:
        try:
            result = _function(space, job["function"])(*map(unpack, arguments))
            line = "= " + (json.dumps(pack(result)) if job.get("packed") else canonical(result))
        except Unwritable as error:
            line = f"? the result is not of a built-in type: {error}"
        except Exception as error:
            line = f"! {type(error).__name__}: {error}"[:300]
        write(reply, line.encode("utf-8", "backslashreplace").replace(b"\n", b" ") + b"\n")


def _function(space: Space, name: str) -> Any:
    """A function of a program, or a method of its class `Solution`."""
    if name not in space and "Solution" in space:
        return getattr(space["Solution"](), name)
    if name not in space:
        raise NameError(f"the program defines no {name}")
    return space[name]


def serve_calls(job: Job, channel: int) -> None:
    """Do what the process of a test asks, until it ends."""
    space = main_module(PROGRAM)
    execute(job["program"], space)
    border = Border(channel, {"name": lambda name: _function(space, name)}, trusted=True)
    border.send(
        [name for name, value in list(space.items()) if type(name) is str and not isinstance(value, types.ModuleType)]
    )
    with contextlib.suppress(EOFError):
        while True:
            border.answer(*border.receive()[1:])


def put_tests(job: Job, channel: int, reply: int) -> None:
    """Run each test, and write `NONCE number` after it to a file that the program cannot reach, with `+`, `-`, or `?`
    if it cannot be run here, whatever the program."""
    space = main_module(TEST)
    nonce = job["nonce"]
    border = Border(channel, {}, trusted=False)
    try:
        names = [name for name in border.receive() if type(name) is str and not name.startswith("__")]
    except (EOFError, OSError, ValueError, TypeError):
        raise ProgramLost("the program did not load") from None
    try:
        sources = [job["setup"], *job["tests"]]
        setup, *codes = [compile(asking_for_classes(each), "test.py", "exec", dont_inherit=True) for each in sources]
        free, modules, judges = names_of_program(sources, job["function"])
        find = partial(border.ask, "name")
        add_modules(modules, {*names} - judges, find)
        space.update((name, find(name)) for name in names if name in free)
        space["__class_of__"] = class_of
        exec(setup, space)
    except Exception as error:
        if not hasattr(error, "_reference") and (type(error) is not ImportError and not isinstance(error, NameError)):
            write(reply, f"{nonce} ? {type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
        raise
    if name := job["function"]:  # a method of `Solution`, or what is missing, is looked up by each call
        called = find(name) if name in names else lambda *given, **named: find(name)(*given, **named)
        space[name] = space["candidate"] = called
    for number, code in enumerate(codes):
        try:
            exec(code, space)
            passed = "+"
        except BaseException as error:  # that of a failed `pytest.raises` is no Exception
            if isinstance(error, ProgramLost | SystemExit):
                raise
            ours = isinstance(error, ModuleNotFoundError) and not hasattr(error, "_reference")
            passed = f"? {error}" if ours else "-"
            print(f"test {number + 1}: {type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
        write(reply, f"{nonce} {number} {passed}\n".encode("utf-8", "backslashreplace"))
