"""Fixtures of the tests with the stock client."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_clients import forked_clients


@pytest.fixture(scope="session")
def openstack() -> Iterator[Path]:
    """The path of the `openstack` program."""
    # pytest's directories are too long for the path of a socket.
    with tempfile.TemporaryDirectory() as directory, forked_clients(Path(directory)):
        yield Path(directory) / "openstack"
