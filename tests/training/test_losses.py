"""Ratios and advantages for TRL, by hand; a user's own loss: by hand, compared with the library's default, and refused
ones."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import RoleConfig, RunConfig, load_loss
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream
from lite_selfplay.errors import ConfigError, LossError
from lite_selfplay.models.logprobs.batch import Way
from lite_selfplay.training.losses import Given, LossRow, loss_of, old_logprobs, own_terms
from lite_selfplay.training.updates import microbatches

from .harness import completion, episode, relative_error, stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loss.py"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a loss into a file; returns `FILE:NAME`."""

    def write(text: str) -> str:
        (tmp_path / "mine.py").write_text(f"import torch\n{text}\n")
        return f"{tmp_path / 'mine.py'}:mine"

    return write


def rows(*pairs: tuple[int, float]) -> list[LossRow]:
    """Rows of so many tokens with these advantages."""
    return [
        LossRow(Completion("", "", (1,), (2,) * tokens, (-1.0,) * tokens, "eos", "A", 0, Sampling()), advantage)
        for tokens, advantage in pairs
    ]


# Two rows, the second of one token and one of padding. Log-ratios 0.1 and 0.2; -0.4.
MASK = torch.tensor([[1, 1], [1, 0]])
OLD = torch.tensor([[-1.1, -2.2], [-0.6, 0.0]])


@pytest.mark.parametrize(
    ("role", "old", "wanted", "slopes"),
    [
        (RoleConfig(loss="dapo"), OLD, [[0.1, 0.2], [-0.4, 0.0]], [[math.exp(0.1), 0.0], [0.0, 0.0]]),
        # d exp(W) / d lp_t is exp(W) for the sum over two tokens, and half of that for their mean.
        (RoleConfig(ratio="sequence"), OLD, [[0.15, 0.15], [-0.4, -0.4]], [[math.exp(0.15) / 2] * 2, [0.0, 0.0]]),
        (RoleConfig(loss="sequence"), OLD, [[0.3, 0.3], [-0.4, -0.4]], [[math.exp(0.3)] * 2, [0.0, 0.0]]),
        # On-policy every ratio is one and has a gradient; an extreme one is still finite.
        (RoleConfig(loss="sequence"), None, [[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]),
        (RoleConfig(loss="sequence"), OLD - 1000, [[20.0, 20.0], [20.0, 20.0]], [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_log_ratios_by_hand_and_what_they_pull_at(role: RoleConfig, old: Any, wanted: Any, slopes: Any):
    logprobs = torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], requires_grad=True)
    found = logprobs - old_logprobs(role, logprobs, old, MASK)
    assert torch.allclose(found, torch.tensor(wanted), atol=1e-6)
    found.exp()[0, 0].backward()
    assert torch.allclose(logprobs.grad, torch.tensor(slopes), atol=1e-6)
    assert old_logprobs(RoleConfig(), OLD, None, MASK) is None  # on-policy TRL takes its own way


@pytest.mark.parametrize(("loss", "wanted"), [("grpo", [1.5, -0.75]), ("sequence", [0.5, -0.375])])
def test_advantages_by_hand(loss: str, wanted: list[float]):
    # Rows of 3 and 2 tokens with advantages 3 and -1.5, half of a stream of four rows.
    (micro,) = microbatches(rows((3, 3.0), (2, -1.5), (1, 0.0), (1, 0.0)), "A", RoleConfig(loss=loss), 1000, Way.WHOLE)
    found = dict(zip([r.tokens for r in micro.rows], micro.scaled([r.advantage for r in micro.rows]), strict=True))
    assert [found[3], found[2]] == wanted


OF_COMPLETIONS = "def mine(logprobs, advantages, mask): return -advantages * (logprobs * mask).sum(-1) / mask.sum(-1)"
OF_TOKENS = "def mine(logprobs, advantages): return -advantages[:, None] * logprobs + torch.exp(9 * logprobs.detach())"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # d/d log p of -A log p, over completions: -3 and 1.5 and 0, by 3 rows and their 2, 1 and 1 tokens.
        (OF_COMPLETIONS, [-3 / 3 / 2, -3 / 3 / 2, 1.5 / 3, 0.0]),
        # Over tokens: by 4 of them. Padding does not count.
        (OF_TOKENS, [-3 / 4, -3 / 4, 1.5 / 4, 0.0]),
    ],
)
@pytest.mark.parametrize("budget", [1000, 3])
def test_its_gradient_by_hand(write: Callable[[str], str], text: str, wanted: list[float], budget: int):
    role = RoleConfig(loss=write(text), entropy=0.0)
    found: dict[int, list[float]] = {}
    for micro in microbatches(rows((2, 3.0), (1, -1.5), (1, 0.0)), "A", role, budget, Way.WHOLE):
        logprobs = torch.full((micro.tokens,), -0.5, requires_grad=True)
        given = Given.of(micro, logprobs, None)
        loss_of(micro, given, own_terms(load_loss(role.loss), micro, given), torch.zeros(1)).backward()
        for row, slopes in zip(micro.rows, logprobs.grad.split([row.tokens for row in micro.rows]), strict=True):
            found[int(2 * row.advantage)] = slopes.tolist()
    assert [*found[6], *found[-3], *found[0]] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("role", "budget", "replay"),
    [
        ({}, 8192, False),
        ({"beta": 0.3, "reference": "base", "entropy": 0.05}, 40, True),
        ({"beta": 0.3, "reference": "base", "kl": "advantage"}, 8192, False),  # subtracted before the loss gets them
        ({"ratio": "sequence"}, 40, True),
    ],
)
def test_grpo_written_out_has_the_gradient_of_the_default(harness: Any, role: Any, budget: int, replay: bool):
    played = episode(replay=replay)
    default = harness(role, microbatch_tokens=budget).step(played)
    own = harness({**role, "loss": f"{EXAMPLE}:grpo"}, microbatch_tokens=budget).step(played)
    for seat in ("A", "B"):
        # In one microbatch it is equal to the bit, unless the default skips rows of advantage 0, as for seat A.
        same = budget == 8192 and (seat == "B" or "beta" in role)
        assert relative_error(own.gradients[seat], default.gradients[seat]) <= (0 if same else 5e-7)
    for one, other in zip(own.reports[0].streams, default.reports[0].streams, strict=True):
        assert (one.loss, one.kl) == (pytest.approx(other.loss, abs=1e-6), pytest.approx(other.kl, abs=1e-6))


