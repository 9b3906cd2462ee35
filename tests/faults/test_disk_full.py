"""The disk of the data directory is full: clear errors, reads go on, and everything recovers by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cloud_process import Client, CloudProcess, kilonova

FULL = "Storage is full: nothing was changed."
MEBIBYTE = 2**20


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
            while free > leave_bytes:
                free -= file.write(bytes(min(65536, free - leave_bytes)))

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("only root may mount a file system, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("only root may mount a file system")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", path], check=True)
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def wait_for(client: Client, path: str, status: int, text: str) -> None:
    until = time.monotonic() + 60
    while True:
        answer = client.request_url("GET", client.endpoints["auth_url"].removesuffix("/identity/v3") + path)
        if (answer.status, answer.body.decode().strip()) == (status, text):
            return
        assert time.monotonic() < until, answer.body
        time.sleep(0.1)


def upload(client: Client, size: int) -> int:
    body = {"name": "large", "disk_format": "raw", "container_format": "bare"}
    image_id = client.post("image", "/images", body).json()["id"]
    octets = {"Content-Type": "application/octet-stream"}
    status = client.request("PUT", "image", f"/images/{image_id}/file", content=b"x" * size, headers=octets).status
    assert client.get("image", f"/images/{image_id}").json()["status"] in ("queued", "saving", "active")
    return status


def test_full_disk_gives_clear_errors_and_recovers(tmp_path: Path, disk: Disk) -> None:
    log = tmp_path / "log"
    with CloudProcess(
        disk.path / "data", environ={"KILONOVA_LOG__FILE": str(log), "KILONOVA_RESERVED_DISK_GB": "0"}
    ) as cloud:
        client = cloud.client()
        first = client.boot("first")
        client.wait(first, status="ACTIVE")
        started = [client.boot(f"started {number}") for number in range(5)]
        disk.fill()
        before = log.stat().st_size
        for number in range(40):
            refused = client.post("volume", "/volumes", {"volume": {"size": 1, "name": f"v{number}"}})
            assert (refused.status, FULL in refused.body.decode()) == (503, True), refused.body
            assert client.get("compute", f"/servers/{first}").status == 200
        assert client.delete("compute", f"/servers/{first}").status == 503
        assert cloud.client().log_in().status == 201
        wait_for(client, "/readyz", 503, "storage is full")
        written = log.read_bytes()[before:].decode()
        assert written.count("Traceback") <= 5
        assert written.count("\n") < 1000
        disk.free()
        for server_id in started:
            client.wait(server_id, status="ACTIVE")
        client.wait(client.boot("after"), status="ACTIVE")
        wait_for(client, "/readyz", 200, "ok")
        assert client.get("volume", "/volumes").json()["volumes"] == []
        healthy = kilonova("doctor", "--data", str(cloud.data))
        assert healthy.returncode == 0, healthy.stdout


def test_image_that_does_not_fit_leaves_no_file(tmp_path: Path, disk: Disk) -> None:
    with CloudProcess(disk.path / "data", environ={"KILONOVA_RESERVED_DISK_GB": "0"}) as cloud:
        client = cloud.client()
        disk.fill(leave_bytes=4 * MEBIBYTE)
        assert upload(client, 8 * MEBIBYTE) in (413, 503)
        assert not [path for path in (cloud.data / "images").iterdir() if path.stat().st_size > MEBIBYTE]
        disk.free()
        assert upload(client, 8 * MEBIBYTE) == 204
        (image,) = client.get("image", "/images?name=large&status=active").json()["images"]
        disk.fill(leave_bytes=4 * MEBIBYTE)
        body = {"volume": {"size": 1, "name": "v", "imageRef": image["id"]}}
        volume_id = client.post("volume", "/volumes", body).json()["volume"]["id"]
        until = time.monotonic() + 60
        while (shown := client.get("volume", f"/volumes/{volume_id}").json()["volume"])["status"] != "error":
            assert time.monotonic() < until, shown
            time.sleep(0.1)
        assert not [path for path in (cloud.data / "volumes").rglob("*") if path.is_file()]
        disk.free()
        healthy = kilonova("doctor", "--data", str(cloud.data))
        assert healthy.returncode == 0, healthy.stdout
