"""What volumes cost, beside boots from images in the same process: `python -m bench.volumes`.

Servers boot from volumes that are made for them, these get another image, and further volumes come and go.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tests.support.process import Cloud

from bench.driving import UNLIMITED, load, measured, share

HOSTS = 20
# As large as the image that a cloud begins with.
OTHER_IMAGE = b"another" + bytes(65536 - len("another"))
Figure = tuple[str, float, str]


def measure(scratch: Path, count: int, at_once: int) -> Iterator[Figure]:
    with Cloud(scratch / "volumes", "--hosts", str(HOSTS), environ=UNLIMITED) as cloud:
        bench = Bench(cloud, count, at_once)
        yield from bench.each("boot from volume", "boots", count=count, name="rooted", from_volume=True)
        rebuild = {"action": "rebuild", "body": {"imageRef": _other_image(cloud)}, "where": "name=rooted"}
        yield from bench.each("rebuild from volume", "moves", **rebuild)
        load(cloud, "volumes", count=count, at_once=at_once)
        yield from bench.each("attachment", "attach", where="name=plain")
        yield from bench.each("detachment", "detach")


class Bench:
    """Beside each figure stands what a plain boot costs."""

    def __init__(self, cloud: Cloud, count: int, at_once: int) -> None:
        self.cloud, self.count, self.at_once = cloud, count, at_once
        for from_volume in (False, True):  # the first ones pay for what is loaded late
            load(cloud, "boots", count=at_once, at_once=at_once, name="first", from_volume=from_volume)
        _, cpu = measured(cloud, "boots", count=count, at_once=at_once, name="plain")
        self.boot = cpu / count

    def each(self, what: str, load: str, **how: Any) -> Iterator[Figure]:
        count = self.count
        figures, cpu = measured(self.cloud, load, at_once=self.at_once, **how)
        taken = figures["taken"]
        if len(taken) != count:
            raise RuntimeError(f"{len(taken)} times {what} in place of {count}")
        yield f"{what}: {count}, {self.at_once} at once", count / figures["seconds"], "/s"
        yield f"{what}: request to end, median", share(taken, 0.5) * 1000, "ms"
        yield f"{what}: CPU, with its looks", cpu / count * 1000, "ms"
        yield f"{what}: CPU over that of a boot", cpu / count / self.boot, "x"
        yield f"{what}: looks", figures["looks"] / count, "GET"


def _other_image(cloud: Cloud) -> str:
    client = cloud.client("kilonova")
    asked = {"name": "other", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", asked).json()["id"]
    answer = client.request("PUT", "image", f"/images/{image_id}/file", content=OTHER_IMAGE)
    assert answer.status == 204, answer.body
    return image_id


@click.command()
@click.option("--volumes", "count", default=100, show_default=True, help="How many volumes to use in each way.")
@click.option("--at-once", default=16, show_default=True)
def main(count: int, at_once: int) -> None:
    """Measure what is done with volumes."""
    table = Table("What", "Kilonova", title="Volumes", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for what, value, unit in measure(Path(scratch), count, at_once):
            table.add_row(what, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
