"""The layers around a program: restrictions that this process requests for itself and its children.

Constants are the kernel's own (linux/prctl.h, linux/sched.h, linux/landlock.h). Each function raises LayerError or
OSError if the kernel refuses; `trial` tests a layer in a throw-away child.
"""

import ctypes
import errno
import os
import resource
import signal
import struct
import tempfile
from collections.abc import Callable
from typing import Any

from lite_selfplay.verify.programs.inside import bpf

_LIBC = ctypes.CDLL(None, use_errno=True)
_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_NEW = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount, cgroup, uts, ipc, pid, net
_NEW_USER = 0x10000000
# Rights on files of each version of Landlock, from version 1; later versions have those of the last.
_LANDLOCK_FILES = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)
_LANDLOCK_TCP, _LANDLOCK_SCOPES = (4, 3), (6, 3)  # (from this version on, all rights)


class LayerError(Exception):
    """The kernel refuses a layer."""


def _checked(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise LayerError(f"{what}: {errno.errorcode.get(number, number)}")
    return result


def _call(name: str, *arguments: Any) -> int:
    """Make a system call for which the C library has no function, one of those that programs may not make."""
    number = bpf.KILLED[name][bpf.ARCHITECTURES[bpf.MACHINE][0]]
    given = (ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *arguments))
    return _checked(_LIBC.syscall(*given), name)


def _prctl(option: int, value: int, what: str) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero), what)


def die_with_parent() -> None:
    """Be killed when the process that started this one ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL, "the death signal")


def no_new_privileges() -> None:
    """Prevent this process from ever gaining rights; the kernel requires this for a filter of an ordinary user."""
    _prctl(_NO_NEW_PRIVS, 1, "no_new_privs")


def undumpable() -> None:
    """Prevent core dumps, and access to this process's memory by others of the same user."""
    _prctl(_DUMPABLE, 0, "dumpable")


def seccomp(code: bytes) -> None:
    """Install a filter permanently."""
    no_new_privileges()
    buffer = ctypes.create_string_buffer(code, len(code))
    _call("seccomp", 1, 0, ctypes.c_char_p(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))))


def landlock() -> None:
    """Refuse everything that this kernel's Landlock can refuse: files, TCP, signals and abstract sockets outside."""
    version = _call("landlock_create_ruleset", None, 0, 1)
    rights = [
        _LANDLOCK_FILES[min(version, len(_LANDLOCK_FILES)) - 1],
        *(every for since, every in (_LANDLOCK_TCP, _LANDLOCK_SCOPES) if version >= since),
    ]
    attributes = struct.pack(f"<{len(rights)}Q", *rights)
    ruleset = _call("landlock_create_ruleset", ctypes.c_char_p(attributes), len(attributes), 0)
    no_new_privileges()
    _call("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def namespaces() -> None:
    """Enter new namespaces of every kind, as root or else in a user namespace; the next child is the first process."""
    uid, gid = os.getuid(), os.getgid()
    if os.geteuid() == 0 and _LIBC.unshare(ctypes.c_int(_NEW)) == 0:
        return
    _checked(_LIBC.unshare(ctypes.c_int(_NEW | _NEW_USER)), "unshare")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as stream:
            stream.write(text)


def empty_root() -> None:
    """Change the root to a deleted folder: it is empty, and nothing can be created in it."""
    path = tempfile.mkdtemp(prefix="lite-selfplay-root-")
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
    os.rmdir(path)
    os.fchdir(folder)
    os.chroot(".")
    os.close(folder)


def become(uid: int) -> None:
    """Switch permanently to another user without groups."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    """Drop all capabilities, if there are any."""
    _LIBC.capset(ctypes.c_char_p(struct.pack("<Ii", 0x20080522, 0)), ctypes.c_char_p(bytes(24)))


def limit_resources(seconds: float, memory: int, output: int, *, no_processes: bool) -> None:
    """Set the kernel's limits: seconds of CPU time, bytes of memory, bytes of any written file."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_STACK: 64 << 20,
        resource.RLIMIT_FSIZE: output,
        resource.RLIMIT_CPU: max(1, int(-(-seconds // 1))),
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 64,
        **({resource.RLIMIT_NPROC: 0} if no_processes else {}),
    }
    for what, wanted in limits.items():
        most = resource.getrlimit(what)[1]
        value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        # The soft limit of CPU time sends SIGXCPU; the hard one, a second later, SIGKILL.
        resource.setrlimit(
            what, (value, value + (what == resource.RLIMIT_CPU and (most == resource.RLIM_INFINITY or value < most)))
        )


def trial(layer: Callable[[], object]) -> str:
    """Try a layer in a throw-away child. Returns why it is not available; empty if it is."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            layer()
            os.write(write, b"+")
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:500])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return "" if answer == "+" else answer or "the process that tried it died"
