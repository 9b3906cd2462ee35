"""Runs failed tests again, so that a flaky test does not fail the whole run.

With `--recheck`, each failed test runs three times more after all others have ended, each time alone in a fresh
process. A test that passes all three runs is flaky: it is listed, and the run succeeds. A test that fails again fails
the run, and so do more than five flaky tests. `flaky.jsonl` in the folder `CI_ARTIFACTS` keeps the list, to which
`tests/tempest/run.py` adds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RUNS = 3
MAX_FLAKY_TESTS = 5
MAX_LINE_LENGTH = 200


class Flaky(NamedTuple):
    """A test that failed once and then passed `passed` times of `runs`."""

    test: str
    error: str
    passed: int = RUNS
    runs: int = RUNS

    def __str__(self) -> str:
        return f"{self.test}: {self.error} (passed {self.passed} of {self.runs} runs alone)"


def flaky_file() -> Path | None:
    folder = os.environ.get("CI_ARTIFACTS")
    return Path(folder) / "flaky.jsonl" if folder else None


def read_flaky() -> list[Flaky]:
    """Flaky tests that earlier parts of the same CI run have found."""
    path = flaky_file()
    if path is None or not path.exists():
        return []
    return [Flaky(**json.loads(line)) for line in path.read_text().splitlines()]


def record_flaky(found: list[Flaky]) -> None:
    path = flaky_file()
    if path is None or not found:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(each._asdict()) + "\n" for each in found)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recheck", action="store_true", help="run failed tests three times again, each alone")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--recheck") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recheck(config), "recheck")


class Recheck:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.failed: dict[str, list[pytest.TestReport]] = {}
        self.can_recheck = True
        self.flaky: list[Flaky] = read_flaky()
        self.notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, []).append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.can_recheck = False  # a module that cannot be imported is not flaky

    @pytest.hookimpl(trylast=True)  # after xdist's workers have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not self.can_recheck:
            return
        if len(self.flaky) + len(self.failed) > MAX_FLAKY_TESTS:
            self.notes.append(f"more than {MAX_FLAKY_TESTS} tests failed: none runs again")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        found = [each for each in map(self._recheck, self.failed) if each is not None]
        self.flaky += found
        record_flaky(found)
        self._count_as_flaky({each.test for each in found})
        if len(found) == len(self.failed):
            session.exitstatus = pytest.ExitCode.OK

    def _recheck(self, test: str) -> Flaky | None:
        for run in range(1, RUNS + 1):
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(self.config.rootpath)]
            ended = subprocess.run(
                [*command, test],
                cwd=self.config.invocation_params.dir,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if ended.returncode or not re.search(r"\b1 passed\b", ended.stdout):
                self.notes.append(f"{test} failed again in run {run} of {RUNS}:\n{ended.stdout}")
                return None
        return Flaky(test, first_error(self.failed[test][0]))

    def _count_as_flaky(self, tests: set[str]) -> None:
        """Have pytest's summary count these tests as flaky, not as failed."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        for category in ("failed", "error"):
            reports = reporter.stats.pop(category, [])
            for report in reports:
                new_category = "flaky" if report.nodeid in tests else category
                reporter.stats.setdefault(new_category, []).append(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for report in terminalreporter.stats.get("flaky", []):
            terminalreporter.section(f"first failure of {report.nodeid}", sep="_")
            terminalreporter.write_line(report.longreprtext)
        for note in self.notes:
            terminalreporter.write_line(note)
        if self.flaky:
            terminalreporter.section("flaky tests")
            for each in self.flaky:
                terminalreporter.write_line(str(each))


def first_error(report: pytest.TestReport) -> str:
    """The error of a failed test, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return one_line(text)


def one_line(text: str) -> str:
    return next(_lines(text), "no message")[:MAX_LINE_LENGTH]


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())
