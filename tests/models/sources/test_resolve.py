"""Names of models: what each means, in which order they are tried, and the messages for unknown ones."""

import json

import pytest

from lite_selfplay.errors import ModelNotFoundError, UnknownNameError
from lite_selfplay.models import sources
from lite_selfplay.models.sources import folders, known_models, resolve
from lite_selfplay.models.sources.tiny import build_tiny


def test_a_folder(tmp_path, monkeypatch):
    build_tiny(tmp_path / "mine")
    by_path = resolve(str(tmp_path / "mine"))
    assert by_path.path == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    by_name = resolve("mine")
    assert by_name.path == tmp_path / "mine"
    assert by_name.identity == by_path.identity


def test_the_identity_follows_the_content(tmp_path):
    build_tiny(tmp_path)
    first = folders.fingerprint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_version": "99"}))
    assert folders.fingerprint(tmp_path) == first
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert folders.fingerprint(tmp_path) != first


def test_folders_that_are_no_models(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"lacks config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"give .*some\.gguf itself"):
        resolve(str(tmp_path))
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ModelNotFoundError, match="give the base model here"):
        resolve(str(tmp_path))
    build_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="lacks weights"):
        resolve(str(tmp_path))


def test_a_stray_folder_hides_no_model(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny").path.parent == own_cache
    build_tiny(tmp_path / "tiny", template=None)
    assert resolve("tiny").path == tmp_path / "tiny"


@pytest.mark.parametrize("name", ["./nowhere", "/no/where/at/all", "../x", "~/no-such-folder", "a/b/c"])
def test_paths_that_do_not_exist(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ModelNotFoundError, match="no model folder at"):
        resolve(name)


def test_a_gguf_file_that_does_not_exist():
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf file at"):
        resolve("models/none.gguf")


def test_unknown_names_come_with_near_ones():
    with pytest.raises(UnknownNameError, match=r"did you mean .*Qwen3-0\.6B"):
        resolve("Qwen3-0.6")
    with pytest.raises(UnknownNameError, match="owner/name"):
        resolve("zzz")
    with pytest.raises(UnknownNameError):
        resolve("")


def test_short_names_in_any_case():
    assert sources.hub_id("QWEN3-1.7b") == "Qwen/Qwen3-1.7B"
    assert sources.hub_id("Qwen3-4B-Base") == "Qwen/Qwen3-4B-Base"
    assert sources.hub_id("qwen2.5-math-1.5b") == "Qwen/Qwen2.5-Math-1.5B"
    assert sources.hub_id("llama-3.2-1b-instruct") == "meta-llama/Llama-3.2-1B-Instruct"
    assert sources.hub_id("Gemma-3-1B-it") == "google/gemma-3-1b-it"
    assert sources.hub_id("SmolLM2-135M-Instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert sources.hub_id("anyone/Anything") == "anyone/Anything"
    assert sources.hub_id("tiny") is None
    assert sources.hub_id("smollm2-135m") is None


def test_the_list_of_models():
    models = known_models()
    names = [info.name.lower() for info in models]
    assert names[:3] == ["tiny", "sums-1m", "smollm2-135m"]
    assert len(set(names)) == len(names)
    assert all(info.source and info.licence and info.size for info in models)
    assert not models[0].needs_network


CARD = "---\nlicense: mit\n{}\n---\n\n# A model\n\nA merge of two, made with lite-selfplay.\n"


@pytest.mark.parametrize(
    ("card", "dtype", "saved"),
    [
        (CARD.format("tags:\n- lite-selfplay\n- agon"), "bfloat16", "bf16"),
        (CARD.format("tags: [mergekit, merge]"), "float16", "fp16"),
        (CARD.format("base_model: a/b\nbase_model_relation: merge"), "float32", "fp32"),
        (CARD.format("tags:\r\n- 'merge'"), None, "bf16"),
        (CARD.format("tags: [unclosed\n- lite-selfplay"), "bfloat16", "bf16"),
        (CARD.format("base_model: Qwen/Qwen3-0.6B\nbase_model_relation: finetune"), "bfloat16", None),
        (CARD.format("tags:\n- merged-reads"), "bfloat16", None),
        ("# merge\n\nlite-selfplay\n---\n", "bfloat16", None),
        ("", "bfloat16", None),
        (None, "bfloat16", None),
    ],
)
def test_a_card_that_says_that_a_model_was_merged(tmp_path, monkeypatch, card, dtype, saved):
    build_tiny(tmp_path / "mine")
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    (tmp_path / "mine" / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    (tmp_path / "mine" / "file.gguf").touch()
    if card is not None:
        (tmp_path / "mine" / "README.md").write_bytes(card.encode() + b"\xff")
    monkeypatch.chdir(tmp_path / "mine")
    expected = {"model.precision": saved} if saved else {}
    for name in (".", str(tmp_path / "mine"), "../mine/", "file.gguf"):
        assert sources.suggested(name) == expected
    (tmp_path / "mine" / "smollm2-135m").mkdir()
    for name in (
        "Qwen3-0.6B",
        "somebody/else",
        "tiny.json",
        "smollm2-135m",
    ):  # whatever lies where the command is given
        assert sources.suggested(name) == {}
