"""Password hashes in these tests are cheap; `test_passwords` measures honest ones."""

from __future__ import annotations

import pytest

from kilonova.identity import passwords


@pytest.fixture(autouse=True)
def cheap_hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "honest_hashes" not in request.fixturenames:
        monkeypatch.setattr(passwords, "LOG_N", 4)


@pytest.fixture
def honest_hashes() -> None:
    """Asked for by tests that want them at their real cost."""
