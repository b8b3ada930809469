"""The update against an independent computation of its objective: unpadded rows, one adapter alone, plain torch."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, set_peft_model_state_dict
from torch import Tensor

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Group, Restore, Sample, Sampling, Stream
from lite_selfplay.errors import GameError, TrainingError
from lite_selfplay.models.backends.transformers import load_base
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.runs.report.steps import stream_metrics
from lite_selfplay.testing import as_sampled
from lite_selfplay.training.losses import Loss
from lite_selfplay.training.optimizer import optimizer_state
from lite_selfplay.training.trainer import SelfPlayTrainer, reference_name
from lite_selfplay.training.trl import make_loss
from lite_selfplay.training.updates import StepReport

FREE = {"rank": 4, "alpha": 8, "init": "gaussian", "init_std": 0.1, "clip": 1e9, "lr": 1e-2}
CAP = 12


def completion(seat: str, index: int, temperature: float = 1.0) -> Completion:
    """Token ids of unequal lengths, the same for the same seat and index."""
    generator = torch.Generator().manual_seed(100 * ord(seat[0]) + index)
    prompt = torch.randint(3, 259, (2 + index % 4,), generator=generator).tolist()
    ids = torch.randint(3, 259, (1 + (5 * index) % CAP,), generator=generator).tolist()
    stored = (torch.rand(len(ids), generator=generator) * -2 - 4).tolist()
    sampling = Sampling(temperature=temperature, max_tokens=CAP)
    return Completion("", "", prompt, ids, stored, "length", seat, 0, sampling)


def stream(role: str, seat: str, rewards: list[list[float]], **options: Any) -> Stream:
    temperature = options.pop("temperature", 1.0)
    numbers = iter(range(100))
    groups = [Group([Sample(completion(seat, next(numbers), temperature), r) for r in group]) for group in rewards]
    return Stream(role, groups, **options)


# Unequal groups, one of them without variance.
DRAFTS = [[0, 2, 2, 0], [2.5, 0.5, 0], [2, 2, 2]]
CHALLENGES = [[3, 0, 2, 0.5], [0, 0, 3]]


def episode(**options: Any) -> Episode:
    return Episode([stream("drafter", "A", DRAFTS, **options), stream("challenger", "B", CHALLENGES, **options)])


DRAWN = stream("drafter", "A", DRAFTS).groups


def replace_rewards(group: Group, change: Callable[[float], float]) -> Group:
    return Group([dataclasses.replace(s, reward=change(s.reward or 0.0)) for s in group.samples])


class Harness:
    """A trainer of one step that hands over the gradients it was about to apply."""

    def __init__(self, backend: Any, tokenizer: Any, folder: Path, role: Mapping[str, Any], **run: Any):
        self.backend, self.gradients = backend, {}
        self.reports: list[StepReport] = []
        self.applied: dict[str, float] = {}
        self.on_update: Callable[[], None] | None = None
        self.starts: list[dict[str, dict[str, Tensor]]] = []  # the weights before each update
        self.config = RunConfig(
            game="agon",
            model="tiny",
            roles={"drafter": role, "challenger": role},
            seats=dict.fromkeys(backend.adapters.seats, FREE),
            run={"steps": 1, "max_completion_tokens": CAP, **run},
        )
        self._parts = tokenizer, str(folder)

    def set_seats(self, seats: Mapping[str, Any]) -> None:
        self.config = RunConfig.of(self.config.model_dump(mode="json"), {"seats": seats})

    def step(self, *episodes: Episode, seats: Mapping[str, str] | None = None) -> "Harness":
        seats = seats or {"drafter": "A", "challenger": "B"}
        config = RunConfig.of(self.config.model_dump(mode="json"), {"run": {"steps": len(episodes)}})
        loss = make_loss(self.backend, config, *self._parts)
        trainer = SelfPlayTrainer(backend=self.backend, loss=loss, config=config)
        move = trainer._move

        def capture(report: StepReport, *norms: Any) -> None:
            self.starts.append(states(self.backend))
            self.gradients = self._gradients()
            if self.on_update is not None:
                self.on_update()
            move(report, *norms)

        def applied(*_: Any) -> None:
            found = {seat: list(gradients.values()) for seat, gradients in self._gradients().items()}
            self.applied = {
                seat: torch.cat([g.flatten() for g in gs]).norm().item() for seat, gs in found.items() if gs
            }

        trainer._move = capture  # type: ignore[method-assign]
        trainer.optimizer.register_step_pre_hook(applied)
        self.trainer = trainer
        for step, played in enumerate(episodes):
            self.reports.append(trainer.update(step, as_sampled(played, self.backend), seats))
        return self

    def _gradients(self) -> dict[str, dict[str, Tensor]]:
        adapters = self.backend.adapters
        return {
            seat: {n: p.grad.clone().cpu() for n, p in adapters.parameters(seat).items() if p.grad is not None}
            for seat in adapters.seats
        }


@pytest.fixture
def tokenizer(tiny_path: Path) -> Any:
    return Chat.load(tiny_path).tokenizer


@pytest.fixture
def harness(make_backend: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> Callable[..., Harness]:
    def make(role: Mapping[str, Any] | None = None, *, backend: Any = None, **run: Any) -> Harness:
        seats = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
        return Harness(backend or make_backend(seats=seats), tokenizer, tmp_path / "trainer", role or {}, **run)

    return make


def plain_logprobs(model: Any, spoke: Completion) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[*spoke.prompt_ids, *spoke.token_ids]])
    logits = model(input_ids=ids).logits[0, len(spoke.prompt_ids) - 1 : -1].float() / spoke.sampling.temperature
    log_p = logits.log_softmax(-1)
    return log_p[torch.arange(len(spoke.token_ids)), torch.tensor(spoke.token_ids)], -(log_p.exp() * log_p).sum(-1)


def samples_of(played: Stream) -> list[Sample]:
    return [sample for group in played.groups for sample in group.samples]


def expected_loss(model: Any, played: Stream, role: Mapping[str, Any], reference: Any = None) -> Tensor:
    """The objective as the papers write it, row by row."""
    values = stream_advantages(played)
    left_out = [s.masked or (role.get("mask_truncated") and s.completion.stop == "length") for s in samples_of(played)]
    pairs = zip(samples_of(played), [a for row in values for a in row], left_out, strict=True)
    # A group that is dropped leaves the policy's terms and what they are divided by; the KL term holds for its rows.
    rows = [(s.completion, a) for s, a, out in pairs if not out and (a is not None or role.get("beta"))]
    total = sum(len(spoke.token_ids) for spoke, _ in rows)
    kept = sum(a is not None for _, a in rows), sum(len(spoke.token_ids) for spoke, a in rows if a is not None)
    loss, entropy_sum = torch.zeros(()), torch.zeros(())
    for spoke, given in rows:
        advantage = (given or 0.0) * (total / kept[1] if role.get("loss") == "dapo" else len(rows) / kept[0])
        lp, entropy = plain_logprobs(model, spoke)
        old = torch.tensor(spoke.logprobs) if played.replay else lp.detach()
        kind = role.get("loss", "grpo")
        if kind == "sequence":
            ratio = (lp - old).sum().exp()
        elif role.get("ratio") == "sequence":
            ratio = (lp - old).mean().exp().expand(len(lp))
        else:
            ratio = (lp - old).exp()
        term = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        kl = torch.zeros(())
        if role.get("beta"):
            with torch.no_grad():
                ref = plain_logprobs(reference, spoke)[0]
            kl = role["beta"] * ((ref - lp).exp() - (ref - lp) - 1)
        normaliser = {
            "grpo": len(rows) * len(lp),
            "dr_grpo": len(rows) * CAP,
            "dapo": total,
            "sequence": len(rows),
        }[kind]
        loss = loss + (term.sum() + kl.sum()) / normaliser
        entropy_sum = entropy_sum + entropy.sum()
    return loss - role.get("entropy", 0.0) * entropy_sum / total


def alone(base: Any, adapters: Any, seat: str, folder: Path) -> Any:
    """A model that holds one adapter and nothing else."""
    adapters.save(seat, folder / seat)
    model = PeftModel.from_pretrained(base, folder / seat, is_trainable=True)
    return model.eval()


def expected_gradients(model: Any, loss: Tensor, seat: str) -> dict[str, Tensor]:
    loss.backward()
    return {
        name.replace(".default.", f".{seat}."): p.grad
        for name, p in model.named_parameters()
        if "lora_" in name and p.grad is not None
    }


def relative_error(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    assert got.keys() == wanted.keys()
    difference = torch.cat([(got[name] - wanted[name]).flatten() for name in wanted])
    whole = torch.cat([tensor.flatten() for tensor in wanted.values()])
    assert whole.norm() > 1e-3  # a zero gradient would agree with anything
    return float(difference.norm() / whole.norm())


SHORT = ((8192, False, 0.0), (40, True, 0.3))
LONG = [each for each in itertools.product((8192, 40), (False, True), (0.0, 0.3)) if each not in SHORT]


@pytest.mark.parametrize(
    ("budget", "checkpointing", "beta"), [*SHORT, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG)]
)
@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "sequence"])
def test_each_seats_gradient_is_that_of_the_plain_objective(
    harness: Callable[..., Harness],
    make_backend: Callable[..., Any],
    tiny_path: Path,
    tmp_path: Path,
    loss: str,
    beta: float,
    budget: int,
    checkpointing: bool,
):
    seats = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
    backend = make_backend(seats=seats, gradient_checkpointing=checkpointing)
    role = {"loss": loss, "beta": beta}
    other = {name: tensor * 0.5 for name, tensor in backend.adapters.state("B").items()}
    for seat in seats:
        backend.adapters.put_snapshot(reference_name(seat), seat, other)
    models = {seat: alone(fp32(tiny_path), backend.adapters, seat, tmp_path) for seat in seats}
    reference = reference_model(tiny_path, backend.adapters, other, tmp_path)
    played = episode(drop_zero_variance=True)
    got = harness(role, backend=backend, microbatch_tokens=budget).step(played)
    for spoken, seat in zip(played.streams, ("A", "B"), strict=True):
        wanted_loss = expected_loss(models[seat], spoken, role, reference)
        wanted = expected_gradients(models[seat], wanted_loss, seat)
        assert relative_error(got.gradients[seat], wanted) < 1e-4
        (update,) = [u for u in got.reports[0].streams if u.role == spoken.role]
        assert update.loss == pytest.approx(wanted_loss.item(), abs=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "sequence"])
def test_a_kl_term_holds_for_the_rows_of_dropped_groups_and_none_for_truncated_ones(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, loss: str
):
    """By hand: the KL of all rows and the policy's of those kept, in three losses that are added up."""
    role = {"loss": loss, "beta": 0.3, "reference": "base"}
    played = stream("drafter", "A", [[1, 1, 1], [0, 2, 2, 0], [2, 2]], drop_zero_variance=True)
    run = harness(role)
    model, base = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path), fp32(tiny_path)
    kept = dataclasses.replace(played, groups=played.groups[1:2])
    unpaid = [Group([dataclasses.replace(s, reward=1.0) for s in samples_of(played)])]
    policy = expected_loss(model, kept, {"loss": loss})
    penalty = expected_loss(model, dataclasses.replace(played, groups=unpaid, drop_zero_variance=False), role, base)
    wanted = expected_gradients(model, policy + penalty, "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_truncated_completions_can_be_left_out(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, loss: str
):
    played = stream("drafter", "A", DRAFTS)
    ended = {0, 3, 4}
    groups = iter(range(100))
    played = dataclasses.replace(
        played,
        groups=[
            Group(
                [
                    dataclasses.replace(s, completion=dataclasses.replace(s.completion, stop="eos"))
                    if next(groups) in ended
                    else s
                    for s in group.samples
                ]
            )
            for group in played.groups
        ],
    )
    role = {"loss": loss, "mask_truncated": True}
    run = harness(role)
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    wanted = expected_gradients(model, expected_loss(model, played, role), "A")
    run.step(Episode([played]))
    assert relative_error(run.gradients["A"], wanted) < 1e-4
    (values,) = run.reports[0].advantages
    assert [i for i, a in enumerate(a for row in values for a in row) if a is not None] == [0, 3, 4]


