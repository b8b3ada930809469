"""A server that speaks vLLM's protocol over a real socket and samples with a small model and PEFT's adapters.

Written from vLLM 0.33's sources (`vllm/entrypoints`): the same paths, fields, messages and status codes, as far as they
are used. It shares no code with the library: plain transformers, PEFT and torch. Beside the protocol it has

    POST /test/fault  {"kind": ..., "times": n, ...}   what goes wrong with the next n completions, -1: with all
    POST /test/start  {"raw": true, ...}               how it was started: see `START`; it forgets its adapters
    GET  /test/log                                     what it was asked for, in order

Started as `python stand_in.py MODEL COUNT`, which makes COUNT servers and prints their ports once they listen.
"""

import contextlib
import copy
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = "the-base"
START: dict[str, Any] = {"runtime_lora": True, "raw": False, "other_weights": False, "dead": False, "longest": 4096}
"""Whether adapters can be loaded; whether log-probabilities are those before the temperature; whether its weights are
others; whether it hangs up on everybody; how many tokens it reads."""


class State:
    """What the server is: its model with its adapters, how it was started, what goes wrong, what was asked."""

    def __init__(self, path: str):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.adapted: dict[str, Any] = {}
        self.start = dict(START)
        self.fault: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def told(self, path: str, body: dict[str, Any]) -> Any:
        """What a test wants of it."""
        if path == "/test/log":
            return self.log
        if path == "/test/fault":
            self.fault = body
        else:
            self.start.update({**START, **body})
            self.adapted.clear()
            self.log.clear()
        return {}

    def take_fault(self, path: str) -> dict[str, Any]:
        with self.lock:
            fault = self.fault
            if not fault or fault.get("path", "/v1/completions") != path or fault["times"] == 0:
                return {}
            fault["times"] -= 1
            return dict(fault)

    def answer(self, path: str, body: dict[str, Any], fault: dict[str, Any]) -> tuple[int, Any]:
        """The status and content of what the protocol answers."""
        if fault.get("kind") == "status":
            return error(fault["status"], "EngineCore encountered an issue")
        if path == "/v1/models":
            card = {"id": BASE, "object": "model", "root": BASE, "parent": None, "max_model_len": self.start["longest"]}
            cards = [{"id": name, "parent": BASE, "max_model_len": None} for name in self.adapted]
            return 200, {"object": "list", "data": [card, *cards]}
        if path == "/v1/load_lora_adapter" and self.start["runtime_lora"]:
            return self.load(body["lora_name"], body["lora_path"])
        if path == "/v1/completions":
            return self.complete(body, fault.get("kind"))
        return 404, {"detail": "Not Found"}

    def load(self, name: str, folder: str) -> tuple[int, Any]:
        if not name or not folder:
            return error(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapted:
            return error(400, f"The lora adapter '{name}' has already been loaded. If you want ...")
        if not (Path(folder) / "adapter_config.json").is_file():
            return error(404, f"Loading lora {name} failed: No adapter found for {folder}")
        self.adapted[name] = PeftModel.from_pretrained(copy.deepcopy(self.base), folder).merge_and_unload().eval()
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def complete(self, body: dict[str, Any], fault: str | None) -> tuple[int, Any]:
        name = body["model"]
        if fault == "restart":
            self.adapted.clear()
        held = {BASE: self.base, **self.adapted}  # as it is now, whatever others start anew meanwhile
        if name not in held:
            return error(404, f"The model `{name}` does not exist. Valid aliases: {BASE}.")
        assert (body["n"], body["logprobs"], body["ignore_eos"]) == (1, 0, True)
        model = held[former(name, list(held)) if fault == "stale" else name]
        ids, logprobs, reason, stop = self.sample(model, body)
        named = [f"token_id:{token}" for token in ids] if body["return_tokens_as_token_ids"] else []
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": reason, "stop_reason": stop}
        choice["logprobs"] = {"text_offset": [], "token_logprobs": logprobs, "tokens": named, "top_logprobs": []}
        if body["return_token_ids"]:
            choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
        if fault == "nan":
            logprobs[0] = float("nan")
        elif fault == "short":
            choice["finish_reason"] = "abort"
        return 200, {"id": "cmpl-1", "object": "text_completion", "model": name, "choices": [choice]}

    @torch.no_grad()
    def sample(self, model: Any, body: dict[str, Any]) -> tuple[list[int], list[float], str, Any]:
        """A completion: its tokens, their log-probabilities, how it ended and at what."""
        generator = torch.Generator().manual_seed(body["seed"])
        ids, tokens, logprobs, cache = body["prompt"], [], [], None
        while True:
            out = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
            token, logprob = self._draw(body, out.logits[0, -1].float(), generator)
            tokens.append(token)
            logprobs.append(logprob)
            text = self.tokenizer.decode(tokens) if body["stop"] else ""
            if token in body["stop_token_ids"]:
                return tokens, logprobs, "stop", token
            if found := next((stop for stop in body["stop"] if stop in text), None):
                return tokens, logprobs, "stop", found
            if len(tokens) == body["max_tokens"]:
                return tokens, logprobs, "length", None
            ids, cache = [token], out.past_key_values

    def _draw(self, body: dict[str, Any], logits: torch.Tensor, generator: torch.Generator) -> tuple[int, float]:
        temperature = body["temperature"]
        if self.start["other_weights"]:
            logits = logits.flip(-1)
        tempered = (logits / temperature if temperature else logits).log_softmax(-1)
        if temperature:
            token = int(torch.multinomial(tempered.exp(), 1, generator=generator))
        else:
            token = int(tempered.argmax())
        return token, float((logits.log_softmax(-1) if self.start["raw"] else tempered)[token])


def former(name: str, names: list[str]) -> str:
    """The adapter that was loaded for the same seat before."""
    seat = re.compile(r".*-\d+-(.+)-v-?\d+$")
    if (own := seat.fullmatch(name)) is None:  # the base
        return name
    same = [one for one in names if (found := seat.fullmatch(one)) and found[1] == own[1]]
    return same[max(0, same.index(name) - 1)]


def error(status: int, message: str) -> tuple[int, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        assert self.command == "GET" or self.headers["Content-Type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path.startswith("/test/"):
            self.send(200, self.state.told(self.path, body))
        elif self.state.start["dead"]:
            self.close_connection = True
        else:
            if body:
                self.state.log.append({"path": self.path, **body})
            fault = self.state.take_fault(self.path)
            if fault.get("kind") == "slow":
                time.sleep(fault["seconds"])
            self.send(*self.state.answer(self.path, body, fault), fault.get("kind"))

    do_GET = do_POST

    def send(self, status: int, value: Any, fault: str | None = None) -> None:
        text = (value if isinstance(value, str) else json.dumps(value)).encode()
        if fault == "json":
            text = text[: len(text) // 2] + b"}{"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(text[: len(text) // 2] if fault == "drop" else text)
        if fault == "drop":
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True


def main() -> None:
    model, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    ThreadingHTTPServer.request_queue_size = 512
    kinds = [type("Handler", (Handler,), {"state": State(model)}) for _ in range(count)]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in kinds]
    print("listening on", *(server.server_port for server in servers), flush=True)
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
