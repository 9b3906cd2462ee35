"""A scenario: tests that build on each other and run in the order of their definition."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.client_suites.suite import Outcome

TIMEOUT_SECONDS = 120.0
POLL_INTERVAL_SECONDS = 0.2

T = TypeVar("T")


class Scenario:
    """Subclasses have methods whose names begin with `test_`."""

    @classmethod
    def tests(cls) -> list[str]:
        return [name for name in vars(cls) if name.startswith("test_")]

    def prepare(self) -> None:
        """Called before each test."""

    def run(self, log: Path, only: str = "") -> dict[str, Outcome]:
        """Run the tests up to the last one that `only` matches, or the first that fails. Tracebacks go to the log."""
        selected = [name for name in self.tests() if re.search(only, name)]
        outcomes: dict[str, Outcome] = {}
        log.write_text("")
        for name in self.tests():
            if not set(selected) - set(outcomes):
                break
            begin = time.monotonic()
            try:
                self.prepare()
                getattr(self, name)()
                status, reason = "passed", ""
            except Exception as error:
                status, reason = "failed", (str(error) or type(error).__name__).splitlines()[0][:300]
                with log.open("a") as file:
                    file.write(f"{name}\n{traceback.format_exc()}\n")
            outcomes[name] = Outcome(status, reason, round(time.monotonic() - begin, 2))
            if status == "failed":
                break
        return {name: outcome for name, outcome in outcomes.items() if name in selected or outcome.status == "failed"}


def wait_for(read: Callable[[], T], is_reached: Callable[[T], Any], seconds: float = TIMEOUT_SECONDS) -> T:
    """Read until the value satisfies the condition."""
    until = time.monotonic() + seconds
    while not is_reached(value := read()):
        assert time.monotonic() < until, f"not reached within {seconds:.0f} seconds: {value}"
        time.sleep(POLL_INTERVAL_SECONDS)
    return value
