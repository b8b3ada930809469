"""The allow-list of system calls as a seccomp filter in raw BPF, without a compiler or library.

A program may compute, sleep, and read and write the descriptors that it was given. It cannot use paths, new
descriptors, processes, threads, signals to others or executable memory. All calls not listed here return EPERM. Source:
linux/filter.h, linux/seccomp.h, seccomp(2); for the numbers arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h, with which a test compares them.
"""

import functools
import itertools
import platform
import struct

Numbers = dict[str, tuple[int | None, int | None]]
"""System calls by name, with their numbers on x86_64 and on aarch64; None where that architecture has no such call."""

# fmt: off
ALLOWED: Numbers = {
    "read": (0, 63), "write": (1, 64), "brk": (12, 214), "munmap": (11, 215), "mremap": (25, 216),
    "madvise": (28, 233), "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "lseek": (8, 62), "close": (3, 57),
    "fstat": (5, 80), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "getrandom": (318, 278), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165), "getpid": (39, 172),
    "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "uname": (63, 160),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "readv": (19, 65), "writev": (20, 66),
    "restart_syscall": (219, 128), "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None),
    "pause": (34, None), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "getrlimit": (97, 163), "exit": (60, 93), "exit_group": (231, 94),
}
"""Allowed with any arguments: computing, sleeping, and the descriptors that the process was given."""

BY_ARGUMENTS: Numbers = {
    "mmap": (9, 222), "mprotect": (10, 226), "futex": (202, 98), "ioctl": (16, 29), "fcntl": (72, 25),
    "prlimit64": (302, 261), "setrlimit": (160, 164), "tgkill": (234, 131),
}

PATHS: Numbers = {
    "newfstatat": (262, 79), "statx": (332, 291), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "stat": (4, None), "lstat": (6, None), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17), "getdents64": (217, 61), "mkdir": (83, None),
    "mkdirat": (258, 34), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "truncate": (76, 45), "chdir": (80, 49), "creat": (85, None),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "statfs": (137, 43),
    "utimensat": (280, 88), "chmod": (90, None), "fchmodat": (268, 53), "chown": (92, None), "fchownat": (260, 54),
    "mknod": (133, None), "mknodat": (259, 33), "getxattr": (191, 8), "setxattr": (188, 5), "execve": (59, 221),
    "execveat": (322, 281),
}
"""Refused with EACCES, so that a program sees a file that it may not open, or a failed import."""

KILLED: Numbers = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsmount": (432, 432), "fsconfig": (431, 431), "fspick": (433, 433),
    "mount_setattr": (442, 442), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
    "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "sethostname": (170, 161), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "fanotify_init": (300, 262), "process_madvise": (440, 440), "process_mrelease": (448, 448),
}
"""Calls that no honest program makes: the process is killed."""
# fmt: on

ALL: Numbers = {**ALLOWED, **BY_ARGUMENTS, **PATHS, **KILLED}

# For each architecture, its column in the tables of calls and its number in linux/audit.h.
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
MACHINE = platform.machine()

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EACCES, ENOTTY, ENOSYS = 1, 13, 25, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN, AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_X32 = 0x40000000
_EXECUTABLE = 4  # PROT_EXEC
_FUTEX_OPERATIONS = (0, 1, 9, 10)  # wait, wake, and both with a bit set; others had security holes
_FCNTL_COMMANDS = (1, 2, 3)  # F_GETFD, F_SETFD, F_GETFL: none makes a descriptor
_OWN_PID = 0x5AFEC0DE  # placeholder, replaced by `for_process`

Instruction = tuple[int, int, int, int]
"""Operation, the jumps if a comparison is true and if it is false, and a constant."""


def for_process(code: bytes, pid: int) -> bytes:
    """The filter for one process, which may send signals to itself."""
    return code.replace(struct.pack("<I", _OWN_PID), struct.pack("<I", pid))


@functools.cache
def build(architecture: str = MACHINE) -> bytes:
    """The filter's instructions, 8 bytes each; by default for this machine. Raises KeyError for another architecture.

    `seccomp_data` has the call's number at byte 0, the architecture at 4, and six arguments of 64 bits from 16 on.
    """
    column, audit = ARCHITECTURES[architecture]
    code = [_load(4), _if(EQUAL, audit, 1, 0), _return(KILL), _load(0)]
    if column == 0:  # the x32 calls have numbers of their own
        code += [_if(AT_LEAST, _X32, 0, 1), _return(KILL)]

    rules = [
        *((numbers[column], [_return(ALLOW)]) for numbers in ALLOWED.values()),
        *((BY_ARGUMENTS[name][column], body) for name, body in _by_arguments().items()),
        *((numbers[column], [_return(ERRNO | EACCES)]) for numbers in PATHS.values()),
        *((numbers[column], [_return(KILL)]) for numbers in KILLED.values()),
    ]
    known = ((_if(EQUAL, number, 0, len(body)), *body) for number, body in rules if number is not None)
    code += [*itertools.chain(*known), _return(ERRNO | EPERM)]
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _by_arguments() -> dict[str, list[Instruction]]:
    """The instructions for each call that depends on its arguments; each ends with a return."""
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
    """Load the low or the high half of an argument."""
    return _load(16 + 8 * number + 4 * high)


def _if(comparison: int, constant: int, then: int, otherwise: int) -> Instruction:
    return comparison, then, otherwise, constant


def _return(value: int) -> Instruction:
    return RETURN, 0, 0, value


def _one_of(constants: tuple[int, ...]) -> list[Instruction]:
    """Allow if the loaded value is one of these."""
    return [each for constant in constants for each in (_if(EQUAL, constant, 0, 1), _return(ALLOW))]
