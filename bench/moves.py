"""Measures moves, compared with boots in the same process: `python -m bench.moves`.

Servers are live-migrated, unshelved, and evacuated from a failed host.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tests.support.cloud_process import CloudProcess, kilonova

from bench.load_runner import UNLIMITED, quantile, run_load, run_measured

HOSTS = 20
FAILED_HOST = "sim-020"
LIVE = {"host": None, "block_migration": "auto"}
Figure = tuple[str, float, str]


def measure(scratch: Path, count: int, at_once: int) -> Iterator[Figure]:
    with CloudProcess(scratch / "moves", "--hosts", str(HOSTS), environ=UNLIMITED) as cloud:
        _disable(cloud, FAILED_HOST, True)
        run_load(cloud, "boots", count=at_once, at_once=at_once)  # warm up: the first boots load modules
        _, cpu = run_measured(cloud, "boots", count=count - at_once, at_once=at_once)
        boot = cpu / (count - at_once)
        yield from _moves(cloud, "live migration", boot, count, at_once, "os-migrateLive", LIVE, "status=ACTIVE")
        run_load(cloud, "moves", action="shelve", body=None, where="status=ACTIVE", at_once=at_once)
        shelved = "status=SHELVED_OFFLOADED"
        yield from _moves(cloud, "unshelve", boot, count, at_once, "unshelve", None, shelved)
        _disable(cloud, FAILED_HOST, False)
        run_load(cloud, "boots", count=count, at_once=at_once, host=FAILED_HOST)
        _fail_host(cloud, FAILED_HOST)
        yield from _moves(cloud, "evacuation", boot, count, at_once, "evacuate", {}, f"host={FAILED_HOST}")


def _moves(
    cloud: CloudProcess, what: str, boot: float, count: int, at_once: int, action: str, body: Any, where: str
) -> Iterator[Figure]:
    figures, cpu = run_measured(cloud, "moves", action=action, body=body, where=where, at_once=at_once)
    taken = figures["taken"]
    if len(taken) != count:
        raise RuntimeError(f"{len(taken)} of {what} instead of {count}")
    yield f"{what} of {count}, {at_once} at once", count / figures["seconds"], "/s"
    yield f"{what}: until completed, median", quantile(taken, 0.5) * 1000, "ms"
    yield f"{what}: CPU, polling included", cpu / count * 1000, "ms"
    yield f"{what}: CPU relative to a boot", cpu / count / boot, "x"
    yield f"{what}: polls", figures["polls"] / count, "GET"


def _disable(cloud: CloudProcess, host: str, disabled: bool) -> None:
    body = {"host": host, "binary": "nova-compute"}
    action = "disable" if disabled else "enable"
    answer = cloud.client("kilonova").put("compute", f"/os-services/{action}", body, version="2.11")
    assert answer.status == 200, answer.body


def _fail_host(cloud: CloudProcess, host: str) -> None:
    """Make a host unreachable and force it down."""
    done = kilonova("sim", "fail", "--host", host, "--mode", "unreachable", "--data", str(cloud.data))
    assert done.returncode == 0, done.stderr
    body = {"host": host, "binary": "nova-compute", "forced_down": True}
    answer = cloud.client("kilonova").put("compute", "/os-services/force-down", body, version="2.11")
    assert answer.status == 200, answer.body


@click.command()
@click.option("--moves", "count", default=100, show_default=True, help="How many servers to move, per kind of move.")
@click.option("--at-once", default=16, show_default=True)
def main(count: int, at_once: int) -> None:
    """Measure moves."""
    table = Table("Measurement", "Kilonova", title="Moves", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for name, value, unit in measure(Path(scratch), count, at_once):
            table.add_row(name, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
