"""`@proves("GET /flavors")` marks a test that shows that the route works, for the coverage table in docs/api.

After the test, the decorator checks that every named route responded with success.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from kilonova.telemetry.metrics import Metrics

_succeeded: set[str] = set()


def proves(*routes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def mark(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def checked(*args: Any, **options: Any) -> None:
            _succeeded.clear()
            test(*args, **options)
            missing = set(routes) - _succeeded
            assert not missing, f"routes that did not respond with success: {sorted(missing)}"

        return checked

    return mark


class RecordingMetrics(Metrics):
    """Metrics that record which routes responded with success."""

    def request(self, name: str, method: str, status: int, seconds: float) -> None:
        super().request(name, method, status, seconds)
        if status < 400:
            _succeeded.add(f"{method} {name.removeprefix('/compute')}")
