"""Run as a script in a process of its own: what another tool alone makes of exported files.

python -P foreign.py REQUEST ANSWER reads a JSON file and writes one. Nothing of this library is imported here, so that
what is measured is what somebody without it would get. The process ends when its standard input closes, which it does
when whoever asked is gone.
"""

import json
import os
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FAR = 1000.0
"""A gap, in nats, where a token is not among those whose probabilities a reader gives."""
_TOP = 50
_PACKAGES = ("transformers", "peft", "torch", "bitsandbytes", "gguf", "xllamacpp", "llama-cpp-python")

Question = Mapping[str, Any]
Answers = list[dict[str, Any]]


def main() -> None:
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = _READERS[request["reader"]](request)
    result = {
        "answers": answers,
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "alone": "lite_selfplay" not in sys.modules,
    }
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def _end_with_the_asker() -> None:
    while os.read(0, 1024):  # not through sys.stdin, whose lock the interpreter wants at its end
        pass
    os._exit(3)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _adapter(request: Mapping[str, Any]) -> Answers:
    """PEFT: the adapter's folder over a base that transformers loads, in 4 bits where that is asked."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    dtype = getattr(torch, request["dtype"])
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    base = AutoModelForCausalLM.from_pretrained(
        request["base"],
        dtype=dtype,
        quantization_config=nf4 if request["nf4"] else None,
        device_map={"": request["device"]},
        trust_remote_code=request["trust_remote_code"],
    )
    model = PeftModel.from_pretrained(base, request["folder"])
    if request["tokenizer"] is None:
        return _ask(model, request, lambda prompt: None)
    tokenizer = AutoTokenizer.from_pretrained(request["tokenizer"], trust_remote_code=request["trust_remote_code"])
    return _ask(model, request, _rendering(tokenizer))


def _folder(request: Mapping[str, Any]) -> Answers:
    """transformers: a folder with a model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = request["folder"]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, request["dtype"]), device_map={"": request["device"]}
    )
    return _ask(model, request, _rendering(AutoTokenizer.from_pretrained(folder)))


def _gguf_by_transformers(request: Mapping[str, Any]) -> Answers:
    """transformers' reader of GGUF files: its weights alone.

    Its reader of their vocabularies splits every text as GPT-2 did, so the prompts' ids are given; so are the few
    numbers of the configuration that it leaves at their defaults.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    where = {"gguf_file": request["file"]}
    config = AutoConfig.from_pretrained(request["folder"], **where)
    for key, value in request["overrides"].items():
        setattr(config, key, value)
    model = AutoModelForCausalLM.from_pretrained(
        request["folder"],
        config=config,
        dtype=getattr(torch, request["dtype"]),
        quantization_config=GgufConfig(dequantize=True),
        **where,
    )
    return _ask(model.to(request["device"]), request, lambda prompt: None)


def _rendering(tokenizer: Any) -> Callable[[str], list[int] | None]:
    """A prompt's ids by a tokenizer and the chat template that came with it."""

    def render(prompt: str) -> list[int]:
        if not tokenizer.chat_template:
            return list(tokenizer(prompt)["input_ids"])
        turns = [{"role": "user", "content": prompt}]
        found = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(found, add_special_tokens=False)["input_ids"])

    return render


def _ask(model: Any, request: Mapping[str, Any], render: Callable[[str], list[int] | None]) -> Answers:
    """Each question by itself, so that no padding comes into its log-probabilities; the texts all at once."""
    import torch

    model.eval()
    texts = _texts(model, request) if request["max_tokens"] else [None] * len(request["questions"])
    answers = []
    with torch.no_grad():
        for question, text in zip(request["questions"], texts, strict=True):
            prompt, given = question["prompt_ids"], question["token_ids"]
            row = torch.tensor([[*prompt, *given]], device=model.device)
            logprobs = model(row).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            said = logprobs.gather(-1, torch.tensor(given, device=model.device)[:, None])[:, 0]
            answers.append(
                {
                    "prompt_ids": render(question["prompt"]),
                    "first": int(logprobs[0].argmax()),
                    "gap": float(logprobs[0].max() - said[0]),
                    "logprobs": said.tolist(),
                    "token_ids": text,
                }
            )
    return answers


