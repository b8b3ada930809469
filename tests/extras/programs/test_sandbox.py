"""Which sandbox a machine has: what is found, what is refused, and what refusing says."""

import sys

import pytest

from lite_selfplay.extras.programs import SandboxError, open_sandbox, run_program
from lite_selfplay.extras.programs.inside import layers as inside
from lite_selfplay.extras.programs.nouns import LAYERS
from lite_selfplay.extras.programs.sandbox import probe
from lite_selfplay.extras.programs.zygotes import ZygoteError, Zygotes

TRIED = {"reading a file", "writing a file", "TCP", "UDP", "an abstract socket", "fork", "exec", "8 GB of memory"}


def test_a_sandbox_says_what_it_is():
    with_all = open_sandbox(size=1)
    try:
        assert with_all.tier == "kernel"
        assert with_all.layers[0] == "seccomp"
        assert set(with_all.layers) | set(with_all.missing) == set(LAYERS)
        assert set(with_all.tried) >= TRIED
        sentence = with_all.sentence()
        assert all(name in sentence for name in (*with_all.layers, *with_all.missing, "a canary tried in vain"))
    finally:
        with_all.close()


def test_without_seccomp_nothing_is_run_unless_asked_for():
    others = tuple(name for name in LAYERS if name != "seccomp")
    with pytest.raises(SandboxError, match="--unsafe-code") as refused:
        open_sandbox(size=1, layers=others)
    assert refused.value.exit_code == 2
    assert "seccomp" in str(refused.value)
    unsafe = open_sandbox(size=1, layers=(), unsafe_code=True)
    try:
        assert unsafe.tier == "unsafe"
        assert run_program("print(6 * 7)", sandbox=unsafe).text == "42\n"
    finally:
        unsafe.close()


def test_unsafe_code_changes_nothing_where_there_is_a_sandbox():
    sandbox = open_sandbox(size=1, unsafe_code=True)
    try:
        assert sandbox.tier == "kernel"
        assert run_program("open('/etc/passwd')", sandbox=sandbox).reason == "forbidden"
    finally:
        sandbox.close()


def test_the_canary_sees_a_sandbox_that_does_not_hold():
    """The probe is no formality: without layers it finds what a program could do."""
    with Zygotes(1, ()) as bare:
        seen = probe(bare)
    for possible in ("reading a file", "writing a file", "TCP", "fork", "a change of files", "a connection"):
        assert possible in seen.problem


def test_another_system_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="Linux alone"):
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
