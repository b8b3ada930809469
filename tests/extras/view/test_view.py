"""What the page is told: the index of episodes, cases, answers, the server's refusals, the file to take away."""

import contextlib
import http.client
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError
from lite_selfplay.extras.view import answers
from lite_selfplay.extras.view.answers import EpisodeIndex, ViewedRun, answer, find, read_row
from lite_selfplay.extras.view.page import HOST, PAGE, Handler, RunServer, bundle, page_file, write_bundle
from lite_selfplay.runs.folder import RunFolder

from .conftest import LONE, SCRIPT, append, episode, pair


def cases(run: Path, **about: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = find(ViewedRun(run), {key: str(value) for key, value in about.items()})["cases"]
    return found


# The index


def test_the_index_knows_the_lines_of_each_step(run: Path):
    index = EpisodeIndex(run / "episodes.jsonl")
    assert index.steps() == {1: 2, 2: 2, 3: 2, 4: 2}
    (_, draft), (number, reply) = index.of_step(3)
    assert [json.loads(line)["text"] for line in (draft, reply)] == ["a draft at step 2", "a reply at step 2"]
    assert (index.line(number), index.line(10**9), index.of_step(9)) == (reply, b"", [])


def test_the_index_goes_on_where_it_was_and_waits_for_whole_lines(run: Path):
    index, file = EpisodeIndex(run / "episodes.jsonl"), run / "episodes.jsonl"
    assert len(index.steps()) == 4
    line = json.dumps(episode(4, "drafter", True, "late")).encode() + b"\n"
    with file.open("ab") as opened:
        opened.write(line[:20])
        opened.flush()
        assert len(index.steps()) == 4
        opened.write(line[20:])
    assert index.steps()[5] == 1
    RunFolder(run).cut(2)  # what a resume does
    assert index.steps() == {1: 2, 2: 2}
    file.unlink()
    assert index.steps() == {}


def test_the_index_passes_over_what_is_no_completion(run: Path, monkeypatch: pytest.MonkeyPatch):
    odd = [b"nonsense", b"[1]", b'{"step": "4", "role": "x"}', b"\xff\xfe", b'{"step": 1, "text"', b"[" * 9999]
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b"\n".join(odd) + b"\n" + b'{"step": 5, "role": "solver", "text": "x"}\n')
    index = EpisodeIndex(run / "episodes.jsonl")
    assert index.steps()[5] == 1
    assert index.damaged == 5  # one begins as a line of step 1 does: it is known, and not read
    assert len(answers.read_rows(index.of_step(1))) == 2
    monkeypatch.setattr("lite_selfplay.extras.view.answers.LINE_LIMIT", 300)
    short = EpisodeIndex(run / "episodes.jsonl")
    assert short.steps()[5] == 1
    assert short.damaged > 5


def test_a_row_has_every_key_whatever_its_line_says():
    odd = b'"text": 3, "group": "x", "prompt": null, "reward": NaN, "problem_id": [1]'
    row = read_row(b'{"step": 1, "role": "r", %s}' % odd)
    assert row is not None
    assert (row["text"], row["prompt"], row["group"], row["sample"], row["problem_id"]) == ("", "", 0, 0, None)
    assert row["reward"] is row["correct"] is row["advantage"] is None
    assert read_row(b'{"step": true, "role": "r"}') is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_for_episodes_is_refused(run: Path):
    (run / "episodes.jsonl").unlink()
    os.mkfifo(run / "episodes.jsonl")
    with pytest.raises(RunFolderError, match="it is a pipe"):
        ViewedRun(run).overview()


# Cases


def test_a_step_in_cases(run: Path):
    (case,) = answer([ViewedRun(run)], "step", {"step": "1"})["cases"]
    assert (case["kind"], case["tone"], case["flags"]) == ("the challenge was right, the draft wrong", "up", [])
    assert [part["verdict"] for part in case["parts"]] == ["wrong", "right"]
    draft, challenge = answer([ViewedRun(run)], "case", {"step": "1", "id": case["id"]})["parts"]
    assert draft["seen"] == "1 + 1?"
    assert (challenge["saw"], challenge["seen"]) == ("The challenger saw the same, and then:", "an attempt")
    assert challenge["more"] == {"draft": "0"}


def test_filters_and_words(run: Path):
    rows = pair(4, True, False, sample=0, stop="length", well_formed=False)
    rows += [episode(4, "drafter", True, "again", sample=1)]
    append(run, 4, [*rows, episode(4, "challenger", False, "Ärger", sample=1, draft=1)])
    for about, steps in (
        ({"filter": "the draft was right, the challenge wrong"}, [2, 5, 5]),
        ({"filter": "truncated"}, [5]),
        ({"filter": "not well-formed"}, [5]),
        ({"filter": "no variance"}, [5, 5]),
        ({"q": "A REPLY at step 2"}, [3]),
        ({"q": "ärger"}, [5]),
        ({"q": "nobody said this"}, []),
        ({"from": 2, "to": 3}, [2, 3]),
    ):
        assert [case["step"] for case in cases(run, **about)] == steps, about


