"""Identity tests use cheap password hashes, except for those that request `full_cost_hashes`."""

from __future__ import annotations

import pytest

from kilonova.identity import passwords


@pytest.fixture(autouse=True)
def cheap_hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "full_cost_hashes" not in request.fixturenames:
        monkeypatch.setattr(passwords, "LOG_N", 4)


@pytest.fixture
def full_cost_hashes() -> None:
    """Requested by tests that need password hashes at full cost."""
