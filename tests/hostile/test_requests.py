"""Wrong requests of every kind, each of which must end in a sentence, and some of them as processes of their own."""

from itertools import chain
from pathlib import Path

import pytest

from . import files, folders, names, own_code, values
from .conftest import RunServer
from .wrong import Request, prepared, require_a_sentence

pytestmark = pytest.mark.long

KINDS = (names.REQUESTS, values.REQUESTS, files.REQUESTS, folders.REQUESTS, own_code.REQUESTS)
EACH = 4


def some() -> list[Request]:
    """A few of each kind, spread over it; those that give up root's rights need the warm parent."""
    every = [[request for request in requests if not request.plain] for requests in KINDS]
    return [requests[len(requests) * i // EACH] for requests in every for i in range(EACH)]


def test_there_are_enough_requests() -> None:
    assert sum(map(len, KINDS)) >= 300


@pytest.mark.parametrize("request_", [*chain(*KINDS)], ids=lambda request: request.label)
def test_a_wrong_request_ends_in_a_sentence(request_: Request, server: RunServer, here: Path) -> None:
    before = prepared(request_, here)
    ended = server.fork(request_.arguments, here, plain=request_.plain)
    if request_.prepare is files.unreadable:
        (here / "data.jsonl").chmod(0o644)  # so that what it holds can be compared
    require_a_sentence(request_, ended, here, before)


@pytest.mark.parametrize("request_", some(), ids=lambda request: request.label)
def test_a_process_ends_in_a_sentence(request_: Request, server: RunServer, here: Path) -> None:
    before = prepared(request_, here)
    require_a_sentence(request_, server.start(request_.arguments, here), here, before)
