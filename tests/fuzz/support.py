"""A real process to be treated badly, and the question whether it has taken harm."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.databases import PostgresServer
from tests.support.process import Client, Cloud, kilonova

# How many times as many examples as usual: `FUZZ=20 make test TESTS=tests/fuzz`.
MORE = int(os.environ.get("FUZZ", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
UNLIMITED = {
    "KILONOVA_QUOTA__INSTANCES": "-1",
    "KILONOVA_QUOTA__CORES": "-1",
    "KILONOVA_QUOTA__RAM": "-1",
    "KILONOVA_QUOTA__KEY_PAIRS": "-1",
}
PATIENCE = 60.0


@contextmanager
def victim(data: Path, database_url: str = "", hosts: int = 10) -> Iterator[Cloud]:
    """A cloud without limits. It must be sound when the block ends."""
    database = ["--database", database_url] if database_url else []
    with Cloud(data, "--hosts", str(hosts), *database, environ=UNLIMITED) as cloud:
        yield cloud
        assert_sound(cloud, database)


def assert_sound(cloud: Cloud, database: list[str]) -> None:
    """It answers, finishes what it has begun, has met nothing unexpected, and everything agrees."""
    assert cloud.running, cloud.output
    client = cloud.client("kilonova")
    base = client.endpoints["compute"].removesuffix("/compute/v2.1")
    assert client.plain("GET", f"{base}/healthz").body == b"ok\n"
    assert client.plain("GET", f"{base}/readyz").body == b"ok\n"
    _wait_until_idle(client)
    assert troubles(cloud) == []
    time.sleep(1.1)  # what has just ended is left out
    found = kilonova("doctor", "--data", str(cloud.data), *database)
    assert (found.returncode, found.stdout.strip()) == (0, "Everything agrees."), found.stdout


def log_lines(cloud: Cloud) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cloud.log.split("\n") if line]


def answers(cloud: Cloud) -> Counter[int]:
    """How many requests got which status."""
    return Counter(line["status"] for line in log_lines(cloud) if line["message"] == "request")


def troubles(cloud: Cloud) -> list[dict[str, Any]]:
    """What the log says at the level of errors, and what came to the terminal beside the endpoints."""
    wrong = [line for line in log_lines(cloud) if line["level"] in ("error", "critical") or line.get("status") == 500]
    return wrong + ([{"output": cloud.output}] if "Traceback" in cloud.output else [])


def _wait_until_idle(client: Client) -> None:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        servers = client.get("compute", "/servers/detail?all_tenants=1&limit=1000").json()["servers"]
        busy = [server for server in servers if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return
        time.sleep(0.1)
    raise AssertionError(f"still busy after {PATIENCE} seconds: {busy[0]}")


def new_database(server: PostgresServer) -> str:
    """The URL of an empty database of its own: the process makes the schema."""
    return server.url(server.create())
