"""`python work.py plain|unsloth COMMAND FOLDER`: what one backend does on a CPU, written into a folder.

For `unsloth`, the class that it makes of TRL's trainer is the real one. Its kernels need a GPU, so the base below is a
plain one in float32, whose first adapter is called `default` as under Unsloth; everything above it is Unsloth's.

evidence   gradients of fixed rows, for each way to build the loss; completions and scores; what the trainer is
run        a run of Agon of four steps, with a checkpoint before and after each
misled     such a run in which other weights speak for seat A from its second update on, `MISLED` saying whose
part       the first two steps of it
resume     goes on with the run in FOLDER to its fourth step
"""

# ruff: noqa: E402 -- unsloth is to be imported before what it patches

import ast
import dataclasses
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLAIN, COMMAND, FOLDER = sys.argv[1] == "plain", sys.argv[2], Path(sys.argv[3])
sys.path.insert(0, str(Path(__file__).parents[2]))

os.environ["CUDA_VISIBLE_DEVICES"] = ""
if not PLAIN:
    os.environ |= {"UNSLOTH_ALLOW_CPU": "1", "UNSLOTH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
    os.environ["UNSLOTH_COMPILE_LOCATION"] = tempfile.mkdtemp(prefix="unsloth-compiled-")
    from lite_selfplay.models.backends import import_unsloth

    import_unsloth()
    from unsloth.models import rl

    rl._patch_trl_rl_trainers("grpo_trainer")  # with UNSLOTH_ALLOW_CPU the import leaves it out

import torch
from peft import get_peft_model
from safetensors.torch import save_file

import lite_selfplay.training.rollout
from lite_selfplay import RunConfig, train
from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.data import Episode, Sampling
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.backends.transformers import TransformersBackend, load_base
from lite_selfplay.models.backends.unsloth import UnslothBackend
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.models.sources.tiny import build_tiny
from lite_selfplay.runs.api import resume
from lite_selfplay.training.trainer import reference_name
from tests.training.harness import FREE, Harness, episode

torch.set_num_threads(1)

CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"role": {"loss": "dr_grpo"}},
    "dapo": {"role": {"loss": "dapo"}},
    "kl": {"role": {"beta": 0.1}},
    "entropy": {"role": {"entropy": 0.05}},
    "temperature": {"stream": {"temperature": 0.6}},
    "replay": {"stream": {"replay": True}},
    "sequence": {"role": {"loss": "sequence"}, "stream": {"replay": True}},
    "one ratio a completion": {"role": {"ratio": "sequence"}, "stream": {"replay": True}},
    "two updates": {"role": {"beta": 0.1}, "run": {"minibatches": 2}},
    "small parts": {"role": {"beta": 0.1, "entropy": 0.05, "loss": "dapo"}, "run": {"microbatch_tokens": 24}},
}


class OnCpu(UnslothBackend):
    """The Unsloth backend but for what needs a GPU: loading the base and wrapping it."""

    def _load_base(self, path: Path, text: Any, section: ModelSection, *_: Any) -> Any:
        return load_base(path, section.precision, self.compute_dtype, self.device)

    def _wrap(self, base: Any, config: Any) -> Any:
        return get_peft_model(base, config)


KIND = TransformersBackend if PLAIN else OnCpu


def backend_of(path: Path, **options: Any) -> Any:
    section = ModelSection(name="tiny", precision="fp32")
    seats = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
    return KIND(path, section, seats, **{"seed": 0, "eos_ids": [2, *range(100, 130)], **options})


# Gradients


def harness_of(backend: Any, path: Path, case: Mapping[str, Any]) -> Harness:
    return Harness(backend, path, Path(tempfile.mkdtemp()), case.get("role", {}), **case.get("run", {}))


def update(path: Path, case: Mapping[str, Any], roles: Sequence[str] = ("drafter", "challenger")) -> dict[str, Any]:
    """One step: the gradients it applies, and the weights before and after."""
    backend = backend_of(path)
    adapters = backend.adapters
    for seat in adapters.seats:
        # Away from the reference, so that a KL term has a gradient.
        adapters.snapshot(seat, reference_name(seat))
        adapters.load_state(seat, {key: value * 1.3 for key, value in adapters.state(seat).items()})
    found = weights(adapters, "before")
    streams = [played for played in episode(**case.get("stream", {})).streams if played.role in roles]
    for seat, gradients in harness_of(backend, path, case).step(Episode(streams)).gradients.items():
        found |= {f"gradient/{seat}/{name}": gradient for name, gradient in gradients.items()}
    return found | weights(adapters, "after")


