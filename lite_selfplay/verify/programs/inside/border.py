"""Objects that two processes share, a program's and its test's: plain values go by value, all others by reference.

What a test does with a `Reference` is done in the program's process: attributes, calls, items, iteration, operators. A
program must not decide what only looks like its business: whether one of its objects equals a plain value of the test
is never asked there, and the difference of the two is no number.
"""

import builtins
import collections
import json
import math
import operator
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from lite_selfplay.verify.programs.inside.values import KINDS, PROGRAM, TEST, Unwritable, pack, unpack

LONGEST_MESSAGE = 16 << 20
_ENDS = (StopIteration, StopAsyncIteration)
_TYPES = {name: each for name, each in vars(builtins).items() if isinstance(each, type)}
_MUTABLE = ("l", "d", "S", "B", "k")  # tags of `values.pack`

_ALONE = "len iter next reversed hash bool int float complex index abs round trunc floor ceil neg pos invert getitem"
_SAID = "repr str format setitem delitem call setattr delattr instancecheck subclasscheck"
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow and or xor lshift rshift"
_COMPARED = "eq ne lt le gt ge"
_OTHER: dict[str, Callable[..., Any]] = {
    "call": lambda function, /, *given, **named: function(*given, **named),
    "instancecheck": lambda kind, thing: isinstance(thing, kind),
    "subclasscheck": lambda kind, other: issubclass(other, kind),
    "contains": lambda things, thing: thing in things,
    "plain": lambda thing: next(kind for kind in KINDS if isinstance(thing, kind))(thing),
}


def _operation(name: str) -> Callable[..., Any]:
    places = (getattr(builtins, name, None), getattr(operator, f"__{name}__", None), getattr(math, name, None))
    return _OTHER.get(name) or next(place for place in places if place is not None)


_INPLACE = " ".join(f"i{name}" for name in _ARITHMETIC.split() if name != "divmod")
OPERATIONS: dict[str, Callable[..., Any]] = {
    f"__{name}__": _operation(name)
    for name in f"{_ALONE} {_SAID} getattr contains plain {_ARITHMETIC} {_INPLACE} {_COMPARED}".split()
}
_NAMED = ("__name__", "__qualname__", "__doc__")
_SERVED = (*_NAMED, "__dict__", "__wrapped__", "__enter__", "__exit__")
# Of plain values, methods that only say yes or no, such as `startswith`: they are not asked of a program's object.
_YES_OR_NO = {name for kind in KINDS for name in dir(kind) if name.startswith("is") or name.endswith("with")}


class ProgramLost(BaseException):
    """A program's process ended or sent a malformed answer. A BaseException, so that tests do not catch it."""


class Reference:
    """An object of the other process. `plain`: of a subclass of a built-in type. `mixed`: the result of arithmetic with
    a plain value, which is no number here, whatever its process says."""

    __slots__ = ("__at",)

    def __init__(self, border: "Border", number: int, plain: bool):
        object.__setattr__(
            self, "_Reference__at", SimpleNamespace(border=border, number=number, plain=plain, mixed=False)
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


def _forwarded(name: str, mixed: bool) -> Callable[..., Any]:
    def method(self: Reference, /, *given: Any, **named: Any) -> Any:
        if at(self).mixed and not mixed:
            raise TypeError(f"no {name} of the result of arithmetic with a plain value")
        return at(self).border.ask(name, self, *given, **named)

    return method


def _arithmetic(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Reference, other: Any, *_: Any) -> Any:
        theirs = isinstance(other, Reference)
        if not theirs and at(self).plain:
            pair = (other, content(self)) if reflected else (content(self), other)
            return OPERATIONS[name](*pair)
        if not theirs and type(other).__module__ != "builtins":
            return NotImplemented
        result = at(self).border.ask(name, *((other, self) if reflected else (self, other)))
        if not theirs or at(self).mixed or at(other).mixed:
            if not isinstance(result, Reference):
                raise TypeError("the result of arithmetic with a plain value is not an object of the program")
            at(result).mixed = True
        return result

    return method


def _compared(name: str) -> Callable[..., Any]:
    def method(self: Reference, other: Any) -> Any:
        if isinstance(other, Reference):
            return at(self).border.ask(name, self, other) is True
        return OPERATIONS[name](content(self), other) if at(self).plain else NotImplemented

    return method


_METHODS: dict[str, Any] = {
    "doc": property(lambda self: self.__getattr__("__doc__")),
    **{name: _forwarded(f"__{name}__", mixed=name in _SAID.split()) for name in f"{_ALONE} {_SAID}".split()},
    **{name: _arithmetic(f"__{name}__") for name in f"{_ARITHMETIC} {_INPLACE}".split()},
    **{f"r{name}": _arithmetic(f"__{name}__", reflected=True) for name in _ARITHMETIC.split()},
    **{name: _compared(f"__{name}__") for name in _COMPARED.split()},
}
for _name, _method in _METHODS.items():
    setattr(Reference, f"__{_name}__", _method)


class _Raised:
    """An exception of a class that the other process defines."""

    reference: Any = None

    def __str__(self) -> str:
        return super().__str__() if self.reference is None else str(self.reference)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reference, name)


