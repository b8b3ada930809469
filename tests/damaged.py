"""What stands in files that are damaged, of another kind or meant to do harm: one list for all who read such files."""

TRAIN = "game: agon\nmodel: tiny\ntasks: letters\n"
NO_YAML: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "must hold a mapping of keys, not a NoneType"),
    "a list": ("- game\n- model", "must hold a mapping of keys, not a list"),
    "a text": ("agon", "must hold a mapping of keys, not a str"),
    "a bracket left open": ("game: agon\nmodel: [tiny\n", "line 3: not YAML"),
    "two colons": ("game: agon\nmodel: b: c", "line 2: not YAML .mapping values"),
    "a list in a mapping": ("game: agon\n- a\n", "line 2: not YAML"),
    "two documents": ("game: agon\n---\ngame: grpo\n", "line 2: not YAML"),
    "code": (
        "game: !!python/object/apply:os.system ['touch touched']\n",
        "line 1: not YAML .could not determine a con",
    ),
    "no number": ("a: !!int ''", "not YAML"),
    "a number of five thousand digits": (f"{TRAIN}steps: {'9' * 5000}\n", "not YAML"),
    "a date that does not exist": ("steps: 2024-99-99", "not YAML .month must be in"),
    "a control character": ("game: ag\x07on\n", "not YAML .unacceptable character"),
    "bytes": (b"\xff\xfe\x00\x01" * 100, "not UTF-8"),
    "a byte": (b"game: \xff", "not UTF-8"),
    "a list for a key": ("{[1]: 2}", "not YAML"),
    "a mapping for a key": ("? {a: 1}\n: 2\n", "not YAML"),
    "itself": ("run: &a {steps: *a}\n", "nested too deeply"),
    "twenty thousand brackets": (f"a: {'[' * 20_000}", "nested too deeply"),
    "a billion laughs": (
        "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]),
        "too many values",
    ),
    "a megabyte": (f"a: {'x' * 2**20}", "longer than 1 MB"),
}
"""What is no configuration file, and why not."""
WRONG_YAML: dict[str, tuple[str, str]] = {
    "a number for a key": ("{1: 2}\n", "the keys of a configuration are names, got 1"),
    "a truth for a key": ("on: 1", "the keys of a configuration are names, got True"),
    "an unknown key": (f"{TRAIN}run: {{stepps: 3}}\n", "unknown key 'run.stepps': did you mean run.steps"),
    "a section that is a text": (f"{TRAIN}cold_start: evil.py:G\n", "cold_start: "),
    "a section that is a list": (f"{TRAIN}run: [3]\n", "run: input should be a valid dictionary"),
    "numbers for names": ("game: 3\nmodel: 4\n", "game: input should be a valid dictionary .* got 3; model: input"),
}
"""Configuration files with wrong keys and values, and why they are refused."""
CONFIGS: dict[str, str | bytes] = {name: content for name, (content, _) in [*NO_YAML.items(), *WRONG_YAML.items()]}
WORST = (
    "nothing",
    "a bracket left open",
    "code",
    "bytes",
    "twenty thousand brackets",
    "a billion laughs",
    "a megabyte",
)
"""Of them, those that every command is given as the configuration of a run."""

NO_JSON: dict[str, bytes] = {
    "a list": b"[1]",
    "half an object": b'{"problem": ',
    "bytes": b'{"step": "\xff\xfe"}',
    "NUL bytes": b'{"step": 3}\0',
    "NaN": b'{"step": 3, "x": NaN}',
    "a number past all bounds": b'{"step": 1e999}',
    "a number of ten thousand digits": b'{"step": ' + b"9" * 10_000 + b"}",
    "half a surrogate pair": b'{"step": 3, "x": "\\ud800"}',
    "a hundred thousand brackets": b'{"step": 3, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}
"""What is no object in JSON, as a whole file or as a line of one."""
