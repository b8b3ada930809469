"""Finding the program in a completion."""

import ast
import re
import textwrap
import warnings

from lite_selfplay.verify.format import answer_spans, split_reasoning

# A fenced block: it ends at a fence of the same characters that is at least as long, or with the text.
_BLOCK = re.compile(
    r"^[ \t]*(?P<fence>(?P<mark>[`~])(?P=mark){2,})[ \t]*(?P<language>[\w+#.-]*)[^\n`]*\n"
    r"(?P<content>(?s:.*?))(?:^[ \t]*(?P=fence)(?P=mark)*[ \t]*$|\Z)",
    re.MULTILINE,
)
_TAG = re.compile(r"</?answer>")
_LANGUAGES = frozenset(("", "py", "python", "python3", "py3", "code"))
# The most characters of a program and of a line; longer ones are not parsed.
_LONGEST, _LONGEST_LINE = 50_000, 5000


def extract_program(text: str, *, block_only: bool = False, asked: re.Pattern[str] | None = None) -> str | None:
    """The program that follows the reasoning of a completion, or None.

    In this order: an `<answer>` block that is a program; a fenced block in Python or without a language (an unclosed
    one runs to the end): the last that matches `asked`, since usage and output may follow a program, else the last that
    is a program, else the last; the whole reply, if it is a program; the content of the last `<answer>` block. With
    `block_only`, only the content of a closed `<answer>` block counts. The result need not be valid Python: half a
    program is a program with an error.
    """
    rest = split_reasoning(text).rest
    blocks = [span.content for span in answer_spans(rest) if span.closed or not block_only]
    answer = next(filter(str.strip, reversed(blocks)), "").strip("\n")
    found = answer if is_program(answer) else _fenced(answer if block_only else rest, asked)
    if found is None:
        found = rest if not block_only and is_program(rest) else answer
    return found.strip("\n").rstrip() if found.strip() and len(found) <= _LONGEST else None


def is_program(text: str) -> bool:
    """Whether a text is Python with a statement or a call: a word or a number alone is not a program. It is only
    parsed, since compiling can crash the interpreter."""
    if len(text) > _LONGEST or max(map(len, text.splitlines()), default=0) > _LONGEST_LINE:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # about doubtful literals in the model's code
            tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(each, ast.Expr) or isinstance(each.value, ast.Call) for each in tree.body)


def with_stub(stub: str, program: str) -> str:
    """A program after the stub that it completes or repeats. An indented body continues the stub; a whole function
    redefines it. A program that is indented as a whole, as in a list, is dedented."""
    if stub and program[:1].isspace():
        return stub.rstrip("\n") + "\n" + program
    program = textwrap.dedent(program)
    return f"{stub.rstrip()}\n\n\n{program}" if stub else program


def _fenced(text: str, asked: re.Pattern[str] | None) -> str | None:
    """The content of the fenced block with the program; an unclosed fence counts."""
    blocks = [
        each["content"].strip("\n")
        for each in _BLOCK.finditer(_TAG.sub("\n", text))  # a fence may be on a tag's line
        if each["language"].lower() in _LANGUAGES and each["content"].strip()
    ][::-1]
    having = (block for block in blocks if asked and asked.search(block))
    return next(having, None) or next(filter(is_program, blocks), blocks[0] if blocks else None)