def test_a_label_that_is_not_the_questions_value_and_a_run_without_a_step(tmp_path: Path):
    folder = RunFolder(tmp_path / "asked")
    folder.create(RunConfig(game="sqlm", model="tiny", steps=1, seats={"shared": {}}))
    found = ViewedRun(folder.path).overview()
    assert (found["charts"], found["steps"], found["stage"]) == ([], [], "not begun")
    asked = {"question": "q", "problem_id": "q", "prompt": "What is 2 + 2?"}
    append(folder.path, 0, [episode(0, "solver", True, label, label=label, **asked) for label in "54"])
    assert "label wrong" in ViewedRun(folder.path).overview()["filters"]
    assert [case["flags"] for case in cases(folder.path)] == [["label wrong", "no variance"], ["no variance"]]


def test_every_completion_is_in_a_case_and_a_search_says_how_far_it_is(run: Path):
    found = find(ViewedRun(run), {"q": "a reply"}, patience_s=-1)
    assert (found["cases"], found["next"], found["looked"], found["steps"]) == ([], 1, 0, 4)
    assert answer([ViewedRun(run)], "problem", {"id": "p0"}) == {"steps": [1, 4]}
    assert answer([ViewedRun(run)], "problem", {"id": 'p0"'}) == {"steps": []}
    alone = [episode(4, "drafter", True, "no challenge", sample=k) for k in range(3)]
    append(run, 4, alone + pair(4, True, True, sample=3))
    rows = answer([ViewedRun(run)], "step", {"step": "5"})["cases"]
    assert len({part["line"] for case in rows for part in case["parts"]}) == 5


def test_the_overview_has_curves_by_group_and_what_is_healthy(run: Path):
    viewed = ViewedRun(run)
    found = viewed.overview()
    charts = {chart["name"]: chart for chart in found["charts"]}
    assert (found["game"], found["played"], found["stage"]) == ("agon", 4, "finished")
    assert charts["reward"]["group"] == "Learning"
    assert [line["name"] for line in charts["reward"]["lines"]] == ["drafter", "challenger"]
    assert charts["regressions a step"]["group"] == "The game"
    assert charts["empty summaries"]["healthy"] == [0.0, 0.2]
    assert found["filters"][-3:] == ["truncated", "not well-formed", "no variance"]
    before = viewed.stamp()
    assert viewed.overview() == found
    append(run, 4, pair(4, True, True))
    assert viewed.stamp() != before
    assert viewed.overview()["steps"][-1] == [5, 2]


# The server


