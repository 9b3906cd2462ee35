"""Kills of the process while it copies volumes: every volume gets its content, and no other files remain."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path
from typing import Any

from tests.support.cloud_process import Client, CloudProcess

MIB = 1 << 20
CONTENT = os.urandom(24 * MIB)
BUSY_STATUSES = ("creating", "downloading")


def test_volume_copies_continue_after_kills(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client("kilonova")
        image_id = create_image(client)
        volumes = [create_volume(client, imageRef=image_id) for _ in range(3)]
        for _ in range(4):
            time.sleep(random.uniform(0, 0.15))
            cloud.kill()
            cloud.start()
        client = cloud.client("kilonova")
        copy = create_volume(client, source_volid=wait_until_idle(client, volumes[0])["id"])
        cloud.kill()
        cloud.start()
        client = cloud.client("kilonova")
        for volume_id in (*volumes, copy):
            assert wait_until_idle(client, volume_id)["status"] == "available"
            assert content_hash(cloud, volume_id) == hashlib.sha256(CONTENT).hexdigest()
        assert sorted(path.name.partition(".")[0] for path in volume_files(cloud)) == sorted((*volumes, copy))


def create_image(client: Client) -> str:
    body = {"name": "large", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", body).json()["id"]
    headers = {"Content-Type": "application/octet-stream"}
    assert client.request("PUT", "image", f"/images/{image_id}/file", content=CONTENT, headers=headers).status == 204
    return image_id


def create_volume(client: Client, **source: str) -> str:
    answer = client.post("volume", "/volumes", {"volume": {"size": 1, **source}}, version="3.71")
    assert answer.status == 202, answer.body
    return str(answer.json()["volume"]["id"])


def wait_until_idle(client: Client, volume_id: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while True:
        volume: dict[str, Any] = client.get("volume", f"/volumes/{volume_id}").json()["volume"]
        if volume["status"] not in BUSY_STATUSES:
            return volume
        assert time.monotonic() < until, volume
        time.sleep(0.02)


def volume_files(cloud: CloudProcess) -> list[Path]:
    return [path for path in (cloud.data / "volumes").rglob("*.*") if path.is_file()]


def content_hash(cloud: CloudProcess, volume_id: str) -> str:
    (path,) = (cloud.data / "volumes").glob(f"{volume_id}.*")
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(len(CONTENT)))
        assert file.read(MIB).strip(b"\0") == b""
    return digest.hexdigest()
