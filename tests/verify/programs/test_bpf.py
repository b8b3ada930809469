"""The filter in an interpreter of BPF: every call's number on both architectures, and calls by their arguments."""

import re
import struct
from functools import partial
from pathlib import Path

import pytest

from lite_selfplay.verify.programs.inside import bpf
from lite_selfplay.verify.programs.inside.bpf import ALL, ALLOWED, BY_ARGUMENTS, KILLED, PATHS

PID = 4242
EPERM, EACCES = bpf.ERRNO | bpf.EPERM, bpf.ERRNO | bpf.EACCES
NUMBERS = range(1200)
HEADERS = [Path("/usr/include", each) for each in ("x86_64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h")]


def interpreted(code: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a filter answers to a call, as linux/net/core/filter.c would run it."""
    given = [argument & 2**64 - 1 for argument in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number & 2**32 - 1, architecture, 0, *given)
    program = list(struct.iter_unpack("<HBBI", code))
    loaded, place = 0, 0
    while True:
        operation, then, otherwise, constant = program[place]
        place += 1
        if operation == bpf.RETURN:
            return constant
        if operation == bpf.LOAD:
            (loaded,) = struct.unpack_from("<I", data, constant)
        elif operation == bpf.AND:
            loaded &= constant
        else:
            tests = {bpf.EQUAL: loaded == constant, bpf.AT_LEAST: loaded >= constant, bpf.ANY_BIT: loaded & constant}
            place += then if tests[operation] else otherwise


@pytest.fixture(params=bpf.ARCHITECTURES)
def machine(request):
    """(answers of the filter by number and arguments, numbers by name, the audit number)"""
    column, audit = bpf.ARCHITECTURES[request.param]
    code = bpf.for_process(bpf.build(request.param), PID)
    numbers = {name: pair[column] for name, pair in ALL.items() if pair[column] is not None}
    return partial(interpreted, code, audit), numbers, audit


def test_every_number_has_the_answer_of_its_table(machine):
    answer, numbers, _ = machine
    expected = dict.fromkeys(NUMBERS, EPERM)
    for table, value in ((ALLOWED, bpf.ALLOW), (PATHS, EACCES), (KILLED, bpf.KILL)):
        expected |= {numbers[name]: value for name in table if name in numbers}
    by_arguments = {numbers[name] for name in BY_ARGUMENTS if name in numbers}
    wrong = [n for n in NUMBERS if n not in by_arguments and answer(n) != expected[n]]
    assert wrong == []
    assert sum(answer(n) == bpf.ALLOW for n in NUMBERS) <= 66


def test_other_architectures_and_the_x32_calls_are_killed(machine):
    answer, numbers, audit = machine
    code = answer.args[0]
    for other in (audit ^ 0x80000000, 0x40000003, 0x40000028, 0xC00000B7 ^ 0xC000003E ^ audit, 0):
        assert all(interpreted(code, other, number) == bpf.KILL for number in (*NUMBERS[::9], numbers["read"]))
    if audit == bpf.ARCHITECTURES["x86_64"][1]:
        assert {answer(number) for number in (-1, *(0x40000000 | n for n in NUMBERS))} == {bpf.KILL}


def test_nothing_that_opens_sends_starts_or_signals_is_allowed(machine):
    answer, _, audit = machine
    column = 0 if audit == bpf.ARCHITECTURES["x86_64"][1] else 1
    dangerous = {  # open openat socket connect clone fork vfork execve kill tkill dup dup2 dup3 pipe pipe2 memfd_create
        0: (2, 257, 41, 42, 56, 57, 58, 59, 62, 200, 32, 33, 292, 22, 293, 319, 435, 46, 47, 44, 45, 129, 297, 9999),
        1: (56, 198, 203, 220, 221, 129, 130, 23, 24, 59, 279, 435, 206, 207, 211, 212, 138, 240),
    }[column]
    assert [n for n in dangerous if answer(n, 0x3D0F00) == bpf.ALLOW] == []


@pytest.mark.parametrize("call", ["mmap", "mprotect"])
def test_no_memory_is_executable(machine, call):
    answer, numbers, _ = machine
    for protection in range(16):
        wanted = EPERM if protection & 4 else bpf.ALLOW
        assert answer(numbers[call], 0, 4096, protection) == wanted
        assert answer(numbers[call], 0, 4096, protection | 1 << 32) == wanted


def test_what_is_allowed_by_its_arguments(machine):
    answer, numbers, _ = machine
    waits_and_wakes = {n + private + clock for n in (0, 1, 9, 10) for private in (0, 128) for clock in (0, 256)}
    assert {n for n in range(512) if answer(numbers["futex"], 0, n) == bpf.ALLOW} == waits_and_wakes
    # Descriptors are neither copied nor controlled.
    assert {n for n in range(2000) if answer(numbers["fcntl"], 0, n) == bpf.ALLOW} == {1, 2, 3}
    assert {answer(numbers["ioctl"], 0, n) for n in (0x5401, 0x5412, 0x541B, 0)} == {bpf.ERRNO | bpf.ENOTTY}
    # Signals go to the process itself.
    assert answer(numbers["tgkill"], PID, PID, 6) == bpf.ALLOW
    assert {answer(numbers["tgkill"], n, n, 9) for n in (0, 1, PID - 1, PID + 1, -1, 2**31)} == {EPERM}


def test_limits_may_be_read_and_never_set(machine):
    answer, numbers, _ = machine
    for limit in range(16):
        assert answer(numbers["prlimit64"], 0, limit, 0, 4096) == bpf.ALLOW
        for pointer in (1, 4096, 1 << 32, 1 << 63, (1 << 32) + 1):
            assert answer(numbers["prlimit64"], 0, limit, pointer, 4096) == bpf.ERRNO
        assert answer(numbers["prlimit64"], 1, limit, 0, 4096) == EPERM
    assert answer(numbers["setrlimit"], 0, 1) == bpf.ERRNO


@pytest.mark.parametrize("architecture", bpf.ARCHITECTURES)
def test_the_code_is_one_that_the_kernel_accepts(architecture):
    """At most 4096 instructions; every jump lands on one; the last returns."""
    program = list(struct.iter_unpack("<HBBI", bpf.build(architecture)))
    assert len(program) <= 4096
    jumps = (bpf.EQUAL, bpf.AT_LEAST, bpf.ANY_BIT)
    for place, (operation, then, otherwise, _) in enumerate(program):
        if operation in jumps:
            assert place + 1 + max(then, otherwise) < len(program)
    assert program[-1][0] == bpf.RETURN


@pytest.mark.parametrize("column", range(2))
def test_the_numbers_are_those_of_the_kernels_headers(column):
    if not HEADERS[column].exists():
        pytest.skip(f"no kernel headers at {HEADERS[column]}")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[column].read_text()))
    if column == 1:  # names of the generic table that differ from those of the 64-bit call
        found["newfstatat"] = found.get("fstatat", found.get("newfstatat"))
    numbers = {name: pair[column] for name, pair in ALL.items() if column == 0 or pair[column] is not None}
    wrong = {name: (n, found.get(name)) for name, n in numbers.items() if str(n) != str(found.get(name))}
    assert wrong == {}
