"""Measures volumes, compared with boots from images in the same process: `python -m bench.volumes`.

Servers boot from new volumes, are rebuilt with another image, and attach and detach further volumes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tests.support.cloud_process import CloudProcess

from bench.load_runner import UNLIMITED, quantile, run_load, run_measured

HOSTS = 20
# As large as the image of a new cloud.
OTHER_IMAGE = b"another" + bytes(65536 - len("another"))
Figure = tuple[str, float, str]


def measure(scratch: Path, count: int, at_once: int) -> Iterator[Figure]:
    with CloudProcess(scratch / "volumes", "--hosts", str(HOSTS), environ=UNLIMITED) as cloud:
        bench = Bench(cloud, count, at_once)
        yield from bench.measure("boot from volume", "boots", count=count, name="rooted", from_volume=True)
        rebuild = {"action": "rebuild", "body": {"imageRef": _other_image(cloud)}, "where": "name=rooted"}
        yield from bench.measure("rebuild from volume", "moves", **rebuild)
        run_load(cloud, "volumes", count=count, at_once=at_once)
        yield from bench.measure("attachment", "attach", where="name=plain")
        yield from bench.measure("detachment", "detach")


class Bench:
    """Compares each measurement with a boot from an image."""

    def __init__(self, cloud: CloudProcess, count: int, at_once: int) -> None:
        self.cloud, self.count, self.at_once = cloud, count, at_once
        for from_volume in (False, True):  # warm up: the first boots load modules
            run_load(cloud, "boots", count=at_once, at_once=at_once, name="first", from_volume=from_volume)
        _, cpu = run_measured(cloud, "boots", count=count, at_once=at_once, name="plain")
        self.boot = cpu / count

    def measure(self, what: str, job: str, **options: Any) -> Iterator[Figure]:
        count = self.count
        figures, cpu = run_measured(self.cloud, job, at_once=self.at_once, **options)
        taken = figures["taken"]
        if len(taken) != count:
            raise RuntimeError(f"{len(taken)} of {what} instead of {count}")
        yield f"{what}: {count}, {self.at_once} at once", count / figures["seconds"], "/s"
        yield f"{what}: until completed, median", quantile(taken, 0.5) * 1000, "ms"
        yield f"{what}: CPU, polling included", cpu / count * 1000, "ms"
        yield f"{what}: CPU relative to a boot", cpu / count / self.boot, "x"
        yield f"{what}: polls", figures["polls"] / count, "GET"


def _other_image(cloud: CloudProcess) -> str:
    client = cloud.client("kilonova")
    body = {"name": "other", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", body).json()["id"]
    answer = client.request("PUT", "image", f"/images/{image_id}/file", content=OTHER_IMAGE)
    assert answer.status == 204, answer.body
    return image_id


@click.command()
@click.option("--volumes", "count", default=100, show_default=True, help="How many volumes to use with each action.")
@click.option("--at-once", default=16, show_default=True)
def main(count: int, at_once: int) -> None:
    """Measure actions on volumes."""
    table = Table("Measurement", "Kilonova", title="Volumes", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for name, value, unit in measure(Path(scratch), count, at_once):
            table.add_row(name, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
