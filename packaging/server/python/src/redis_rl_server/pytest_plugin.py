"""Fixtures for pytest."""

from collections.abc import Iterator

import pytest

from .server import Server


@pytest.fixture(scope="session")
def rl_session_server() -> Iterator[Server]:
    """A server for the whole session. It is not flushed: most tests take `rl_server`."""
    with Server() as server:
        yield server


@pytest.fixture
def rl_server(rl_session_server: Server) -> Server:
    """The server of the session, without any key."""
    rl_session_server.flush()
    return rl_session_server
