"""The five founding specs through real Keystone, Glance, Neutron and Cinder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.support.cloud_process import Client, Response

HOST = "OS-EXT-SRV-ATTR:host"
TASK = "OS-EXT-STS:task_state"
NEWEST = "2.106"


class Setting:
    """The member `demo`, the administrator, and what their servers boot from."""

    def __init__(self, kilonova: Kilonova) -> None:
        self.kilonova = kilonova
        self.member, self.admin = kilonova.user("demo"), kilonova.admin
        images = {image["name"]: image for image in self.admin.get("image", "/images").json()["images"]}
        self.image, self.other_image = images["tiny"], images["other"]
        self.network = self.admin.get("network", "/networks?name=shared").json()["networks"][0]

    def boot(self, client: Client | None = None, version: str = "2.96", **more: Any) -> str:
        body = server_body(self.image, self.network, **more)
        answer = (client or self.member).post("compute", "/servers", body, version=version)
        assert answer.status == 202, answer.body
        server_id: str = answer.json()["server"]["id"]
        self.at_rest(server_id, status="ACTIVE")
        return server_id

    def show(self, server_id: str, version: str = NEWEST) -> dict[str, Any]:
        server: dict[str, Any] = self.admin.get("compute", f"/servers/{server_id}", version=version).json()["server"]
        return server

    def at_rest(self, server_id: str, **fields: str) -> dict[str, Any]:
        """Wait until the server has no task, and check its fields."""

        def find() -> dict[str, Any] | None:
            server = self.show(server_id)
            return None if server[TASK] else server

        server = wait_for(find, f"server {server_id} at rest")
        assert {name: server[name] for name in fields} == fields, server
        return server

    def act(self, server_id: str, action: str, body: Any, client: Client | None = None, version: str = NEWEST) -> int:
        return self.answer(server_id, action, body, client, version).status

    def answer(
        self, server_id: str, action: str, body: Any, client: Client | None = None, version: str = NEWEST
    ) -> Response:
        path = f"/servers/{server_id}/action"
        return (client or self.admin).post("compute", path, {action: body}, version=version)

    def ports(self, server_id: str) -> list[dict[str, Any]]:
        ports: list[dict[str, Any]] = self.admin.get("network", f"/ports?device_id={server_id}").json()["ports"]
        return ports

    @contextmanager
    def zone(self, name: str, *hosts: str, **metadata: str) -> Iterator[None]:
        """An aggregate with these hosts: a zone, or without a name one with metadata only."""
        body = {"name": name or "no zone", **({"availability_zone": name} if name else {})}
        created = self.admin.post("compute", "/os-aggregates", {"aggregate": body}).json()["aggregate"]
        path = f"/os-aggregates/{created['id']}"
        try:
            for host in hosts:
                assert self.admin.post("compute", f"{path}/action", {"add_host": {"host": host}}).status == 200
            if metadata:
                body = {"set_metadata": {"metadata": metadata}}
                assert self.admin.post("compute", f"{path}/action", body).status == 200
            yield
        finally:
            self.kilonova.delete_servers()
            for host in hosts:
                self.admin.post("compute", f"{path}/action", {"remove_host": {"host": host}})
            assert self.admin.delete("compute", path).status == 200


@pytest.fixture
def setting(kilonova: Kilonova) -> Iterator[Setting]:
    yield Setting(kilonova)
    kilonova.delete_servers()
    assert kilonova.leftovers() == []
    assert kilonova.doctor() == []


def test_unshelve_to_a_chosen_host(setting: Setting) -> None:
    server_id = setting.boot()
    source = setting.show(server_id)[HOST]
    destination = "sim-002" if source != "sim-002" else "sim-003"
    assert setting.act(server_id, "shelve", None) == 202
    setting.at_rest(server_id, status="SHELVED")
    assert setting.act(server_id, "shelveOffload", None) == 202
    setting.at_rest(server_id, status="SHELVED_OFFLOADED")
    assert setting.act(server_id, "unshelve", {"host": destination}, setting.member) == 403
    assert setting.act(server_id, "unshelve", {"host": "nowhere"}) == 400
    assert setting.act(server_id, "unshelve", {"host": destination}) == 202
    setting.at_rest(server_id, status="ACTIVE", **{HOST: destination})
    (port,) = setting.ports(server_id)
    assert port["binding:host_id"] == destination
    images = setting.admin.get("image", "/images?visibility=all").json()["images"]
    assert not [image for image in images if image["name"].endswith("-shelved")]


def test_no_force_flag_on_live_migration_and_evacuation(setting: Setting) -> None:
    server_id = setting.boot()
    source = setting.show(server_id)[HOST]
    first, second = sorted({"sim-001", "sim-002", "sim-003"} - {source})
    body = {"host": first, "block_migration": "auto"}
    assert setting.act(server_id, "os-migrateLive", {**body, "force": True}) == 400
    assert setting.act(server_id, "evacuate", {"host": first, "force": True}, version="2.68") == 400
    disabled = setting.admin.get("compute", f"/os-services?host={first}&binary=nova-compute", version="2.53").json()
    service = f"/os-services/{disabled['services'][0]['id']}"
    assert setting.admin.put("compute", service, {"status": "disabled"}, version="2.53").status == 200
    try:
        assert setting.act(server_id, "os-migrateLive", body) == 202
        setting.at_rest(server_id, status="ACTIVE", **{HOST: source})
    finally:
        assert setting.admin.put("compute", service, {"status": "enabled"}, version="2.53").status == 200
    assert setting.act(server_id, "os-migrateLive", {**body, "host": second}) == 202
    setting.at_rest(server_id, status="ACTIVE", **{HOST: second})
    (port,) = setting.ports(server_id)
    assert port["binding:host_id"] == second
    bindings = setting.admin.get("network", f"/ports/{port['id']}/bindings").json()["bindings"]
    assert [(binding["host"], binding["status"]) for binding in bindings] == [(second, "ACTIVE")]


def test_project_admin_lists_own_hypervisors_and_boots_on_one(setting: Setting) -> None:
    project_admin = setting.kilonova.user("demo-admin")
    assert project_admin.get("compute", "/os-hypervisors", version="2.105").json()["hypervisors"] == []
    project = {"filter_tenant_id": setting.member.project_id}
    with setting.zone("", "sim-002", **project):
        (own,) = project_admin.get("compute", "/os-hypervisors", version="2.105").json()["hypervisors"]
        assert own["hypervisor_hostname"] is None
        server_id = setting.boot(project_admin, version="2.105", hypervisor_uuid=own["id"])
        assert setting.show(server_id)[HOST] == "sim-002"
        every = setting.admin.get("compute", "/os-hypervisors", version="2.104").json()["hypervisors"]
        hidden = next(each["id"] for each in every if each["hypervisor_hostname"] == "sim-001")
        body = server_body(setting.image, setting.network, hypervisor_uuid=hidden)
        assert project_admin.post("compute", "/servers", body, version="2.105").status == 400


def test_rebuild_of_a_volume_backed_server(setting: Setting) -> None:
    root = {
        "uuid": setting.image["id"],
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": 1,
        "boot_index": 0,
        "delete_on_termination": True,
    }
    body = server_body(setting.image, setting.network, block_device_mapping_v2=[root])
    del body["server"]["imageRef"]
    server_id = setting.member.post("compute", "/servers", body, version="2.93").json()["server"]["id"]
    shown = setting.at_rest(server_id, status="ACTIVE")
    volume_id = shown["os-extended-volumes:volumes_attached"][0]["id"]

    def volume() -> dict[str, Any]:
        found: dict[str, Any] = setting.member.get("volume", f"/volumes/{volume_id}", version="3.71").json()["volume"]
        return found

    assert volume()["volume_image_metadata"]["image_id"] == setting.image["id"]
    image = {"imageRef": setting.other_image["id"]}
    assert setting.act(server_id, "rebuild", image, setting.member, NEWEST) == 400
    assert setting.act(server_id, "rebuild", {**image, "reimage_boot_volume": True}, setting.member) == 202
    setting.at_rest(server_id, status="ACTIVE")
    after = volume()
    assert (after["status"], after["volume_image_metadata"]["image_id"]) == ("in-use", setting.other_image["id"])
    assert len(after["attachments"]) == 1
    path = f"/servers/{server_id}/os-instance-actions"
    rebuild = setting.admin.get("compute", path).json()["instanceActions"][0]
    assert (rebuild["action"], rebuild["message"]) == ("rebuild", None)


def test_zone_pin_is_mutable(setting: Setting) -> None:
    with setting.zone("east", "sim-001"), setting.zone("west", "sim-002"):
        server_id = setting.boot(availability_zone="east")
        server = f"/servers/{server_id}"

        def pin(value: str | None) -> int:
            body = {"server": {"pinned_availability_zone": value}}
            return setting.member.put("compute", server, body, version="2.104").status

        assert setting.show(server_id)["pinned_availability_zone"] == "east"
        assert pin("west") == 409
        assert pin(None) == 200
        assert pin(None) == 200
        assert setting.act(server_id, "os-migrateLive", {"host": "sim-002", "block_migration": "auto"}) == 202
        setting.at_rest(server_id, status="ACTIVE", **{HOST: "sim-002", "OS-EXT-AZ:availability_zone": "west"})
        assert pin("east") == 409
        assert pin("west") == 200
        assert setting.show(server_id)["pinned_availability_zone"] == "west"
        (port,) = setting.ports(server_id)
        assert port["device_owner"] == "compute:west"
