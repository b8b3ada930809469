"""Shared by tests of the update: streams made by hand, a trainer that exposes its gradients, and an independent
computation of the objective: unpadded rows, one adapter alone, plain torch."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.utils import get_total_norm

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream
from lite_selfplay.models.backends.transformers import load_base
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.training.losses import make_loss
from lite_selfplay.training.progress import Monitor
from lite_selfplay.training.trainer import SelfPlayTrainer
from lite_selfplay.training.updates import StepReport
from tests.made import as_sampled, same_weights
from tests.made_runs import Ear

FREE = {"rank": 4, "alpha": 8, "init": "gaussian", "init_std": 0.1, "clip": 1e9, "lr": 1e-2}
SEATS = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
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


def changed(played: Stream, change: Callable[[Sample], Sample], **options: Any) -> Stream:
    """The stream with each of its samples changed."""
    groups = [dataclasses.replace(group, samples=[*map(change, group.samples)]) for group in played.groups]
    return dataclasses.replace(played, groups=groups, **options)


def with_completion(sample: Sample, **values: Any) -> Sample:
    """The sample, with other values of its completion."""
    return dataclasses.replace(sample, completion=dataclasses.replace(sample.completion, **values))


def states(backend: Any) -> dict[str, dict[str, Tensor]]:
    return {seat: backend.adapters.state(seat) for seat in backend.adapters.seats}


class Harness:
    """A trainer of one step that keeps the gradients it applies."""

    def __init__(self, backend: Any, base: Path, folder: Path, role: Mapping[str, Any], **run: Any):
        self.backend, self.gradients, self.start = backend, {}, states(backend)
        self._base, self._folder = base, folder
        self.progress = Ear()
        self.monitor = Monitor(self.progress)
        self.reports: list[StepReport] = []
        self.applied: dict[str, float] = {}
        self.on_update: Callable[[], None] = lambda: None
        self.starts: list[dict[str, dict[str, Tensor]]] = []  # the weights before each update
        self.ends: list[dict[str, dict[str, Tensor]]] = []  # and after each step
        roles, seats = {"drafter": role, "challenger": role}, dict.fromkeys(backend.adapters.seats, FREE)
        sizes = {"steps": 1, "max_completion_tokens": CAP, **run}
        self.config = RunConfig(game="agon", model="tiny", roles=roles, seats=seats, run=sizes)

    def base(self, precision: Any = "fp32") -> Any:
        """The model without any adapter."""
        return load_base(self._base, precision, torch.float32, torch.device("cpu"))

    def alone(self, seat: str = "A", precision: Any = "fp32") -> Any:
        """A model with only this adapter, in its current state."""
        self.backend.adapters.save(seat, self._folder / seat)
        return PeftModel.from_pretrained(self.base(precision), self._folder / seat, is_trainable=True).eval()

    def error(self, model: Any, loss: Tensor, seat: str = "A") -> float:
        """The relative error of a seat's last gradient against that of `loss` in the model with this adapter only."""
        model.zero_grad(set_to_none=True)
        loss.backward()
        wanted = {n.replace(".default.", f".{seat}."): p.grad for n, p in model.named_parameters() if "lora_" in n}
        return relative_error(self.gradients[seat], wanted)

    def moved(self) -> set[str]:
        """The seats whose weights have changed since this was made."""
        return {seat for seat, state in states(self.backend).items() if not same_weights(state, self.start[seat])}

    def set_seats(self, seats: Mapping[str, Any]) -> None:
        self.config = RunConfig.of(self.config.model_dump(mode="json"), {"seats": seats})

    def step(self, *episodes: Episode, seats: Mapping[str, str] | None = None) -> "Harness":
        seats = seats or {"drafter": "A", "challenger": "B"}
        config = RunConfig.of(self.config.model_dump(mode="json"), {"run": {"steps": len(episodes)}})
        loss = make_loss(self.backend, config, Chat.load(self._base).tokenizer, str(self._folder / "trainer"))
        self.trainer = trainer = SelfPlayTrainer(backend=self.backend, loss=loss, config=config, monitor=self.monitor)
        move = trainer._step_optimizer

        def capture(report: StepReport, *norms: Any) -> None:
            self.starts.append(states(self.backend))
            self.gradients = self._gradients()
            self.on_update()
            move(report, *norms)

        def applied(*_: Any) -> None:
            self.applied = {s: get_total_norm(g.values()).item() for s, g in self._gradients().items() if g}

        trainer._step_optimizer = capture  # type: ignore[method-assign]
        trainer.optimizer.register_step_pre_hook(applied)
        for step, played in enumerate(episodes):
            self.reports.append(trainer.update(step, as_sampled(played, self.backend), seats))
            self.ends.append(states(self.backend))
        return self

    def _gradients(self) -> dict[str, dict[str, Tensor]]:
        adapters = self.backend.adapters
        return {
            seat: {n: p.grad.clone().cpu() for n, p in adapters.parameters(seat).items() if p.grad is not None}
            for seat in adapters.seats
        }


