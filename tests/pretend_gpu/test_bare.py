"""The bare command on a GPU: a base that thinks at length, problems of a hub, and the automatic choices."""

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants

from lite_selfplay import load_run
from tests.pretend_gpu import pretend
from tests.thinker import build_thinker


@pytest.fixture
def a_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that serves GSM8K's two splits as rows."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *about: Any) -> None: ...

    def load_dataset(name: str, config: str, *, split: str, revision: str) -> datasets.Dataset:
        assert (name, config) == ("openai/gsm8k", "main")
        first = 0 if split == "train" else 500
        rows = [{"question": f"What is {n} less {n - 1 - n % 2}?", "answer": f"#### {1 + n % 2}"} for n in range(40)]
        return datasets.Dataset.from_list([{**row, "question": f"{first}: {row['question']}"} for row in rows])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("card", "preset"),
    [(pretend.T4, "t4"), pytest.param(pretend.RTX_4090, "consumer-24gb", marks=pytest.mark.long)],
)
def test_a_base_that_thinks_at_length(
    a_hub: None, tmp_path: Path, call: Callable[..., Any], card: pretend.Model, preset: str
):
    build_thinker(tmp_path / "thinker")
    few = ("--group-size", 4, "--max-completion-tokens", 24, "--eval-limit", 4, "--steps", 1)
    with pretend.card(card):
        ended = call("train", "grpo", "--model", "thinker", "--run-dir", "run", *few)
    assert ended.code == 0, ended.err
    run = load_run(tmp_path / "run")
    assert run.config.run.preset == preset
    assert (run.config.tasks.train, run.config.eval.tasks) == ("gsm8k", "gsm8k")
    assert run.config.model.thinking == "off"
    assert run.config.cold_start.enabled is False
    (row,) = run.metrics_rows()
    assert row["streams"]["solver"]["truncated"] < 0.2
    assert row["streams"]["solver"]["well_formed"] > 0.8
    assert "answers were cut off at 24 tokens; --set model.thinking=on changes that" in ended.out
    assert len(run.evaluations()) == 3
