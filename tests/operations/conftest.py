"""Fixtures for tests of the operations engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kilonova import clock
from kilonova.operations import store


@pytest.fixture
def advance_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that advances the clock by some seconds."""
    real, passed = clock.now, [0.0]
    monkeypatch.setattr(clock, "now", lambda: real() + sum(passed))
    return passed.append


@pytest.fixture
def frequently_renewed_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    """A lease long enough for a slow machine, but renewed every half second."""
    lease = 100.0
    monkeypatch.setattr(store, "RENEWAL_FRACTION", 0.5 / lease)
    return lease
