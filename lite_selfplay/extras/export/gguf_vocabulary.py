"""A tokenizer as the metadata of a GGUF file: the counterpart of `lite_selfplay.models.sources.gguf_tokenizer`.

llama.cpp knows rules of splitting text by name. Which one a tokenizer follows is found as llama.cpp's own converter
finds it: by splitting texts and comparing.
"""

import json
from collections.abc import Sequence
from typing import Any

from lite_selfplay.errors import RequestError
from lite_selfplay.models.sources.gguf_tokenizer import SPLITTING_RULES, ignores_merges, splitting

_PROBES = (
    "Hello  World, it's 12345 and 3.14!\n\n\n \t I'LL be1st  (x_1+y_2)=z;\r\n\r\n  end ",
    "naïve Émile – 你好，世界 १२३ ³ ½ 🙂🙂  'tis  don't\u00a0we’ve\u200b …",
    "1 22 333 4444 55555 a1b22c333 -7.5% $9 1,000,000",
)


def add_vocabulary(writer: Any, tokenizer: Any, *, rows: int, eos_ids: Sequence[int]) -> None:
    """Add tokens, merges, special tokens and chat template to a `GGUFWriter`; `rows` are those of the embedding.

    Raises RequestError for a vocabulary that is not byte-level BPE with a rule of splitting that llama.cpp names.
    """
    from gguf import TokenType

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    by_bytes = all('"ByteLevel"' in json.dumps(described[part]) for part in ("pre_tokenizer", "decoder"))
    if described["model"]["type"] != "BPE" or not by_bytes:
        raise RequestError(
            f"the GGUF writer here knows byte-level BPE vocabularies, not this {described['model']['type']} one: "
            "export --to merged and use llama.cpp's convert_hf_to_gguf.py on that folder"
        )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["model"]["merges"]]
    ids = {identity: token for token, identity in tokenizer.get_vocab().items()}
    added = {identity: token.special for identity, token in tokenizer.added_tokens_decoder.items()}
    tokens, types = [], []
    for identity in range(max(rows, max(ids) + 1)):
        tokens.append(ids.get(identity, f"[PAD{identity}]"))
        if identity not in ids:
            types.append(TokenType.UNUSED)
        elif identity in added:
            types.append(TokenType.CONTROL if added[identity] else TokenType.USER_DEFINED)
        else:
            types.append(TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule_of(tokenizer, merges, described))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # The format has no empty lists, and llama.cpp no BPE without merges: this one joins two tokens that no text holds.
    writer.add_token_merges(merges or [f"{tokens[eos_ids[0]]} {tokens[eos_ids[0]]}"])
    _add_special(writer, tokenizer, eos_ids)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def rule_of(tokenizer: Any, merges: Sequence[str], described: Any) -> str:
    """The name of the rule by which a tokenizer splits text. Raises RequestError where none of them splits alike."""
    if not merges:
        return "gpt-2"  # every byte is a token, however text is split
    own = tokenizer.backend_tokenizer.pre_tokenizer
    ignores = bool(described["model"].get("ignore_merges"))
    for rule in SPLITTING_RULES:
        known = splitting(rule)
        if ignores == ignores_merges(rule) and all(
            own.pre_tokenize_str(text) == known.pre_tokenize_str(text) for text in _PROBES
        ):
            return rule
    raise RequestError(
        f"this tokenizer splits text by a rule that the GGUF writer here does not know (known: "
        f"{', '.join(SPLITTING_RULES)}): export --to merged and use llama.cpp's convert_hf_to_gguf.py on that folder"
    )


def _add_special(writer: Any, tokenizer: Any, eos_ids: Sequence[int]) -> None:
    """The ids of the special tokens: the end of a turn first, since a generation is to end there."""
    bos, ends = tokenizer.bos_token_id, (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    others = {writer.add_bos_token_id: bos, writer.add_unk_token_id: tokenizer.unk_token_id}
    others |= {writer.add_pad_token_id: tokenizer.pad_token_id, **dict(zip(ends, eos_ids, strict=False))}
    for add, identity in others.items():
        if identity is not None:
            add(identity)
    writer.add_add_bos_token(bos is not None and tokenizer("probe")["input_ids"][:1] == [bos])
    writer.add_add_space_prefix(False)