def test_several_updates_and_microbatches_have_the_mean_over_tokens_of_all(harness: Any):
    runs = [harness({"loss": f"{EXAMPLE}:cispo"}, microbatch_tokens=n, minibatches=2) for n in (8192, 40)]
    assert relative_error(*(run.step(episode()).gradients["B"] for run in runs)) < 1e-5


def test_examples_are_learned_from_by_their_likelihood(harness: Any, write: Any):
    taught = [Sample(completion("A", index), None, advantage=0.5) for index in range(3)]
    paid = stream("drafter", "A", [[0, 2]]).groups
    played = Episode([Stream("drafter", [*paid, Group(taught)])])
    place = write("def mine(logprobs): return 0 * logprobs")
    only = Episode([Stream("drafter", [Group(taught)])])
    got = harness({"loss": place}).step(played).gradients["A"]
    assert relative_error(got, harness().step(only).gradients["A"]) < 1e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mine(logprobs): return logprobs.mean()", r"shape \(10,\), or for each token, \(10, 12\), got \(\)"),
        ("def mine(logprobs): return logprobs.T", r"must return a term for each completion"),
        ("def mine(logprobs): return 1.0", "got float"),
        ("def mine(logprobs): return logprobs.detach()", "terms without a gradient, so nothing would be learned"),
        ("def mine(logprobs): return logprobs / nothing", "the loss mine raised NameError: name 'nothing'"),
        ("def mine(logprobs): raise SystemExit(3)", "the loss mine raised SystemExit: 3"),
    ],
)
def test_a_loss_that_teaches_nothing_is_refused_and_updates_nothing(harness: Any, write: Any, text: str, message: str):
    run = harness({"loss": write(text)})
    with pytest.raises(LossError, match=message):
        run.step(episode())
    assert not run.moved()
    assert all(p.grad is None for p in run.backend.adapters.parameters("A").values())


def test_a_loss_that_is_not_finite_skips_the_step(harness: Any, write: Any):
    (report,) = harness({"loss": write("def mine(logprobs): return logprobs / 0")}).step(episode()).reports
    assert report.nonfinite == "the loss of drafter (seat A) is -inf"


def test_where_it_runs_out_of_memory_microbatches_are_halved(harness: Any, write: Any):
    text = "def mine(logprobs):\n    if len(logprobs) > 2: raise torch.OutOfMemoryError('full')\n    return logprobs"
    made = harness({"loss": write(text)}, microbatch_tokens=200).step(episode())
    assert made.trainer.budget.tokens < 200
    assert made.gradients["A"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mine(logprobs, rewards): ...", "has no function 'mine' of logprobs, old, reference, advantages, mask"),
        ("def mine(advantages): ...", "it has none"),
        ("mine = 3\ndef yours(logprobs, clip_ratio): ...", "it has yours"),
    ],
)
def test_a_function_that_is_no_loss(write: Callable[[str], str], text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_loss(write(text))


def test_a_name_that_is_no_loss():
    with pytest.raises(
        ConfigError, match=r"loss: should be grpo, dr_grpo, dapo, sequence or FILE\.py:FUNCTION, got 'g"
    ):
        RunConfig(game="grpo", model="tiny", roles={"solver": {"loss": "gpro"}})


SMALL = "grpo --model tiny --tasks letters --precision fp32 --group-size 2 --problems-per-step 2 --seed 3".split()
SMALL += "--max-completion-tokens 8 --steps 1 --no-cold-start --run-dir run".split()


def test_a_run_with_it_goes_on_until_its_file_changes(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(EXAMPLE, "mine.py")
    assert call("train", *SMALL, "--set", "roles.solver.loss=mine.py:cispo").code == 0
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text() + "\n# better\n")
    ended = call("train", "--resume", "run", "--steps", "2")
    assert ended.code == 2
    assert f"if you trust it: `lite-selfplay list losses {tmp_path}/mine.py:cispo`" in ended.err
    listed = call("list", "losses", f"{tmp_path}/mine.py:cispo")
    assert "The ratio weighs every token's log-probability" in listed.out
    ended = call("train", "--resume", "run", "--steps", "2")
    assert ended.code == 0
    assert "the source of cispo (roles.solver.loss) has changed since the run was made" in ended.err
