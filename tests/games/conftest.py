"""Runs of these tests are not pushed to the disk: whether a run survives a crash is tested where it is saved."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_pushed_to_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield
