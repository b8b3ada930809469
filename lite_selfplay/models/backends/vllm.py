"""Sampling through a vLLM engine that serves seats as LoRA adapters. Experimental: not yet run on a GPU."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.data import Sampling
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends.lora_requests import LoraRequests
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest

_SEED_BITS = 0x7FFF_FFFF_FFFF_FFFF


class Engine:
    """A vLLM engine over the base, and the requests under which it serves seats.

    `params` builds vLLM's `SamplingParams`, `lora` its `LoRARequest`: by default those of the installed vLLM.
    """

    def __init__(
        self,
        llm: Any,
        adapters: Adapters,
        params: Callable[..., Any] | None = None,
        lora: Callable[..., Any] | None = None,
    ):
        if params is None or lora is None:
            from vllm import SamplingParams
            from vllm.lora.request import LoRARequest

            params, lora = SamplingParams, LoRARequest
        self._llm, self._params = llm, params
        files = Path(tempfile.mkdtemp(prefix="lite-selfplay-loras-"))
        weakref.finalize(self, shutil.rmtree, files, ignore_errors=True)
        core = getattr(llm, "llm_engine", None)
        forget = getattr(core, "remove_lora", lambda number: None)
        make = lora
        self._requests = LoraRequests(
            adapters, files, lambda name, number, folder: make(name, number, str(folder)), forget
        )

    def generate(self, request: GenerationRequest, eos_ids: Sequence[int]) -> list[list[Generation]]:
        """What `Backend.generate` gives.

        A completion's seed goes to vLLM's own generator: the same seed gives the same completion in the same engine,
        not the one that another backend gives.
        """
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

    def _sampling(self, sampling: Sampling, seed: int, eos_ids: Sequence[int]) -> Any:
        return self._params(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(set(eos_ids)),
            seed=seed & _SEED_BITS,
            logprobs=0,  # of the sampled token alone
            detokenize=bool(sampling.stop),
        )


def _generation(output: Any, eos_ids: Sequence[int]) -> Generation:
    ids = list(output.token_ids)
    logprobs = [float(found[token].logprob) for token, found in zip(ids, output.logprobs or (), strict=True)]
    if output.finish_reason != "stop":
        return Generation(ids, logprobs, "length")
    return Generation(ids, logprobs, "eos" if ids and ids[-1] in eos_ids else "string")
