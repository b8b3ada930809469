"""Names of models: their meanings, the order in which they are tried, and the messages for unknown ones."""

import json
import re

import pytest

from lite_selfplay.errors import ModelNotFoundError, UnknownNameError
from lite_selfplay.models import sources
from lite_selfplay.models.sources import known_models, resolve
from lite_selfplay.models.sources.folders import difference
from lite_selfplay.models.sources.tiny import build_tiny
from tests.models.small import change


def test_a_folder_and_that_its_identity_follows_its_content(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    build_tiny(folder)
    monkeypatch.chdir(tmp_path)
    by_path, by_name = resolve(str(folder)), resolve("mine")
    assert by_path.path == by_name.path == folder
    assert by_name.identity == by_path.identity
    change(folder / "config.json", transformers_version="99")
    assert resolve("mine").identity == by_path.identity
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert resolve("mine").identity != by_path.identity


CHANGED = {
    "generation_config.json": ({"eos_token_id": [7, 2]}, " (eos_token_id is [7, 2] now, and was [258])"),
    "tokenizer_config.json": ({"eos_token": "<s>"}, ' (eos_token is "<s>" now, and was "</s>")'),
    "special_tokens_map.json": ({"eos_token": "<s>"}, ""),
    "chat_template.jinja": ({}, r' (chat_template is "SHA-256 ????????" now, and was "SHA-256 ????????")'),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_file_that_changes_what_is_computed_is_named_with_both_values(tmp_path, name):
    build_tiny(tmp_path)
    before = resolve(str(tmp_path)).identity
    change(tmp_path / "generation_config.json", transformers_version="99")
    (tmp_path / "README.md").write_text("more")
    assert resolve(str(tmp_path)).identity == before
    file, (values, words) = tmp_path / name, CHANGED[name]
    if name.endswith("jinja"):
        file.write_text(file.read_text() + " ")
    else:
        file.write_text(json.dumps({**json.loads(file.read_text() if file.exists() else "{}"), **values}))
    found = difference(before, resolve(str(tmp_path)).identity)
    assert re.sub(r"(?<=SHA-256 )\w{8}", "????????", found) == f"{name} in its folder changed since{words}: restore it"


def test_an_older_identity_differs_as_a_whole(tmp_path):
    build_tiny(tmp_path)
    now = resolve(str(tmp_path)).identity
    assert difference("folder:12", now) == f"it is {now!r} now, and was 'folder:12'"


def test_folders_that_are_no_models(tmp_path):
    for then, why in (
        (lambda: None, r"lacks config\.json"),
        ((tmp_path / "some.gguf").touch, r"name .*some\.gguf itself"),
        ((tmp_path / "adapter_config.json").touch, "name the base model here"),
        (lambda: (build_tiny(tmp_path), (tmp_path / "model.safetensors").unlink()), "lacks weights"),
    ):
        then()
        with pytest.raises(ModelNotFoundError, match=why):
            resolve(str(tmp_path))


def test_a_stray_folder_hides_no_model(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny").path.parent == own_cache
    build_tiny(tmp_path / "tiny")
    assert resolve("tiny").path == tmp_path / "tiny"


NO_FOLDER = (ModelNotFoundError, "no model folder at")


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        *((path, NO_FOLDER) for path in ("./nowhere", "/no/where/at/all", "../x", "~/no-such-folder", "a/b/c")),
        ("models/none.gguf", (ModelNotFoundError, r"no \.gguf file at")),
        ("Qwen3-0.6", (UnknownNameError, r"did you mean .*Qwen3-0\.6B")),
        ("zzz", (UnknownNameError, "owner/name")),
        ("", (UnknownNameError, None)),
    ],
)
def test_paths_that_do_not_exist_and_unknown_names(name, refusal, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    kind, why = refusal
    with pytest.raises(kind, match=why):
        resolve(name)


def test_short_names_in_any_case():
    for short, whole in (
        ("QWEN3-1.7b", "Qwen/Qwen3-1.7B"),
        ("Qwen3-4B-Base", "Qwen/Qwen3-4B-Base"),
        ("qwen2.5-math-1.5b", "Qwen/Qwen2.5-Math-1.5B"),
        ("llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        ("Gemma-3-1B-it", "google/gemma-3-1b-it"),
        ("SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("anyone/Anything", "anyone/Anything"),
        *(("tiny", None), ("smollm2-135m", None)),
    ):
        assert sources.hub_id(short) == whole


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
def test_a_model_card_says_whether_it_was_merged(tmp_path, monkeypatch, card, dtype, saved):
    mine = tmp_path / "mine"
    build_tiny(mine)
    change(mine / "config.json", dtype=dtype)
    (mine / "file.gguf").touch()
    if card is not None:
        (mine / "README.md").write_bytes(card.encode() + b"\xff")
    monkeypatch.chdir(mine)
    expected = {"model.precision": saved} if saved else {}
    assert all(sources.suggested(name) == expected for name in (".", str(mine), "../mine/", "file.gguf"))
    (mine / "smollm2-135m").mkdir()
    # Whatever lies where the command is given.
    others = ("Qwen3-0.6B", "somebody/else", "tiny.json", "smollm2-135m")
    assert all(sources.suggested(name) == {} for name in others)