@pytest.fixture
def serve() -> Iterator[Callable[..., RunServer]]:
    servers = []

    def start(*paths: Path) -> RunServer:
        server = RunServer([ViewedRun(path) for path in paths])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def request(server: RunServer, place: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """What is answered; the token stands for OURS."""
    with contextlib.closing(http.client.HTTPConnection(HOST, server.server_port, timeout=20)) as connection:
        connection.request(method, place.replace("OURS", f"/{server.token}"), headers=headers)
        got = connection.getresponse()
        return got.status, dict(got.getheaders()), got.read()


def test_a_place_that_is_no_url_is_refused(run: Path, serve: Callable[..., RunServer], capfd: Any):
    server = serve(run)
    assert request(server, "http://[::1/x/", Host=f"localhost:{server.server_port}")[0] == 400
    assert capfd.readouterr().err == ""


def test_the_page_and_its_files(run: Path, serve: Callable[..., RunServer]):
    server = serve(run)
    assert server.server_address[0] == "127.0.0.1"  # and on no other
    assert request(server, "OURS/", Host=f"localhost:{server.server_port}")[0] == 200
    for name, (file, kind) in PAGE.items():
        status, headers, content = request(server, f"OURS/{name}")
        assert (status, content.decode()) == (200, page_file(file))
        policy = headers["Content-Security-Policy"]
        assert (policy.startswith("default-src 'none'"), "unsafe" in policy) == (True, False)
        told = [headers[key] for key in ("Content-Type", "X-Content-Type-Options", "Cache-Control")]
        assert told == [f"{kind}; charset=utf-8", "nosniff", "no-store"]


WRONG = [
    *("nosuch", "run?run=1", "run?run=-1", "step?step=1e9", "step?step=" + "9" * 40, "case?step=0&id=../.."),
    *("text?line=99&part=text", "text?line=0&part=reward", "text?line=x", "../../config.yaml", "find?from=%d9%a3"),
]
REFUSED = [
    *(("GET", place, 404, "") for place in ("/", "/style.css", "/wrong/", "/wrong/api/run", "//", "/%00/", "/%c3%a9/")),
    *(("GET", f"OURS/api/{question}", 404, '{"error": "') for question in WRONG),
    ("GET", "OURS/api/case?step=0&id=5-6", 404, "no longer in the run"),
    *((method, "OURS/api/run", 405, "writes nothing") for method in ("POST", "PUT", "DELETE", "OPTIONS", "ODD")),
]


def test_what_is_refused(run: Path, serve: Callable[..., RunServer]):
    """Nothing without the token, under another name of the machine, or but reading; a wrong question has a sentence."""
    server = serve(run)
    for method, place, status, said in REFUSED:
        found, _, content = request(server, place, method)
        told = content.decode()
        assert (found, said in told, "drafter" in told) == (status, True, False), place
    assert request(server, "OURS/", Host="evil.example")[0] == 403
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    status, _, content = request(server, "OURS/api/run")
    assert (status, "metrics.jsonl" in json.loads(content)["error"]) == (409, True)  # damaged meanwhile


def test_an_error_of_the_program_is_printed_and_a_browser_that_leaves_is_not(
    run: Path, serve: Callable[..., RunServer], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    server, printed = serve(run), {}
    for error in (ConnectionResetError("left"), ZeroDivisionError("wrong")):
        monkeypatch.setattr(Handler, "do_GET", Mock(side_effect=error))
        with pytest.raises(ConnectionError):
            request(server, "")
        printed[type(error)] = capfd.readouterr().err
    assert printed[ConnectionResetError] == ""
    assert "ZeroDivisionError: wrong" in printed[ZeroDivisionError]


def test_hostile_texts_arrive_as_they_are(hostile: Path, serve: Callable[..., RunServer]):
    server = serve(hostile)
    _, _, content = request(server, "OURS/api/step?step=5")
    listed = json.loads(content)["cases"]
    assert (content.isascii(), len(content) < 50_000) == (True, True)  # of a megabyte there is the beginning
    assert [listed[place]["parts"][0]["preview"] for place in (0, 3)] == [SCRIPT, LONE]
    line = listed[4]["parts"][0]["line"]
    _, _, content = request(server, f"OURS/api/text?line={line}&part=text")
    assert json.loads(content)["text"] == "x" * 1_000_000


# The file to take away


class Tags(HTMLParser):
    """The tags of a page, and what stands in its block of data."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.held = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][1].get("id") == "held" and data.strip():
            self.held = self.held or data


def test_a_bundle_holds_all_and_asks_for_nothing(hostile: Path):
    text = bundle([ViewedRun(hostile)])
    page = Tags(text)
    assert [tag for tag, _ in page.tags].count("script") == 3  # the data, and two of code: nothing broke out
    assert not [about for _, about in page.tags if "src" in about or any(key.startswith("on") for key in about)]
    assert {about["href"] for _, about in page.tags if "href" in about} == {"data:,", "#explorer"}
    (policy,) = (about["content"] for tag, about in page.tags if tag == "meta" and "http-equiv" in about)
    assert "unsafe" not in str(policy)
    (held,) = json.loads(page.held)
    assert sorted(held["cases"]) == ["1", "2", "3", "4", "5"]
    assert held["cases"]["5"][0]["parts"][0]["text"] == SCRIPT
    assert len(held["cases"]["5"][4]["parts"][0]["text"]) == 20_001


def test_a_bundle_of_a_long_run_holds_evenly_spread_steps(run: Path):
    limit = (run / "episodes.jsonl").stat().st_size // 2 + 1
    (held,) = json.loads(Tags(bundle([ViewedRun(run)], limit)).held)
    assert list(held["cases"]) == ["2", "4"]
    assert [step for step, _ in held["overview"]["steps"]] == [2, 4]
    assert held["overview"]["remarks"][0] == "This file holds the episodes of 2 of 4 steps, evenly spread."


def test_a_bundle_is_written_once_of_at_most_two_runs(run: Path, tmp_path: Path, call: Callable[..., Any]):
    out, others = tmp_path / "out", [shutil.copytree(run, tmp_path / name) for name in "xy"]
    ended = call("view", run, run, "--bundle", out)
    assert (ended.code, ended.out) == (0, f"written: {out / 'index.html'}\n")
    for arguments, sentence in (((run, "--bundle", out), "exists already"), ((run, *others), "not 3")):
        ended = call("view", *arguments)
        assert (ended.code, sentence in ended.err) == (2, True)
    assert [path.name for path in out.iterdir()] == ["index.html"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(LiteSelfPlayError, match="cannot write"):
        write_bundle([ViewedRun(run)], tmp_path / "file" / "below")


def test_the_page_has_no_markup_from_texts():
    code = "".join(page_file(name) for name in ("page.js", "charts.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", code)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", code + page_file("style.css") + page_file("page.html"))
    assert not re.search(r"\sstyle=|\son\w+=", page_file("page.html"))
