"""A backend whose completions come from servers that have the same base, and the seats as LoRA adapters.

What computes (updates, scores, references) is the transformers backend in this process. A seat is loaded anew by every
server, under another name, whenever its weights have changed. Rows are spread over the servers, and each is asked for
until an answer to it is whole, by another server where one fails. That a server serves the run's base and the seats'
newest weights is for the sampler's check to find out, before the first step and in every one.
"""

import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from lite_selfplay.errors import RequestError, RolloutsLost
from lite_selfplay.extras.servers.client import Adapter, Server, ServerFailed, request_of
from lite_selfplay.models.backends.base import REMEDY, Rollouts
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.backends.vllm import LoraRequests, lora_limits, require_temperature
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.tasks.files import write_errors

T = TypeVar("T")
RESTS_S: tuple[float, ...] = (0.0, 0.5, 2.0, 8.0)
"""Seconds to wait before each time that a completion is asked for; it is given up after the last."""
LOOK_EVERY_S = 0.05
"""Seconds between two calls of `poll` while servers are waited for."""
MOST_ADAPTERS = 16
"""States of seats and snapshots that lie on the disk for servers at a time."""


class ServedBackend(TransformersBackend):
    """The transformers backend, with completions that come from servers.

    The servers are asked at once whether they can serve the run: raises RequestError where one cannot.
    """

    samples_elsewhere = True

    def __init__(self, *arguments: Any, rollouts: Rollouts, **options: Any):
        super().__init__(*arguments, **options)
        self._section, self._longest = rollouts.section, rollouts.longest
        self._servers = [Server(address, self._section.timeout_s) for address in self._section.servers]
        self._room = anyio.Semaphore(self._section.rows_at_once * len(self._servers))
        base: Any = self.adapters.model.get_base_model()
        self._vocabulary = int(base.config.get_text_config().vocab_size)
        self._root = Path(self._section.folder or rollouts.folder).resolve()
        # Another one at every start: a resumed run has other weights under the numbers that a killed one had reached.
        folder = self._root / f"lite-selfplay-{secrets.token_hex(4)}"
        self._undoing.callback(shutil.rmtree, folder if self._section.folder else self._root, ignore_errors=True)
        self._requests = LoraRequests(self.adapters, folder, self._adapter, most=MOST_ADAPTERS)
        self._portal = self._undoing.enter_context(start_blocking_portal())
        try:
            self._flags = "--enable-lora --max-loras {max_loras} --max-lora-rank {max_lora_rank}".format(
                **lora_limits(self.adapters.ranks())
            )
            for server in self._servers:
                self._meet(server)
        except BaseException:
            self.close()
            raise

    def _meet(self, server: Server) -> None:
        bases = self._run(server.bases)
        server.base = self._section.model or next(iter(bases), "")
        if server.base not in bases:
            raise RequestError(f"{server.address} has no base {server.base!r}: it serves {', '.join(bases) or 'none'}")
        if bases[server.base] < self._longest:
            raise RequestError(
                f"{server.address} reads up to {bases[server.base]:,} tokens, and a prompt and its completion may take "
                f"{self._longest:,}: start it with a larger --max-model-len, or lower run.max_prompt_tokens or "
                "max_completion_tokens"
            )
        try:
            self._run(server.ask, "/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""}, bytes)
        except ServerFailed as failed:
            if "must be provided" not in str(failed):  # as is said where adapters are taken
                raise RequestError(
                    f"{failed}: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and vllm serve ... {self._flags}"
                ) from None

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """What `Backend.generate` gives: each row asked for by itself, with its seed.

        Raises RequestError for a temperature that vLLM samples at otherwise, RolloutsLost where no server gives a
        completion, or an adapter cannot be written for them.
        """
        require_temperature(request.sampling.temperature, REMEDY)
        self._decoding.check(request)
        with write_errors(f"an adapter for the servers to {self._root}", RolloutsLost):
            adapter: Adapter | None = self._requests.of(request.seat)
        rows = [
            request_of(prompt, request.sampling, seed, self._decoding.eos_ids)
            for prompt, seeds in zip(request.prompts, request.seeds, strict=True)
            for seed in seeds
        ]
        known = [server for server in self._servers if server.failures]
        found = iter(self._run(self._sample, adapter, rows))
        for server in self._servers:
            if server.failures and server not in known:
                self._warn(f"rollouts: {server.failures[0]}; it is asked again once all others have failed as often")
        return [[self._decoding.end_loop(next(found)) for _ in seeds] for seeds in request.seeds]

    async def _sample(self, adapter: Adapter | None, rows: Sequence[Mapping[str, Any]]) -> list[Generation]:
        async with anyio.create_task_group() as loading:
            for server in self._servers:
                if adapter is not None and not server.failures:
                    loading.start_soon(server.load, adapter)
        found: dict[int, Generation] = {}
        failed: dict[int, str] = {}
        async with anyio.create_task_group() as sampling:
            for number, row in enumerate(rows):
                sampling.start_soon(self._complete, adapter, row, number, found, failed)
        if len(found) < len(rows):
            # A server whose other completions went well has forgotten why this one did not.
            said = "; ".join(server.failures[0] for server in self._servers if server.failures)
            said = said or next(why for number, why in failed.items() if number not in found)
            raise RolloutsLost(
                f"no server of rollouts is left: {said} (vllm serve needs {self._flags}, and has to see {self._root}). "
                "--resume takes other --rollouts, or `none`"
            )
        return [found[number] for number in range(len(rows))]

    async def _complete(
        self,
        adapter: Adapter | None,
        row: Mapping[str, Any],
        number: int,
        found: dict[int, Generation],
        failed: dict[int, str],
    ) -> None:
        """Find a row's completion by an adapter, or by the base: that of the first answer that is whole. Note what last
        went wrong with it."""
        async with self._room:
            for rest in RESTS_S:
                await anyio.sleep(rest)
                server = min(self._servers, key=lambda one: (len(one.failures), one.busy))
                try:
                    found[number] = await server.complete(adapter, row, self._vocabulary)
                    return
                except ServerFailed as error:
                    failed[number] = str(error)

    def _run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What asynchronous work comes to. Signals are looked for meanwhile, and end it."""
        future = self._portal.start_task_soon(work, *arguments)
        try:
            while not wait([future], LOOK_EVERY_S).done:
                self._decoding.poll()
        finally:
            future.cancel()  # unless it is done
        return future.result()

    def _adapter(self, name: str, number: int, folder: Path) -> Adapter:
        seat, seen = name.partition("-")[2], self._section.seen_as
        place = PurePosixPath(seen, folder.relative_to(self._root)) if seen else folder
        return f"{folder.parent.name}-{name}-v{self.adapters.version(seat)}", str(place)
