"""Volumes of a real Cinder: attachments, boots from volumes, moves, rebuilds, and requests of Cinder itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.openstack.kilonova_process import Kilonova, server_body, wait_for

NEWEST = "3.71"
Attachments = list[dict[str, Any]]


class Volumes:
    """A user's volumes and servers."""

    def __init__(self, kilonova: Kilonova) -> None:
        self.kilonova = kilonova
        self.user, self.admin = kilonova.user(version="2.96"), kilonova.user("admin", "admin", "2.96")

    # Volumes

    def create(self, **keys: Any) -> str:
        body = {"volume": {"size": 1, **keys}}
        answer = self.user.post("volume", "/volumes", body, version=NEWEST)
        assert answer.status == 202, answer.body
        return self.wait(answer.json()["volume"]["id"], "available")

    def show(self, volume_id: str) -> dict[str, Any]:
        answer = self.user.get("volume", f"/volumes/{volume_id}", version=NEWEST)
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.json()["volume"]
        return shown

    def list(self) -> set[str]:
        listed = self.user.get("volume", "/volumes", version=NEWEST).json()["volumes"]
        return {volume["id"] for volume in listed}

    def wait(self, volume_id: str, status: str) -> str:
        wait_for(lambda: self.show(volume_id)["status"] == status, f"volume is {status}")
        return volume_id

    def act(self, volume_id: str, **action: Any) -> None:
        answer = self.user.post("volume", f"/volumes/{volume_id}/action", action, version=NEWEST)
        assert answer.status == 202, answer.body

    def attachments(self, volume_id: str) -> Attachments:
        path = f"/attachments/detail?all_tenants=1&volume_id={volume_id}"
        found: Attachments = self.admin.get("volume", path, version=NEWEST).json()["attachments"]
        return found

    def host_of(self, volume_id: str) -> str:
        """The host that is connected to a volume with one completed attachment."""
        shown = self.admin.get("volume", f"/volumes/{volume_id}", version=NEWEST).json()["volume"]
        (use,) = shown["attachments"]
        return str(use["host_name"])

    def delete_all(self) -> None:
        for volume_id in self.list():
            assert self.user.delete("volume", f"/volumes/{volume_id}", version=NEWEST).status == 202
        wait_for(lambda: not self.list(), "volumes are deleted")

    # Servers

    def image(self, name: str = "tiny") -> dict[str, Any]:
        found: dict[str, Any] = self.user.get("image", f"/images?name={name}").json()["images"][0]
        return found

    def boot(self, *devices: dict[str, Any]) -> str:
        """A server from the image `tiny`, or from these devices."""
        body = server_body(self.image(), {"id": ""}, networks="none")
        if devices:
            del body["server"]["imageRef"]
            body["server"]["block_device_mapping_v2"] = list(devices)
        answer = self.user.post("compute", "/servers", body)
        assert answer.status == 202, answer.body
        return self.settle(answer.json()["server"]["id"])

    def server(self, server_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.admin.get("compute", f"/servers/{server_id}").json()["server"]
        return shown

    def settle(self, server_id: str, status: str = "ACTIVE") -> str:
        def is_settled() -> bool:
            shown = self.server(server_id)
            assert shown["status"] in (status, "BUILD") or shown["status"] != "ERROR", shown.get("fault")
            return shown["status"] == status and shown["OS-EXT-STS:task_state"] is None

        wait_for(is_settled, f"server is {status}")
        return server_id

    def server_action(self, server_id: str, name: str, body: Any = None) -> None:
        answer = self.admin.post("compute", f"/servers/{server_id}/action", {name: body})
        assert answer.status in (200, 202, 204), answer.body

    def attach(self, server_id: str, volume_id: str) -> None:
        body = {"volumeAttachment": {"volumeId": volume_id}}
        answer = self.user.post("compute", f"/servers/{server_id}/os-volume_attachments", body)
        assert answer.status == 200, answer.body

    def detach(self, server_id: str, volume_id: str) -> None:
        path = f"/servers/{server_id}/os-volume_attachments/{volume_id}"
        assert self.user.delete("compute", path).status == 202
        self.wait(volume_id, "available")

    def actions(self, server_id: str) -> set[str]:
        listed = self.user.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        return {action["action"] for action in listed}


@pytest.fixture
def volumes(kilonova: Kilonova) -> Iterator[Volumes]:
    """Nothing may remain at any service, nor differ between them."""
    used = Volumes(kilonova)
    yield used
    kilonova.delete_servers()
    assert kilonova.leftovers() == []
    assert kilonova.doctor() == []
    used.delete_all()


def root(source_type: str, uuid: str, **keys: Any) -> dict[str, Any]:
    device = {"boot_index": 0, "destination_type": "volume", "source_type": source_type, "uuid": uuid}
    return {**device, "delete_on_termination": True, **keys}


def test_attach_extend_swap_and_detach(volumes: Volumes) -> None:
    server_id, volume_id = volumes.boot(), volumes.create()
    volumes.attach(server_id, volume_id)
    volumes.wait(volume_id, "in-use")
    (attachment,) = volumes.attachments(volume_id)
    assert (attachment["status"], attachment["instance"]) == ("attached", server_id)

    # Without the token of a service Cinder asks compute, which has the volume.
    answer = volumes.user.delete("volume", f"/attachments/{attachment['id']}", version=NEWEST)
    assert answer.status == 409
    assert "ConflictNovaUsingAttachment" in answer.json()["conflictingRequest"]["message"]

    volumes.act(volume_id, **{"os-extend": {"new_size": 2}})
    wait_for(lambda: "extend_volume" in volumes.actions(server_id), "the guest sees the new size")
    volumes.wait(volume_id, "in-use")

    other = volumes.create(size=2)
    body = {"volumeAttachment": {"volumeId": other}}
    answer = volumes.admin.put("compute", f"/servers/{server_id}/os-volume_attachments/{volume_id}", body)
    assert answer.status == 202, answer.body
    volumes.wait(other, "in-use")
    volumes.wait(volume_id, "available")
    volumes.detach(server_id, other)
    assert volumes.attachments(other) == []


def test_servers_share_a_multiattach_volume(volumes: Volumes) -> None:
    servers, volume_id = [volumes.boot(), volumes.boot()], volumes.create(volume_type="multiattach")
    # Cinder refuses the second attachment while the first one is made.
    for server_id in servers:
        volumes.attach(server_id, volume_id)

    def users() -> list[str]:
        return sorted(each["instance"] for each in volumes.attachments(volume_id) if each["status"] == "attached")

    wait_for(lambda: users() == sorted(servers), "both servers have the volume")


def test_volumes_move_with_their_server(volumes: Volumes) -> None:
    server_id, volume_id = volumes.boot(), volumes.create()
    volumes.attach(server_id, volume_id)
    volumes.wait(volume_id, "in-use")

    def check_host() -> None:
        volumes.kilonova.wait_until_idle()
        assert volumes.host_of(volume_id) == volumes.server(server_id)["OS-EXT-SRV-ATTR:host"]

    volumes.server_action(server_id, "os-migrateLive", {"host": None, "block_migration": "auto"})
    volumes.settle(server_id)
    check_host()
    volumes.server_action(server_id, "migrate")
    volumes.settle(server_id, "VERIFY_RESIZE")
    check_host()
    volumes.server_action(server_id, "revertResize")
    volumes.settle(server_id)
    check_host()
    volumes.server_action(server_id, "shelve")
    volumes.settle(server_id, "SHELVED")
    volumes.server_action(server_id, "shelveOffload")
    volumes.settle(server_id, "SHELVED_OFFLOADED")
    wait_for(lambda: [each["status"] for each in volumes.attachments(volume_id)] == ["reserved"], "volume is reserved")
    volumes.server_action(server_id, "unshelve")
    volumes.settle(server_id)
    check_host()


def test_volumes_of_an_offloaded_server(volumes: Volumes) -> None:
    server_id, first, second = volumes.boot(), volumes.create(), volumes.create()
    volumes.server_action(server_id, "shelve")
    volumes.settle(server_id, "SHELVED")
    volumes.server_action(server_id, "shelveOffload")
    volumes.settle(server_id, "SHELVED_OFFLOADED")
    for volume_id in (first, second):
        volumes.attach(server_id, volume_id)
        volumes.kilonova.wait_until_idle()
        assert [each["instance"] for each in volumes.attachments(volume_id)] == [server_id]
        assert volumes.show(volume_id)["status"] in ("reserved", "in-use")
    volumes.detach(server_id, first)
    volumes.server_action(server_id, "unshelve")
    volumes.settle(server_id)
    assert volumes.host_of(second) == volumes.server(server_id)["OS-EXT-SRV-ATTR:host"]
    assert volumes.show(second)["status"] == "in-use"


def test_boot_from_volumes_and_rebuild(volumes: Volumes) -> None:
    image, other = volumes.image(), volumes.image("other")
    blank = {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}
    server_id = volumes.boot(root("image", image["id"], volume_size=1), {**blank, "boot_index": -1})
    used = [each["id"] for each in volumes.server(server_id)["os-extended-volumes:volumes_attached"]]
    assert [volumes.show(volume_id)["status"] for volume_id in used] == ["in-use"] * 2
    for _ in range(2):
        volumes.server_action(server_id, "rebuild", {"imageRef": other["id"]})
        volumes.settle(server_id)
        (attachment,) = volumes.attachments(used[0])
        assert attachment["status"] == "attached"
        assert volumes.show(used[0])["volume_image_metadata"]["image_id"] == other["id"]

    volume_id = volumes.create(imageRef=image["id"])
    volumes.boot(root("volume", volume_id, delete_on_termination=False))
    volumes.kilonova.delete_servers()
    # Only volumes with delete_on_termination are deleted.
    volumes.wait(volume_id, "available")
    wait_for(lambda: volumes.list() == {volume_id}, "the others are deleted")


def test_failed_boot_releases_its_volume(volumes: Volumes) -> None:
    volume_id = volumes.create(imageRef=volumes.image()["id"])
    body = server_body({"id": ""}, {"id": ""}, networks="none", block_device_mapping_v2=[root("volume", volume_id)])
    del body["server"]["imageRef"]
    unknown = "00000000-0000-4000-8000-000000000000"
    answer = volumes.user.post("compute", "/servers", {**body, "os:scheduler_hints": {"same_host": unknown}})
    assert answer.status == 202, answer.body
    volumes.settle(answer.json()["server"]["id"], "ERROR")
    volumes.wait(volume_id, "available")
    assert volumes.attachments(volume_id) == []
