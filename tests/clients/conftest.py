"""What the tests of the stock client share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stock_client import forking


@pytest.fixture(scope="session")
def openstack() -> Iterator[Path]:
    """The program."""
    # A socket's path may not be long, and those of pytest are.
    with tempfile.TemporaryDirectory() as directory, forking(Path(directory)):
        yield Path(directory) / "openstack"
