"""Measures the CPU of a boot with real Keystone, Glance, Neutron and Cinder beside one with built-in services.

    .venv/bin/python -m bench.real_services

Only Kilonova's own process counts. What it spends while nothing happens is subtracted, because boots with real
services take longer. The services are started unless they run already (`make openstack`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import click
import psutil
from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body
from tests.support.cloud_process import Client, CloudProcess

from bench.load_runner import UNLIMITED

IDLE_SECONDS = 10.0
POLL_INTERVAL_SECONDS = 0.5
TIMEOUT_SECONDS = 600.0


@contextmanager
def built_in(directory: Path) -> Iterator[tuple[CloudProcess, Client, str]]:
    with CloudProcess(directory / "built-in", "--hosts", "3", environ=UNLIMITED) as cloud:
        yield cloud, cloud.client("kilonova-demo"), "private"


@contextmanager
def real(directory: Path) -> Iterator[tuple[CloudProcess, Client, str]]:
    services = Cloud()
    ran = services.is_running()
    try:
        services.start()
        process = Kilonova(services, directory / "real", environ=UNLIMITED)
        process.register()
        with process:
            yield process, process.user("demo"), "shared"
            process.delete_servers(TIMEOUT_SECONDS)
    finally:
        if not ran:
            services.stop()


def cpu_of_boot(cloud: CloudProcess, client: Client, network_name: str, boots: int, at_once: int) -> float:
    """Milliseconds of CPU for a boot, without those of an idle process."""
    image = client.get("image", "/images?visibility=public").json()["images"][0]
    network = client.get("network", f"/networks?name={network_name}").json()["networks"][0]

    def boot(number: int) -> None:
        own = Client(client.endpoints, {"auth": client.auth})
        own._token = client.token
        answer = own.post("compute", "/servers", server_body(image, network, name=f"bench-{number}"))
        assert answer.status == 202, answer.body

    def run(count: int) -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as executor:
            list(executor.map(boot, range(count)))
        while client.get("compute", "/servers?status=BUILD&limit=1").json()["servers"]:
            assert time.perf_counter() < began + TIMEOUT_SECONDS
            time.sleep(POLL_INTERVAL_SECONDS)
        assert not client.get("compute", "/servers?status=ERROR&limit=1").json()["servers"]
        return time.perf_counter() - began

    process = psutil.Process(cloud.pid)
    run(at_once)  # the first boots load modules
    before = _cpu_seconds(process)
    time.sleep(IDLE_SECONDS)
    idle = (_cpu_seconds(process) - before) / IDLE_SECONDS
    before = _cpu_seconds(process)
    seconds = run(boots)
    return (_cpu_seconds(process) - before - idle * seconds) / boots * 1000


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@click.command()
@click.option("--boots", default=100, show_default=True, help="How many servers to boot.")
@click.option("--at-once", default=16, show_default=True, help="How many of them concurrently.")
def main(boots: int, at_once: int) -> None:
    """Measure the CPU of a boot with built-in and with real services."""
    figures = {}
    for name, start in (("built-in", built_in), ("real", real)):
        with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch, start(Path(scratch)) as cloud:
            figures[name] = cpu_of_boot(*cloud, boots, at_once)
            click.echo(f"CPU of a boot, {name} services: {figures[name]:.2f} ms")
    click.echo(f"ratio: {figures['real'] / figures['built-in']:.2f}")


if __name__ == "__main__":
    main()
