"""The steady clock: it never goes back, and follows a reference slowly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova import clock

SECONDS = st.floats(0.001, 60)
STEPS = st.floats(-7200, 7200)


@given(st.lists(st.tuples(SECONDS, STEPS), min_size=1, max_size=20))
def test_steady_clock_never_goes_back_and_deviates_little(history: list[tuple[float, float]]) -> None:
    uptime, reference = 100.0, 1e9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_uptime", lambda: uptime)
        steady = clock.SteadyClock(reference)
        for passed, step in history:
            before = steady.now()
            uptime += passed
            assert 0.899 * passed <= steady.now() - before <= 1.101 * passed
            reference += passed + step
            shown = steady.now()
            steady.approach(reference, 10.0, 0.1)
            assert steady.now() == pytest.approx(shown, abs=1e-6)


@pytest.mark.parametrize(("difference", "seconds"), [(0.5, 10), (-0.5, 10), (3600, 36000), (-3600, 36000)])
def test_steady_clock_reaches_its_reference(monkeypatch: pytest.MonkeyPatch, difference: float, seconds: float) -> None:
    uptime = [0.0]
    monkeypatch.setattr(clock, "_uptime", lambda: uptime[0])
    steady = clock.SteadyClock(1e9)
    for _ in range(int(seconds / 10)):
        steady.approach(1e9 + difference + uptime[0], 10.0, 0.1)
        uptime[0] += 10.0
    assert steady.now() == pytest.approx(1e9 + difference + seconds, abs=0.001)


def test_processes_without_a_steady_clock_use_the_clock_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.time, "time", lambda: 1234.5)
    assert clock.now() == clock.wall() == 1234.5
    clock.use(clock.SteadyClock(99.0))
    try:
        assert clock.now() == pytest.approx(99, abs=5)
    finally:
        clock.use(None)
