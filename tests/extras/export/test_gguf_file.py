"""GGUF files that are written, read back by this library's own reader and by llama.cpp."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Punctuation
from tokenizers.pre_tokenizers import Sequence as Splitting
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from lite_selfplay.errors import ModelNotFoundError, RequestError
from lite_selfplay.extras.export.gguf_file import require_convertible, write_gguf
from lite_selfplay.extras.export.verification import read_back
from lite_selfplay.models.sources import gguf as reading
from lite_selfplay.models.sources.gguf_tokenizer import SPLITTING_RULES, build_tokenizer, ignores_merges, splitting
from lite_selfplay.models.sources.tiny import byte_tokenizer
from tests import made_runs

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def small_model(arch: str, vocab_size: int = 259, **options: Any) -> Any:
    """One whose logits are worth comparing."""
    return made_runs.small_model(arch, vocab_size, noise=0.1, **options)


def write(file: Path, model: Any, *, tokenizer: Any = None, weights: Any = None) -> Path:
    weights = model.named_parameters() if weights is None else weights
    tokenizer = tokenizer or byte_tokenizer(TEMPLATE)
    write_gguf(file, weights, model.config, tokenizer, name="a test", eos_ids=[258])
    return file


def logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
    return found


def test_the_scaling_of_llama_3_is_written_and_not_read_back(tmp_path):
    file = write(tmp_path / "a.gguf", small_model("llama", tie_word_embeddings=False, rope_parameters=LLAMA3))
    (factors,) = (tensor.data for tensor in GGUFReader(file).tensors if tensor.name == "rope_freqs.weight")
    assert list(factors) == pytest.approx(reading.llama3_factors(len(factors), LLAMA3))
    with pytest.raises(ModelNotFoundError, match="rotary positions are scaled"):
        reading.convert(file, tmp_path / "copy", sha256="0")


@pytest.mark.parametrize(("arch", "tied"), [("llama", True), ("qwen2", True), ("qwen3", False)])
def test_the_librarys_own_reader_finds_the_same_weights(tmp_path, arch, tied):
    model = small_model(arch, tie_word_embeddings=tied)
    file = write(tmp_path / "a.gguf", model)
    reading.convert(file, tmp_path / "copy", sha256="0")
    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    for name, tensor in model.state_dict().items():
        held = tensor if tensor.ndim == 1 else tensor.half()
        assert torch.equal(copy.state_dict()[name], held.bfloat16()), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert tokenizer("Hé </s> 12")["input_ids"] == byte_tokenizer(TEMPLATE)("Hé </s> 12")["input_ids"]
    assert tokenizer.chat_template == TEMPLATE


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs llama.cpp's package xllamacpp")
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_computes_the_same(tmp_path, arch):
    model = small_model(arch, tie_word_embeddings=False)
    write(tmp_path / "a.gguf", model)
    ids = byte_tokenizer(TEMPLATE)("<s>user\nWhat is 7 + 8?</s>\n<s>assistant\n")["input_ids"]
    assert len(ids) < len("<s>user\nWhat is 7 + 8?</s>\n<s>assistant\n")  # special tokens are one
    own = logprobs(model, ids)
    first = int(own[-1].argmax())
    question = {"prompt": "What is 7 + 8?", "prompt_ids": list(ids), "token_ids": [first]}
    request = {"reader": "llama.cpp", "folder": str(tmp_path), "file": "a.gguf", "plain_token": ord("a")}
    (found,) = read_back({**request, "questions": [question]}, lambda: None)
    assert found["prompt_ids"] == list(ids)
    assert abs(found["logprobs"][0] - float(own[-1, first])) < 0.006


def test_weights_that_cannot_be_written_are_refused(tmp_path):
    model = small_model("qwen2")
    weights = [*model.named_parameters(), ("model.layers.0.extra.weight", torch.ones(2, 2))]
    with pytest.raises(RequestError, match=r"a weight model.layers.0.extra.weight that qwen2 does not have"):
        write(tmp_path / "a", model, weights=weights)
    model.model.embed_tokens.weight.data[3, 5] = 70000.0
    with pytest.raises(RequestError, match=r"embed_tokens.weight has numbers outside float16.s range"):
        write(tmp_path / "a.gguf", model)


def test_what_would_become_another_model_is_refused_by_name():
    for key, value, what in (
        ("architectures", ["Gemma3ForCausalLM"], "not Gemma3ForCausalLM"),
        ("architectures", None, "not unknown"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1.0}, "rotary scaling 'yarn'"),
        ("layer_types", ["full_attention", "sliding_attention"], "sliding-window attention"),
        ("hidden_act", "gelu", "the activation 'gelu'"),
        ("attention_bias", True, "biases"),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}, "partial rotary"),
    ):
        config = small_model("llama").config
        config.__dict__[key] = value
        with pytest.raises(RequestError, match=f"{what}.*python convert_hf_to_gguf.py DIR"):
            require_convertible(config)


# Vocabularies


def merging_tokenizer(rule: str) -> Any:
    """A byte-level tokenizer with two merges that splits text by a rule."""
    tokens = [*sorted(ByteLevel.alphabet()), "th", "12"]
    vocabulary = {token: identity for identity, token in enumerate(tokens)}
    model = models.BPE(vocab=vocabulary, merges=[("t", "h"), ("1", "2")], ignore_merges=ignores_merges(rule))
    backend = Tokenizer(model)
    backend.pre_tokenizer = splitting(rule)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    backend.add_tokens(["<think>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@pytest.mark.parametrize("rule", SPLITTING_RULES)
def test_the_rule_of_splitting_is_found_and_the_vocabulary_survives(tmp_path, rule):
    tokenizer = merging_tokenizer(rule)
    model = small_model("llama", vocab_size=264)  # more rows than tokens, as published models have
    file = write(tmp_path / "a.gguf", model, tokenizer=tokenizer)
    metadata = reading.read_header(file).metadata
    assert metadata["tokenizer.ggml.pre"] == rule
    assert metadata["tokenizer.ggml.tokens"][-4:] == ["[PAD260]", "[PAD261]", "[PAD262]", "[PAD263]"]
    copy = build_tokenizer(metadata, file)
    for text in ("the 1212 moth<think>", "it's\n\n 3.14  ok</s>", "naïve 你好"):
        assert copy(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    tokenizer = merging_tokenizer("gpt-2")
    tokenizer.backend_tokenizer.pre_tokenizer = Splitting([Punctuation(), ByteLevel(add_prefix_space=False)])
    with pytest.raises(RequestError, match="splits text by a rule"):
        write(tmp_path / "a.gguf", small_model("llama"), tokenizer=tokenizer)
    pieces = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("a", 0.0)], unk_id=0)))
    with pytest.raises(RequestError, match="not this Unigram one"):
        write(tmp_path / "b.gguf", small_model("llama"), tokenizer=pieces)
