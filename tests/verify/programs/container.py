"""Runs a command as somebody else: another user, or inside what a stock container refuses (Docker's defaults).

python -m tests.verify.programs.container [--container] [--unconfined] [--no-landlock] [--uid N] COMMAND...
"""

import argparse
import ctypes
import os
import struct

from lite_selfplay.verify.programs.inside import bpf, confinement

# chown dac_override fowner fsetid kill setgid setuid setpcap net_bind net_raw sys_chroot mknod audit_write setfcap
KEPT = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
REFUSED = (
    "unshare setns mount umount2 pivot_root keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup "
    "open_by_handle_at fsopen move_mount open_tree fsconfig mount_setattr"
).split()
_LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
_NEW_NAMESPACES = 0x7E020000


def drop_to_docker() -> None:
    """Keep a stock container's capabilities and no others."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        if number not in KEPT:
            libc.prctl(24, number, 0, 0, 0)
    mask = sum(1 << number for number in KEPT)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    if libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", low, low, 0, high, high, 0)):
        raise OSError(ctypes.get_errno(), "capset")


def refuse(calls: list[str]) -> None:
    """A filter that refuses these calls and new namespaces, as Docker's own does, and allows the others."""
    column = bpf.ARCHITECTURES[bpf.MACHINE][0]
    clone, clone3 = ((56, 435), (220, 435))[column]
    code = [(bpf.LOAD, 0, 0, 0)]
    for number in [bpf.KILLED[name][column] for name in calls]:
        if number is not None:
            code += [(bpf.EQUAL, 0, 1, number), (bpf.RETURN, 0, 0, bpf.ERRNO | bpf.EPERM)]
    code += [(bpf.EQUAL, 0, 1, clone3), (bpf.RETURN, 0, 0, bpf.ERRNO | bpf.ENOSYS)]
    code += [(bpf.EQUAL, 0, 3, clone), (bpf.LOAD, 0, 0, 16), (bpf.ANY_BIT, 0, 1, _NEW_NAMESPACES)]
    code += [(bpf.RETURN, 0, 0, bpf.ERRNO | bpf.EPERM), (bpf.RETURN, 0, 0, bpf.ALLOW)]
    confinement.no_new_privileges()
    confinement.seccomp(b"".join(struct.pack("<HBBI", *each) for each in code))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--container", action="store_true")
    parser.add_argument("--unconfined", action="store_true", help="as with Docker's seccomp=unconfined")
    parser.add_argument("--no-landlock", action="store_true")
    parser.add_argument("--uid", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.container:
        drop_to_docker()
    if asked.uid is not None:
        confinement.become(asked.uid)
    if asked.container and not asked.unconfined:
        refuse([*REFUSED, *(_LANDLOCK if asked.no_landlock else ())])
    os.execv(asked.command[0], asked.command)


if __name__ == "__main__":
    main()
