"""Plugin of the pytest that runs a suite: selects tests, writes their outcomes to a file, and shortens sleeps.

It stays independent of Kilonova's other test support, because it is loaded in the suite's own process.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

MAX_SLEEP_SECONDS = 0.1
MAX_REASON_LENGTH = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True, help="file to which outcomes are appended")
    parser.addoption("--full-sleeps", default="$^", help="regular expression of tests whose sleeps are not shortened")
    parser.addoption("--only-tests", default="", help="regular expression of the tests to run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ShortSleeps(re.compile(config.getoption("--full-sleeps"))))
    config.pluginmanager.register(OutcomeWriter(config.getoption("--outcomes")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expression = re.compile(config.getoption("--only-tests"))
    items[:] = [item for item in items if expression.search(item.nodeid)]


class ShortSleeps:
    def __init__(self, exceptions: re.Pattern[str]) -> None:
        self.exceptions = exceptions
        self.limit = MAX_SLEEP_SECONDS
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(min(float(seconds), self.limit))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.limit = float("inf") if self.exceptions.search(item.nodeid) else MAX_SLEEP_SECONDS


class OutcomeWriter:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.write(report, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported, or that skips itself, counts as one test."""
        if not report.passed:
            self.write(report, 0.0)

    def write(self, report: pytest.TestReport | pytest.CollectReport, seconds: float) -> None:
        line = json.dumps([report.nodeid, report.outcome, first_line(report), round(seconds, 2)])
        with self.path.open("a") as file:
            file.write(line + "\n")


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of the error, or the reason of a skip."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if isinstance(report, pytest.CollectReport):
        return report.longreprtext.splitlines()[-1].removeprefix("E").strip()
    # Tests of testtools report a traceback as text. The error begins after its last frame.
    _, frame, after = report.longreprtext.rpartition('\n  File "')
    crash = getattr(report.longrepr, "reprcrash", None)
    message = after.partition("\n")[2] if frame else crash.message if crash is not None else report.longreprtext
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith(" ")]
    if lines and "CommandFailed: " in lines[0]:
        return lines[-1][:MAX_REASON_LENGTH]  # what the command wrote to stderr
    return lines[0][:MAX_REASON_LENGTH] if lines else ""
