"""The image proxy of openstacksdk against a real process, and interrupted connections."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.cloud_process import Client, CloudProcess

MIB = 2**20


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("image") / "data", "--hosts", "1") as running:
        yield running


def connect(cloud: CloudProcess, name: str) -> Any:
    import openstack

    settings = cloud.clouds[name]
    return openstack.connect(auth=settings["auth"], region_name=settings["region_name"], identity_api_version="3")


def test_sdk_manages_image(cloud: CloudProcess) -> None:
    from openstack import exceptions

    demo, admin = connect(cloud, "kilonova-demo"), connect(cloud, "kilonova")
    content = os.urandom(300_000)
    assert [image.name for image in demo.image.images()] == ["cirros-sim"]
    created = demo.image.create_image(
        "one", data=content, disk_format="raw", container_format="bare", tags=["t"], os_distro="cirros", wait=True
    )
    image = demo.image.get_image(created.id)
    assert (image.status, image.size, image.tags, image.os_distro) == ("active", len(content), ["t"], "cirros")
    assert image.hash_value == hashlib.sha512(content).hexdigest()
    assert demo.image.download_image(image).content == content
    target = io.BytesIO()
    demo.image.download_image(image, output=target)
    assert target.getvalue() == content
    changed = demo.image.update_image(image, name="two", hw_disk_bus="virtio", min_ram=64)
    assert (changed.name, changed.hw_disk_bus, changed.min_ram) == ("two", "virtio", 64)
    assert demo.image.find_image("two").id == image.id
    assert len(list(demo.image.images(limit=1))) == 2
    project = admin.current_project_id
    assert demo.image.add_member(image, member_id=project).status == "pending"
    assert admin.image.update_member(project, image, status="accepted").status == "accepted"
    demo.image.remove_member(project, image)
    demo.image.deactivate_image(image)
    with pytest.raises(exceptions.SDKException):  # the SDK verifies the checksum of the error body before its status
        demo.image.download_image(image)
    demo.image.reactivate_image(image)
    demo.image.delete_image(image)
    with pytest.raises(exceptions.NotFoundException, match="No image found with ID"):
        demo.image.get_image(image.id)


def queued(client: Client) -> str:
    response = client.post("image", "/images", {"name": "x", "disk_format": "raw", "container_format": "bare"})
    assert response.status == 201, response.body
    image_id: str = response.json()["id"]
    return image_id


def status(client: Client, image_id: str) -> str:
    shown: str = client.get("image", f"/images/{image_id}").json()["status"]
    return shown


def begin(cloud: CloudProcess, client: Client, image_id: str, length: int) -> socket.socket:
    """A connection on which the headers of an upload have been sent."""
    url = urlsplit(cloud.endpoints["image"])
    connection = socket.create_connection((url.hostname, url.port or 80))
    head = (
        f"PUT {url.path}/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {client.token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode())
    return connection


def wait_for(client: Client, image_id: str, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while status(client, image_id) != wanted:
        assert time.monotonic() < deadline, status(client, image_id)
        time.sleep(0.02)


def test_image_is_queued_after_client_disconnects(cloud: CloudProcess) -> None:
    client = cloud.client()
    image_id = queued(client)
    before = sorted(path.name for path in (cloud.data / "images").rglob("*"))
    connection = begin(cloud, client, image_id, 100 * MIB)
    connection.sendall(bytes(5 * MIB))
    wait_for(client, image_id, "saving")
    connection.close()
    wait_for(client, image_id, "queued")
    deadline = time.monotonic() + 60  # the partial file is removed after the image is queued
    while (left := sorted(path.name for path in (cloud.data / "images").rglob("*"))) != before:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_memory_does_not_grow_with_upload_size(cloud: CloudProcess) -> None:
    client = cloud.client()
    process = psutil.Process(cloud.pid)
    image_id = queued(client)
    before = process.memory_info().rss
    highest = before
    block = os.urandom(MIB)
    connection = begin(cloud, client, image_id, 64 * MIB)
    for _ in range(64):
        connection.sendall(block)
        highest = max(highest, process.memory_info().rss)
    assert connection.recv(65536).startswith(b"HTTP/1.1 204")
    connection.close()
    assert client.get("image", f"/images/{image_id}/file").body == block * 64
    highest = max(highest, process.memory_info().rss)
    assert highest - before < 32 * MIB, f"{(highest - before) / MIB:.0f} MiB more"


def test_killed_process_during_upload(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", "--hosts", "1") as cloud:
        client = cloud.client()
        image_id = queued(client)
        connection = begin(cloud, client, image_id, 100 * MIB)
        connection.sendall(bytes(5 * MIB))
        wait_for(client, image_id, "saving")
        cloud.kill()
        connection.close()
        cloud.start()
        assert status(cloud.client(), image_id) == "queued"
        assert not list((cloud.data / "images" / "uploads").iterdir())