def _of_a_test(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on an attribute that a program may do: of an object of a test's own class, without underscore."""

    def guarded(thing: Any, name: Any, *value: Any) -> Any:
        named = name in _NAMED and operation is getattr
        if not named and (type(thing).__module__ != TEST or type(name) is not str or name.startswith("_")):
            raise AttributeError(name)
        return operation(thing, name, *value)

    return guarded


class Border:
    """One end of the channel between two processes. `asked` are the operations that the other end may ask for by name,
    besides the usual ones; `trusted`: whether the other end is a test, from which nothing needs protection."""

    def __init__(self, channel: int, asked: Mapping[str, Callable[..., Any]], *, trusted: bool):
        attributes = ("__getattr__", "__setattr__", "__delattr__")
        guarded = {} if trusted else {name: _of_a_test(OPERATIONS[name]) for name in attributes}
        self.channel, self.trusted = channel, trusted
        self.operations = {**OPERATIONS, **guarded, **asked}
        self.pack, self.unpack = partial(pack, keep=self._keep), partial(unpack, find=self._find)
        self.own: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.theirs: dict[int, Any] = {}
        self.raised: BaseException | None = None

    def ask(self, what: str, /, *given: Any, **named: Any) -> Any:
        """The result of an operation in the other process. Raises its exception; ProgramLost for a malformed answer."""
        try:
            sent = [[*map(self.pack, given)], {key: self.pack(value) for key, value in named.items()}]
            send(self.channel, ["?", what, *sent])
            while (message := receive(self.channel))[0] == "?":
                self.answer(*message[1:])
            if message[0] == "=":
                result = self.unpack(message[1])
                # None where none was would let an answer of None equal what a test computes from its argument.
                if json.dumps(message[2]).count("null") <= json.dumps(sent).count("null"):
                    for old, new in zip([*given, *named.values()], message[2], strict=False):
                        _renew(old, self.unpack(new))
                return result
            self.raised = error = self._error(what, *message[1:])
        except Exception as problem:
            raise ProgramLost(f"{type(problem).__name__}: {problem}") from None
        raise error

    def answer(self, what: str, given: Any, named: Any) -> None:
        """Do what the other process asks, and send it the result, with what became of the arguments of a function that
        returns nothing, or the exception."""
        try:
            if not (self.trusted or given[0][0] == "H"):
                raise Unwritable("an operation on an object that was not passed")
            arguments = [*map(self.unpack, given)]
            keys = {key: self.unpack(item) for key, item in named.items()}
            result = self.operations[what](*arguments, **keys)
            now = [*map(self.pack, [*arguments, *keys.values()])] if result is None and what == "__call__" else []
            changeable = any(type(item) is list and item[0] in _MUTABLE for item in now)
            reply = ["=", self.pack(result), now if changeable else []]
        except Exception as error:
            whole = [self.pack(item) for item in error.args if not isinstance(item, BaseException)]
            kind = self._kind(type(error))
            reply = ["!", kind, whole, self._keep(error) if len(kind) > 2 else None, str(error)[:200]]
        send(self.channel, reply)

    def _keep(self, value: Any) -> Any:
        """The JSON for an object that goes by reference; for a built-in type or function, its name."""
        if isinstance(value, _Raised) and value.reference is not None:
            value = value.reference
        if type(value) is Reference:
            return ["H", at(value).number]
        name = getattr(value, "__name__", None)
        usual = type(name) is str and getattr(builtins, name, None) is value
        if usual and (not self.trusted or isinstance(value, type)):
            return ["T", name]
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            items = self.pack(value.tolist())
            return ["N", value.dtype.str, items] if hasattr(value, "__len__") else items
        if isinstance(value, type) and issubclass(value, Exception):
            return ["E", self._kind(value)]
        return ["h", self._number(value), isinstance(value, KINDS)]

    def _number(self, value: Any) -> int:
        number = self.numbers.setdefault(id(value), len(self.own))
        self.own += [value] if number == len(self.own) else []
        return number

    def _find(self, tag: str, *rest: Any) -> Any:
        """What `_keep` wrote. From a program's process, only types come by name."""
        forms: dict[str, Callable[..., Any]] = {
            "h": lambda number, plain: self.theirs.setdefault(number, Reference(self, int(number), bool(plain))),
            "H": self.own.__getitem__,
            "T": (vars(builtins) if self.trusted else _TYPES).__getitem__,
            "E": self._class,
            "N": lambda kind, items: sys.modules["numpy"].array(self.unpack(items), kind),
        }
        return forms[tag](*rest)

    def _kind(self, kind: type) -> Any:
        """A class of exceptions as JSON: a built-in or standard one by name, another with its bases."""
        own = kind.__module__ in (PROGRAM, TEST)
        if not own and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return [kind.__module__, kind.__name__]
        bases = [self._kind(base) for base in kind.__bases__ if issubclass(base, Exception)]
        return [self._number(kind), kind.__name__, bases]

    def _class(self, described: Any) -> type[Exception]:
        """The class that `_kind` described; RuntimeError for one that means no failure to a loop or a test runner."""
        number, name, *bases = described
        if not bases:
            found = getattr(sys.modules.get(number), name, None) if number.partition(".")[0] != "unittest" else None
            usual = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _ENDS)
            return found if usual else RuntimeError  # type: ignore[return-value]
        if number not in self.theirs:
            parents = [*map(self._class, bases[0])] or [Exception]
            mixin = [] if any(issubclass(kind, _Raised) for kind in parents) else [_Raised]
            self.theirs[number] = type(str(name), (*mixin, *parents), {})
        return self.theirs[number]

    def _error(self, what: str, described: Any, given: Any, reference: Any, text: str) -> BaseException:
        """The exception that the other process describes; only an iterator may say StopIteration, which would end a
        `map` over a function."""
        found, arguments = self.unpack(reference), [*map(self.unpack, given)]
        if isinstance(found, BaseException):
            return found
        ends = what == "__next__" and described == ["builtins", "StopIteration"]
        kind = StopIteration if ends else self._class(described)
        try:
            error = kind(*arguments)
        except Exception:  # its own class has other parameters
            error = kind.__new__(kind, *arguments)
        if isinstance(error, _Raised):
            error.reference = found
        return error


def _renew(old: Any, new: Any) -> Any:
    """Give a list, set, mapping or bytearray, and those in it, the content of `new`; returns what replaces `old`."""
    if type(old) is not type(new) or not hasattr(type(old), "clear"):
        return new
    if isinstance(old, dict):
        new = {key: _renew(old[key], value) if key in old else value for key, value in new.items()}
    elif isinstance(old, list | collections.deque):
        new = [*map(_renew, old, new), *list(new)[len(old) :]]
    old.clear()
    (old.update if isinstance(old, dict | set) else old.extend)(new)
    return old


def send(channel: int, message: Any) -> None:
    """Write a message: its length in four bytes, then JSON."""
    data = json.dumps(message).encode()
    write(channel, len(data).to_bytes(4, "little") + data)


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


def write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