def fp32(path: Path) -> Any:
    return load_base(path, "fp32", torch.float32, torch.device("cpu"))


def reference_model(path: Path, adapters: Any, state: Mapping[str, Tensor], folder: Path) -> Any:
    before = adapters.state("A")
    adapters.load_state("A", state)
    model = alone(fp32(path), adapters, "A", folder / "reference")
    adapters.load_state("A", before)
    return model


@pytest.mark.parametrize("budget", [8192, 40], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("loss", ["grpo", "dapo", "sequence"])
def test_entropy_term_temperature_and_reference_to_the_base(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, loss: str, budget: int
):
    role = {"loss": loss, "beta": 0.2, "entropy": 0.05, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", DRAFTS, temperature=0.7)
    wanted = expected_gradients(model, expected_loss(model, played, role, fp32(tiny_path)), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4


def clipped_share(model: Any, played: Stream, role: Mapping[str, Any]) -> float:
    """The share of ratios beyond the clip, on the side that the clip cuts off: of tokens, or one a completion."""
    cut = tokens = 0
    for group, advantages in zip(played.groups, stream_advantages(played), strict=True):
        for sample, advantage in zip(group.samples, advantages, strict=True):
            log_ratio = plain_logprobs(model, sample.completion)[0].detach() - torch.tensor(sample.completion.logprobs)
            if role.get("loss") == "sequence":
                log_ratio = log_ratio.sum()[None]
            elif role.get("ratio") == "sequence":
                log_ratio = log_ratio.mean()[None]
            ratio = log_ratio.exp()
            cut += int(((ratio > 1.2) & (advantage > 0) | (ratio < 0.8) & (advantage < 0)).sum())
            tokens += len(ratio)
    return cut / tokens


KINDS = [
    {},
    {"ratio": "sequence"},
    {"loss": "dr_grpo", "ratio": "sequence"},
    {"loss": "dapo", "ratio": "sequence"},
    {"loss": "sequence"},
]


@pytest.mark.parametrize("budget", [8192, 40], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("role", KINDS, ids=str)
def test_replayed_samples_use_the_clipped_ratio_to_their_stored_log_probabilities(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, role: dict[str, Any], budget: int
):
    role = {**role, "beta": 0.2, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model, base = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path), fp32(tiny_path)
    # Stored near what the seat gives now, so that some ratios are inside the clip and some outside.
    shifts = torch.Generator().manual_seed(1)

    def near(sample: Sample) -> Sample:
        lp = plain_logprobs(model, sample.completion)[0].detach()
        shift = 0.5 * torch.randn(1, generator=shifts) / (len(lp) if role.get("loss") == "sequence" else 1)
        stored = (lp + shift + 0.01 * torch.randn(len(lp), generator=shifts)).tolist()
        return dataclasses.replace(sample, completion=dataclasses.replace(sample.completion, logprobs=stored))

    played = stream("drafter", "A", DRAFTS, replay=True)
    groups = [Group([near(s) for s in group.samples]) for group in played.groups]
    played = dataclasses.replace(played, groups=groups)
    wanted = expected_gradients(model, expected_loss(model, played, role, base), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4
    assert run.reports[0].streams[0].clipped == pytest.approx(clipped_share(model, played, role), abs=1e-6)
    assert 0 < run.reports[0].streams[0].clipped < 1
    assert run.reports[0].streams[0].sampler_gap is None  # it was noted by other weights
    on_policy = harness(role).step(Episode([dataclasses.replace(played, replay=False)]))
    assert relative_error(on_policy.gradients["A"], wanted) > 1e-2
    assert on_policy.reports[0].streams[0].clipped is None


def test_the_gradient_of_whole_completions_is_not_divided_by_their_length(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path
):
    """On-policy it is the mean over completions of A times the gradient of log pi(y) (CPMobius, equation 2)."""
    run = harness({"loss": "sequence"})
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", [[1, 0]])
    said = [sample.completion for sample in played.groups[0].samples]
    assert [len(one.token_ids) for one in said] == [1, 6]
    # Advantages of rewards 1 and 0: +-0.5 over a deviation of sqrt(1/2), plus 1e-4.
    size = 0.5 / (math.sqrt(0.5) + 1e-4)
    likelihoods = [plain_logprobs(model, one)[0].sum() for one in said]
    wanted = expected_gradients(model, -(size * likelihoods[0] - size * likelihoods[1]) / 2, "A")
    got = run.step(Episode([played]))
    assert relative_error(got.gradients["A"], wanted) < 1e-4
    assert got.reports[0].streams[0].loss == pytest.approx(0.0, abs=1e-6)  # ratios of 1: the mean advantage


def test_in_four_bits_before_and_after_a_generate(
    harness: Callable[..., Harness], make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path
):
    seats = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
    backend = make_backend("4bit", seats=seats, compute_dtype="fp32")
    base = load_base(tiny_path, "4bit", torch.float32, torch.device("cpu"))
    model = alone(base, backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", DRAFTS)
    wanted = expected_gradients(model, expected_loss(model, played, {}), "A")
    state = backend.adapters.state("A")
    before = harness({}, backend=backend).step(Episode([played])).gradients["A"]
    assert relative_error(before, wanted) < 1e-4
    backend.adapters.load_state("A", state)
    backend.generate(GenerationRequest("B", [[5, 6, 7]], 4, Sampling(max_tokens=8), [[1, 2, 3, 4]]))
    backend.adapters.versions["A"] = 0
    after = harness({}, backend=backend).step(Episode([played])).gradients["A"]
    assert relative_error(after, wanted) < 1e-4


def test_roles_that_share_a_seat_add_their_gradients(harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path):
    run = harness({})
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    drafts, challenges = stream("drafter", "A", DRAFTS), stream("challenger", "A", CHALLENGES)
    both = expected_loss(model, drafts, {}) + expected_loss(model, challenges, {})
    wanted = expected_gradients(model, both, "A")
    run.step(Episode([drafts, challenges]), seats={"drafter": "A", "challenger": "A"})
    assert relative_error(run.gradients["A"], wanted) < 1e-4
    assert not run.gradients["B"]


def states(backend: Any) -> dict[str, dict[str, Tensor]]:
    return {seat: backend.adapters.state(seat) for seat in backend.adapters.seats}


def moved(before: Mapping[str, Any], after: Mapping[str, Any], seat: str) -> bool:
    return any(not torch.equal(before[seat][name], after[seat][name]) for name in before[seat])


def later(played: Stream, version: int) -> list[Group]:
    """The same groups, spoken after that many updates."""

    def again(sample: Sample) -> Sample:
        return dataclasses.replace(sample, completion=dataclasses.replace(sample.completion, weights_version=version))

    return [Group([again(sample) for sample in group.samples]) for group in played.groups]


def test_only_a_seat_with_data_moves_and_momentum_moves_no_other(harness: Callable[..., Harness]):
    run = harness({})
    start = states(run.backend)
    snapshots: list[dict[str, Any]] = []
    run.reports = Recorder(lambda: snapshots.append(states(run.backend)))
    both = episode()
    only_b = Episode([dataclasses.replace(both.streams[1], groups=later(both.streams[1], 1))])
    run.step(both, only_b, Episode())
    assert moved(start, snapshots[0], "A")
    assert moved(start, snapshots[0], "B")
    assert not moved(snapshots[0], snapshots[1], "A")
    assert moved(snapshots[0], snapshots[1], "B")
    assert not moved(snapshots[1], snapshots[2], "A")
    assert not moved(snapshots[1], snapshots[2], "B")
    assert run.backend.adapters.versions == {"A": 1, "B": 2}
    assert run.reports[1].seats["A"]["grad_norm"] is None


class Recorder(list[StepReport]):
    """A list of reports that tells somebody about each."""

    def __init__(self, tell: Callable[[], None]):
        super().__init__()
        self._tell = tell

    def append(self, report: StepReport) -> None:
        super().append(report)
        self._tell()


def test_a_step_without_streams_moves_nothing_and_ticks_nothing(harness: Callable[..., Harness]):
    run = harness({})
    start = states(run.backend)
    nothing = Episode([stream("drafter", "A", [[1, 1], [0, 0]], drop_zero_variance=True)])
    run.step(Episode(), nothing, episode())
    assert [report.seats["A"]["updates"] for report in run.reports] == [0, 0, 1]
    lrs = [report.seats["A"]["lr"] for report in run.reports]
    assert lrs[0] == lrs[1] == lrs[2] > 0
    assert moved(start, states(run.backend), "A")


def test_without_any_advantage_a_kl_term_still_moves_and_no_term_does_not(harness: Callable[..., Harness]):
    flat = Episode([stream("drafter", "A", [[1, 1], [0, 0]])])
    silent = harness({})
    start = states(silent.backend)
    (update,) = silent.step(flat).reports[0].streams
    assert (update.rows, update.loss) == (0, None)
    assert not moved(start, states(silent.backend), "A")
    pulled = harness({"beta": 0.1, "reference": "base"})
    start = states(pulled.backend)
    assert pulled.step(flat).reports[0].streams[0].kl > 0
    assert moved(start, states(pulled.backend), "A")


def test_each_seat_is_clipped_by_its_own_bound(harness: Callable[..., Harness]):
    run = harness({})
    run.set_seats({"A": {"clip": 1e-3}})
    run.step(episode())
    adapters = run.backend.adapters
    raw = {
        seat: torch.cat([g.flatten() for g in run.gradients[seat].values()]).norm().item() for seat in adapters.seats
    }
    assert run.reports[0].seats["A"]["grad_norm"] == pytest.approx(raw["A"], rel=1e-5)
    assert raw["A"] > 1e-3
    assert run.applied["A"] == pytest.approx(1e-3, rel=1e-3)
    assert run.applied["B"] == pytest.approx(raw["B"], rel=1e-5)


def test_each_seat_moves_at_its_own_learning_rate(harness: Callable[..., Harness]):
    run = harness({})
    run.set_seats({"A": {"lr": 0.0}})
    start = states(run.backend)
    run.step(episode())
    assert not moved(start, states(run.backend), "A")
    assert moved(start, states(run.backend), "B")
    # Adam's first step moves every weight with a gradient by the learning rate.
    step = torch.cat([(states(run.backend)["B"][n] - start["B"][n]).abs().flatten() for n in start["B"]])
    assert step.max().item() == pytest.approx(1e-2, rel=1e-3)


def test_stale_or_foreign_completions_are_refused(harness: Callable[..., Harness]):
    foreign = Episode([stream("drafter", "B", DRAFTS)])
    with pytest.raises(GameError, match="trains seat 'A' at update 0, but holds a completion by 'B'"):
        harness({}).step(foreign)
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        harness({}).step(episode(), episode())
    own = dataclasses.replace(DRAWN[0].samples[0], advantage=1.0, completion=completion("B", 0))
    with pytest.raises(GameError, match="but holds a completion by 'B'"):  # an advantage of its own changes nothing
        harness({}).step(Episode([Stream("drafter", [Group([own])])]))


def test_a_baseline_is_reinforce_with_what_is_left_of_the_reward(harness: Callable[..., Harness]):
    """Bit by bit the same weights, from rewards that are still the returns."""
    less = [replace_rewards(group, lambda r: r - 0.7) for group in DRAWN]
    known = [dataclasses.replace(group, baseline=0.7) for group in DRAWN]
    one = harness({}, minibatches=2).step(Episode([Stream("drafter", less, credit="reinforce")]))
    other = harness({}, minibatches=2).step(Episode([Stream("drafter", known, credit="baseline")]))
    got, wanted = states(other.backend)["A"], states(one.backend)["A"]
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert moved(states(harness({}).backend), states(other.backend), "A")
    (stream,) = other.reports[0].episode.streams
    line = stream_metrics(stream, other.reports[0].advantages[0], other.reports[0].streams[0])
    assert line["reward_mean"] == pytest.approx(13 / 10)
    assert (line["groups"], line["zero_variance_groups"]) == (3, 0)


# Numbers that are not finite


def test_a_weight_that_is_not_finite_moves_nothing_and_is_named(harness: Callable[..., Harness]):
    run = harness({})
    with torch.no_grad():
        next(iter(run.backend.adapters.parameters("B").values())).view(-1)[3] = float("nan")
    before = states(run.backend)
    assert run.step(episode()).reports[0].nonfinite == "a weight of seat B is not finite"
    assert not moved(before, states(run.backend), "A")
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert run.reports[0].seats["A"]["grad_norm"] is None


def with_first(played: Stream, **changes: Any) -> Stream:
    """The stream with its very first sample changed."""
    (first, *samples), *groups = [list(group.samples) for group in played.groups]
    spoke = {"completion": dataclasses.replace(first.completion, **changes)} if "logprobs" in changes else changes
    rows = [[dataclasses.replace(first, **spoke), *samples], *groups]
    return dataclasses.replace(played, groups=[Group(row) for row in rows])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": float("inf")}, "a reward of challenger (seat B) is inf"),
        ({"reward": 1e300}, "an advantage of challenger (seat B) is too large a number"),
        ({"advantage": float("nan")}, "an advantage of challenger (seat B) is nan"),
        ({"advantage": 1e300}, "the loss of challenger (seat B) is "),
        ({"logprobs": (float("nan"),)}, "a log-probability of challenger (seat B) is nan"),
    ],
)
def test_a_step_with_such_a_number_is_skipped_whole_and_the_next_one_counts(
    harness: Callable[..., Harness], changes: dict[str, Any], sentence: str
):
    run, good = harness({}), episode()
    start = states(run.backend)
    snapshots: list[dict[str, Any]] = []
    run.reports = Recorder(lambda: snapshots.append(states(run.backend)))
    # The drafter's gradients, which are finite, are there already when the challenger's turn comes.
    run.step(Episode([good.streams[0], with_first(good.streams[1], **changes)]), good)
    bad, whole = run.reports
    assert (bad.nonfinite or "").startswith(sentence)
    assert [(update.role, update.rows, update.tokens) for update in bad.streams] == [
        ("drafter", 0, 0),
        ("challenger", 0, 0),
    ]
    assert not any(moved(start, snapshots[0], seat) for seat in "AB")
    assert bad.seats["A"] == {"lr": whole.seats["A"]["lr"], "grad_norm": None, "updates": 0}
    assert whole.nonfinite is None
    assert all(moved(snapshots[0], snapshots[1], seat) for seat in "AB")
    assert run.backend.adapters.versions == {"A": 1, "B": 1}
    # And the skipped step left nothing behind: the good one alone gives the same gradient.
    alone_run = harness({}).step(good)
    assert relative_error(run.gradients["A"], alone_run.gradients["A"]) < 1e-6


def test_a_masked_sample_may_hold_anything(harness: Callable[..., Harness]):
    good = episode()
    masked = with_first(good.streams[1], reward=float("nan"), masked=True)
    assert harness({}).step(Episode([good.streams[0], masked])).reports[0].nonfinite is None


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_moves_no_seat(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, norm: float
):
    run = harness({})
    before = states(run.backend)
    norms = iter(torch.tensor([1.0, norm], device=run.backend.device))
    monkeypatch.setattr("lite_selfplay.training.trainer.gradient_norm", lambda gradients: next(norms))
    (report,) = run.step(episode()).reports
    assert report.nonfinite == f"the gradient of challenger (seat B) has the norm {norm}"
    assert run.applied == {}
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert not any(moved(before, states(run.backend), seat) for seat in "AB")


def test_an_update_that_leaves_weights_not_finite_ends_the_run(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
):
    run = harness({})
    monkeypatch.setattr("lite_selfplay.training.guarded.find_nonfinite", lambda adapters: "a weight of seat A")
    with pytest.raises(TrainingError, match=r"the update of step 1 left a weight of seat A that is not finite"):
        run.step(episode())
    assert not run.reports


# Several updates a step


FOUR = [[1, 0, 0], [0, 2, 0, 1], [3, 0], [1, 0, 1]]


def halves(played: Stream) -> tuple[Stream, Stream]:
    first, second = played.groups[:2], played.groups[2:]
    return dataclasses.replace(played, groups=first), dataclasses.replace(played, groups=second)


def other_weights(model: Any, state: Mapping[str, Tensor]) -> Any:
    """The plain model, speaking by other weights of the seat."""
    set_peft_model_state_dict(model, dict(state))
    return model


@pytest.mark.parametrize("lr", [1e-4, 3e-2], ids=["hardly moves", "moves far"])
@pytest.mark.parametrize("loss", ["grpo", "sequence"])
def test_in_the_second_update_of_a_step_the_clip_acts(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, lr: float, loss: str
):
    role = {"loss": loss, "beta": 0.1, "reference": "base"}
    run = harness(role, minibatches=2, microbatch_tokens=40)
    run.set_seats({"A": {"lr": lr, "warmup": 0.0}})
    model, base = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path), fp32(tiny_path)
    played = stream("drafter", "A", FOUR)
    first, second = halves(played)

    def store(sample: Sample) -> Sample:
        stored = plain_logprobs(model, sample.completion)[0].tolist()
        return dataclasses.replace(sample, completion=dataclasses.replace(sample.completion, logprobs=stored))

    # What the second update sees: the ratio to the policy before the first one.
    later_on = dataclasses.replace(second, groups=[Group([*map(store, g.samples)]) for g in second.groups], replay=True)
    gradients: list[Any] = []
    run.on_update = lambda: gradients.append(run.gradients["A"])
    run.step(Episode([played]))
    before, between = (start["A"] for start in run.starts)
    wanted = expected_gradients(model, expected_loss(model, first, role, base), "A")
    assert relative_error(gradients[0], wanted) < 1e-4
    model.zero_grad(set_to_none=True)
    moved_model = other_weights(model, between)
    wanted = expected_gradients(moved_model, expected_loss(moved_model, later_on, role, base), "A")
    assert relative_error(gradients[1], wanted) < 1e-3
    (update,) = run.reports[0].streams
    second_part, whole = (
        sum(1 if loss == "sequence" else len(s.completion.token_ids) for g in x.groups for s in g.samples)
        for x in (second, played)
    )
    share = clipped_share(moved_model, later_on, role) * second_part / whole
    assert update.clipped == pytest.approx(share, abs=1e-6)
    assert (update.clipped > 0) == (lr > 1e-3)
    assert update.sampler_gap < 1e-5  # all rows, and before anything moved
    assert run.reports[0].seats["A"]["updates"] == run.backend.adapters.version("A") == 2
    assert any(not torch.equal(before[name], between[name]) for name in before)
    assert update.rows == 12


def test_a_clip_that_cuts_off_everything_leaves_no_gradient(harness: Callable[..., Harness]):
    """By hand: two groups of the same two completions. The first update makes one far likelier, the other far less so;
    both ratios are beyond the clip in the second, on the side that it cuts off, so its gradient is zero."""
    run = harness({"loss": "sequence"}, minibatches=2)
    run.set_seats({"A": {"lr": 1e-2, "warmup": 0.0}})
    good, bad = completion("A", 3), completion("A", 4)
    group = Group([Sample(good, 1.0), Sample(bad, 0.0)])
    gradients: list[Any] = []
    run.on_update = lambda: gradients.append(run.gradients["A"])
    run.step(Episode([Stream("drafter", [group, group])]))
    assert torch.cat([g.flatten() for g in gradients[0].values()]).norm() > 1e-3
    assert all(not g.any() for g in gradients[1].values())
    tokens = len(good.token_ids) + len(bad.token_ids)
    assert run.reports[0].streams[0].clipped == pytest.approx(tokens / (2 * tokens))


def test_a_schedule_counts_updates_and_a_seat_with_less_data_takes_part_in_fewer(harness: Callable[..., Harness]):
    run = harness({}, minibatches=3)
    run.set_seats({"A": {"warmup": 0.0}, "B": {"warmup": 0.0}})
    # Three groups for A, and a single row with an advantage for B's three parts.
    one = Stream("challenger", [Group([Sample(completion("B", 0), 0.0, advantage=1.0)])])
    played = Episode([stream("drafter", "A", [[1, 0], [0, 1], [1, 0]]), one])
    run.step(played)
    seats = run.reports[0].seats
    assert (seats["A"]["updates"], seats["B"]["updates"]) == (3, 1)
    # Linear over 1 step of 3 updates: whole, two thirds, one third; B has had its first.
    assert seats["A"]["lr"] == pytest.approx(1e-2 / 3)
    assert seats["B"]["lr"] == pytest.approx(1e-2)
    assert seats["B"]["grad_norm"] is not None
    assert run.reports[0].streams[1].rows == 1


def test_a_silent_part_is_no_update(harness: Callable[..., Harness]):
    run = harness({}, minibatches=2)
    run.step(Episode([stream("drafter", "A", [[1, 1], [1, 1], [1, 0], [0, 1]])]))
    assert run.reports[0].seats["A"]["updates"] == 1
    assert run.reports[0].streams[0].clipped is None  # the one part that moves is on-policy
    silent = harness({}, minibatches=2).step(Episode([stream("drafter", "A", [[1, 1], [0, 0]])]))
    assert silent.reports[0].seats["A"] == {"lr": pytest.approx(1e-2), "grad_norm": None, "updates": 0}


@pytest.mark.parametrize("why", ["a number", "a signal"])
def test_a_step_that_breaks_off_after_its_first_update_moves_nothing(harness: Callable[..., Harness], why: str):
    run = harness({}, minibatches=2)
    run.step(episode())  # so that there is momentum to put back
    start, version = states(run.backend), dict(run.backend.adapters.versions)
    good = [dataclasses.replace(s, groups=later(s, 2)) for s in episode().streams]
    broken = Harness(run.backend, run._parts[0], Path(run._parts[1]), {}, minibatches=2)

    def spoil() -> None:
        def spoiled(*arguments: Any, **options: Any) -> Loss:
            if why == "a signal":
                raise KeyboardInterrupt
            loss = honest(*arguments, **options)
            return dataclasses.replace(loss, value=loss.value * float("nan"))

        honest, broken.trainer.loss.of = broken.trainer.loss.of, spoiled  # type: ignore[method-assign]
        broken.moments = optimizer_state(broken.trainer.optimizer, run.backend.adapters)

    broken.on_update = spoil  # the first update is about to be applied
    if why == "a signal":
        with pytest.raises(KeyboardInterrupt):
            broken.step(Episode(good))
    else:
        broken.step(Episode(good))
        assert (broken.reports[0].nonfinite or "").startswith("the loss of drafter (seat A) is nan")
        assert broken.reports[0].seats["A"]["grad_norm"] is None
    assert len(broken.starts) >= 1
    assert not any(moved(start, states(run.backend), seat) for seat in "AB")
    assert run.backend.adapters.versions == version
    assert optimizer_state(broken.trainer.optimizer, run.backend.adapters).keys() == broken.moments.keys()


# What may train


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 5, "min_p": 0.1}, "top_k=5, min_p=0.1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"temperature": 0.0}, "temperature=0"),
    ],
)
def test_samples_that_do_not_follow_the_policy_are_refused(
    harness: Callable[..., Harness], sampling: dict[str, Any], said: str
):
    def asked(sample: Sample) -> Sample:
        manner = dataclasses.replace(sample.completion.sampling, **sampling)
        return dataclasses.replace(sample, completion=dataclasses.replace(sample.completion, sampling=manner))

    def all_of(change: Callable[[Sample], Sample], **options: Any) -> Episode:
        played = stream("drafter", "A", DRAFTS, **options)
        return Episode([dataclasses.replace(played, groups=[Group([*map(change, g.samples)]) for g in played.groups])])

    with pytest.raises(GameError, match=rf"^the drafter's stream trains seat 'A' on .* sampled with {said}, .*mask"):
        harness({}).step(all_of(asked))
    with pytest.raises(GameError, match="make it an example"):  # a reward with an advantage of its own is no example
        harness({}).step(all_of(lambda s: dataclasses.replace(asked(s), advantage=1.0)))
    # Masked ones are left out, and those with an advantage and no reward are examples with a weight.
    assert (
        harness({}).step(all_of(lambda s: dataclasses.replace(asked(s), masked=True))).reports[0].streams[0].rows == 0
    )
    weighted = harness({}).step(all_of(lambda s: dataclasses.replace(asked(s), reward=None, advantage=1.0)))
    assert weighted.reports[0].streams[0].rows == 10
    assert weighted.reports[0].streams[0].sampler_gap is None  # it was not the policy that was sampled
    assert weighted.reports[0].streams[0].base_gap > 0
    # A replay divides by what was noted, which greedy decoding has not.
    if "temperature" in sampling:
        with pytest.raises(GameError, match="temperature=0"):
            harness({}).step(all_of(asked, replay=True))
    else:
        assert harness({}).step(all_of(asked, replay=True)).reports[0].streams[0].rows > 0


def test_what_was_said_before_a_snapshot_was_put_back_is_stale(harness: Callable[..., Harness]):
    run = harness({})
    run.backend.adapters.snapshot("A", "kept")
    drafts = episode().streams[0]
    restoring = Episode(actions=[Restore("A", "kept")])
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        run.step(restoring, Episode([drafts]))
    assert run.backend.adapters.updates["A"] == 0  # it is no update: the schedule does not tick
