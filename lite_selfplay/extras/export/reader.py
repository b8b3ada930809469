"""A script that loads exported files with another tool, and lets the tool score the answers of the exported seat (a
LoRA adapter) by their log-probabilities. The command `python -P reader.py REQUEST ANSWERS` reads the JSON file REQUEST
and writes the scores into the JSON file ANSWERS. The script imports nothing of this library, so that it shows the
scores that users without the library get."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx


def by_transformers(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Score a seat's answers with transformers, and with PEFT if the exported files are an adapter. `request` is the
    dict that `verification.verify` makes. Each of its `questions` has the text of a prompt, and the token ids of the
    prompt and of the seat's answer, which are scored as they are. Returns a dict for each question: `prompt_ids` are
    the token ids that the exported tokenizer makes of the prompt's text, and `logprobs` are the log-probabilities of
    the answer's tokens. Questions are not batched, since padding could change the log-probabilities."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, BitsAndBytesConfig

    kind: Any = AutoModelForCausalLM
    if request["reader"] == "PEFT":
        config = json.loads((Path(request["folder"]) / "adapter_config.json").read_text())
        # An adapter on the text part of a multimodal model names its layers by a pattern.
        kind = AutoModelForImageTextToText if isinstance(config["target_modules"], str) else kind
    dtype, trusted = getattr(torch, request["dtype"]), request["trust_remote_code"]
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model: Any = kind.from_pretrained(
        request["base"],
        dtype=dtype,
        quantization_config=nf4 if request["nf4"] else None,
        device_map={"": request["device"]},
        trust_remote_code=trusted,
    )
    if request["reader"] == "PEFT":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, request["folder"])
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], trust_remote_code=trusted)
    answers = []
    for question in request["questions"]:
        prompt, given = question["prompt_ids"], question["token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *given]], device=model.device)).logits[0, len(prompt) - 1 : -1]
        said = logits.float().log_softmax(-1).gather(-1, torch.tensor(given, device=model.device)[:, None])[:, 0]
        answers.append({"prompt_ids": _ids(tokenizer, question["prompt"]), "logprobs": said.tolist()})
    return answers


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    """The token ids of the text `prompt`. If the transformers tokenizer `tokenizer` has a chat template, the text
    becomes a user's message, followed by the beginning of the assistant's turn. Otherwise the tokenizer adds its
    special tokens, such as BOS."""
    if not tokenizer.chat_template:
        return list(tokenizer(prompt)["input_ids"])
    turns = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"])


def by_llama_cpp(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Score a seat's answers with llama.cpp (package `xllamacpp`). `request` is the dict that `verification.verify`
    makes. Returns a dict for each of its `questions`: `prompt_ids` are the token ids that llama.cpp makes of the
    prompt's text, and `logprobs` are the log-probabilities of the tokens of the seat's answer. llama.cpp
    reports the log-probabilities of the 50 likeliest tokens at each position where it samples, but none if the sampled
    token is only part of a UTF-8 character. So, for each token of an answer, llama.cpp is called with the text before
    that token and forced to sample a token that is a whole character. The reported log-probabilities are those before
    the forcing. An answer's token that is not among the 50
    gets the lowest reported log-probability."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(Path(request["folder"]) / request["file"])
    params.n_gpu_layers, params.n_parallel, params.verbosity = 0, 1, -1
    longest = max(len(question["prompt_ids"]) + len(question["token_ids"]) for question in request["questions"])
    params.n_ctx, params.warmup = max(256, longest + 64), False
    server = xllamacpp.Server(params)
    answers = []
    for question in request["questions"]:
        prompt, given = question["prompt_ids"], question["token_ids"]
        tops = [_likeliest(server, [*prompt, *given[:n]], request["plain_token"]) for n in range(len(given))]
        turns = {"messages": [{"role": "user", "content": question["prompt"]}]}
        text = _post(server, "/apply-template", turns)["prompt"]
        words = {"content": text, "add_special": True, "parse_special": True}
        answers.append(
            {
                "prompt_ids": _post(server, "/tokenize", words)["tokens"],
                # A token that is not among the likeliest is at most as likely as the last of them.
                "logprobs": [top.get(token, min(top.values())) for token, top in zip(given, tops, strict=True)],
            }
        )
    return answers


def _likeliest(server: Any, ids: Sequence[int], plain_token: int) -> dict[int, float]:
    """The log-probabilities of the 50 likeliest next tokens after the token ids `ids`, by token id. `server` is an
    `xllamacpp.Server`. The server is forced to sample the token with the id `plain_token`. This token must be plain
    text, since the server reports nothing if the sampled token is an incomplete character. Raises RuntimeError if the
    server answers with an error."""
    said: list[Any] = []
    forced = {"temperature": 0.0, "max_tokens": 1, "logit_bias": [[plain_token, 1000.0]]}
    server.handle_completions({**forced, "prompt": list(ids), "n_probs": 50, "cache_prompt": True}, said.append)
    found = said[-1] if isinstance(said[-1], dict) else json.loads(said[-1])
    if "choices" not in found:
        raise RuntimeError(f"llama.cpp: {found}")
    return {each["id"]: each["logprob"] for each in found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}


def _post(server: Any, path: str, body: Mapping[str, Any]) -> Any:
    """POST `body` as JSON to `path` of an `xllamacpp.Server`, and return its JSON answer. Raises httpx.HTTPError if the
    server does not answer within 60 seconds, or with an HTTP status that is not 2xx."""
    answer = httpx.post(f"{server.listening_address}{path}", json=body, timeout=60, trust_env=False)
    return answer.raise_for_status().json()


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    read = by_llama_cpp if asked["reader"] == "llama.cpp" else by_transformers
    Path(sys.argv[2]).write_text(json.dumps(read(asked)), encoding="utf-8")
