"""The tokenizer that a GGUF file describes, with the special tokens of its metadata.

Byte-level vocabularies (`tokenizer.ggml.model` "gpt2": SmolLM2, Qwen, Llama 3) are built here from the file's tokens,
merges and splitting rule. transformers' reader splits all of them like GPT-2, so that numbers are cut differently than
in training, and knows only a few special tokens. For SentencePiece vocabularies its reader is used, but not its choice
of end-of-sequence token, which is the BOS.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.errors import ModelNotFoundError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# How text is split before merging, for rules other than GPT-2's. Qwen splits numbers into single digits, Llama 3 into
# groups of up to three; otherwise their patterns are the same.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN, _LLAMA3 = ("qwen2", "deepseek-r1-qwen"), ("llama-bpe", "llama3", "llama-v3")
_PATTERNS = {
    **dict.fromkeys(_QWEN, _WORDS.replace("DIGITS", "")),
    **dict.fromkeys(_LLAMA3, _WORDS.replace("DIGITS", "{1,3}")),
}
_GPT2_LIKE = ("default", "gpt-2", "gpt2")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
SPLITTING_RULES = ("qwen2", "llama-bpe", "smollm", "gpt-2")
"""A name of each rule."""


def token_id(metadata: Mapping[str, Any], role: str) -> int | None:
    """The id of `bos`, `eos`, `eot`, `eom`, `unknown` or `padding`; None if the file has none."""
    value = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return None if value is None else int(value)


def eos_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a generation, the file's EOS first; GGUF has separate keys for end of turn and end of message.

    Raises `ModelNotFoundError` if the file has none.
    """
    found = [token_id(metadata, role) for role in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(identity for identity in found if identity is not None))
    if not ids:
        raise ModelNotFoundError("this GGUF file names no end-of-sequence token: generation would never end.")
    return ids


def build_tokenizer(metadata: Mapping[str, Any], file: Path) -> Any:
    """A fast tokenizer with the file's vocabulary, special tokens and chat template (if it has one).

    Raises `ModelNotFoundError` if the vocabulary is missing or of an unknown kind, or if the chat template ends an
    assistant's turn with a token that is not an end of sequence: a cold start would teach the wrong end.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelNotFoundError(f"{file.name} holds no vocabulary.")
    backend = _byte_level(metadata, file) if metadata.get("tokenizer.ggml.model") == "gpt2" else _from_reader(file)
    _add_special_tokens(backend, metadata)
    _set_bos(backend, metadata)
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: token_id(metadata, role) for name, role in names.items()}
    ids["eos_token"] = eos_ids(metadata)[0]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **{name: tokens[identity] for name, identity in ids.items() if identity is not None},
    )
    tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    _check_end_of_turn(tokenizer, metadata, file)
    return tokenizer


def splitting(rule: str) -> Any:
    """What splits text by a rule before merging; None for an unknown one."""
    from tokenizers import Regex, pre_tokenizers

    split: Any
    if rule in _PATTERNS:
        by_pattern = pre_tokenizers.Split(Regex(_PATTERNS[rule]), behavior="isolated")
        split = [by_pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif rule in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        split = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    elif rule in _GPT2_LIKE:
        split = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        return None
    return pre_tokenizers.Sequence(split)


def ignores_merges(rule: str) -> bool:
    """Whether a piece that is a token stays whole under a rule, whatever the merges say."""
    return rule in _LLAMA3


def _byte_level(metadata: Mapping[str, Any], file: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    rule = metadata.get("tokenizer.ggml.pre", "default")
    split = splitting(rule)
    if split is None:
        raise ModelNotFoundError(
            f"{file.name} splits text by an unknown rule ({rule}): use the published safetensors folder."
        )
    vocabulary = {token: identity for identity, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    merges = [(left, right) for left, right in merges if left + right in vocabulary]  # others merge nothing
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignores_merges(rule)))
    if rule in _QWEN:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return backend


def _from_reader(file: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).backend_tokenizer
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelNotFoundError(f"transformers cannot read the vocabulary of {file.name}: {error}") from error


def _add_special_tokens(backend: Any, metadata: Mapping[str, Any]) -> None:
    """Register control tokens as special tokens, and user-defined ones (such as `<think>`) as tokens."""
    from tokenizers import AddedToken

    kinds = metadata.get("tokenizer.ggml.token_type", [])
    for identity, (token, kind) in enumerate(zip(metadata["tokenizer.ggml.tokens"], kinds, strict=False)):
        # A token that the backend spells differently would get a new id, beyond the model's embeddings.
        if backend.token_to_id(token) != identity:
            continue
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False, special=False)])


def _set_bos(backend: Any, metadata: Mapping[str, Any]) -> None:
    """Put BOS before plain text only if the file asks for it."""
    from tokenizers import processors

    bos = token_id(metadata, "bos")
    # llama.cpp's default if the key is missing: SentencePiece and Llama 3 start with BOS, others do not.
    default = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3
    wanted = metadata.get("tokenizer.ggml.add_bos_token", default)
    if not wanted or bos is None:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
        return
    token = metadata["tokenizer.ggml.tokens"][bos]
    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B:1"], special_tokens=[(token, bos)]
    )


def _check_end_of_turn(tokenizer: Any, metadata: Mapping[str, Any], file: Path) -> None:
    from lite_selfplay.models.chat import Chat

    ids = eos_ids(metadata)
    end = Chat(tokenizer, eos_ids=ids).end_of_turn
    if end is not None and end not in ids:
        names = [tokenizer.convert_ids_to_tokens(identity) for identity in ids]
        raise ModelNotFoundError(
            f"the chat template of {file.name} ends a turn with {tokenizer.convert_ids_to_tokens(end)!r}, but the file "
            f"names {' and '.join(map(repr, names))} as end of sequence: the model would learn the wrong end."
        )
