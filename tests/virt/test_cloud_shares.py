"""A share of the built-in service in a server of a cloud on one machine, over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.virt_hosts import Site, linux_image, temporary_site, wait_until
from tests.virt.test_driver_embedded import EmbeddedCloud
from tests.virt.test_shares import SCRIPT

VERSION = "2.97"


@pytest.fixture
def site() -> Iterator[Site]:
    with temporary_site() as created:
        yield created


def test_server_mounts_a_share_of_the_cloud(site: Site) -> None:
    cloud = EmbeddedCloud(site.host("files"))
    cloud.start()
    try:
        wait_until(cloud.hypervisors, "the host is registered")
        client = cloud.client()
        made = client.post("share", "/shares", {"share": {"share_proto": "NFS", "size": 1, "name": "data"}}).json()
        share_id = made["share"]["id"]

        def share() -> dict[str, Any]:
            shown: dict[str, Any] = client.get("share", f"/shares/{share_id}").json()["share"]
            return shown

        wait_until(lambda: share()["status"] == "available", "the share is available")
        (location,) = client.get("share", f"/shares/{share_id}/export_locations").json()["export_locations"]
        machine, _, path = location["path"].partition(":")
        assert machine == "files"
        directory = Path(path)
        (directory / "from-host").write_text("hello")

        image = cloud.image(linux_image(), "qcow2")
        keys = {"config_drive": True, "user_data": base64.b64encode(SCRIPT).decode()}
        server = cloud.boot(image, ram=256, **keys)
        cloud.wait_for_status(server, "ACTIVE")
        cloud.wait_for_output(server, "SHARE none")
        act(cloud, server, "os-stop", "SHUTOFF")

        body = {"share": {"share_id": share_id, "tag": "data"}}
        attached = client.post("compute", f"/servers/{server}/shares", body, version=VERSION)
        assert attached.status == 201, attached.body
        wait_until(lambda: status(cloud, server, share_id) == "inactive", "the share is attached")
        act(cloud, server, "os-start", "ACTIVE")
        assert status(cloud, server, share_id) == "active"
        cloud.wait_for_output(server, "SHARE hello")
        cloud.wait_for_output(server, "WRITTEN")
        assert (directory / "from-guest").read_text().startswith("guest ")
        assert client.delete("share", f"/shares/{share_id}").status == 403

        assert client.delete("compute", f"/servers/{server}").status == 204
        wait_until(lambda: client.get("compute", f"/servers/{server}").status == 404, "the server is deleted")
        # What the guest wrote is still there.
        assert (directory / "from-guest").exists()
        assert client.delete("share", f"/shares/{share_id}").status == 202
        wait_until(lambda: not directory.exists(), "the directory is removed")
        assert cloud.process is not None
        assert cloud.process.stop() == 0
    finally:
        if cloud.process is not None and cloud.process.alive():
            cloud.process.kill()


def act(cloud: EmbeddedCloud, server: str, action: str, wanted: str) -> None:
    assert cloud.client().post("compute", f"/servers/{server}/action", {action: None}).status == 202
    cloud.wait_for_status(server, wanted)


def status(cloud: EmbeddedCloud, server: str, share_id: str) -> str:
    answer = cloud.client().get("compute", f"/servers/{server}/shares/{share_id}", version=VERSION)
    assert answer.status == 200, answer.body
    return str(answer.json()["share"]["status"])