def plain_logprobs(model: Any, row: Completion) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
    logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].float() / row.sampling.temperature
    log_p = logits.log_softmax(-1)
    return log_p[torch.arange(len(row.token_ids)), torch.tensor(row.token_ids)], -(log_p.exp() * log_p).sum(-1)


def samples_of(played: Stream) -> list[Sample]:
    return [sample for group in played.groups for sample in group.samples]


class Expected(NamedTuple):
    """A loss, the mean KL divergence of a token from the reference, and the share of ratios that the clip cuts off."""

    loss: Tensor
    kl: float
    clipped: float


def expected(model: Any, played: Stream, role: Mapping[str, Any], reference: Any = None) -> Expected:
    """The objective of the papers, row by row; an advantage may be one for each token."""
    values = stream_advantages(played)
    left_out = [s.masked or (role.get("mask_truncated") and s.completion.stop == "length") for s in samples_of(played)]
    pairs = zip(samples_of(played), [a for row in values for a in row], left_out, strict=True)
    # A dropped group counts neither in the policy terms nor in their denominator; its rows keep the KL term.
    rows = [(s.completion, a) for s, a, out in pairs if not out and (a is not None or role.get("beta"))]
    total = sum(len(row.token_ids) for row, _ in rows)
    kept = sum(a is not None for _, a in rows), sum(len(row.token_ids) for row, a in rows if a is not None)
    kind, beta = role.get("loss", "grpo"), role.get("beta", 0.0)
    loss, divergence, entropy_sum, cut_off = torch.zeros(()), 0.0, torch.zeros(()), list[bool]()
    for row, given in rows:
        advantage = torch.tensor(given or 0.0) * (total / kept[1] if kind == "dapo" else len(rows) / kept[0])
        lp, entropy = plain_logprobs(model, row)
        old = torch.tensor(row.logprobs) if played.replay else lp.detach()
        kl = penalty = torch.zeros(len(lp))
        if beta:
            gap = plain_logprobs(reference, row)[0].detach() - lp
            if role.get("kl") == "advantage":
                kl, advantage = -gap, advantage + beta * gap.mean().item()
            else:
                kl = penalty = gap.exp() - gap - 1
        log_ratio = lp - old
        if "sequence" in (kind, role.get("ratio")):  # one for each completion
            log_ratio = log_ratio.sum()[None] if kind == "sequence" else log_ratio.mean()[None]
        ratio = log_ratio.exp()
        cut_off += ((ratio > 1.2) & (advantage > 0) | (ratio < 0.8) & (advantage < 0)).tolist()
        terms = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        term = (terms if kind == "sequence" else terms.expand(len(lp))).sum()
        by_rows = {"grpo": len(rows) * len(lp), "dr_grpo": len(rows) * CAP, "sequence": len(rows)}
        loss = loss + (term + beta * penalty.sum()) / by_rows.get(kind, total)
        divergence += kl.sum().item() / total
        entropy_sum = entropy_sum + entropy.sum()
    loss = loss - role.get("entropy", 0.0) * entropy_sum / total
    return Expected(loss, divergence, sum(cut_off) / len(cut_off))


def relative_error(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    assert got.keys() == wanted.keys()
    difference = torch.cat([(got[name] - wanted[name]).flatten() for name in wanted])
    whole = torch.cat([tensor.flatten() for tensor in wanted.values()])
    assert whole.norm() > 1e-3  # a zero gradient would agree with anything
    return float(difference.norm() / whole.norm())
