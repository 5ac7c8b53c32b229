"""One process that has the fake islands imported, for all scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forkserver.forkserver import ForkServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("islands"), "fake") as server:
        yield server
