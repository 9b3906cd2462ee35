"""`make soak` repeats tests with delays and prints the seeds of failed rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Fails only with delays and an even seed.
TIMED = """
import os

def test_timed():
    assert float(os.environ["KILONOVA_DELAYS__MILLISECONDS"]) == 7
    assert int(os.environ["KILONOVA_DELAYS__SEED"]) % 2

def test_right():
    pass
"""


def soak(directory: Path, seed: int) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(TIMED)
    options = ["--minutes", "0", "--milliseconds", "7", "--seed", str(seed)]
    return subprocess.run(
        [sys.executable, "-m", "tests.soak", *options, "-p", "xdist", "-p", "pytest_timeout", "--rootdir", ".", "."],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_seed_of_failed_round_is_printed(tmp_path: Path) -> None:
    ended = soak(tmp_path, seed=42)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    *_, summary, failed = ended.stdout.splitlines()
    assert summary == "soak: 1 rounds, 1 tests failed"
    assert failed == "test_it.py::test_timed: failed with seeds 42"


def test_passing_round(tmp_path: Path) -> None:
    ended = soak(tmp_path, seed=43)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "soak: 1 rounds, 0 tests failed"
