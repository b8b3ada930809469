"""Wrong requests of every kind, each of which must end in a sentence, and some of them as processes of their own."""

from pathlib import Path

import pytest

from . import files, folders, names, own_code, values
from .conftest import Ended, Server
from .wrong import Request, prepared, require_a_sentence

pytestmark = pytest.mark.long

KINDS = {
    "names and places": names.REQUESTS,
    "numbers and values": values.REQUESTS,
    "data and configuration files": files.REQUESTS,
    "run and model folders": folders.REQUESTS,
    "rewards, games and tasks of one's own": own_code.REQUESTS,
}
EACH = 4


def some() -> list[Request]:
    """A few of each kind, spread over it; those that give up root's rights need the warm parent."""
    every = [[request for request in requests if not request.plain] for requests in KINDS.values()]
    return [requests[len(requests) * i // EACH] for requests in every for i in range(EACH)]


def test_there_are_enough_requests() -> None:
    assert sum(map(len, KINDS.values())) >= 300


def require(request: Request, ended: Ended, server: Server, kind: str, here: Path, before: dict[str, str]) -> None:
    server.ended.append((kind, ended))
    require_a_sentence(request, ended, here, before)


@pytest.mark.parametrize(
    ("kind", "request_"),
    [(kind, request) for kind, requests in KINDS.items() for request in requests],
    ids=lambda value: getattr(value, "label", ""),
)
def test_a_wrong_request_ends_in_a_sentence(kind: str, request_: Request, server: Server, here: Path) -> None:
    before = prepared(request_, here)
    ended = server.fork(request_.arguments, here, plain=request_.plain)
    if request_.prepare is files.unreadable:
        (here / "data.jsonl").chmod(0o644)  # so that what it holds can be compared
    require(request_, ended, server, kind, here, before)


@pytest.mark.parametrize("request_", some(), ids=lambda request: request.label)
def test_a_process_ends_in_a_sentence(request_: Request, server: Server, here: Path) -> None:
    before = prepared(request_, here)
    require(request_, server.start(request_.arguments, here), server, "as processes of their own", here, before)