def weights(adapters: Any, moment: str) -> dict[str, torch.Tensor]:
    return {f"{moment}/{seat}/{k}": v for seat in adapters.seats for k, v in adapters.state(seat).items()}


# What is said


def said(path: Path) -> dict[str, Any]:
    backend = backend_of(path)
    model = backend.adapters.model
    prompts, seeds = [[10, 11, 12, 13], [20], [30, 31, 32, 33, 34, 35, 36]], [[3 * p, 3 * p + 1] for p in range(3)]
    states: list[bool] = []
    model.get_base_model().register_forward_pre_hook(lambda module, _: states.append(module.training))
    model.train()
    found: dict[str, Any] = {}
    for seat in ("A", "B", BASE):
        groups = backend.generate(GenerationRequest(seat, prompts, 2, Sampling(temperature=0.8, max_tokens=16), seeds))
        rows = [(prompt, one.token_ids) for prompt, group in zip(prompts, groups, strict=True) for one in group]
        found[seat] = {
            "ids": [ids for _, ids in rows],
            "logprobs": [one.logprobs for group in groups for one in group],
            "scores": [score.logprobs for score in backend.score(seat, rows, 0.8)],
        }
    return {**found, "training_while_it_spoke": any(states), "training_after": all(m.training for m in model.modules())}


def facts(path: Path) -> dict[str, Any]:
    backend = backend_of(path)
    trainer = harness_of(backend, path, {}).step(episode()).trainer
    parents: Any = type(trainer.loss).__mro__[2:]  # after the class that was made and the loss it mixes in
    parent = parents[0]
    return {
        "parent": parent.__name__,
        "parents": [kind.__name__ for kind in parents],
        "scaler": trainer.guard.scale.needed,
        "compute_loss": digest(parent.compute_loss),
        "_compute_loss": digest(parent._compute_loss),
        "adapters": sorted(backend.adapters.model.peft_config),
    }


def digest(function: Any) -> str:
    """A function's code without its layout, comments and docstring."""
    source = inspect.getsource(inspect.unwrap(function))
    tree = ast.parse("class C:\n" + source if source.startswith(" ") else source)
    return ast.dump(tree)


def evidence() -> None:
    path = FOLDER / "tiny"
    build_tiny(path)
    tensors = {f"{name}/{key}": value for name, case in CASES.items() for key, value in update(path, case).items()}
    tensors |= {f"one seat/{key}": value for key, value in update(path, {}, ("challenger",)).items()}
    save_file({key: value.contiguous() for key, value in tensors.items()}, FOLDER / "tensors.safetensors")
    (FOLDER / "facts.json").write_text(json.dumps({**facts(path), "said": said(path)}), encoding="utf-8")


def config(steps: int) -> RunConfig:
    run = {"steps": steps, "dir": str(FOLDER), "save_every": 1, "keep_checkpoints": 9}
    run |= {"group_size": 4, "problems_per_step": 2}
    seats = {"*": {"schedule": "constant", "warmup": 0.0}}
    return RunConfig(game="agon", model="tiny", tasks="letters", precision="fp32", seats=seats, run=run)


def mislead(how: str) -> None:
    honest, seen = KIND._generate, list[Any]()

    def generate(self: Any, request: GenerationRequest) -> Any:
        adapters = self.adapters
        if len(seen) == adapters.updates["A"]:
            seen.append(adapters.state("A"))
        if request.seat != "A" or adapters.updates["A"] < 2:
            return honest(self, request)
        if how != "yesterday":
            return honest(self, dataclasses.replace(request, seat=how))
        now = adapters.state("A")
        adapters.load_state("A", seen[-2])
        try:
            return honest(self, request)
        finally:
            adapters.load_state("A", now)

    KIND._generate = generate  # type: ignore[method-assign]


def main() -> None:
    lite_selfplay.training.rollout.choose_backend = lambda *arguments, rollouts, **options: KIND(*arguments, **options)
    if COMMAND == "evidence":
        evidence()
    elif COMMAND == "resume":
        resume(FOLDER, steps=4)
    elif COMMAND == "misled":
        mislead(os.environ["MISLED"])
        varied = Path(__file__).parents[1] / "varied_reward.py"
        train(RunConfig.of(config(6).chosen(), {"reward": f"{varied}:varied"}))
    else:
        train(config(4 if COMMAND == "run" else 2))


if __name__ == "__main__":
    main()
