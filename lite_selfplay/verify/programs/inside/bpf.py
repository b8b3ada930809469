"""The allow-list of system calls as a seccomp filter, in raw BPF: no compiler, no library, no package.

A program may compute, sleep, and read and write the descriptors that it was given. It gets no path, no new descriptor,
no process, no thread, no signal to others and no executable memory. Whatever is not named here answers EPERM.
Source: linux/filter.h, linux/seccomp.h, seccomp(2).
"""

import functools
import platform
import struct

from lite_selfplay.verify.programs.inside.syscalls import ALLOWED, BY_ARGUMENTS, KILLED, PATHS, Numbers

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of an architecture in the tables of calls, and its number in linux/audit.h."""

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EACCES, ENOTTY, ENOSYS = 1, 13, 25, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_X32 = 0x40000000
_EXECUTABLE = 4  # PROT_EXEC
_FUTEX_OPERATIONS = (0, 1, 9, 10)  # wait, wake, and both with a bit set; the others have a history
_FCNTL_COMMANDS = (1, 2, 3)  # F_GETFD, F_SETFD, F_GETFL: none that makes a descriptor
_OWN_PID = 0x5AFEC0DE  # stands in the filter until `for_process`

Instruction = tuple[int, int, int, int]
"""Operation, how far to jump where a comparison holds and where not, and a constant."""


def machine() -> str:
    """This machine's architecture under the kernel's name."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def for_process(code: bytes, pid: int) -> bytes:
    """The filter for one process, which may send signals to itself."""
    return code.replace(struct.pack("<I", _OWN_PID), struct.pack("<I", pid))


@functools.cache
def build(architecture: str = "") -> bytes:
    """The filter's instructions, 8 bytes each; by default for this machine. Raises KeyError for another architecture.

    `seccomp_data` has the call's number at byte 0, the architecture at 4, and six arguments of 64 bits from 16 on.
    """
    column, audit = ARCHITECTURES[architecture or machine()]
    code = [_load(4), _if(EQUAL, audit, 1, 0), _return(KILL), _load(0)]
    if column == 0:  # the x32 calls have numbers of their own
        code += [_if(AT_LEAST, _X32, 0, 1), _return(KILL)]

    def answer(calls: Numbers, value: int) -> None:
        for numbers in calls.values():
            rule(numbers[column], [_return(value)])

    def rule(number: int | None, body: list[Instruction]) -> None:
        if number is not None:
            code.extend([_if(EQUAL, number, 0, len(body)), *body])

    answer(ALLOWED, ALLOW)
    for name, body in _by_arguments().items():
        rule(BY_ARGUMENTS[name][column], body)
    answer(PATHS, ERRNO | EACCES)
    answer(KILLED, KILL)
    code.append(_return(ERRNO | EPERM))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _by_arguments() -> dict[str, list[Instruction]]:
    """What is run for a call that depends on its arguments; each ends with a return."""
    not_executable = [_argument(2), _if(ANY_BIT, _EXECUTABLE, 0, 1), _return(ERRNO | EPERM), _return(ALLOW)]
    own_limits = [
        _argument(0), _if(EQUAL, 0, 1, 0), _return(ERRNO | EPERM),
        # A limit may be read. Setting one "succeeds" and changes nothing: a habit of contest programs.
        _argument(2), _if(EQUAL, 0, 0, 3), _argument(2, high=True), _if(EQUAL, 0, 0, 1), _return(ALLOW),
        _return(ERRNO),
    ]  # fmt: skip
    return {
        "mmap": not_executable,
        "mprotect": not_executable,
        "futex": [_argument(1), (AND, 0, 0, 127), *_one_of(_FUTEX_OPERATIONS), _return(ERRNO | ENOSYS)],
        "ioctl": [_return(ERRNO | ENOTTY)],
        "fcntl": [_argument(1), *_one_of(_FCNTL_COMMANDS), _return(ERRNO | EPERM)],
        "prlimit64": own_limits,
        "setrlimit": [_return(ERRNO)],
        "tgkill": [_argument(0), *_one_of((_OWN_PID,)), _return(ERRNO | EPERM)],
    }


def _load(offset: int) -> Instruction:
    return LOAD, 0, 0, offset


def _argument(number: int, *, high: bool = False) -> Instruction:
    """Load the low half of an argument, or the high one."""
    return _load(16 + 8 * number + 4 * high)


def _if(comparison: int, constant: int, then: int, otherwise: int) -> Instruction:
    return comparison, then, otherwise, constant


def _return(value: int) -> Instruction:
    return RETURN, 0, 0, value


def _one_of(constants: tuple[int, ...]) -> list[Instruction]:
    """Allow where what was loaded is one of these."""
    return [each for constant in constants for each in (_if(EQUAL, constant, 0, 1), _return(ALLOW))]
