"""`kilonova doctor` compares servers with ports and images of the real services."""

from __future__ import annotations

import uuid
from typing import Any

import apsw

from kilonova.compute.operations.steps.images import snapshot_id
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.support.cloud_process import kilonova as run_kilonova


def find(kilonova: Kilonova) -> set[tuple[str, str]]:
    return {(finding["kind"], finding["subject"]) for finding in kilonova.doctor()}


def boot(kilonova: Kilonova) -> tuple[str, dict[str, Any]]:
    """The server's id and its port."""
    member = kilonova.user()
    image = member.get("image", "/images?name=tiny").json()["images"][0]
    network = member.get("network", "/networks?name=shared").json()["networks"][0]
    server_id = member.post("compute", "/servers", server_body(image, network)).json()["server"]["id"]
    member.wait(server_id, status="ACTIVE")
    (port,) = kilonova.admin.get("network", f"/ports?device_id={server_id}").json()["ports"]
    return server_id, port


def test_ports(kilonova: Kilonova) -> None:
    admin = kilonova.admin
    deleted, port = boot(kilonova)
    kilonova.delete_servers()
    _, own = boot(kilonova)
    elsewhere = next(host for host in ("sim-001", "sim-002") if host != own["binding:host_id"])
    ports = [make_port(kilonova, port["network_id"], device) for device in (deleted, str(uuid.uuid4()))]
    try:
        move = {"port": {"binding:host_id": elsewhere}}
        assert admin.put("network", f"/ports/{own['id']}", move).status == 200
        expected = {("port without server", ports[0]), ("port on the wrong host", own["id"])}
        wait_for(lambda: find(kilonova) == expected, "the findings")
        # An event of Neutron takes the deleted port from the server.
        assert admin.delete("network", f"/ports/{own['id']}").status == 204
        wait_for(lambda: find(kilonova) == {("port without server", ports[0])}, "the deleted port")
    finally:
        for port_id in ports:
            admin.delete("network", f"/ports/{port_id}")
    kilonova.delete_servers()
    wait_for(lambda: not find(kilonova), "no findings")


def make_port(kilonova: Kilonova, network_id: str, device_id: str) -> str:
    body = {"network_id": network_id, "device_owner": "compute:nova", "device_id": device_id}
    created: str = kilonova.admin.post("network", "/ports", {"port": body}).json()["port"]["id"]
    return created


def test_images(kilonova: Kilonova) -> None:
    """An image with the id of a snapshot whose operation has ended."""
    server_id, _ = boot(kilonova)
    body = {"createImage": {"name": "copy"}}
    answer = kilonova.user(version="2.45").post("compute", f"/servers/{server_id}/action", body)
    image_id = answer.json()["image_id"]
    admin = kilonova.admin
    shown = wait_for(lambda: is_active(kilonova, image_id), "the snapshot")
    assert admin.delete("image", f"/images/{image_id}").status == 204
    kilonova.wait_until_idle()
    assert find(kilonova) == set()
    # Glance accepts no id for a second time.
    operation = copy_operation(kilonova, image_id)
    stuck = {"id": snapshot_id(operation), "disk_format": "raw", "container_format": "bare", "owner": shown["owner"]}
    assert admin.post("image", "/images", stuck).status == 201
    try:
        wait_for(lambda: find(kilonova) == {("image stuck", stuck["id"])}, "the finding")
    finally:
        admin.delete("image", f"/images/{stuck['id']}")


def is_active(kilonova: Kilonova, image_id: str) -> dict[str, Any] | None:
    image: dict[str, Any] = kilonova.admin.get("image", f"/images/{image_id}").json()
    return image if image["status"] == "active" else None


def copy_operation(kilonova: Kilonova, image_id: str) -> str:
    """Copy the operation that created the snapshot, with an id of its own."""
    connection = apsw.Connection(str(kilonova.data / "kilonova.db"))
    connection.set_busy_timeout(60_000)
    try:
        ids = connection.execute("SELECT id FROM operations WHERE kind = 'create_image'").fetchall()
        (original,) = (str(each[0]) for each in ids if snapshot_id(str(each[0])) == image_id)
        names = [row[1] for row in connection.execute("PRAGMA table_info(operations)") if row[1] not in ("id", "seq")]
        new_id = str(uuid.uuid4())
        listed = ", ".join(names)
        connection.execute(
            f"INSERT INTO operations (id, {listed}) SELECT ?, {listed} FROM operations WHERE id = ?", (new_id, original)
        )
        return new_id
    finally:
        connection.close()


def test_volumes(kilonova: Kilonova) -> None:
    """An attachment that was deleted in Cinder."""
    server_id, _ = boot(kilonova)
    member, admin = kilonova.user(), kilonova.user("admin", "admin", "3.71")
    volume_id = member.post("volume", "/volumes", {"volume": {"size": 1, "name": "data"}}).json()["volume"]["id"]
    path = f"/volumes/{volume_id}"
    wait_for(lambda: member.get("volume", path).json()["volume"]["status"] == "available", "the volume")
    attach = {"volumeAttachment": {"volumeId": volume_id}}
    assert member.post("compute", f"/servers/{server_id}/os-volume_attachments", attach).status == 200
    kilonova.wait_until_idle()
    assert find(kilonova) == set()
    lost = {"os-reset_status": {"status": "available", "attach_status": "detached"}}
    assert admin.post("volume", f"{path}/action", lost).status == 202
    wait_for(lambda: find(kilonova) == {("device without attachment", server_id)}, "the finding")
    kilonova.delete_servers()
    assert admin.delete("volume", path).status == 202


def test_services_that_do_not_respond(kilonova: Kilonova) -> None:
    with kilonova.cloud.killed("glance"):
        done = run_kilonova("doctor", "--data", str(kilonova.data), environ=kilonova.environ)
        assert done.returncode == 0, done.stdout
        assert "Images are not compared: " in done.stderr
        assert "Ports" not in done.stderr
