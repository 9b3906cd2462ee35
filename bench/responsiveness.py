"""Measures how long `/healthz` waits beside requests that take long: `python -m bench.responsiveness`.

A second process sends the requests, four at a time: long lists, searches, and the hostile requests of the tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table
from tests.fuzz.hostile_requests import attacks
from tests.fuzz.raw import RawConnection, request
from tests.support.cloud_process import CloudProcess

from bench.load_runner import UNLIMITED, load_document, quantile, run_load

HOSTS = 1000
REPEATS = 40
AT_ONCE = 4
# Between two requests for `/healthz`, so that the measurement itself needs little CPU.
PROBE_INTERVAL_SECONDS = 0.002


class Row(NamedTuple):
    name: str
    requests: int
    per_second: float
    median: float
    p99: float
    longest: float


def lists(servers: int) -> Iterator[tuple[str, str]]:
    """Names and paths of requests that take long."""
    yield f"detail lists of {servers} servers", "/compute/v2.1/servers/detail"
    yield "searches by a pattern", "/compute/v2.1/servers?name=(.*)(.*)(.*)x$"
    yield "searches by address", "/compute/v2.1/servers?ip=9$"
    yield f"detail lists of {HOSTS} hypervisors", "/compute/v2.1/os-hypervisors/detail"
    yield f"lists of {HOSTS} providers", "/placement/resource_providers"
    yield "candidates, limit 1000", "/placement/allocation_candidates?resources=VCPU:1&limit=1000"
    yield "lists of ports", "/network/v2.0/ports"


def measure(scratch: Path, servers: int) -> Iterator[Row]:
    with CloudProcess(scratch / "responsive", "--hosts", str(HOSTS), environ=UNLIMITED) as cloud:
        run_load(cloud, "boots", count=servers, at_once=16)
        yield _measure(cloud, "nothing else", [])
        for name, path in lists(servers):
            yield _measure(cloud, name, [path] * REPEATS)
        token = cloud.client("kilonova-demo-reader").token
        hostile = [attack.data.decode("latin-1") for attack in attacks(token)]
        yield _measure(cloud, "hostile requests of the tests", hostile, raw=True)


def _measure(cloud: CloudProcess, name: str, requests: list[str], *, raw: bool = False) -> Row:
    """Send paths to GET, or raw requests in Latin-1. Without requests, `/healthz` is alone for two seconds."""
    load = [sys.executable, "-m", "bench.load"] if requests else ["sleep", "2"]
    document = load_document(cloud, "send", requests=requests, raw=raw, at_once=AT_ONCE)
    taken: list[float] = []
    with (
        subprocess.Popen(load, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        RawConnection(cloud) as probe,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(document))
        process.stdin.close()
        while process.poll() is None:
            began = time.perf_counter()
            probe.send(request("GET", "/healthz"))
            reply = probe.reply()
            taken.append(time.perf_counter() - began)
            if reply is None or reply.status != 200:
                raise RuntimeError(f"/healthz: {reply}")
            time.sleep(PROBE_INTERVAL_SECONDS)
        printed = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"the load ended with {process.returncode}")
    seconds = orjson.loads(printed)["seconds"] if requests else 2.0
    taken.sort()
    return Row(
        name,
        len(requests),
        len(requests) / seconds,
        quantile(taken, 0.5) * 1000,
        quantile(taken, 0.99) * 1000,
        taken[-1] * 1000,
    )


@click.command()
@click.option("--servers", default=1000, show_default=True, help="How many servers the cloud has.")
def main(servers: int) -> None:
    """Measure how long /healthz waits beside other requests."""
    table = Table("Beside", "Requests", "Per second", "Median", "99th percentile", "Longest", title="/healthz")
    for column in table.columns[1:]:
        column.justify = "right"
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for row in measure(Path(scratch), servers):
            latencies = (f"{value:.1f} ms" for value in (row.median, row.p99, row.longest))
            table.add_row(row.name, str(row.requests), f"{row.per_second:.0f}", *latencies)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