def _texts(model: Any, request: Mapping[str, Any]) -> list[list[int]]:
    """The greedy answers by transformers' own `generate`, without what fills them up."""
    import torch
    from transformers import GenerationConfig

    eos, prompts = list(request["eos_ids"]), [question["prompt_ids"] for question in request["questions"]]
    most = max(map(len, prompts))
    rows = torch.tensor([[eos[0]] * (most - len(ids)) + ids for ids in prompts], device=model.device)
    mask = torch.tensor([[0] * (most - len(ids)) + [1] * len(ids) for ids in prompts], device=model.device)
    model.generation_config = GenerationConfig()
    greedy = GenerationConfig(
        do_sample=False, max_new_tokens=request["max_tokens"], eos_token_id=eos, pad_token_id=eos[0]
    )
    with torch.no_grad():
        made = model.generate(rows, attention_mask=mask, generation_config=greedy)[:, most:].tolist()
    ends = [next((i + 1 for i, token in enumerate(row) if token in eos), len(row)) for row in made]
    return [row[:end] for row, end in zip(made, ends, strict=True)]


def _llama_cpp(request: Mapping[str, Any]) -> Answers:
    """llama.cpp by its Python package `xllamacpp`, with its own tokenizer and chat template.

    It tells what is likeliest at a place and leaves out tokens that are a part of a character: so it is asked for each
    place of the seat's answer, and told to say a token that is text, which changes no probability that it tells.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(Path(request["folder"]) / request["file"])
    params.n_gpu_layers, params.n_parallel, params.verbosity = 0, 1, -1
    params.n_ctx, params.warmup = max(256, request["longest"] + 64), False
    if threads := int(os.environ.get("OMP_NUM_THREADS") or 0):
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    forced = {"temperature": 0.0, "max_tokens": 1, "logit_bias": [[request["plain_token"], 1000.0]]}
    return [_one_by_llama_cpp(server, forced, question) for question in request["questions"]]


def _one_by_llama_cpp(server: Any, forced: Mapping[str, Any], question: Question) -> dict[str, Any]:
    prompt, given = list(question["prompt_ids"]), list(question["token_ids"])
    tops = [_likeliest(server, forced, [*prompt, *given[:place]]) for place in range(len(given))]
    said = [max(top, key=lambda token: top[token]) for top in tops]
    return {
        "prompt_ids": _rendered(server, question["prompt"]),
        "first": said[0],
        "gap": max(tops[0].values()) - tops[0].get(given[0], -FAR),
        # One that is not among the likeliest is at most as likely as the last of these.
        "logprobs": [top.get(token, min(top.values())) for token, top in zip(given, tops, strict=True)],
        "token_ids": said,  # the seat's own exactly where it would say the same greedily
    }


def _likeliest(server: Any, forced: Mapping[str, Any], ids: Sequence[int]) -> dict[int, float]:
    """The log-probabilities of the likeliest next tokens, by id."""
    said: list[Any] = []
    server.handle_completions({**forced, "prompt": list(ids), "n_probs": _TOP, "cache_prompt": True}, said.append)
    return _tops(_read(said))


def _rendered(server: Any, prompt: str) -> list[int]:
    """A prompt's ids by the file's own template and vocabulary, as llama.cpp's chat would read it."""
    text = _post(server, "/apply-template", {"messages": [{"role": "user", "content": prompt}]})["prompt"]
    ids: list[int] = _post(server, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    return ids


def _post(server: Any, path: str, body: Mapping[str, Any]) -> Any:
    """What the server, which listens on this machine alone, answers at a path."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server.listening_address}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.loads(answer.read())


def _tops(found: Mapping[str, Any]) -> dict[int, float]:
    return {each["id"]: each["logprob"] for each in found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}


def _read(said: Sequence[Any]) -> Any:
    found = said[-1] if isinstance(said[-1], dict) else json.loads(said[-1])
    if "choices" not in found:
        raise RuntimeError(f"llama.cpp: {found}")
    return found


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Answers]] = {
    "peft": _adapter,
    "transformers": _folder,
    "gguf": _gguf_by_transformers,
    "llama.cpp": _llama_cpp,
}

if __name__ == "__main__":
    main()
