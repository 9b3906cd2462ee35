"""Measures start-up, memory, boots, lists, moves and volumes of a real process, next to Nova's figures where known."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table
from tests.support.cloud_process import CloudProcess

from bench import growth, guests, image_copy, moves, series, volumes
from bench.load_runner import UNLIMITED, quantile, run_load, run_measured
from bench.wire import Wire, log_in

# Nova with three hosts on the same kind of machine.
NOVA_FIRST_ACTIVE_SECONDS = 44.0
NOVA_MEMORY_MIB = 2.3 * 1024
NOVA_BOOTS_PER_SECOND = 1.6
NOVA_BOOT_CPU_MS = 1200.0
NOVA_LIST_OF_500_CPU_MS = 5500.0

PLOT = Path("docs/growth.svg")


class ResultTable:
    """The table of results, with Nova's figures for comparison."""

    def __init__(self) -> None:
        self.table = Table("Measurement", "Kilonova", "Nova", "Ratio", title="Kilonova bench", title_justify="left")
        for column in self.table.columns[1:]:
            column.justify = "right"

    def add(
        self, name: str, value: float, unit: str, nova: float | None = None, *, higher_is_better: bool = False
    ) -> None:
        ratio = "" if nova is None else f"{(value / nova if higher_is_better else nova / value):.0f}x"
        theirs = "" if nova is None else f"{_number(nova)} {unit}"
        self.table.add_row(name, f"{_number(value)} {unit}", theirs, ratio)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


@click.command()
@click.option("--boots", default=200, show_default=True, help="How many servers to boot.")
@click.option("--at-once", default=16, show_default=True, help="How many of them concurrently.")
@click.option("--servers", default=500, show_default=True, help="How many servers a list has.")
@click.option("--moves", "moved", default=100, show_default=True, help="How many servers to move, per kind of move.")
@click.option("--volumes", "used", default=100, show_default=True, help="How many volumes to use with each action.")
@click.option("--guests", "real", default=20, show_default=True, help="How many real guests to boot.")
@click.option("--hosts", default=1000, show_default=True, help="How many hosts the large start has.")
@click.option("--growth/--no-growth", "grow", default=True, help="Also measure by number of hosts, and draw the plot.")
def main(boots: int, at_once: int, servers: int, moved: int, used: int, real: int, hosts: int, grow: bool) -> None:
    """Measure start-up, memory, boots, lists, moves, volumes, real guests, and growth with the number of hosts."""
    results = ResultTable()
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        measure_starts(results, Path(scratch), hosts)
        measure_requests(results, Path(scratch), boots, at_once, servers)
        for figures in (
            moves.measure(Path(scratch), moved, at_once),
            volumes.measure(Path(scratch), used, at_once),
            image_copy.measure(Path(scratch)),
            guests.measure(Path(scratch), real) if real and not guests.find_missing_tools() else (),
        ):
            for figure in figures:
                results.add(*figure)
    Console(width=100).print(results.table)
    if real and guests.find_missing_tools():
        click.echo(f"Real guests were not measured: they need {', '.join(guests.find_missing_tools())}.")
    if grow:
        grown = growth.measure()
        Console(width=120).print(series.table(grown))
        series.draw(grown, PLOT)


def measure_starts(results: ResultTable, scratch: Path, hosts: int) -> None:
    cloud = CloudProcess(scratch / "small", "--port", str(_free_port()))
    first = _start(cloud)
    results.add("first start: first answer", first["answer"], "s")
    results.add("first start: first list of servers", first["list"], "s")
    results.add(
        "first start: first ACTIVE server", _first_active(cloud, first["began"]), "s", NOVA_FIRST_ACTIVE_SECONDS
    )
    results.add("memory with three hosts (PSS)", _memory(cloud.pid), "MiB", NOVA_MEMORY_MIB)
    cloud.stop()
    second = _start(cloud)
    results.add("second start: first answer", second["answer"], "s")
    results.add("second start: first list of servers", second["list"], "s")
    began = time.perf_counter()
    cloud.stop()
    results.add("stop", time.perf_counter() - began, "s")
    large = CloudProcess(scratch / "large", "--port", str(_free_port()), "--hosts", str(hosts))
    for which in ("first", "second"):
        figures = _start(large)
        results.add(f"{which} start with {hosts} hosts: first list", figures["list"], "s")
        if which == "second":
            time.sleep(1)  # until modules that load late are loaded
            results.add(f"memory with {hosts} hosts (PSS)", _memory(large.pid), "MiB")
        large.stop()


def measure_requests(results: ResultTable, scratch: Path, boots: int, at_once: int, servers: int) -> None:
    with CloudProcess(scratch / "work", "--hosts", "20", environ=UNLIMITED) as cloud:
        run_load(cloud, "boots", count=at_once, at_once=at_once)  # warm up: the first boots load modules
        figures, cpu = run_measured(cloud, "boots", count=boots, at_once=at_once)
        taken = figures["taken"]
        results.add(
            f"{boots} boots, {at_once} concurrently",
            boots / figures["seconds"],
            "/s",
            NOVA_BOOTS_PER_SECOND,
            higher_is_better=True,
        )
        results.add("request to ACTIVE, median", quantile(taken, 0.5) * 1000, "ms")
        results.add("request to ACTIVE, 95th percentile", quantile(taken, 0.95) * 1000, "ms")
        results.add("CPU of a boot, polling included", cpu / boots * 1000, "ms", NOVA_BOOT_CPU_MS)
        results.add("polls of a boot", figures["polls"] / boots, "GET")
        run_load(cloud, "boots", count=max(0, servers - boots - at_once), at_once=at_once)
        for name, count, nova in (("show", 500, None), ("list", 20, NOVA_LIST_OF_500_CPU_MS)):
            figures, cpu = run_measured(cloud, name, count=count)
            label = f"detail list of {servers}" if name == "list" else "show"
            results.add(f"{label}, median", quantile(figures["taken"], 0.5) * 1000, "ms")
            results.add(f"{label}, CPU", cpu / count * 1000, "ms", nova)
        results.add(f"memory with {servers} servers (PSS)", _memory(cloud.pid), "MiB")


def _start(cloud: CloudProcess) -> dict[str, float]:
    """Seconds from the start of the process to its first answers."""
    began = time.perf_counter()
    cloud.start(wait=False)
    port = int(cloud.options[cloud.options.index("--port") + 1])
    while True:
        try:
            asyncio.run(Wire(f"http://127.0.0.1:{port}").json("GET", "/compute/v2.1/"))
            break
        except (ConnectionError, asyncio.IncompleteReadError):
            if not cloud.running:
                raise SystemExit(cloud.output) from None
            time.sleep(0.005)
    answer = time.perf_counter() - began
    while not (cloud.data / "endpoints.json").exists():
        time.sleep(0.002)
    asyncio.run(_list(cloud))
    return {"began": began, "answer": answer, "list": time.perf_counter() - began}


async def _list(cloud: CloudProcess) -> None:
    token = await log_in(cloud.endpoints["auth_url"], cloud.clouds["kilonova"]["auth"])
    await Wire(cloud.endpoints["compute"], token).json("GET", "/compute/v2.1/servers")


def _first_active(cloud: CloudProcess, began: float) -> float:
    run_load(cloud, "boots", count=1, at_once=1)
    return time.perf_counter() - began


def _memory(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / 2**20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
