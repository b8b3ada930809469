"""The tokenizer in a GGUF file, with the special tokens of its metadata.

Byte-level vocabularies (`tokenizer.ggml.model` "gpt2": SmolLM2, Qwen, Llama 3) are built here from the file's tokens,
merges and splitting rule. SentencePiece vocabularies ("llama": Llama 2, Mistral, Gemma) have scores instead of merges;
the pair whose piece has the highest one is merged first, as in llama.cpp. transformers' own reader splits all of the
former like GPT-2, so that numbers are cut differently than in training, and reads the latter's scores as
log-probabilities. The result is checked against the file's own tokens and a text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.chat_template import Chat

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # values of tokenizer.ggml.token_type

# Splitting rules before merging, besides GPT-2's. Qwen splits numbers into single digits, Llama 3 into groups of up to
# three; otherwise their patterns are the same.
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
"""One name of each rule."""
_SPACE = "\u2581"  # what SentencePiece writes for a space
_FREQUENT, _MOST_CUT = 1000, 0.01  # tokens to check, and the share that may fail
_PROBE = "The quick brown fox: 3.14 x 12,345 = ?\n\n  naïve Émile, 你好 🙂\tend "


def special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the special tokens, under a config's names; None for absent ones.

    `eos_token_id` is a list if several end a generation: GGUF has separate keys for end of turn and end of message.
    Raises `ModelNotFoundError` if the file has none of these.
    """
    bos, pad, *ends = (
        metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("bos", "padding", "eos", "eot", "eom")
    )
    eos = list(dict.fromkeys(int(identity) for identity in ends if identity is not None))
    if not eos:
        raise ModelNotFoundError("this GGUF file names no end-of-sequence token: generation would never end.")
    return {"bos_token_id": bos, "eos_token_id": eos if len(eos) > 1 else eos[0], "pad_token_id": pad}


