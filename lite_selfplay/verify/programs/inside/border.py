"""Objects that two processes share, a program's and its test's: plain values go by value, all others by reference.

What a test does with a `Reference` is done in the program's process: attributes, calls, items, iteration, operators. A
program must not decide what only looks like its business: whether one of its objects equals a plain value of the test
is never asked there, and the difference of the two is no number.
"""

import builtins
import contextlib
import io
import json
import math
import operator
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

from lite_selfplay.verify.programs.inside.values import KINDS, PROGRAM, TEST, pack, unpack

LONGEST_MESSAGE = 16 << 20
_ENDS = (StopIteration, StopAsyncIteration)
_MUTABLE = ("l", "d", "S", "B", "k", "N")  # tags of `values.pack` and `Border._keep`
_PATHS = {kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PosixPath)}

_ALONE = "len iter next reversed hash bool int float complex index abs round trunc floor ceil neg pos invert getitem"
_HELD = "len iter next reversed getitem".split()
_SAID = "repr str format setitem delitem call setattr delattr instancecheck subclasscheck"
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow and or xor lshift rshift"
_INPLACE = " ".join(f"i{name}" for name in _ARITHMETIC.split() if name != "divmod")
_COMPARED = "eq ne lt le gt ge"
_FOUND: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": each for module in (math, builtins) for name, each in vars(module).items()},
    **vars(operator),
    "__instancecheck__": lambda kind, thing: isinstance(thing, kind),
    "__subclasscheck__": lambda kind, other: issubclass(other, kind),
    "__plain__": lambda thing: next(kind for kind in KINDS if isinstance(thing, kind))(thing),
    "__class__": type,
}
OPERATIONS = {
    name: _FOUND[name]
    for name in map(
        "__{}__".format, f"{_ALONE} {_SAID} getattr contains plain class {_ARITHMETIC} {_INPLACE} {_COMPARED}".split()
    )
}
_NAMED = ("__name__", "__qualname__", "__doc__")
_SERVED = (*_NAMED, "__dict__", "__wrapped__", "__enter__", "__exit__")
# Of plain values, methods that only say yes or no, such as `startswith`: they are not asked of a program's object.
_YES_OR_NO = {name for kind in KINDS for name in dir(kind) if name.startswith("is") or name.endswith("with")}


class ProgramLost(BaseException):
    """A program's process ended or sent a malformed answer. A BaseException, so that tests do not catch it."""


class Reference:
    """An object of the other process. `plain`: of a subclass of a built-in type. `mixed`: the result of arithmetic with
    a plain value, which is no number here, whatever its process says; `scaled`: of a product, which has items."""

    __slots__ = ("__at",)

    def __init__(self, border: "Border", number: int, plain: bool):
        object.__setattr__(
            self,
            "_Reference__at",
            SimpleNamespace(border=border, number=number, plain=plain, mixed=False, scaled=False),
        )

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in _SERVED) or name in _YES_OR_NO:
            raise AttributeError(name)
        return at(self).border.ask("__getattr__", self, name)

    def __contains__(self, item: Any) -> bool:
        if isinstance(item, Reference):
            return at(self).border.ask("__contains__", self, item) is True
        return item in content(self) if at(self).plain else any(item == each for each in self)  # type: ignore[attr-defined]

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        wanted = self.__getattr__("__exit__")(kind, error, None)
        return bool(wanted) and isinstance(error, Exception) and not isinstance(error, AssertionError)


at: Callable[[Reference], SimpleNamespace] = vars(Reference)["_Reference__at"].__get__


def content(reference: Reference) -> Any:
    return at(reference).border.ask("__plain__", reference)


def class_of(value: Any) -> Any:
    """`type` for a test: for a reference, the class of its object, which is no plain one."""
    if type(value) is not Reference:
        return type(value)
    found = at(value).border.ask("__class__", value)
    return Reference if found in KINDS else found


def _forwarded(self: Reference, what: str, mixed: bool, /, *given: Any, **named: Any) -> Any:
    if at(self).mixed and not (mixed or (at(self).scaled and what.strip("_") in _HELD)):
        raise TypeError(f"no {what} of the result of arithmetic with a plain value")
    return at(self).border.ask(what, self, *given, **named)


