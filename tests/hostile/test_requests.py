"""Wrong requests of every kind, each of which must end in a sentence, and some of them as processes of their own."""

from itertools import chain
from pathlib import Path

import pytest

from . import files, folders, lines, own_code
from .conftest import RunServer
from .wrong import Request, require_a_sentence

pytestmark = pytest.mark.long

KINDS = (lines.NAMES, lines.VALUES, files.REQUESTS, folders.REQUESTS, own_code.REQUESTS)
EACH = 4


def some() -> list[Request]:
    """A few of each kind, spread over it; those that give up root's rights need the warm parent."""
    every = [[request for request in requests if not request.plain] for requests in KINDS]
    return [requests[len(requests) * i // EACH] for requests in every for i in range(EACH)]


def test_there_are_enough_requests() -> None:
    assert sum(map(len, KINDS)) >= 300


@pytest.mark.parametrize("request_", [*chain(*KINDS)], ids=lambda request: request.label)
def test_a_wrong_request_ends_in_a_sentence(request_: Request, server: RunServer, tmp_path: Path) -> None:
    require_a_sentence(request_, tmp_path, lambda: server.fork(request_.arguments, tmp_path, plain=request_.plain))


@pytest.mark.parametrize("request_", some(), ids=lambda request: request.label)
def test_a_process_ends_in_a_sentence(request_: Request, server: RunServer, tmp_path: Path) -> None:
    require_a_sentence(request_, tmp_path, lambda: server.start(request_.arguments, tmp_path))
