"""Code of a user's own inside a run: what it raises becomes one error, and what it changes in the process is put back.

A run relies on the folder it was started in and on torch's defaults; a reward function that leaves them otherwise would
break a later step, far from its cause.
"""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lite_selfplay.errors import LiteSelfPlayError

_warned: set[tuple[str, str]] = set()


@contextlib.contextmanager
def guarded(
    what: str,
    error: type[LiteSelfPlayError],
    warn: Callable[[str], None] = lambda sentence: None,
    *,
    judges: bool = False,
    failed: str = "raised",
) -> Iterator[None]:
    """A context for a user's own code; `what` names it in sentences (`the reward function f`), `failed` what it did.

    Whatever the code raises is raised as `error`, `sys.exit` and exceptions outside `Exception` included; this
    library's own errors and KeyboardInterrupt pass. Afterwards the working folder, torch's default type and grad mode
    are what they were, and for code that only `judges` also the environment, the number of torch's threads and the
    state of the global random generators. `warn` reports, once for each of them, what the code had changed.
    """
    before = _state(judges)
    try:
        yield
    except (KeyboardInterrupt, LiteSelfPlayError):
        raise
    except BaseException as problem:
        raise error(f"{what} {failed} {type(problem).__name__}: {problem}") from problem
    finally:
        for name, kept in before.items():
            if _put_back(name, kept) and (what, name) not in _warned:
                _warned.add((what, name))
                warn(f"{what} changed {name}, which was put back: it is the whole run's")


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """A context after which the global random generators are where they were, whatever was run meanwhile."""
    before = {name: kept for name, kept in _state(judges=True).items() if name.startswith("the state of")}
    try:
        yield
    finally:
        for name, kept in before.items():
            _put_back(name, kept)


def _state(judges: bool) -> dict[str, Any]:
    """What is to be put back, by what it is."""
    names = [name for name, (_, _, only_judges) in _KEPT.items() if judges or not only_judges]
    return {name: _KEPT[name][0]() for name in names}


def _put_back(name: str, kept: Any) -> bool:
    """Make something what it was; False where it is."""
    read, write, _ = _KEPT[name]
    now = read()
    if kept is None or now is None or _equal(kept, now):
        return False
    write(kept)
    return True


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    same = first == second
    return bool(same.all()) if hasattr(same, "all") else bool(same)


# None: what cannot be read, or belongs to a library that nobody has imported.


def _folder() -> str | None:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _set_environment(kept: dict[str, str]) -> None:
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(kept)


def _of(library: str, name: str) -> Callable[..., Any]:
    """A function of a library by its name, once somebody has imported the library."""

    def call(*arguments: Any) -> Any:
        found: Any = getattr(sys.modules.get(library), name, None)
        return None if found is None else found(*arguments)

    return call


_KEPT: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], bool]] = {
    "the working folder": (_folder, os.chdir, False),
    "torch's default type": (_of("torch", "get_default_dtype"), _of("torch", "set_default_dtype"), False),
    "torch's grad mode": (_of("torch", "is_grad_enabled"), _of("torch", "set_grad_enabled"), False),
    "the number of torch's threads": (_of("torch", "get_num_threads"), _of("torch", "set_num_threads"), True),
    "the environment": (lambda: dict(os.environ), _set_environment, True),
    "the state of random": (random.getstate, random.setstate, True),
    "the state of numpy.random": (_of("numpy.random", "get_state"), _of("numpy.random", "set_state"), True),
    "the state of torch's random generator": (_of("torch", "get_rng_state"), _of("torch", "set_rng_state"), True),
}
"""How each is read and written, and whether it is put back only for code that judges."""