def _binary(self: Reference, what: str, reflected: bool, other: Any, *_: Any) -> Any:
    theirs, compared = isinstance(other, Reference), what.strip("_") in _COMPARED.split()
    if not theirs and at(self).plain:
        pair = (other, content(self)) if reflected else (content(self), other)
        return OPERATIONS[what](*pair)
    if not theirs and (compared or type(other).__module__ != "builtins"):
        return NotImplemented
    result = at(self).border.ask(what, *((other, self) if reflected else (self, other)))
    if compared:
        return result is True
    if not theirs or at(self).mixed or at(other).mixed:
        if not isinstance(result, Reference):
            raise TypeError("the result of arithmetic with a plain value is not an object of the program")
        at(result).mixed = True
        at(result).scaled = what in ("__mul__", "__matmul__") and not (at(self).mixed or (theirs and at(other).mixed))
    return result


_METHODS: dict[str, Any] = {
    "doc": property(lambda self: self.__getattr__("__doc__")),
    **{n: partialmethod(_forwarded, f"__{n}__", n in _SAID.split()) for n in f"{_ALONE} {_SAID}".split()},
    **{n: partialmethod(_binary, f"__{n}__", False) for n in f"{_ARITHMETIC} {_INPLACE} {_COMPARED}".split()},
    **{f"r{n}": partialmethod(_binary, f"__{n}__", True) for n in _ARITHMETIC.split()},
}
for _name, _method in _METHODS.items():
    setattr(Reference, f"__{_name}__", _method)


# Attributes of an exception whose class the other process defines.
_RAISED = {
    "_reference": None,
    "__str__": lambda self: str(self._reference) if self._reference is not None else Exception.__str__(self),
    "__getattr__": lambda self, name: getattr(self._reference, name),
}


class Border:
    """One end of the channel between two processes. `asked` are the operations that the other end may ask for by name,
    besides the usual ones; `trusted`: whether the other end is a test, from which nothing needs protection."""

    def __init__(self, channel: int, asked: Mapping[str, Callable[..., Any]], *, trusted: bool):
        self.trusted, self.operations = trusted, {**OPERATIONS, **asked}
        self.channel, self.file = channel, os.fdopen(channel, "rb", closefd=False)
        self.pack, self.unpack = partial(pack, keep=self._keep), partial(unpack, find=self._find)
        self.own: dict[int, Any] = {}
        self.theirs: dict[int, Any] = {}

    def send(self, message: Any) -> None:
        """Write a message: its length in four bytes, then JSON."""
        data = json.dumps(message).encode()
        write(self.channel, len(data).to_bytes(4, "little") + data)

    def receive(self) -> Any:
        """Read a message. Raises EOFError if the channel ends or the message is too long, ValueError if it is not
        JSON."""
        size = int.from_bytes(self.file.read(4), "little")
        if not 0 < size <= LONGEST_MESSAGE:
            raise EOFError("no message, or one that is too long")
        return json.loads(self.file.read(size))

    def ask(self, what: str, /, *given: Any, **named: Any) -> Any:
        """The result of an operation in the other process. Raises its exception; ProgramLost for a malformed answer."""
        try:
            sent = [[*map(self.pack, given)], {key: self.pack(value) for key, value in named.items()}]
            self.send(["?", what, *sent])
            while (message := self.receive())[0] == "?":
                self.answer(*message[1:])
            sys.stdout.write(message.pop())
            if message[0] == "=":
                result = self.unpack(message[1])
                # None where none was would let an answer of None equal what a test computes from its argument.
                if json.dumps(message[2]).count("null") <= json.dumps(sent).count("null"):
                    for old, new in zip([*given, *named.values()], message[2], strict=False):
                        _renew(old, self.unpack(new))
                return result
            error = self._error(what, *message[1:])
        except Exception as problem:
            raise ProgramLost(f"{type(problem).__name__}: {problem}") from None
        raise error

    def answer(self, what: str, given: Any, named: Any) -> None:
        """Do what the other process asks, and send it the result, with what became of the arguments of a function that
        returns nothing, or the exception; then its prints."""
        said = io.StringIO()
        try:
            arguments = [*map(self.unpack, given)]
            keys = {key: self.unpack(item) for key, item in named.items()}
            if not self.trusted and not (given[0][0] == "H" and _may(what, *arguments[:2])):
                raise AttributeError("an operation that a program may not do")
            with contextlib.redirect_stdout(said):
                result = self.operations[what](*arguments, **keys)
            now = [*map(self.pack, [*arguments, *keys.values()])] if result is None and what == "__call__" else []
            changeable = any(type(item) is list and item[0] in _MUTABLE for item in now)
            reply = ["=", self.pack(result), now if changeable else []]
        except Exception as error:
            kind, plain = self.pack(type(error)), [each for each in error.args if not isinstance(each, BaseException)]
            reply = ["!", kind, [*map(self.pack, plain)], self._keep(error) if kind[0] == "E" else None]
        self.send([*reply, said.getvalue()])

    def _keep(self, value: Any) -> Any:
        """The JSON for an object that goes by reference; for a built-in type or function, its name. A class of
        exceptions goes by name if it is a standard one, else with its bases."""
        theirs = value.__dict__.get("_reference") if isinstance(value, Exception) else value
        if type(theirs) is Reference:
            return ["H", at(theirs).number]
        module, name, kind = getattr(value, "__module__", ""), getattr(value, "__name__", ""), isinstance(value, type)
        fails = kind and issubclass(value, Exception)
        usual = module == "builtins" and (kind or not self.trusted)
        if (usual or (fails and module not in (PROGRAM, TEST))) and _named(module, name) is value:
            return ["T", module, name]
        if type(value) in _PATHS.values():
            return ["P", type(value).__name__, str(value)]
        if type(value).__module__ == "numpy" and hasattr(value, "ravel") and value.dtype.names is None:
            whole = type(value).__name__ == "ndarray"
            return ["N", value.dtype.str, whole, value.shape, self.pack(value.ravel().tolist())]
        self.own[id(value)] = value
        if fails:
            return ["E", id(value), name, *(self.pack(base) for base in value.__bases__ if issubclass(base, Exception))]
        return ["h", id(value), isinstance(value, KINDS)]

    def _find(self, tag: str, *rest: Any) -> Any:
        """What `_keep` wrote."""
        forms: dict[str, Callable[..., Any]] = {
            "h": lambda number, plain: self.theirs.setdefault(number, Reference(self, int(number), bool(plain))),
            "H": self.own.__getitem__,
            "T": _named if self.trusted else _harmless,
            "E": self._class,
            "P": lambda kind, path: _PATHS[kind](path),
            "N": self._array,
        }
        return forms[tag](*rest)

    def _array(self, kind: str, whole: bool, shape: list[int], items: Any) -> Any:
        """An array of numpy, or one of its numbers."""
        array = sys.modules["numpy"].fromiter(self.unpack(items), kind).reshape(shape)
        return array if whole else array[()]

    def _class(self, number: int, name: str, *bases: Any) -> type[Exception]:
        parents = tuple(kind for kind in map(self.unpack, bases) if issubclass(kind, Exception)) or (Exception,)
        return self.theirs.setdefault(number, type(str(name), parents, dict(_RAISED)))

    def _error(self, what: str, kind: Any, given: Any, reference: Any) -> BaseException:
        """The exception that the other process describes; only an iterator may say StopIteration, which would end a
        `map` over a function."""
        found, arguments = self.unpack(reference), [*map(self.unpack, given)]
        if isinstance(found, BaseException):
            return found
        ends = what == "__next__" and kind == ["T", "builtins", "StopIteration"]
        error_type = StopIteration if ends else self.unpack(kind)
        if not issubclass(error_type, Exception) or (issubclass(error_type, _ENDS) and not ends):
            error_type = RuntimeError
        error = error_type.__new__(error_type, *arguments)
        with contextlib.suppress(Exception):  # its own class has other parameters
            error.__init__(*arguments)
        error._reference = found
        return error


