"""`lite-selfplay eval`: what it prints where, how it ends, and what it leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_base_model_in_a_table(call: Callable[..., Any], tmp_path: Path):
    ended = call("eval", "tiny", "--tasks", "letters:named=6", "--limit", "5", "--precision", "fp32")
    assert ended.code == 0
    assert ended.out.split()[:5] == ["pass@1", "[95%]", "well-formed", "truncated", "tokens"]
    (row,) = [line.split() for line in ended.out.splitlines() if line.strip().startswith("base")]
    assert row[1].endswith("%")
    assert "5 problems of letters:named=6, 1 answer each; temperature 0.6, top-p 0.95, seed 0, at most 16" in ended.out
    assert "evaluation of tiny on letters:named=6" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_a_table_and_as_json(call: Callable[..., Any], run: Path):
    asked = ("eval", str(run), "--tasks", "letters:named=6", "--limit", "5")
    table = call(*asked)
    assert table.code == 0
    _, *rows = [line.split()[0] for line in table.out.splitlines() if line.startswith("  ") and line.strip()]
    assert rows == ["A", "B", "A->B", "B->A"]
    for told in ("conversions", "best direction: ", "mean of all: "):
        assert told in table.out
    ended = call(*asked, "--json")
    result, written = json.loads(ended.out), run / "eval" / "cascade-letters-named-6-5-2.json"
    assert json.loads(written.read_text()) == result
    assert f"written: {written}" in ended.err
    assert (result["mode"], set(result["directions"])) == ("cascade", {"A->B", "B->A"})


def test_seats_of_checkpoints_and_the_base_meet(call: Callable[..., Any], run: Path):
    asked = ("eval", str(run), "--tasks", "letters:named=6", "--limit", "3", "--seats")
    ended = call(*asked, "A@2, B,base")
    assert ended.code == 0, ended.err
    assert "A@2->base against A@2 " in ended.out
    assert len([line for line in ended.out.splitlines() if " against " in line]) == 6
    refused = call(*asked, "A@99,base")
    assert (refused.code, "unknown seat 'A@99'" in refused.err) == (2, True)


def test_several_tasks_and_modes_in_a_table_and_as_json(call: Callable[..., Any], tmp_path: Path):
    small = "--limit 3 --samples 2 --max-completion-tokens 6 --precision fp32".split()
    asked = ("eval", "tiny", "--tasks", "letters:named=6,of=12,stories", "--mode", "single,vote", *small)
    ended = call(*asked, "--k", "1,2", "--disagreements", "1")
    assert ended.code == 0
    assert ended.out.split()[:6] == ["benchmark", "mode", "pass@1", "[95%]", "pass@2", "maj@2"]
    rows = [line.split()[:2] for line in ended.out.splitlines() if line.startswith("  ") and " base " in line]
    found = json.loads(call(*asked, "--json").out)
    every = [[tasks, mode] for tasks in ("letters:named=6,of=12", "stories") for mode in ("single", "vote")]
    assert rows == [*every, ["mean", "of"], ["mean", "of"]]
    assert [[one["tasks"], one["mode"]] for one in found["evaluations"]] == every
    assert {one["target"] for one in found["evaluations"]} == {"tiny"}
    means = [(mean["mode"], mean["name"], mean["of"]) for mean in found["means"]]
    assert (means, found["comparisons"]) == ([("single", "base", 2), ("vote", "base", 2)], [])
    sampled = "3 problems of stories, 2 answers each; temperature 0.6, top-p 0.95, seed 0, at most 6 tokens"
    for told in (sampled, "stories: vote base against single base ", "they differ on "):
        assert told in ended.out
    assert list(tmp_path.iterdir()) == []


def test_a_run_against_another_model(call: Callable[..., Any], run: Path):
    asked = ("--tasks", "letters:named=6", "--mode", "single", "--limit", "4", "--json")
    ended = call("eval", str(run), *asked, "--against", "tiny", "--disagreements", "4")
    (comparison,) = json.loads(ended.out)["comparisons"]
    assert (comparison["second"], comparison["n"]) == ("tiny base", 4)
    assert comparison["p_value"] is not None
    assert len(comparison["disagreements"]) == len(comparison["differ"])
    assert all(case["first"]["texts"] and case["problem"] for case in comparison["disagreements"])


def test_every_flag_arrives(call: Callable[..., Any], tmp_path: Path):
    (tmp_path / "sums.jsonl").write_text("".join(f'{{"problem": "{i}?", "answer": "1"}}\n' for i in range(4)))
    flags = "--mode cascade --limit 3 --samples 2 --temperature 0.9 --top-p 0.8 --max-completion-tokens 7 --seed 4"
    ended = call("eval", "tiny", "-t", "sums", "--data-dir", ".", *flags.split(), "--precision", "fp32", "--json")
    result = json.loads(ended.out)
    wanted = {"mode": "cascade", "n": 3, "samples": 2, "temperature": 0.9, "top_p": 0.8, "seed": 4, "precision": "fp32"}
    wanted |= {"max_completion_tokens": 7, "tasks": "sums"}
    assert {key: result[key] for key in wanted} == wanted
    assert result["tokens_final_mean"] <= 7
    assert [path.name for path in tmp_path.iterdir()] == ["sums.jsonl"]
