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

    def begin(self, options: dict[str, Any]) -> None:
        """Be started anew."""
        self.start.update({**START, **options})
        self.adapted.clear()
        self.log.clear()

    def load(self, name: str, folder: str) -> None:
        self.adapted[name] = PeftModel.from_pretrained(copy.deepcopy(self.base), folder).merge_and_unload().eval()

    def take_fault(self, path: str) -> dict[str, Any]:
        with self.lock:
            fault = self.fault
            if not fault or fault.get("path", "/v1/completions") != path or fault["times"] == 0:
                return {}
            fault["times"] -= 1
            return dict(fault)

    def former(self, name: str) -> str:
        """The adapter that was loaded for the same seat before."""
        seat = re.compile(r".*-\d+-(.+)-v-?\d+$")
        own = seat.fullmatch(name)
        same = [one for one in self.adapted if own and (found := seat.fullmatch(one)) and found[1] == own[1]]
        return same[max(0, same.index(name) - 1)]

    @torch.no_grad()
    def sample(self, name: str, body: dict[str, Any]) -> tuple[list[int], list[float], str, Any]:
        """A completion: its tokens, their log-probabilities, how it ended and at what."""
        model, generator = self.adapted.get(name, self.base), torch.Generator().manual_seed(body["seed"])
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.state.start["dead"] and not self.path.startswith("/test/"):
            self.close_connection = True
        elif self.path == "/v1/models":
            longest = self.state.start["longest"]
            cards = [{"id": BASE, "object": "model", "root": BASE, "parent": None, "max_model_len": longest}]
            cards += [{"id": name, "parent": BASE, "max_model_len": None} for name in self.state.adapted]
            self.answer(200, {"object": "list", "data": cards})
        elif self.path == "/test/log":
            self.answer(200, self.state.log)
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(raw)
        if self.path.startswith("/test/"):
            if self.path == "/test/fault":
                self.state.fault = body
            else:
                self.state.begin(body)
            self.answer(200, {})
            return
        if self.state.start["dead"]:
            self.close_connection = True
            return
        self.state.log.append({"path": self.path, **body})
        fault = self.state.take_fault(self.path)
        if fault.get("kind") == "slow":
            time.sleep(fault["seconds"])
        if fault.get("kind") == "status":
            self.error(fault["status"], "EngineCore encountered an issue")
        elif self.path == "/v1/load_lora_adapter" and self.state.start["runtime_lora"]:
            self.load(body)
        elif self.path == "/v1/completions":
            self.complete(body, fault)
        else:
            self.answer(404, {"detail": "Not Found"})

    def load(self, body: dict[str, Any]) -> None:
        name, folder = body["lora_name"], body["lora_path"]
        if not name or not folder:
            self.error(400, "Both 'lora_name' and 'lora_path' must be provided.")
        elif name in self.state.adapted:
            self.error(400, f"The lora adapter '{name}' has already been loaded. If you want ...")
        elif not (Path(folder) / "adapter_config.json").is_file():
            self.error(404, f"Loading lora {name} failed: No adapter found for {folder}")
        else:
            self.state.load(name, folder)
            self.send_raw(200, f"Success: LoRA adapter '{name}' added successfully.".encode())

    def complete(self, body: dict[str, Any], fault: dict[str, Any]) -> None:
        name, kind = body["model"], fault.get("kind")
        if kind == "restart":
            self.state.adapted.clear()
        if name != BASE and name not in self.state.adapted:
            self.error(404, f"The model `{name}` does not exist. Valid aliases: {BASE}.")
            return
        assert body["n"] == 1
        assert body["logprobs"] == 0
        assert body["ignore_eos"] is True
        by = self.state.former(name) if kind == "stale" and name != BASE else name
        ids, logprobs, reason, stop = self.state.sample(by, body)
        named = [f"token_id:{token}" for token in ids] if body["return_tokens_as_token_ids"] else []
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": reason, "stop_reason": stop}
        choice["logprobs"] = {"text_offset": [], "token_logprobs": logprobs, "tokens": named, "top_logprobs": []}
        if body["return_token_ids"]:
            choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
        if kind == "nan":
            logprobs[0] = float("nan")
        elif kind == "short":
            choice["finish_reason"] = "abort"
        text = json.dumps({"id": "cmpl-1", "object": "text_completion", "model": name, "choices": [choice]})
        if kind == "json":
            text = text[: len(text) // 2] + "}{"
        self.send_raw(200, text.encode(), drop=kind == "drop")

    def error(self, status: int, message: str) -> None:
        kinds = {400: "BadRequestError", 404: "NotFoundError"}
        error = {"message": message, "type": kinds.get(status, "InternalServerError"), "param": None, "code": status}
        self.answer(status, {"error": error})

    def answer(self, status: int, value: Any) -> None:
        self.send_raw(status, json.dumps(value).encode())

    def send_raw(self, status: int, body: bytes, *, drop: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body[: len(body) // 2] if drop else body)
        if drop:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True


def main() -> None:
    model, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    ThreadingHTTPServer.request_queue_size = 512
    servers = []
    for _ in range(count):
        kind = type("Handler", (Handler,), {"state": State(model)})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), kind))
    print("listening on", *(server.server_port for server in servers), flush=True)
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
