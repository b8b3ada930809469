"""The field's words in prose: the private ones that this project once had are counted, and must not come back.

Counted are docstrings, comments, messages (strings with a space) and private names of the package, and the prose of the
pages; not code, keys, flags, file names and public names.
"""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ("lite_selfplay/**/*.py", "cli/**/*.py")
PAGES = ("README.md", "docs/*.md")
CACHES = ("lite_selfplay/models/**/*.py", "lite_selfplay/training/**/*.py")
CODE = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+", re.DOTALL)
WORDS = {  # at most so many in the package and in the pages
    "(?<!model )cards?": (15, 0),  # a GPU; a card of a run or of a game of cards remains
    "arenas?": (0, 0),  # a KV-cache pool
    "look(s|ed|ing)? at the base": (0, 0),  # a probe
    "speak(s|ing|ers?)?|spoken?": (12, 0),  # to sample; the speakers of a chat remain
    "held to": (0, 0),  # compared with
    "(?-i:what) (is|was|are|were)": (20, 10),  # a noun says it
}
LIMITS = [
    (files, word, most) for word, both in WORDS.items() for files, most in zip((PACKAGE, PAGES), both, strict=True)
]
LIMITS.append((CACHES, "(?<!in[ -])(?<!take )(?<!takes )places?", 8))  # a slot


@functools.cache
def prose(path: Path) -> list[tuple[int, str]]:
    """The lines and texts of a page, or of a module's docstrings, comments, messages and private names."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [(1, CODE.sub(" ` ", source))]
    texts, names = list[tuple[int, str]](), dict[str, int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append((token.start[0], token.string))
        elif token.type == tokenize.NAME and re.match("_[A-Za-z]", token.string):
            names.setdefault(token.string, token.start[0])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            texts.append((node.lineno, node.value))
    texts += [(line, re.sub("(?<=[a-z])(?=[A-Z])|_", " ", name)) for name, line in names.items()]
    return [(line, CODE.sub(" ` ", text)) for line, text in texts]


def hits(path: Path, word: str) -> list[str]:
    """Where a word stands in the prose of a file, with some text around it."""
    found = [(line, text, m) for line, text in prose(path) for m in re.finditer(rf"(?i)\b({word})\b", text)]
    return [
        f"{path}:{line}: {' '.join(text[max(0, m.start() - 40) : m.end() + 40].split())}" for line, text, m in found
    ]


def test_words_are_found_in_prose_and_private_names_alone(tmp_path: Path):
    module, page = tmp_path / "a.py", tmp_path / "a.md"
    lines = [
        '"""A card, not `card`."""',
        "def _on_card(card):",
        '    log("a full CARD", "card")  # card',
        "    _on_card(1)",
    ]
    module.write_text("\n".join(lines))
    assert sorted(int(hit.split(":")[1]) for hit in hits(module, "cards?")) == [1, 2, 3, 3]
    page.write_text("A card,\n```\ncard\n```\n`card` and [cards](card.md), discarded")
    assert len(hits(page, "cards?")) == 2


@pytest.mark.parametrize(("files", "word", "most"), LIMITS)
def test_private_words_stay_rare(files: tuple[str, ...], word: str, most: int):
    paths = [path for pattern in files for path in sorted(ROOT.glob(pattern))]
    found = [hit for path in paths for hit in hits(path, word)]
    assert len(paths) > 20
    assert len(found) <= most, "\n".join([f"{len(found)} times:", *found])
