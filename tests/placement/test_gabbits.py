"""Optional: the published gabbits of placement, if ../shared has them. All pass; our own tests cover the same.

Upstream placement passes 1315 of the 1316 through this runner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GABBITS = ROOT.parent / "shared/placement-api"
RESTART = Path(__file__).with_name("gabbit_restart.py")
RUNNER = Path(__file__).with_name("gabbit_runner.py")
# The number of parts that run in parallel.
PARTS = 2
FAILED: set[tuple[str, str]] = set()
# HTTP clients cannot send an invalid Content-Length; the runner skips this test by itself.
SKIPPED = {("basic-http.yaml", "bad content length not int")}

pytestmark = pytest.mark.skipif(not GABBITS.exists(), reason="needs the published gabbits in ../shared")


def files() -> list[str]:
    """The files, largest first, so that distributing them makes parts of similar size."""
    found = sorted((GABBITS / "gabbits").glob("*.yaml"), key=lambda path: -path.stat().st_size)
    return [path.name for path in found]


@contextmanager
def server(database_url: str) -> Iterator[int]:
    """The port of a server in a separate process."""
    command = [sys.executable, "-m", "tests.placement.gabbit_server", database_url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()


def outcome(database_url: str, directory: Path, names: list[str]) -> dict[str, Any]:
    report = directory / "report.json"
    with server(database_url) as port:
        command = [
            *(sys.executable, RUNNER, GABBITS / "run-gabbits", "--url", f"http://127.0.0.1:{port}"),
            *("--profiles", "all", "--admin-roles", "admin,service", "--json", report),
            *("--restart-cmd", f"{sys.executable} -S -E {RESTART} {port}"),
            *names,
        ]
        # The runner makes an HTTP client for each test, which would load all CA certificates.
        environ = {"PATH": os.defpath, "SSL_CERT_DIR": str(directory)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environ)
    assert report.exists(), done.stdout + done.stderr
    body: dict[str, Any] = json.loads(report.read_text())
    assert sorted(body) == sorted(names), done.stdout
    return body


@pytest.mark.parametrize("part", range(PARTS))
def test_gabbits(part: int, sqlite_url: str, tmp_path: Path) -> None:
    names = files()[part::PARTS]
    body = outcome(sqlite_url, tmp_path, names)
    failed = {(name, test): why for name, file in body.items() for test, why in file["failed"].items()}
    skipped = {(name, test) for name, file in body.items() for test in file["skipped"]}
    assert set(failed) == {(name, test) for name, test in FAILED if name in names}, "\n\n".join(failed.values())
    assert skipped == {(name, test) for name, test in SKIPPED if name in names}


def test_number_of_gabbits() -> None:
    assert len(files()) == 79