def build_tokenizer(metadata: Mapping[str, Any], file: Path) -> Any:
    """A fast tokenizer with the file's vocabulary, special tokens and chat template (if it has one).

    Raises `ModelNotFoundError` if the vocabulary is missing, of an unknown kind or not encoded as it should be, or if
    the chat template ends an assistant's turn with a token that is not an end of sequence: a cold start would teach the
    wrong end.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelNotFoundError(f"{file.name} holds no vocabulary.")
    if (model := metadata.get("tokenizer.ggml.model")) not in ("gpt2", "llama"):
        raise ModelNotFoundError(
            f"{file.name} has a vocabulary of the kind {model!r}, and only gpt2 and llama are known: use the published "
            "safetensors folder."
        )
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    backend = _byte_level(metadata, file) if model == "gpt2" else _sentencepiece(metadata, kinds, file)
    for identity, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        # A token that the backend spells differently would get a new id, beyond the model's embeddings.
        if kind in (_CONTROL, _USER_DEFINED) and backend.token_to_id(token) == identity:
            add = backend.add_special_tokens if kind == _CONTROL else backend.add_tokens
            add([AddedToken(token, normalized=False, special=kind == _CONTROL)])
    _require_sound(backend, tokens, kinds, file)
    special = special_ids(metadata)
    ends = special["eos_token_id"] if isinstance(special["eos_token_id"], list) else [special["eos_token_id"]]
    ids = {
        "bos_token": special["bos_token_id"],
        "eos_token": ends[0],
        "pad_token": special["pad_token_id"],
        "unk_token": metadata.get("tokenizer.ggml.unknown_token_id"),
    }
    named = {name: tokens[identity] for name, identity in ids.items() if identity is not None}
    # llama.cpp's default if the key is missing: SentencePiece and Llama 3 start with BOS, others do not.
    default = model == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    if metadata.get("tokenizer.ggml.add_bos_token", default) and "bos_token" in named:
        bos = named["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B:1"], special_tokens=[(bos, ids["bos_token"])]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side="left", clean_up_tokenization_spaces=False, **named
    )
    tokenizer.chat_template = metadata.get("tokenizer.chat_template")
    end = Chat(tokenizer, eos_ids=ends).end_of_turn
    if end is not None and end not in ends:
        raise ModelNotFoundError(
            f"the chat template of {file.name} ends a turn with {tokenizer.convert_ids_to_tokens(end)!r}, but the file "
            f"names {' and '.join(map(repr, tokenizer.convert_ids_to_tokens(ends)))} as end of sequence: the model "
            "would learn the wrong end."
        )
    return tokenizer


def splitting(rule: str) -> Any:
    """The pre-tokenizer of a splitting rule; None for an unknown one."""
    first: list[Any] = []
    if rule in _PATTERNS:
        first = [pre_tokenizers.Split(Regex(_PATTERNS[rule]), behavior="isolated")]
    elif rule in _SINGLE_DIGITS:
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif rule not in _GPT2_LIKE:
        return None
    return pre_tokenizers.Sequence(
        [*first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule not in _PATTERNS)]
    )


def ignores_merges(rule: str) -> bool:
    """Whether a splitting rule keeps a piece whole if it is a token, without applying merges."""
    return rule in _LLAMA3


def _byte_level(metadata: Mapping[str, Any], file: Path) -> Any:
    rule = metadata.get("tokenizer.ggml.pre", "default")
    split = splitting(rule)
    if split is None:
        raise ModelNotFoundError(
            f"{file.name} splits text by an unknown rule ({rule}): use the published safetensors folder."
        )
    vocabulary = {token: identity for identity, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    pairs = (merge.split(" ", 1) for merge in metadata.get("tokenizer.ggml.merges", []))
    merges = [(left, right) for left, right in pairs if left + right in vocabulary]  # others merge nothing
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignores_merges(rule)))
    if rule in _QWEN:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], kinds: Sequence[int], file: Path) -> Any:
    """A backend that merges characters by the pieces' scores, highest first; unknown characters become bytes.
    https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp (llm_tokenizer_spm)"""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens) or any(score % 1 for score in scores):
        raise ModelNotFoundError(
            f"the scores of {file.name} are not ranks of merges, so that its SentencePiece vocabulary is not one of "
            "byte pairs: use the published safetensors folder."
        )
    rows = zip(tokens, scores, kinds, strict=True)
    pieces = {token: score for token, score, kind in rows if kind not in (_UNKNOWN, _CONTROL, _BYTE)}
    # If scores are equal the longer pair comes first, as in transformers' conversion.
    ranked = sorted(
        (-score, -at, at - len(piece), piece[:at], piece[at:])
        for piece, score in pieces.items()
        for at in range(1, len(piece))
        if piece[:at] in pieces and piece[at:] in pieces
    )
    backend = Tokenizer(
        models.BPE(
            vocab={token: identity for identity, token in enumerate(tokens)},
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # A space before a text, and before what follows a special token.
    begins = metadata.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(_SPACE)] if begins else []), normalizers.Replace(" ", _SPACE)]
    )
    read = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*read, *([decoders.Strip(" ", 1, 0)] if begins else [])])
    return backend


def _require_sound(backend: Any, tokens: Sequence[str], kinds: Sequence[int], file: Path) -> None:
    """Raises `ModelNotFoundError` if the most frequent ordinary tokens are cut into others, or if a text does not
    survive encoding and decoding."""
    frequent = [identity for identity, kind in enumerate(kinds) if kind == _NORMAL][:_FREQUENT]
    cut = [
        tokens[identity]
        for identity in frequent
        if [piece.id for piece in backend.model.tokenize(tokens[identity])] != [identity]
    ]
    back = backend.decode(backend.encode(_PROBE, add_special_tokens=False).ids, skip_special_tokens=False)
    why = f"does not reproduce a text: {_PROBE!r} becomes {back!r}" if back != _PROBE else ""
    if len(cut) > _MOST_CUT * len(frequent):
        such = ", ".join(map(repr, cut[:3]))
        why = f"cuts {len(cut)} of its {len(frequent)} most frequent tokens into others, such as {such}"
    if why:
        raise ModelNotFoundError(f"the vocabulary of {file.name} {why}: use the published safetensors folder.")
