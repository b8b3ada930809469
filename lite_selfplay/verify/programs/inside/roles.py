"""The roles of a confined process: run a program, answer calls with it, or test a program in another process.

No role has more than it needs: a program's process has no tests or expected values, and a test's process never runs
code of the program.
"""

import ast
import atexit
import builtins
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

from lite_selfplay.verify.programs.inside.values import Unwritable, canonical, pack, unpack

LONGEST_MESSAGE = 16 << 20
Job = Mapping[str, Any]
Space = dict[str, Any]


_FILLING: list[Any] = []


class ProgramLost(BaseException):
    """A program's process ended or sent a malformed answer. A BaseException, so that tests do not catch it."""


def main_module(name: str) -> Space:
    """The namespace of a new module, for executing code."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module.__dict__


def execute(source: str, space: Space, name: str = "program.py") -> None:
    exec(compile(source, name, "exec", dont_inherit=True), space)


def run(job: Job) -> None:
    """Run a whole program as a script: wait for its threads, and call its exit functions."""
    execute(job["program"], main_module("__main__"))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def answer_calls(job: Job, reply: int) -> None:
    """Write each call's result, one per line, as canonical text or packed as JSON. They are compared in the library's
    process, which knows the expected results."""
    space = main_module("candidate")
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
        _write(reply, line.encode("utf-8", "backslashreplace").replace(b"\n", b" ") + b"\n")


def _function(space: Space, name: str) -> Any:
    """A function of a program, or a method of its class `Solution`."""
    if name not in space and "Solution" in space:
        return getattr(space["Solution"](), name)
    if name not in space:
        raise NameError(f"the program defines no {name}")
    return space[name]


def serve_calls(job: Job, channel: int) -> None:
    """Answer calls from the process of a test, by value, until it ends."""
    space = main_module("candidate")
    execute(job["program"], space)
    kept: list[Any] = []
    names = [name for name, value in list(space.items()) if type(name) is str and callable(value)]
    send(channel, [name for name in names if not name.startswith("_")])
    while True:
        try:
            name, arguments, named = receive(channel)
        except EOFError:
            return
        try:
            given = {key: unpack(value, kept) for key, value in named.items()}
            result = _function(space, name)(*(unpack(item, kept) for item in arguments), **given)
            send(channel, ["=", pack(result, kept)])
        except Unwritable as error:
            send(channel, ["?", str(error)])
        except Exception as error:
            send(channel, ["!", _known_error(error), str(error)[:200]])


def _known_error(error: Exception) -> str:
    """The name of an exception's nearest built-in base class."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((name for name in names if isinstance(getattr(builtins, name, None), type)), "Exception")


def put_tests(job: Job, channel: int, reply: int) -> None:
    """Run each test, and write `NONCE number +` or `-` after it to a file that the program cannot reach. Tests call
    proxies with the names of the program's functions, which exchange plain values."""
    space = main_module("test")
    execute(job["setup"], space, "setup.py")
    try:
        names = receive(channel)
    except (EOFError, OSError, ValueError, Unwritable):
        raise ProgramLost("the program did not load") from None
    wanted = set().union(*map(_free_names, job["tests"]))
    for name in names:
        if type(name) is str and name in wanted and name not in space and not hasattr(builtins, name):
            space[name] = _proxy(channel, name)
    if job["function"]:
        space[job["function"]] = space["candidate"] = _proxy(channel, job["function"])
    for number, test in enumerate(job["tests"]):
        try:
            execute(test, space, "test.py")
            passed = "+"
        except Exception as error:
            passed = "-"
            print(f"test {number + 1}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        _write(reply, f"{job['nonce']} {number} {passed}\n".encode())


def _free_names(source: str) -> set[str]:
    """The names that a test uses and does not bind itself."""
    nodes = list(ast.walk(ast.parse(source)))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    return used - bound


def _proxy(channel: int, name: str) -> Callable[..., Any]:
    """A function that calls the program's function of this name in its process."""

    def function(*given: Any, **named: Any) -> Any:
        try:
            send(channel, [name, [pack(item) for item in given], {key: pack(item) for key, item in named.items()}])
            kind, *rest = receive(channel)
            if kind == "=":
                return unpack(rest[0])
        except (ArithmeticError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
            raise ProgramLost(f"{type(error).__name__}: {error}") from None
        except Unwritable as error:
            raise ProgramLost(f"a value cannot be sent to the other process: {error}") from None
        if kind != "!":
            raise ProgramLost(str(rest)[:200])
        error_type = getattr(builtins, str(rest[0]), None)
        known = isinstance(error_type, type) and issubclass(error_type, Exception)
        if not known or issubclass(error_type, AssertionError):  # type: ignore[arg-type]
            error_type = RuntimeError
        raise error_type(*map(str, rest[1:]))  # type: ignore[misc]

    function.__name__ = function.__qualname__ = name
    return function


def send(channel: int, message: Any) -> None:
    """Write a message: its length in four bytes, then JSON."""
    data = json.dumps(message).encode()
    _write(channel, len(data).to_bytes(4, "little") + data)


def receive(channel: int) -> Any:
    """Read a message. Raises EOFError if the channel ends, Unwritable if the message is too long, ValueError if it is
    not JSON."""
    size = int.from_bytes(_exactly(channel, 4), "little")
    if size > LONGEST_MESSAGE:
        raise Unwritable("a message that is too long")
    return json.loads(_exactly(channel, size))


def _exactly(channel: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = os.read(channel, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