def _may(what: str, thing: Any, name: Any = "") -> bool:
    """Whether a program may do an operation on an object of a test: not ask for its class; attributes only of the
    test's own classes, without underscore, and methods of random generators, patterns and streams."""
    if what not in ("__getattr__", "__setattr__", "__delattr__") or (what == "__getattr__" and name in _NAMED):
        return what != "__class__"
    lent = what == "__getattr__" and type(thing).__module__ in ("random", "re", "_io")
    return (lent or type(thing).__module__ == TEST) and type(name) is str and not name.startswith("_")


def _named(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _harmless(module: str, name: str) -> type:
    """A built-in type or a standard class of exceptions; RuntimeError for anything else, and for what means no failure
    to a loop or a test runner."""
    found = _named(module, name)
    usual = isinstance(found, type) and (module == "builtins" or issubclass(found, Exception))
    return RuntimeError if not usual or module.partition(".")[0] == "unittest" or issubclass(found, _ENDS) else found


def _renew(old: Any, new: Any) -> Any:
    """Give a list, set, mapping or bytearray, and those in it, the content of `new`; returns what replaces `old`."""
    if type(old).__name__ == "ndarray" and getattr(new, "shape", None) == old.shape:
        old[...] = new
        return old
    if type(old) is not type(new) or not hasattr(type(old), "clear"):
        return new
    if isinstance(old, dict):
        new = {key: _renew(old[key], value) if key in old else value for key, value in new.items()}
    elif not isinstance(old, set):
        new = [*map(_renew, old, new), *list(new)[len(old) :]]
    old.clear()
    (old.update if isinstance(old, dict | set) else old.extend)(new)
    return old


def write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
