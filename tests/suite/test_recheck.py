"""A run passes with up to five flaky tests, and fails with six or with a test that always fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.recheck import Flaky, read_flaky, record_flaky

ROOT = Path(__file__).parents[2]
# Each test fails in its first run and passes in later runs.
FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    mark = pathlib.Path(f"ran-{{number}}")
    first = not mark.exists()
    mark.touch()
    assert not first, "failed in its first run"

def test_right():
    pass
"""
ALWAYS = """
def test_wrong():
    raise ValueError("always wrong")
"""
SETUP = """
import pathlib, pytest

@pytest.fixture
def trouble():
    mark = pathlib.Path("ran")
    first = not mark.exists()
    mark.touch()
    assert not first, "trouble before the test"

def test_fixture(trouble):
    pass
"""


def run(directory: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.recheck", "--recheck", "--rootdir", ".", *options],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CI_ARTIFACTS": str(directory / "artifacts"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # no other plugins, for a fast start
        },
        capture_output=True,
        text=True,
        check=False,
    )


def recorded_tests(directory: Path) -> list[dict[str, Any]]:
    path = directory / "artifacts" / "flaky.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_flaky_test_passes_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FLAKY.format(count=1), "-p", "xdist", "-n", "1")
    assert ended.returncode == 0, ended.stdout
    *_, heading, listed, closing = ended.stdout.splitlines()
    assert "flaky tests" in heading
    test, error = "test_it.py::test_flaky[0]", "AssertionError: failed in its first run"
    assert listed.startswith(f"{test}: {error}") and listed.endswith("(passed 3 of 3 runs alone)")  # noqa: PT018
    assert "1 passed" in closing and "1 flaky" in closing and "failed" not in closing  # noqa: PT018
    assert [(each["test"], each["error"], each["passed"]) for each in recorded_tests(tmp_path)] == [(test, error, 3)]


def test_flaky_fixture_passes_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, SETUP)
    assert ended.returncode == 0, ended.stdout
    assert [each["error"] for each in recorded_tests(tmp_path)] == ["AssertionError: trouble before the test"]


def test_failing_test_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FLAKY.format(count=1) + ALWAYS)
    assert ended.returncode == 1, ended.stdout
    assert "test_it.py::test_wrong failed again in run 1 of 3" in ended.stdout
    assert "1 failed, 1 passed, 1 flaky" in ended.stdout.splitlines()[-1]
    assert [each["test"] for each in recorded_tests(tmp_path)] == ["test_it.py::test_flaky[0]"]


def test_six_flaky_tests_fail_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FLAKY.format(count=6))
    assert ended.returncode == 1, ended.stdout
    assert "more than 5 tests failed" in ended.stdout


def test_flaky_tests_of_tempest_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flaky tests of tempest count too."""
    monkeypatch.setenv("CI_ARTIFACTS", str(tmp_path / "artifacts"))
    record_flaky([Flaky(f"tempest.{number}", "timed out") for number in range(5)])
    assert len(read_flaky()) == 5
    ended = run(tmp_path, FLAKY.format(count=1))
    assert ended.returncode == 1, ended.stdout
    assert "tempest.4: timed out" in ended.stdout


def test_broken_module_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, "import nothing_of_that_name\n")
    assert ended.returncode != 0, ended.stdout
