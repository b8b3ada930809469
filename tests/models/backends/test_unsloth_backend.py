"""The Unsloth backend's calls to Unsloth, recorded by a stand-in; the real one is tested in tests/unsloth."""

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig, MistralConfig

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import RequestError, TrainingError
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.backends import unsloth
from lite_selfplay.models.backends.unsloth import UnslothBackend, refuse_windows
from tests.models.sampled import asked, completions, words

SEATS = {"A": SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1), "B": SeatConfig(rank=6, alpha=8)}
PROMPTS = [[10, 11, 12], [20]]
SHORT = asked("A", PROMPTS, max_tokens=3)


class FastLanguageModel:
    """Loads and wraps by transformers and PEFT, and records the calls and the model's mode."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.wrapped: dict[str, Any] = {}
        self.modes: list[Any] = []

    def from_pretrained(self, path: str, **options: Any) -> tuple[Any, None]:
        self.loaded = options
        place = "cuda" if torch.cuda.is_available() else "cpu"
        base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, device_map={"": place})
        base.max_seq_length = options["max_seq_length"]
        base.generation_config = GenerationConfig(temperature=0.1, top_k=1, do_sample=True, repetition_penalty=9.0)
        return base, None

    def get_peft_model(self, base: Any, **options: Any) -> Any:
        self.wrapped = options
        return get_peft_model(base, LoraConfig(**{key: options[key] for key in ("r", "lora_alpha", "target_modules")}))

    def for_inference(self, model: Any) -> None:
        self.modes.append("inference")
        model.eval()

    def for_training(self, model: Any, use_gradient_checkpointing: Any) -> None:
        self.modes.append(("training", use_gradient_checkpointing))
        model.train()


@pytest.fixture
def fake(monkeypatch):
    kind = FastLanguageModel()
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=kind))
    monkeypatch.setenv("UNSLOTH_COMPILE_LOCATION", "")
    graphs = SimpleNamespace(rl_generation=contextlib.nullcontext, release_for_training=lambda model: None)
    monkeypatch.setattr(unsloth, "decode_graphs", lambda: graphs)
    return kind


@pytest.fixture
def make(fake, tiny_path):
    def make(**section):
        chosen = ModelSection(name="tiny", **{"precision": "bf16", **section})
        return UnslothBackend(tiny_path, chosen, SEATS, seed=0, eos_ids=[2, *range(100, 130)])

    return make


FOUR_BITS = {"load_in_4bit": True, "load_in_16bit": False}
SIXTEEN = {"load_in_4bit": False, "load_in_16bit": True, "quantization_config": None, "local_files_only": True}


@pytest.mark.parametrize(
    ("section", "told", "dtype"),
    [
        ({"precision": "4bit", "compute_dtype": "bf16"}, FOUR_BITS, torch.bfloat16),
        ({"precision": "fp16", "gradient_checkpointing": True}, SIXTEEN, torch.float16),
    ],
)
def test_how_the_base_is_asked_for(fake, make, section, told, dtype):
    make(**section)
    assert {key: fake.loaded[key] for key in told} == told
    assert fake.loaded["dtype"] == dtype
    if held := fake.loaded["quantization_config"]:
        assert (held.bnb_4bit_quant_type, held.bnb_4bit_use_double_quant) == ("nf4", False)
        assert held.bnb_4bit_compute_dtype == dtype
    else:
        assert fake.loaded["use_gradient_checkpointing"] == fake.wrapped["use_gradient_checkpointing"] == "unsloth"


def test_seats_have_no_dropout_no_bias_and_ranks_of_their_own(fake, make):
    backend = make()
    assert (fake.wrapped["lora_dropout"], fake.wrapped["bias"], fake.wrapped["r"]) == (0.0, "none", 4)
    assert backend.adapters.ranks() == {"A": 4, "B": 6}
    assert set(backend.adapters.model.peft_config) == {"default", "seat-1"}
    assert fake.wrapped["use_gradient_checkpointing"] == ("unsloth" if backend.device.type == "cuda" else False)


def test_what_a_base_would_sample_with_by_itself_changes_nothing(make, make_backend):
    backend, plain = make(precision="fp32"), make_backend(seats=SEATS, eos_ids=[2, *range(100, 130)])
    for seat in ("A", "B", BASE):
        request = asked(seat, PROMPTS, temperature=0.8, max_tokens=12)
        assert words(completions(backend, request)) == words(completions(plain, request))


def test_it_samples_by_its_own_graphs_and_releases_them_for_an_update(make, monkeypatch):
    noted = []

    @contextlib.contextmanager
    def rl_generation():
        noted.append("in")
        yield
        noted.append("out")

    graphs = SimpleNamespace(rl_generation=rl_generation, release_for_training=noted.append)
    backend = make()
    monkeypatch.setattr(unsloth, "decode_graphs", lambda: graphs)
    backend.generate(SHORT)
    assert noted == ["in", "out"]
    with backend.updating():
        assert noted == ["in", "out", backend.adapters.model]


@pytest.mark.parametrize("training", [True, False])
def test_every_call_that_does_not_train_stands_in_its_inference_mode(fake, make, training):
    backend = make(gradient_checkpointing=True)
    backend.adapters.model.train(training)
    after = ["inference", ("training", "unsloth")] if training else ["inference"]
    backend.generate(SHORT)
    assert fake.modes == after
    backend.score("B", [([5, 6], [7])], 1.0)
    with pytest.raises(RuntimeError):
        backend.score("B", [([5, 6], [None])], 1.0)
    assert fake.modes == after * 3
    assert backend.adapters.model.training is training


def test_a_row_that_would_be_cut_is_an_error_that_says_what_to_lower(make):
    backend = make()
    backend._longest = 10
    backend.generate(asked("A", PROMPTS, max_tokens=7))
    with pytest.raises(TrainingError, match=r"up to 11 tokens.*holds 10: lower max_completion_tokens"):
        backend.generate(asked("A", PROMPTS, max_tokens=8))
    backend.score("A", [([5] * 6, [7] * 4)], 1.0)
    with pytest.raises(TrainingError, match="up to 11 tokens"):
        backend.score("A", [([5] * 6, [7] * 5)], 1.0)


def test_what_is_not_there_or_would_change_the_model_is_refused(make):
    with pytest.raises(TrainingError, match="has not replaced TRL's GRPOTrainer"):
        make().trainer_parent()
    with pytest.raises(RequestError, match="slides over 128 tokens: use --backend transformers"):
        refuse_windows(MistralConfig(sliding_window=128, layer_types=None))
    refuse_windows(MistralConfig(sliding_window=None))
