"""Fixtures for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kilonova import clock
from kilonova.operations import store


@pytest.fixture
def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Takes seconds, which then have passed."""
    real, passed = clock.now, [0.0]
    monkeypatch.setattr(clock, "now", lambda: real() + sum(passed))
    return passed.append


@pytest.fixture
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> float:
    """A lease that no process overruns by standing still, and that is renewed every half second nevertheless."""
    lease = 100.0
    monkeypatch.setattr(store, "RENEWAL", 0.5 / lease)
    return lease
