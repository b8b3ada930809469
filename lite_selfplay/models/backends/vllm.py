"""Sampling through a vLLM engine that serves seats as LoRA adapters. Experimental: not yet run on a GPU.

Written to the sources of vLLM 0.33. What it does without an error, and what is done about it here:

- It serves a LoRA by its id, whatever the files hold since, and finds prompts it has read by the LoRA's name and path:
  each state of a seat has an id, a name and a folder of its own (`LoraRequests`).
- It notes log-probabilities before the temperature unless it was started with `logprobs_mode="processed_logprobs"`, and
  raises a temperature below 0.01: what it would get wrong is refused.
- Asleep, it takes requests and leaves them: it is woken before it is asked.
"""

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import RequestError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.tasks.files import written_whole_folder

SEED_BITS = 0x7FFF_FFFF_FFFF_FFFF
"""Those of a seed that vLLM takes."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for `max_lora_rank` (`vllm/config/lora.py`)."""
COLDEST, HOTTEST = 1e-2, 2.0
"""The temperatures that vLLM samples at as they are (`vllm/sampling_params.py`), besides 0."""


def lora_limits(ranks: Mapping[str, int]) -> dict[str, Any]:
    """What an engine is started with to serve seats of such ranks: as many LoRAs in memory, room for the largest.

    Snapshots take the place of what was served longest ago. Raises RequestError for a rank beyond vLLM's largest.
    """
    largest = max(ranks.values())
    if largest > RANKS[-1]:
        raise RequestError(f"vLLM serves adapters up to rank {RANKS[-1]}, and a seat has rank {largest}")
    rank = next(rank for rank in RANKS if rank >= largest)
    return {"max_lora_rank": rank, "max_loras": len(ranks)}


def require_temperature(temperature: float, remedy: str) -> None:
    """Raises RequestError for a temperature that vLLM samples at otherwise; `remedy` says what to do."""
    if temperature > HOTTEST or 0 < temperature < COLDEST:
        raise RequestError(
            f"vLLM samples at temperatures from {COLDEST:g} to {HOTTEST:g}, and {temperature:g} is asked for: {remedy}"
        )


class LoraRequests:
    """The requests under which an engine serves seats and snapshots: another one after every change of their weights.

    `make(name, id, folder)` builds the engine's request for an adapter in PEFT's format; `forget(id)` tells the engine
    to drop one that will not be asked for again. There are at most `most`: those that were asked for longest ago go
    first, and are made anew when they are asked for again.
    """

    def __init__(
        self,
        adapters: Adapters,
        folder: Path,
        make: Callable[[str, int, Path], Any],
        forget: Callable[[int], Any] = lambda number: None,
        most: int | None = None,
    ):
        self._adapters, self._folder, self._most = adapters, folder, most
        self._make, self._forget = make, forget
        self._ids = itertools.count(1)
        # The state, id, folder and request of each, in the order in which they were asked for.
        self._served: dict[str, tuple[tuple[int, ...], int, Path, Any]] = {}

    def of(self, name: str) -> Any:
        """The request that serves a seat or a snapshot as it is now; None for the base.

        Raises UnknownNameError for any other name.
        """
        if name == BASE:
            return None
        key, served = self._adapters.state_key(name), self._served.get(name)
        if served is None or served[0] != key:
            self._drop(name)
            number = next(self._ids)
            folder = self._folder / f"{number}-{name}"
            with written_whole_folder(folder) as aside:
                self._adapters.save(name, aside)
            served = key, number, folder, self._make(f"{number}-{name}", number, folder)
        self._served.pop(name, None)
        self._served[name] = served  # behind all others
        while self._most is not None and len(self._served) > self._most:
            self._drop(next(iter(self._served)))
        return served[-1]

    def _drop(self, name: str) -> None:
        if name in self._served:
            _, number, folder, _ = self._served.pop(name)
            self._forget(number)
            shutil.rmtree(folder, ignore_errors=True)


class Engine:
    """A vLLM engine over the base, and the requests under which it serves seats."""

    def __init__(self, llm: Any, adapters: Adapters):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        self._llm, self._params = llm, SamplingParams
        self._config = getattr(llm, "model_config", None)
        self._asleep = False
        files = Path(tempfile.mkdtemp(prefix="lite-selfplay-loras-"))
        weakref.finalize(self, shutil.rmtree, files, ignore_errors=True)
        forget = getattr(getattr(llm, "llm_engine", None), "remove_lora", lambda number: None)
        self._requests = LoraRequests(
            adapters, files, lambda name, number, folder: LoRARequest(name, number, str(folder)), forget
        )

    def generate(self, request: GenerationRequest, eos_ids: Sequence[int]) -> list[list[Generation]]:
        """What `Backend.generate` gives.

        A completion's seed goes to vLLM's own generator: the same seed gives the same completion in the same engine,
        not the one that another backend gives. Raises RequestError for a temperature at which vLLM would sample
        otherwise, or note other log-probabilities than those of its draws.
        """
        self._check(request.sampling)
        self.wake_up()
        pairs = zip(request.prompts, request.seeds, strict=True)
        rows = [(prompt, seed) for prompt, seeds in pairs for seed in seeds]
        answers = self._llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt, _ in rows],
            [self._sampling(request.sampling, seed, eos_ids) for _, seed in rows],
            lora_request=self._requests.of(request.seat),
            use_tqdm=False,
        )
        completions = iter([_generation(answer.outputs[0], eos_ids) for answer in answers])
        return [[next(completions) for _ in seeds] for seeds in request.seeds]

    def sleep(self) -> None:
        """Give the memory of keys and values back until the next request, where the engine was started so that it can.

        Weights stay where they are: the base's are those that are trained over.
        """
        able = getattr(self._config, "enable_sleep_mode", False)
        # Before 0.33 all that it can let go of has the weights in it.
        if self._asleep or not able or not hasattr(self._llm, "release_kv_cache_memory"):
            return
        self._llm.sleep(level=0)
        self._asleep = True
        self._llm.release_kv_cache_memory()

    def wake_up(self) -> None:
        """Take that memory again. Raises RequestError where the engine does not wake up."""
        if not self._asleep:
            return
        if self._llm.wake_up() is False:
            raise RequestError("the vLLM engine did not wake up: set model.fast_inference=false")
        self._asleep = False

    def _check(self, sampling: Sampling) -> None:
        temperature = sampling.temperature
        require_temperature(temperature, "set model.fast_inference=false")
        mode = getattr(self._config, "logprobs_mode", "processed_logprobs")
        if not sampling.off_policy and temperature != 1.0 and mode != "processed_logprobs":
            raise RequestError(
                f"this vLLM engine notes log-probabilities before the temperature ({mode}), so what it samples at "
                f"{temperature:g} cannot be trained on: set the roles' temperature to 1, or model.fast_inference=false"
            )

    def _sampling(self, sampling: Sampling, seed: int, eos_ids: Sequence[int]) -> Any:
        return self._params(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(set(eos_ids)),
            seed=seed & SEED_BITS,
            logprobs=0,  # of the sampled token alone
            detokenize=bool(sampling.stop),
        )


def _generation(output: Any, eos_ids: Sequence[int]) -> Generation:
    ids = list(output.token_ids)
    logprobs = [float(found[token].logprob) for token, found in zip(ids, output.logprobs or (), strict=True)]
    if output.finish_reason != "stop":
        return Generation(ids, logprobs, "length")
    return Generation(ids, logprobs, "eos" if ids and ids[-1] in eos_ids else "string")
