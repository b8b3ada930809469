"""Hostile programs in every tier that this machine has: nothing they try may be seen from outside.

`outside.py` prints the table of docs/sandbox.md.
"""

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lite_selfplay.verify.programs import open_sandbox
from lite_selfplay.verify.programs.nouns import Job
from tests.verify.programs.outside import ENDLESS, LIMITS, World, hostile, litter

ROOT = Path(__file__).parents[3]
EVERY = "seccomp,landlock,namespaces,chroot,uid"
AS_ROOT = os.geteuid() == 0
NOBODY = "65534"
# Another user may not read a home that is closed to others, where an interpreter may lie.
SYSTEM_PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"

SURROUNDINGS = {
    "root": [],
    "another user": ["--uid", NOBODY],
    "a container's root": ["--container"],
    "a container's root, no seccomp": ["--container", "--unconfined"],
    "a container's root, no Landlock": ["--container", "--no-landlock"],
    "a container's user, no Landlock": ["--container", "--no-landlock", "--uid", NOBODY],
}
ESCAPES = {  # harmless where nothing holds them, in a folder and with listeners of their own
    "read_secret", "import_from_victim", "exists_oracle", "list_home", "stat_size", "pathlib_read", "inherited_fds",
    "delete_victim", "rename_victim", "chmod_victim", "truncate_victim", "mkdir_victim", "append_victim",
    "utime_victim", "hard_link", "inherited_fd_write", "tcp_loopback", "udp", "unix_path", "unix_abstract",
    "plain_fork", "system_command", "exec_shell", "duplicate", "socket_pair", "kill_parent_gently",
}  # fmt: skip


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with closing(World()) as world:
        yield world


def test_there_are_enough_of_them():
    assert len(hostile()) >= 200
    assert set(hostile()) >= ESCAPES | ENDLESS


def test_none_gets_out_of_all_layers(world):
    """All at once, for speed: what got out is found in any case, by whom is for the longer test to say."""
    chosen = {name: source for name, source in hostile().items() if name not in ENDLESS}
    world.rebuild()
    before = (world.snapshot(), litter())
    bodies = [{"program": world.head() + source} for source in chosen.values()]
    jobs = [Job("stdio", (body,), program=number) for number, body in enumerate(bodies)]
    with closing(open_sandbox(size=2, marks=("-X", world.tag))) as sandbox:
        runs = sandbox.run(jobs, LIMITS)
        time.sleep(0.5)
        marks = (b"GOT", world.token.encode())
        said = [(name, mark) for name, run in zip(chosen, runs, strict=True) for mark in marks if mark in run.stdout]
        assert said == []
        assert world.broken(runs[0], 0.0, sandbox.pids(), before) == []
        assert sandbox.run([Job("stdio", ({"program": "print(6 * 7)"},))], LIMITS)[0].stdout == b"42\n"


def test_many_get_out_where_nothing_holds_them(world):
    """The positive control: what the oracles see when they should see something."""
    seen = set()
    for name in ESCAPES:
        world.rebuild()
        before = world.snapshot()
        command = [sys.executable, "-I", "-S", "-c", world.head() + hostile()[name]]
        done = subprocess.run(command, cwd=world.base, close_fds=False, capture_output=True, timeout=30, check=False)
        time.sleep(0.05)  # for the listeners
        said = b"\nGOT" in b"\n" + done.stdout or world.token.encode() in done.stdout
        if said or world.hits or world.snapshot() != before:
            seen.add(name)
    assert len(seen) >= len(ESCAPES) - 2, ESCAPES - seen
    world.rebuild()


def tier(surroundings: str, layers: str) -> dict:
    """The hostile programs in a process of its own, with these surroundings."""
    options = SURROUNDINGS[surroundings]
    python = SYSTEM_PYTHON if "--uid" in options else sys.executable
    harness = [python, "-m", "tests.verify.programs.outside", layers]
    command = [sys.executable, "-m", "tests.verify.programs.container", *options, *harness]
    paths = [str(ROOT), *filter(os.path.isdir, {sysconfig.get_paths()["purelib"], *sys.path})]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)}
    cwd = "/" if "--uid" in options else ROOT
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not AS_ROOT, reason="only root can become somebody else")
def test_programs_run_where_root_may_enter_only_a_namespace_of_one_user():
    program = (
        "from tests.verify.programs.outside import LIMITS; from lite_selfplay.verify.programs import open_sandbox; "
    )
    program += "from lite_selfplay.verify.programs.nouns import Job; box = open_sandbox(size=1); "
    program += (
        "print(box.run([Job('stdio', ({'program': 'print(6 * 7)'},))], LIMITS)[0].stdout, box.layers); box.close()"
    )
    surroundings = SURROUNDINGS["a container's root, no seccomp"]
    command = [sys.executable, "-m", "tests.verify.programs.container", *surroundings, sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith(r"b'42\n' ('seccomp', "), done


@pytest.mark.long
@pytest.mark.parametrize(
    ("surroundings", "layers"),
    [
        ("root", "seccomp"),
        ("root", "seccomp,landlock"),
        ("root", EVERY),
        ("another user", EVERY),
        ("a container's root", EVERY),
        ("a container's root, no seccomp", EVERY),
        ("a container's root, no Landlock", EVERY),
        ("a container's user, no Landlock", EVERY),
    ],
)
def test_none_gets_out_of_any_tier(surroundings, layers):
    if SURROUNDINGS[surroundings] and not AS_ROOT:
        pytest.skip("only root can become somebody else")
    if "--uid" in SURROUNDINGS[surroundings] and not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON} for another user")
    found = tier(surroundings, layers)
    print(surroundings, found)
    assert "refused" not in found, found
    assert "seccomp" in found["layers"]
    assert found["out"] == {}
    assert found["alive"]
    assert found["programs"] == len(hostile())
