"""Which sandbox a machine has: what is found, what is refused, and what refusing says."""

import sys
from contextlib import closing

import pytest

from lite_selfplay.verify.programs import SandboxError, open_sandbox, run_program
from lite_selfplay.verify.programs.inside import confinement as inside
from lite_selfplay.verify.programs.nouns import LAYERS
from lite_selfplay.verify.programs.sandbox import probe
from lite_selfplay.verify.programs.zygotes import ZygoteError, Zygotes

TRIED = {"reading a file", "writing a file", "TCP", "UDP", "an abstract socket", "fork", "exec", "8 GB of memory"}


def test_a_sandbox_says_what_it_is():
    with closing(open_sandbox(size=1)) as found:
        assert (found.tier, found.layers[0]) == ("kernel", "seccomp")
        assert set(found.layers) | set(found.missing) == set(LAYERS)
        assert set(found.tried) >= TRIED
        assert all(name in found.sentence() for name in (*found.layers, *found.missing, "a test program was denied"))


def test_without_seccomp_nothing_is_run_unless_asked_for():
    others = tuple(name for name in LAYERS if name != "seccomp")
    with pytest.raises(SandboxError, match=r"seccomp(.|\n)*--unsafe-code") as refused:
        open_sandbox(size=1, layers=others)
    assert refused.value.exit_code == 2
    with closing(open_sandbox(size=1, layers=(), unsafe_code=True)) as unsafe:
        assert unsafe.tier == "unsafe"
        assert run_program("print(6 * 7)", sandbox=unsafe).text == "42\n"


def test_unsafe_code_changes_nothing_where_there_is_a_sandbox():
    with closing(open_sandbox(size=1, unsafe_code=True)) as sandbox:
        assert sandbox.tier == "kernel"
        assert run_program("open('/etc/passwd')", sandbox=sandbox).reason == "forbidden"


def test_the_canary_sees_a_sandbox_that_does_not_hold():
    """The probe is no formality: without layers it finds what a program could do."""
    with closing(Zygotes(1, ())) as bare:
        _, problem = probe(bare)
    for possible in ("reading a file", "writing a file", "TCP", "fork", "a change of files", "a connection"):
        assert possible in problem


def test_another_system_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="run only on Linux"):
        open_sandbox()


def test_processes_that_do_not_start_are_a_refusal(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SandboxError, match="did not start"):
        open_sandbox()
    with pytest.raises(ZygoteError):
        Zygotes(1).first()


def test_a_layer_that_cannot_be_had_is_named():
    def refused() -> None:
        raise inside.LayerError("unshare: EPERM")

    assert inside.trial(refused) == "LayerError: unshare: EPERM"
    assert inside.trial(lambda: None) == ""
