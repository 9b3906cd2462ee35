"""Measures real guests on two hosts in network namespaces of this machine: `python -m bench.guests`.

The guests are minimal and emulated, so the figures mostly show the cost of Kilonova and libvirt.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import find_missing_tools, wait_until

Figure = tuple[str, float, str]
IDLE_SECONDS = 20.0
# Twenty guests exceed the default limits of a small machine.
LIMITS = {"quota": {"instances": -1, "cores": -1, "ram": -1}, "libvirt": {"cpu_allocation_ratio": 16.0}}
LIVE = {"host": None, "block_migration": "auto"}


def measure(scratch: Path, guests: int, moves: int = 5) -> Iterator[Figure]:
    with real_cloud(scratch / "guests", shared_storage=True, settings=LIMITS) as cloud:
        image = cloud.micro_image()
        cloud.boot("first", image)  # fetches the image
        servers, seconds = _boots(cloud, image, guests)
        yield f"{guests} real guests booted, until their first output", guests / seconds * 60, "/min"
        yield from _overhead(cloud, guests)
        yield from _migrations(cloud, servers[:moves])


def _boots(cloud: RealCloud, image: str, count: int) -> tuple[list[str], float]:
    began = time.monotonic()
    servers = [cloud.boot(f"guest-{number}", image, wait=False) for number in range(count)]
    for server in servers:
        cloud.wait(server, "ACTIVE")
        cloud.wait_for_output(server, "HELLO")
    return servers, time.monotonic() - began


def _overhead(cloud: RealCloud, guests: int) -> Iterator[Figure]:
    agents = {name: psutil.Process(agent.pid) for name, agent in cloud.agents.items()}
    before = {name: sum(agent.cpu_times()[:2]) for name, agent in agents.items()}
    time.sleep(IDLE_SECONDS)
    spent = sum(sum(agent.cpu_times()[:2]) - before[name] for name, agent in agents.items()) / len(agents)
    memory = sum(agent.memory_info().rss for agent in agents.values()) / len(agents)
    yield f"an agent, {guests} guests on {len(agents)} hosts: memory", memory / 2**20, "MiB"
    yield f"an agent, {guests} guests on {len(agents)} hosts: CPU", spent / IDLE_SECONDS * 100, "%"


def _migrations(cloud: RealCloud, servers: list[str]) -> Iterator[Figure]:
    total, down = [], []
    for server in servers:
        first = cloud.host_of(server)
        began = time.monotonic()
        cloud.server_action(server, "os-migrateLive", LIVE)
        wait_until(
            lambda server=server, first=first: cloud.host_of(server) != first, "it has moved", interval_seconds=0.05
        )
        cloud.wait(server, "ACTIVE")
        total.append(time.monotonic() - began)
        job = cloud.hosts[cloud.host_of(server)].execute("virsh", "domjobinfo", "--completed", f"kn-{server}")
        found = re.search(r"Total downtime:\s+(\d+)", job)
        down.append(int(found.group(1)) if found else 0)
    yield f"live migration of {len(servers)}: until completed, median", sorted(total)[len(total) // 2], "s"
    yield "live migration: downtime of the guest, median", sorted(down)[len(down) // 2], "ms"


@click.command()
@click.option("--guests", default=20, show_default=True, help="How many guests to boot.")
@click.option("--moves", default=5, show_default=True, help="How many of them to live-migrate.")
def main(guests: int, moves: int) -> None:
    """Measure boots, migrations and agents of real guests."""
    if find_missing_tools():
        raise click.ClickException(f"real guests need {', '.join(find_missing_tools())}")
    table = Table("Measurement", "Kilonova", title="Real guests", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for name, value, unit in measure(Path(scratch), guests, moves):
            table.add_row(name, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
