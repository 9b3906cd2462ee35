"""Measures start-up, memory, boots, lists, moves and volumes of a real process, beside Nova's figures where there are
some, and what grows with the hosts.
"""

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
from tests.support.process import Cloud

from bench import copying, growth, guests, moves, series, volumes
from bench.driving import UNLIMITED, load, measured, share
from bench.wire import Wire, log_in

# Nova with three hosts, measured on the same kind of machine: seconds to the first ACTIVE server, MiB, boots a second,
# CPU milliseconds of a boot and of a detail list of 500 servers.
NOVA_START = 44.0
NOVA_MEMORY = 2.3 * 1024
NOVA_BOOTS = 1.6
NOVA_BOOT_CPU = 1200.0
NOVA_LIST_CPU = 5500.0

PLOT = Path("docs/growth.svg")


class Sheet:
    """The figures, each with what it is compared to."""

    def __init__(self) -> None:
        self.table = Table("What", "Kilonova", "Nova", "Ratio", title="Kilonova bench", title_justify="left")
        for column in self.table.columns[1:]:
            column.justify = "right"

    def add(self, what: str, value: float, unit: str, nova: float | None = None, *, more: bool = False) -> None:
        """`more` says that more is better."""
        ratio = "" if nova is None else f"{(value / nova if more else nova / value):.0f}x"
        theirs = "" if nova is None else f"{_number(nova)} {unit}"
        self.table.add_row(what, f"{_number(value)} {unit}", theirs, ratio)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


@click.command()
@click.option("--boots", default=200, show_default=True, help="How many servers to boot.")
@click.option("--at-once", default=16, show_default=True, help="How many of them on their way at a time.")
@click.option("--servers", default=500, show_default=True, help="How many servers a list has.")
@click.option("--moves", "moved", default=100, show_default=True, help="How many servers to move in each way.")
@click.option("--volumes", "used", default=100, show_default=True, help="How many volumes to use in each way.")
@click.option("--guests", "real", default=20, show_default=True, help="How many real guests to boot.")
@click.option("--hosts", default=1000, show_default=True, help="How many hosts the large start has.")
@click.option("--growth/--no-growth", "grow", default=True, help="Also measure by number of hosts, and draw the plot.")
def main(boots: int, at_once: int, servers: int, moved: int, used: int, real: int, hosts: int, grow: bool) -> None:
    """Measure start-up, memory, boots, lists, moves, volumes, real guests, and what grows with the number of hosts."""
    sheet = Sheet()
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        starts(sheet, Path(scratch), hosts)
        work(sheet, Path(scratch), boots, at_once, servers)
        for figures in (
            moves.measure(Path(scratch), moved, at_once),
            volumes.measure(Path(scratch), used, at_once),
            copying.measure(Path(scratch)),
            guests.measure(Path(scratch), real) if real and not guests.missing() else (),
        ):
            for figure in figures:
                sheet.add(*figure)
    Console(width=100).print(sheet.table)
    if real and guests.missing():
        click.echo(f"Real guests were not measured: they need {', '.join(guests.missing())}.")
    if grow:
        grown = growth.measure()
        Console(width=120).print(series.table(grown))
        series.draw(grown, PLOT)


def starts(sheet: Sheet, scratch: Path, hosts: int) -> None:
    cloud = Cloud(scratch / "small", "--port", str(_free_port()))
    first = _start(cloud)
    sheet.add("first start: first answer", first["answer"], "s")
    sheet.add("first start: first list of servers", first["list"], "s")
    sheet.add("first start: first ACTIVE server", _first_active(cloud, first["began"]), "s", NOVA_START)
    sheet.add("memory with three hosts (PSS)", _memory(cloud.pid), "MiB", NOVA_MEMORY)
    cloud.stop()
    second = _start(cloud)
    sheet.add("second start: first answer", second["answer"], "s")
    sheet.add("second start: first list of servers", second["list"], "s")
    began = time.perf_counter()
    cloud.stop()
    sheet.add("stop", time.perf_counter() - began, "s")
    large = Cloud(scratch / "large", "--port", str(_free_port()), "--hosts", str(hosts))
    for which in ("first", "second"):
        figures = _start(large)
        sheet.add(f"{which} start with {hosts} hosts: first list", figures["list"], "s")
        if which == "second":
            time.sleep(1)  # until what loads late is loaded
            sheet.add(f"memory with {hosts} hosts (PSS)", _memory(large.pid), "MiB")
        large.stop()


def work(sheet: Sheet, scratch: Path, boots: int, at_once: int, servers: int) -> None:
    with Cloud(scratch / "work", "--hosts", "20", environ=UNLIMITED) as cloud:
        load(cloud, "boots", count=at_once, at_once=at_once)  # the first ones pay for what is loaded late
        figures, cpu = measured(cloud, "boots", count=boots, at_once=at_once)
        taken = figures["taken"]
        sheet.add(f"{boots} boots, {at_once} at once", boots / figures["seconds"], "/s", NOVA_BOOTS, more=True)
        sheet.add("request to ACTIVE, median", share(taken, 0.5) * 1000, "ms")
        sheet.add("request to ACTIVE, 95 of 100", share(taken, 0.95) * 1000, "ms")
        sheet.add("CPU of a boot, with its looks", cpu / boots * 1000, "ms", NOVA_BOOT_CPU)
        sheet.add("looks of a boot", figures["looks"] / boots, "GET")
        load(cloud, "boots", count=max(0, servers - boots - at_once), at_once=at_once)
        for what, count, nova in (("show", 500, None), ("list", 20, NOVA_LIST_CPU)):
            figures, cpu = measured(cloud, what, count=count)
            words = f"detail list of {servers}" if what == "list" else "show"
            sheet.add(f"{words}, median", share(figures["taken"], 0.5) * 1000, "ms")
            sheet.add(f"{words}, CPU", cpu / count * 1000, "ms", nova)
        sheet.add(f"memory with {servers} servers (PSS)", _memory(cloud.pid), "MiB")


def _start(cloud: Cloud) -> dict[str, float]:
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


async def _list(cloud: Cloud) -> None:
    token = await log_in(cloud.endpoints["auth_url"], cloud.clouds["kilonova"]["auth"])
    await Wire(cloud.endpoints["compute"], token).json("GET", "/compute/v2.1/servers")


def _first_active(cloud: Cloud, began: float) -> float:
    load(cloud, "boots", count=1, at_once=1)
    return time.perf_counter() - began


def _memory(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / 2**20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
