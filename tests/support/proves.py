"""`@proves("GET /flavors")`: this test shows that the route works. The coverage table in docs/api is made from it.

A claim is checked when the test has run: every route it names must have answered with success in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from kilonova.telemetry.metrics import Metrics

_answered: set[str] = set()


def proves(*routes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def mark(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def checked(*args: Any, **options: Any) -> None:
            _answered.clear()
            test(*args, **options)
            missing = set(routes) - _answered
            assert not missing, f"claimed, but never answered with success: {sorted(missing)}"

        return checked

    return mark


class Witness(Metrics):
    """Metrics that remember which routes answered with success."""

    def request(self, name: str, method: str, status: int, seconds: float) -> None:
        super().request(name, method, status, seconds)
        if status < 400:
            _answered.add(f"{method} {name.removeprefix('/compute')}")
