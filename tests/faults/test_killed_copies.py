"""Kills of the whole process while it copies: every volume becomes what it shall be, and nothing else lies around."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path
from typing import Any

from tests.support.process import Client, Cloud

MIB = 1 << 20
CONTENT = os.urandom(24 * MIB)
BUSY = ("creating", "downloading")


def test_copies_go_on_after_kills(tmp_path: Path) -> None:
    with Cloud(tmp_path / "data") as cloud:
        client = cloud.client("kilonova")
        image_id = put_image(client)
        volumes = [make(client, imageRef=image_id) for _ in range(3)]
        for _ in range(4):
            time.sleep(random.uniform(0, 0.15))
            cloud.kill()
            cloud.start()
        client = cloud.client("kilonova")
        copy = make(client, source_volid=settled(client, volumes[0])["id"])
        cloud.kill()
        cloud.start()
        client = cloud.client("kilonova")
        for volume_id in (*volumes, copy):
            assert settled(client, volume_id)["status"] == "available"
            assert content(cloud, volume_id) == hashlib.sha256(CONTENT).hexdigest()
        assert sorted(path.name.partition(".")[0] for path in files(cloud)) == sorted((*volumes, copy))


def put_image(client: Client) -> str:
    asked = {"name": "large", "disk_format": "raw", "container_format": "bare"}
    image_id: str = client.post("image", "/images", asked).json()["id"]
    headers = {"Content-Type": "application/octet-stream"}
    assert client.request("PUT", "image", f"/images/{image_id}/file", content=CONTENT, headers=headers).status == 204
    return image_id


def make(client: Client, **source: str) -> str:
    answer = client.post("volume", "/volumes", {"volume": {"size": 1, **source}}, version="3.71")
    assert answer.status == 202, answer.body
    return str(answer.json()["volume"]["id"])


def settled(client: Client, volume_id: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while True:
        volume: dict[str, Any] = client.get("volume", f"/volumes/{volume_id}").json()["volume"]
        if volume["status"] not in BUSY:
            return volume
        assert time.monotonic() < until, volume
        time.sleep(0.02)


def files(cloud: Cloud) -> list[Path]:
    return [path for path in (cloud.data / "volumes").rglob("*.*") if path.is_file()]


def content(cloud: Cloud, volume_id: str) -> str:
    (path,) = (cloud.data / "volumes").glob(f"{volume_id}.*")
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(len(CONTENT)))
        assert file.read(MIB).strip(b"\0") == b""
    return digest.hexdigest()
