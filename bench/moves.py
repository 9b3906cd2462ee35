"""What moves cost, beside boots in the same process: `python -m bench.moves`.

Servers are shelved and unshelved, migrated while they run, and evacuated from a host that is lost with all it had.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tests.support.process import Cloud, kilonova

from bench.driving import UNLIMITED, load, measured, share

HOSTS = 20
LOST = "sim-020"
LIVE = {"host": None, "block_migration": "auto"}
Figure = tuple[str, float, str]


def measure(scratch: Path, count: int, at_once: int) -> Iterator[Figure]:
    with Cloud(scratch / "moves", "--hosts", str(HOSTS), environ=UNLIMITED) as cloud:
        _disable(cloud, LOST, True)
        load(cloud, "boots", count=at_once, at_once=at_once)  # the first ones pay for what is loaded late
        _, cpu = measured(cloud, "boots", count=count - at_once, at_once=at_once)
        boot = cpu / (count - at_once)
        yield from _moves(cloud, "live migration", boot, count, at_once, "os-migrateLive", LIVE, "status=ACTIVE")
        load(cloud, "moves", action="shelve", body=None, where="status=ACTIVE", at_once=at_once)
        shelved = "status=SHELVED_OFFLOADED"
        yield from _moves(cloud, "unshelve", boot, count, at_once, "unshelve", None, shelved)
        _disable(cloud, LOST, False)
        load(cloud, "boots", count=count, at_once=at_once, host=LOST)
        _lose(cloud, LOST)
        yield from _moves(cloud, "evacuation", boot, count, at_once, "evacuate", {}, f"host={LOST}")


def _moves(
    cloud: Cloud, what: str, boot: float, count: int, at_once: int, action: str, body: Any, where: str
) -> Iterator[Figure]:
    figures, cpu = measured(cloud, "moves", action=action, body=body, where=where, at_once=at_once)
    taken = figures["taken"]
    if len(taken) != count:
        raise RuntimeError(f"{len(taken)} times {what} in place of {count}")
    yield f"{what} of {count}, {at_once} at once", count / figures["seconds"], "/s"
    yield f"{what}: request to rest, median", share(taken, 0.5) * 1000, "ms"
    yield f"{what}: CPU, with its looks", cpu / count * 1000, "ms"
    yield f"{what}: CPU over that of a boot", cpu / count / boot, "x"
    yield f"{what}: looks", figures["looks"] / count, "GET"


def _disable(cloud: Cloud, host: str, disabled: bool) -> None:
    body = {"host": host, "binary": "nova-compute"}
    action = "disable" if disabled else "enable"
    answer = cloud.client("kilonova").put("compute", f"/os-services/{action}", body, version="2.11")
    assert answer.status == 200, answer.body


def _lose(cloud: Cloud, host: str) -> None:
    """It answers nothing, and an operator says so."""
    done = kilonova("sim", "fail", "--host", host, "--mode", "unreachable", "--data", str(cloud.data))
    assert done.returncode == 0, done.stderr
    body = {"host": host, "binary": "nova-compute", "forced_down": True}
    answer = cloud.client("kilonova").put("compute", "/os-services/force-down", body, version="2.11")
    assert answer.status == 200, answer.body


@click.command()
@click.option("--moves", "count", default=100, show_default=True, help="How many servers to move in each way.")
@click.option("--at-once", default=16, show_default=True)
def main(count: int, at_once: int) -> None:
    """Measure moves."""
    table = Table("What", "Kilonova", title="Moves", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for what, value, unit in measure(Path(scratch), count, at_once):
            table.add_row(what, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
