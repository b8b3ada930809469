"""The update against an independent computation of its objective: unpadded rows, one adapter alone, plain torch."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from lite_selfplay.backends.transformers import load_base
from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream
from lite_selfplay.errors import GameError, TrainingError
from lite_selfplay.models.chat import Chat
from lite_selfplay.trainer import StepReport, make_trainer_class, reference_name

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


class Harness:
    """A trainer of one step that hands over the gradients it was about to apply."""

    def __init__(self, backend: Any, tokenizer: Any, folder: Path, role: Mapping[str, Any], **run: Any):
        self.backend, self.gradients = backend, {}
        self.reports: list[StepReport] = []
        self.config = RunConfig(
            game="agon",
            model="tiny",
            roles={"drafter": role, "challenger": role},
            seats=dict.fromkeys(backend.adapters.seats, FREE),
            run={"steps": 1, "max_completion_tokens": CAP, **run},
        )
        self._parts = {"tokenizer": tokenizer, "output_dir": str(folder)}

    def step(self, *episodes: Episode, seats: Mapping[str, str] | None = None) -> "Harness":
        seats = seats or {"drafter": "A", "challenger": "B"}
        trainer = make_trainer_class(self.backend.trainer_parent())(
            backend=self.backend,
            config=RunConfig.of(self.config.model_dump(mode="json"), {"run": {"steps": len(episodes)}}),
            play=lambda step: (episodes[step], seats),
            on_step=self.reports.append,
            load=lambda path: None,
            **self._parts,
        )
        clip = trainer._clip_grad_norm

        def capture(model: Any) -> Tensor:
            adapters = self.backend.adapters
            self.gradients = {
                seat: {n: p.grad.clone() for n, p in adapters.parameters(seat).items() if p.grad is not None}
                for seat in adapters.seats
            }
            norm = clip(model)
            left = {
                seat: [p.grad.flatten() for p in adapters.parameters(seat).values() if p.grad is not None]
                for seat in adapters.seats
            }
            self.applied = {seat: torch.cat(found).norm().item() for seat, found in left.items() if found}
            return norm

        trainer._clip_grad_norm = capture
        trainer.train()
        return self


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


def expected_loss(model: Any, played: Stream, role: Mapping[str, Any], reference: Any = None) -> Tensor:
    """The objective as the papers write it, row by row."""
    values = stream_advantages(played)
    rows = [
        (sample.completion, advantage)
        for group, advantages in zip(played.groups, values, strict=True)
        for sample, advantage in zip(group.samples, advantages, strict=True)
        if advantage is not None
    ]
    total = sum(len(spoke.token_ids) for spoke, _ in rows)
    loss, entropy_sum = torch.zeros(()), torch.zeros(())
    for spoke, advantage in rows:
        lp, entropy = plain_logprobs(model, spoke)
        old = torch.tensor(spoke.logprobs) if played.replay else lp.detach()
        ratio = (lp - old).exp()
        per_token = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        if role.get("beta"):
            with torch.no_grad():
                ref = plain_logprobs(reference, spoke)[0]
            per_token = per_token + role["beta"] * ((ref - lp).exp() - (ref - lp) - 1)
        normaliser = {
            "grpo": len(rows) * len(lp),
            "dr_grpo": len(rows) * CAP,
            "dapo": total,
        }[role.get("loss", "grpo")]
        loss = loss + per_token.sum() / normaliser
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


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("budget", [8192, 40], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo"])
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


def fp32(path: Path) -> Any:
    return load_base(path, "fp32", torch.float32, torch.device("cpu"))


def reference_model(path: Path, adapters: Any, state: Mapping[str, Tensor], folder: Path) -> Any:
    before = adapters.state("A")
    adapters.load_state("A", state)
    model = alone(fp32(path), adapters, "A", folder / "reference")
    adapters.load_state("A", before)
    return model


@pytest.mark.parametrize("budget", [8192, 40], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_entropy_term_temperature_and_reference_to_the_base(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path, loss: str, budget: int
):
    role = {"loss": loss, "beta": 0.2, "entropy": 0.05, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", DRAFTS, temperature=0.7)
    wanted = expected_gradients(model, expected_loss(model, played, role, fp32(tiny_path)), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4


def test_replayed_samples_use_the_clipped_ratio_to_their_stored_log_probabilities(
    harness: Callable[..., Harness], tiny_path: Path, tmp_path: Path
):
    run = harness({})
    model = alone(fp32(tiny_path), run.backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", DRAFTS, replay=True)
    wanted = expected_gradients(model, expected_loss(model, played, {}), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4
    on_policy = harness({}).step(Episode([dataclasses.replace(played, replay=False)]))
    assert relative_error(on_policy.gradients["A"], wanted) > 1e-2


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
    backend.generate("B", [[5, 6, 7]], 4, Sampling(max_tokens=8), [[1, 2, 3, 4]])
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
    assert silent.step(flat).reports[0].streams[0].rows == 0
    assert not moved(start, states(silent.backend), "A")
    pulled = harness({"beta": 0.1, "reference": "base"})
    start = states(pulled.backend)
    assert pulled.step(flat).reports[0].streams[0].kl > 0
    assert moved(start, states(pulled.backend), "A")


def test_each_seat_is_clipped_by_its_own_bound(harness: Callable[..., Harness]):
    run = harness({})
    run.config = RunConfig.of(run.config.model_dump(mode="json"), {"seats": {"A": {"clip": 1e-3}}})
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
    run.config = RunConfig.of(run.config.model_dump(mode="json"), {"seats": {"A": {"lr": 0.0}}})
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
    asked: list[float] = []

    def clip(parameters: Any, bound: float) -> Tensor:
        asked.append(bound)
        return torch.tensor(1.0 if len(asked) == 1 else norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    (report,) = run.step(episode()).reports
    assert report.nonfinite == f"the gradient of challenger (seat B) has the norm {norm}"
    assert run.applied == {}
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert not any(moved(before, states(run.backend), seat) for seat in "AB")


def test_an_update_that_leaves_weights_not_finite_ends_the_run(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
):
    run = harness({})
    found = iter([None, "a weight of seat A"])  # before the update, and after it
    monkeypatch.setattr("lite_selfplay.trainer.find_nonfinite", lambda adapters: next(found))
    with pytest.raises(TrainingError, match=r"the update of step 1 left a weight of seat A that is not finite"):
        run.step(episode())
    assert not run.reports
