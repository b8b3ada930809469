"""The benchmarks end to end on the random model: their structure and arithmetic, not their figures."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ("--model", "tiny", "--tasks", "letters", "--prompts", "2", "--group-size", "2", "--cap", "8", "--rounds", "1")


def ended(script: str, *options: str, timeout: float = 250) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(BENCHMARKS / script), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def run(script: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The results file and what was printed."""
    path = folder / "results.json"
    done = ended(script, *SMALL, "--threads", "1", "--json", str(path), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done.stdout


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def check_ratio(found: dict[str, float]) -> None:
    assert 0 < found["lowest"] <= found["median"] <= found["highest"] < math.inf


def check_memory(found: dict[str, int]) -> None:
    assert found["loaded"] > 0
    assert 0 < found["peak"] <= found["total_peak"]


@pytest.mark.long
def test_a_step_of_each_contender_and_where_its_time_went(tmp_path: Path) -> None:
    found, printed = run("step.py", tmp_path)
    contenders = found["contenders"]
    assert list(contenders) == ["lite-selfplay agon", "lite-selfplay grpo", "TRL grpo"]
    for side in contenders.values():
        assert side["tokens"] == [2 * 2 * 2 * 8], "as many completions for each, all of them as long as the cap"
        assert side["moved"]
        assert 0 < side["generate_s"][0] < side["seconds"][0]
        assert 0 < side["update_s"][0] < side["seconds"][0]
        check_memory(side["memory"])
    for name, ratios in found["ratios"].items():
        check_ratio(ratios["seconds"])
        taken, theirs = (contenders[each]["seconds"][0] for each in (name, "TRL grpo"))
        assert ratios["seconds"]["median"] == pytest.approx(taken / theirs)
        assert 0 < ratios["peak"] < math.inf
    for profile in found["profile"].values():
        parts, own = profile["parts"], profile["own_generating"] + profile["own_elsewhere"]
        seen = ("prompt reading", "generation forward", "sampling", "update forward", "update backward", "optimizer")
        assert all(parts[part] > 0 for part in seen)
        assert min(profile["own_generating"], profile["own_elsewhere"]) > 0
        assert sum(parts.values()) + own == pytest.approx(profile["seconds"])
        assert profile["own_share"] == pytest.approx(own / profile["seconds"])
    assert "a step of 2 x 4 completions of at most 8 tokens" in printed
    assert "| update backward " in printed


@pytest.mark.long
def test_a_step_on_a_card_or_without_one(tmp_path: Path) -> None:
    done = ended("gpu.py", *SMALL, "--threads", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    page, data = sorted((tmp_path / "out").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (page.suffix, data.suffix) == (".md", ".json")
    found, text = json.loads(data.read_text()), page.read_text()
    assert text.strip() in done.stdout
    run, missing = found["contenders"], found["cannot_run"]
    assert {"lite-selfplay, one seat", "lite-selfplay, two seats", "TRL"} <= set(run)
    on_unsloth = {"lite-selfplay on Unsloth, one seat", "lite-selfplay on Unsloth, two seats", "Unsloth"}
    assert set(missing) == on_unsloth - set(run)
    parts = ("seconds", "generating", "updating")
    for side in run.values():
        assert side["tokens"] == [2 * 2 * 2 * 8]
        assert (side["moved"], side["peak"] > 0) == (True, True)
        for key in parts:
            check_ratio(side[key])
    assert all(name.startswith("lite-selfplay") for name in found["ratios"])
    for name, other in ((name, other) for name, compared in found["ratios"].items() for other in compared):
        mine, theirs, ratios = run[name], run[other], found["ratios"][name][other]
        assert ratios["peak"] == mine["peak"] / theirs["peak"]
        for key in parts:
            assert ratios[key]["median"] == pytest.approx(mine[key]["median"] / theirs[key]["median"])
    assert all(math.isfinite(value) for value in numbers({**found, "machine": {}}))
    assert all(f"| {name} |" in text for name in run)
    assert all(f"Not run: {name}, since {why}" in text for name, why in missing.items())
    assert found["machine"]["versions"].keys() >= {"torch", "trl", "unsloth", "xformers"}


@pytest.mark.slow
@pytest.mark.long
def test_rollouts_of_both_contenders_their_growth_and_the_memory_of_a_seat(tmp_path: Path) -> None:
    found, printed = run("rollouts.py", tmp_path, "--growth", "--lengths", "long-tailed")
    (alone, *grown) = found["results"]
    assert alone["lengths"] == "long-tailed"
    for side in (alone["ours"], alone["trl"]):
        assert side["tokens"][0] == sum(side["lengths"]) <= 2 * 2 * 8
        assert side["speeds"] == [side["tokens"][0] / side["seconds"][0]]
        check_memory(side["memory"])
    check_ratio(alone["speed_ratio"])
    assert alone["speed_ratio"]["median"] == pytest.approx(alone["ours"]["speeds"][0] / alone["trl"]["speeds"][0])
    assert alone["peak_ratio"] == alone["ours"]["memory"]["peak"] / alone["trl"]["memory"]["peak"]
    sizes = [(r["sweep"], r["group_size"], r["cap"], r["prompt_tokens"][0]) for r in grown]
    natural = alone["prompt_tokens"][0]
    assert sizes == [
        *[("completion length", 2, cap, natural) for cap in (2, 4, 8)],
        *[("prompt length", 2, 8, length) for length in (64, 512)],
        *[("group size", size, 8, natural) for size in (1, 2, 4)],
    ]
    for result in grown:
        for side in (result["ours"], result["trl"]):
            assert side["tokens"] == [2 * result["group_size"] * result["cap"]]
    assert [result["seats"] for result in found["seats"]] == [1, 2, 4]
    for result in found["seats"][1:]:
        assert result["weights"] == result["gradients"] == sum(result["predicted"]) / 4
        assert 1 <= result["bytes_ratio"] <= 1.1
        assert result["resident_ratio"] > 0
    assert all(map(math.isfinite, numbers({**found, "machine": {}})))
    assert all(found["machine"]["versions"][name] in printed for name in ("torch", "trl", "bitsandbytes"))
    assert "each further seat" in printed


@pytest.mark.long
def test_a_long_run_is_measured_and_its_folder_stays_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    done = ended("soak.py", "--steps", "30", "--json", str(path))
    found = json.loads(path.read_text())
    assert len(found["memory"]) == len(found["seconds"]) == 30
    assert 0 < found["folder_largest"] <= found["folder_bound"]
    assert done.returncode == (found["slope_mib"] >= 0.1), done.stderr
    assert f"{found['slope_mib']:.3f}" in done.stdout


def test_the_slope_and_the_quarters_of_a_long_run(script: Callable[[str], Any]) -> None:
    soak = script("benchmarks/soak")
    assert soak.slope([5, 5, 5, 5]) == 0
    assert soak.slope([1, 3, 5, 7]) == pytest.approx(2)
    assert soak.slope([0, 9, 0, 9, 0, 9]) == pytest.approx(13.5 / 17.5)
    assert soak.quarters([9, 1, 2, 50, 60, 4, 8, 6]) == (5, 7)


def test_the_replacement_of_trls_kernel_on_a_cpu(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    stock = script("benchmarks/stock")
    monkeypatch.setattr(stock, "LOGITS_AT_ONCE", 2 * 11)  # pieces of two rows
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, generator=generator, requires_grad=True)
    weight, targets = torch.randn(11, 4, generator=generator), torch.tensor([0, 10, 3, 3, 7])
    logprobs, entropies, *others = stock.PlainHead.apply(
        hidden, weight, None, targets, 0.7, 32768, None, 1.0, ("log_probs", "entropy")
    )
    expected = torch.distributions.Categorical(logits=hidden @ weight.T / 0.7)
    torch.testing.assert_close(logprobs, expected.log_prob(targets))
    torch.testing.assert_close(entropies, expected.entropy())
    assert others == [None] * 3
    (gradient,) = torch.autograd.grad(logprobs.sum(), hidden)
    (plain,) = torch.autograd.grad(expected.log_prob(targets).sum(), hidden)
    torch.testing.assert_close(gradient, plain)


def test_a_quick_run_waits_for_nobody_beyond_its_time(tmp_path: Path, script: Callable[[str], Any]) -> None:
    gpu, harness = script("benchmarks/gpu"), script("benchmarks/harness")
    (tmp_path / "silent.py").write_text("import time; time.sleep(60)")
    setting = harness.Setting("tiny", "fp32", "auto", "uniform", "", "", "", 1, 1, 1, 1)
    contender = harness.Contender("silent", str(tmp_path / "silent.py"), "any", setting, until=time.monotonic() + 0.5)
    with pytest.raises(harness.BenchmarkError, match="silent had no answer when the time was used up"):
        contender.hear()
    contender.close()
    times = gpu.Times.of_a_quick_run()
    assert time.monotonic() < times.loaded < times.last_round < times.end < time.monotonic() + 600


def test_an_invalid_request_ends_with_a_message(tmp_path: Path) -> None:
    done = ended("rollouts.py", *SMALL, "--tasks", "lettres", timeout=60)
    assert done.returncode == 2
    assert "lettres" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_launches_are_counted_and_not_timed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = ended("launches.py", "--no-updates", "--json", str(path), timeout=600)
    assert done.returncode == 0, done.stderr
    counted = json.loads(path.read_text())["token"]
    ours, theirs = counted["ours, seat"], counted["transformers generate, seat"]
    assert ours[0] <= 1700 < theirs[0]
    assert ours[1] == 0 < theirs[1]
    assert "nothing here was timed" in done.stdout


@pytest.mark.long
def test_an_update_of_recorded_lengths_is_counted_by_part(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = ended("launches.py", "--parts", "--json", str(path), timeout=900)
    assert done.returncode == 0, done.stderr
    update, token = json.loads(path.read_text())["parts"].values()
    for found in (update, token):
        *parts, whole = found["parts"].values()
        assert whole == pytest.approx([sum(column) for column in zip(*parts, strict=True)])
    assert (update["waits"], token["waits"]) == (4, 0)
    assert update["parts"]["in all"][0] < 9_000
    assert update["parts"]["in all"][1] < 180e9  # 227e9 with attention in rectangles and each layer by itself
    weights = 2 * 494e6  # of which each is read once
    assert weights < token["parts"]["in all"][1] < 1.3 * weights


def test_the_weight_of_a_file_counts_statements_and_not_lines(script: Callable[[str], Any]) -> None:
    weigh = script("benchmarks/weight").weigh
    text = '"""About."""\n\nimport os\n\n\ndef f(x):\n    """Twice."""\n    return (\n        2 * x\n    )\n'
    # docstring, import, def, docstring, return: five, and two of them are neither an import nor a docstring
    assert weigh(text) == (5, 2, 10, 1)
    assert weigh("a = 1; b = 2\n") == (2, 2, 1, 1)
