"""Measures the copy of an image into a volume against a plain file copy: `python -m bench.image_copy`."""

from __future__ import annotations

import http.client
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table
from tests.support.cloud_process import Client, CloudProcess

BLOCK = 1 << 20
MIB = 1 << 20
TIMEOUT_SECONDS = 600.0
# The speed of disks varies, so the best run counts. The first run is ignored: a virtual machine may first have to get
# its memory.
RUNS = 3
Figure = tuple[str, float, str]


def measure(scratch: Path, mebibytes: int = 1024) -> Iterator[Figure]:
    """The plain copy also writes block by block and syncs, as a volume does."""
    image = scratch / "image"
    _write_random(image, mebibytes)
    with CloudProcess(scratch / "copying") as cloud:
        client = cloud.client("kilonova")
        image_id = _upload(client, image)
        before = _reset_peak(cloud.pid)
        size = -(-mebibytes // 1024)
        runs = [(_copy(image, scratch / "copy"), _make_volume(client, image_id, size)) for _ in range(RUNS)]
        disk, volume = (min(seconds) for seconds in zip(*runs[1:], strict=True))
        yield f"image of {mebibytes} MiB into a volume", mebibytes / volume, "MiB/s"
        yield "plain copy of the same file", mebibytes / disk, "MiB/s"
        yield "time of the volume relative to the plain copy", volume / disk, "x"
        yield "increase of memory at the peak (RSS)", _peak(cloud.pid) - before, "MiB"


def _write_random(path: Path, mebibytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(MIB))


def _upload(client: Client, path: Path) -> str:
    body = {"name": "large", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", body).json()["id"]
    address = urlsplit(client.endpoints["image"])
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_SECONDS)
    headers = {
        "X-Auth-Token": client.token,
        "Content-Type": "application/octet-stream",
        "Content-Length": str(path.stat().st_size),
    }
    with path.open("rb") as file:
        connection.request("PUT", f"{address.path}/images/{image_id}/file", file, headers)
    answer = connection.getresponse()
    assert answer.status == 204, answer.read()
    connection.close()
    return image_id


def _copy(source: Path, target: Path) -> float:
    """Seconds for a copy with fsync."""
    os.sync()
    began = time.perf_counter()
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while block := reading.read(BLOCK):
            writing.write(block)
        os.fsync(writing.fileno())
    taken = time.perf_counter() - began
    target.unlink()
    return taken


def _make_volume(client: Client, image_id: str, size: int) -> float:
    """Seconds until the volume is available; deletes it afterwards."""
    os.sync()
    began = time.perf_counter()
    answer = client.post("volume", "/volumes", {"volume": {"size": size, "imageRef": image_id}}, version="3.71")
    assert answer.status == 202, answer.body
    path = f"/volumes/{answer.json()['volume']['id']}"
    while (volume := client.get("volume", path).json()["volume"])["status"] != "available":
        assert volume["status"] in ("creating", "downloading"), volume
        assert time.perf_counter() - began < TIMEOUT_SECONDS, volume
        time.sleep(0.02)
    taken = time.perf_counter() - began
    client.delete("volume", path)
    while client.get("volume", path).status != 404:
        assert time.perf_counter() - began < TIMEOUT_SECONDS, path
        time.sleep(0.02)
    return taken


def _reset_peak(pid: int) -> float:
    """Reset the peak memory of a process; return its current memory in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def _peak(pid: int) -> float:
    return _memory(pid, "VmHWM")


def _memory(pid: int, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


@click.command()
@click.option("--mebibytes", default=1024, show_default=True, help="How large the image is.")
def main(mebibytes: int) -> None:
    """Measure the copy of an image into a volume."""
    table = Table("Measurement", "Kilonova", title="Image copy", title_justify="left")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        for name, value, unit in measure(Path(scratch), mebibytes):
            table.add_row(name, f"{value:.2f} {unit}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
