"""A cloud process for fuzz tests, and the check that it is intact afterwards."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cloud_process import Client, CloudProcess, kilonova
from tests.support.databases import PostgresServer

# Multiplies the number of examples: `FUZZ=20 make test TESTS=tests/fuzz`.
EXAMPLES_FACTOR = int(os.environ.get("FUZZ", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
UNLIMITED = {
    "KILONOVA_QUOTA__INSTANCES": "-1",
    "KILONOVA_QUOTA__CORES": "-1",
    "KILONOVA_QUOTA__RAM": "-1",
    "KILONOVA_QUOTA__KEY_PAIRS": "-1",
}
TIMEOUT_SECONDS = 60.0


@contextmanager
def fuzzed_cloud(data: Path, database_url: str = "", hosts: int = 10) -> Iterator[CloudProcess]:
    """A cloud without quotas, which is checked at the end."""
    database = ["--database", database_url] if database_url else []
    with CloudProcess(data, "--hosts", str(hosts), *database, environ=UNLIMITED) as cloud:
        yield cloud
        assert_intact(cloud, database)


def assert_intact(cloud: CloudProcess, database: list[str]) -> None:
    """Check that the process responds and becomes idle, without errors in the log or findings of the doctor."""
    assert cloud.running, cloud.output
    client = cloud.client("kilonova")
    base = client.endpoints["compute"].removesuffix("/compute/v2.1")
    assert client.request_url("GET", f"{base}/healthz").body == b"ok\n"
    assert client.request_url("GET", f"{base}/readyz").body == b"ok\n"
    _wait_until_idle(client)
    assert find_errors(cloud) == []
    time.sleep(1.1)  # the doctor skips servers whose operations have just ended
    found = kilonova("doctor", "--data", str(cloud.data), *database)
    assert (found.returncode, found.stdout.strip()) == (0, "Everything agrees."), found.stdout


def log_lines(cloud: CloudProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cloud.log.split("\n") if line]


def count_statuses(cloud: CloudProcess) -> Counter[int]:
    """The number of requests by status."""
    return Counter(line["status"] for line in log_lines(cloud) if line["message"] == "request")


def find_errors(cloud: CloudProcess) -> list[dict[str, Any]]:
    """Errors in the log, and tracebacks in the output."""
    wrong = [line for line in log_lines(cloud) if line["level"] in ("error", "critical") or line.get("status") == 500]
    return wrong + ([{"output": cloud.output}] if "Traceback" in cloud.output else [])


def _wait_until_idle(client: Client) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        servers = client.get("compute", "/servers/detail?all_tenants=1&limit=1000").json()["servers"]
        busy = [server for server in servers if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return
        time.sleep(0.1)
    raise AssertionError(f"still busy after {TIMEOUT_SECONDS} seconds: {busy[0]}")


def new_database(server: PostgresServer) -> str:
    """The URL of a new empty database."""
    return server.url(server.create())
