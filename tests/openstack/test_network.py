"""Ports of servers at a real Neutron: plugged, bound, moved, changed by users, and released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.openstack.proxy import Proxy, matches
from tests.support.cloud_process import Client

HOST, TASK = "OS-EXT-SRV-ATTR:host", "OS-EXT-STS:task_state"


class Servers:
    """Servers of the user demo, and their ports as an administrator sees them."""

    def __init__(self, kilonova: Kilonova) -> None:
        self.kilonova = kilonova
        self.admin, self.demo = kilonova.admin, kilonova.user()
        self.image = self._named("image", "/images", "tiny")
        self.network = self._named("network", "/networks", "shared")

    def _named(self, service: str, path: str, name: str) -> dict[str, Any]:
        (found,) = next(iter(self.demo.get(service, f"{path}?name={name}").json().values()))
        result: dict[str, Any] = found
        return result

    def begin(self, **more: Any) -> str:
        """Create a server without waiting for it. Returns its id."""
        answer = self.demo.post("compute", "/servers", server_body(self.image, self.network, **more))
        assert answer.status == 202, answer.body
        created: str = answer.json()["server"]["id"]
        return created

    def boot(self, **more: Any) -> dict[str, Any]:
        return self.settle(self.begin(**more))

    def show(self, server_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.admin.get("compute", f"/servers/{server_id}").json()["server"]
        return shown

    def settle(self, server_id: str) -> dict[str, Any]:
        """The server, once it has no task."""

        def settled() -> dict[str, Any] | None:
            shown = self.show(server_id)
            return shown if shown[TASK] is None and shown["status"] != "BUILD" else None

        found = wait_for(settled, f"server {server_id} settles")
        assert found is not None
        return found

    def act(self, server_id: str, client: Client | None = None, **action: Any) -> dict[str, Any]:
        path = f"/servers/{server_id}/action"
        answer = (client or self.admin).post("compute", path, action, version="2.91")
        assert answer.status in (202, 204), answer.body
        return self.settle(server_id)

    def ports(self, server_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.get("network", f"/ports?device_id={server_id}").json()["ports"]
        return found

    def port(self, port_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.admin.get("network", f"/ports/{port_id}").json()["port"]
        return shown

    def create_port(self, **more: Any) -> str:
        body = {"port": {"network_id": self.network["id"], **more}}
        created: str = self.demo.post("network", "/ports", body).json()["port"]["id"]
        return created


@pytest.fixture
def servers(kilonova: Kilonova) -> Servers:
    return Servers(kilonova)


@pytest.fixture
def _manual(cloud: Cloud) -> Iterator[None]:
    """Bound ports become ACTIVE when the test plugs them."""
    cloud.plug_mode("manual")
    yield
    cloud.plug_mode("auto")


@pytest.fixture
def counted(started_kilonova: Kilonova, cloud: Cloud, tmp_path: Path) -> Iterator[tuple[Kilonova, Proxy]]:
    """A Kilonova with a host that Neutron does not know, and the proxy through which it reaches Neutron."""
    started_kilonova.stop()
    with Proxy(cloud.endpoints["network"]) as proxy:
        settings = {"KILONOVA_NETWORK__URL": proxy.url}
        with Kilonova(cloud, tmp_path / "data", environ=settings, hosts=4) as running:
            yield running, proxy
            running.delete_servers()
            assert running.leftovers() == []


def test_unknown_host_is_avoided_and_lists_ask_nothing(counted: tuple[Kilonova, Proxy]) -> None:
    kilonova, proxy = counted
    servers = Servers(kilonova)
    begun = [servers.begin() for _ in range(4)]
    shown = [servers.settle(server_id) for server_id in begun]
    assert {each["status"] for each in shown} == {"ACTIVE"}
    assert "sim-004" not in {each[HOST] for each in shown}
    failed = servers.act(begun[0], **{"os-migrateLive": {"host": "sim-004", "block_migration": "auto"}})
    assert (failed["status"], failed[HOST]) == ("ACTIVE", shown[0][HOST])
    assert "its network could not be bound" in failed["fault"]["message"]
    kilonova.wait_until_idle()
    before = proxy.count(matches())
    listed = servers.demo.get("compute", "/servers/detail").json()["servers"]
    assert all(each["addresses"]["shared"] for each in listed)
    assert servers.demo.get("compute", f"/servers/{begun[0]}/ips").status == 200
    assert proxy.count(matches()) == before


@pytest.mark.usefixtures("_manual")
def test_boot_waits_until_its_port_is_plugged(cloud: Cloud, servers: Servers) -> None:
    server_id = servers.begin()

    def spawned() -> bool:
        shown = servers.show(server_id)
        actions = f"/servers/{server_id}/os-instance-actions"
        (action,) = servers.admin.get("compute", actions).json()["instanceActions"]
        detail = servers.admin.get("compute", f"{actions}/{action['request_id']}").json()["instanceAction"]
        return shown[TASK] == "spawning" and any(one["event"] == "spawn" for one in detail["events"])

    wait_for(spawned, "the guest is there")
    (port,) = servers.ports(server_id)
    assert (port["status"], servers.show(server_id)["status"]) == ("DOWN", "BUILD")
    cloud.plug(port["id"], port["binding:host_id"])
    assert servers.settle(server_id)["status"] == "ACTIVE"


def test_port_of_the_user_is_bound_moved_and_given_back(servers: Servers) -> None:
    port_id = servers.create_port(name="own")
    shown = servers.boot(name="web", networks=[{"port": port_id}])
    port = servers.port(port_id)
    assert port["binding:host_id"] == shown[HOST]
    assert (port["device_owner"], port["dns_name"]) == ("compute:nova", "web")
    for action in (
        {"os-migrateLive": {"host": None, "block_migration": "auto"}},
        {"migrate": None},
        {"revertResize": None},
    ):
        moved = servers.act(shown["id"], **action)
        port = servers.port(port_id)
        assert port["binding:host_id"] == moved[HOST]
        bindings = servers.admin.get("network", f"/ports/{port_id}/bindings").json()["bindings"]
        assert [one["host"] for one in bindings] == [moved[HOST]]
    servers.kilonova.delete_servers()
    released = servers.port(port_id)
    names = ("device_id", "device_owner", "binding:host_id", "dns_name")
    assert ([released[name] for name in names], released["binding:profile"]) == (["", "", "", ""], {})
    assert servers.demo.delete("network", f"/ports/{port_id}").status == 204
    assert servers.kilonova.leftovers() == []


def test_interface_is_attached_and_detached(servers: Servers) -> None:
    server_id = servers.boot()["id"]
    path = f"/servers/{server_id}/os-interface"
    body = {"interfaceAttachment": {"net_id": servers.network["id"]}}
    attached = servers.demo.post("compute", path, body).json()["interfaceAttachment"]
    servers.settle(server_id)
    assert servers.port(attached["port_id"])["device_id"] == server_id
    assert servers.demo.delete("compute", f"{path}/{attached['port_id']}").status == 202
    wait_for(lambda: len(servers.ports(server_id)) == 1, "the port is deleted")


def test_server_follows_changes_that_users_make_at_neutron(servers: Servers) -> None:
    shown = servers.boot()
    (port,) = servers.ports(shown["id"])
    subnet = {"subnet_id": port["fixed_ips"][0]["subnet_id"]}
    changes = {"port": {"fixed_ips": [*port["fixed_ips"], subnet]}}
    assert servers.admin.put("network", f"/ports/{port['id']}", changes).status == 200
    wait_for(lambda: len(servers.show(shown["id"])["addresses"]["shared"]) == 2, "the server shows the new address")
    assert servers.admin.delete("network", f"/ports/{port['id']}").status == 204
    wait_for(lambda: servers.show(shown["id"])["addresses"] == {}, "the interface of the deleted port is detached")


def test_addresses_that_cannot_be_had_are_refused(servers: Servers) -> None:
    (port,) = servers.ports(servers.boot()["id"])
    taken = port["fixed_ips"][0]["ip_address"]
    admin = servers.admin
    wanted = {"uuid": servers.network["id"], "fixed_ip": taken}
    answer = admin.post("compute", "/servers", server_body(servers.image, servers.network, networks=[wanted]))
    assert answer.status == 400
    assert b"already in use" in answer.body
    public = admin.get("network", "/networks?name=public").json()["networks"][0]
    refused = servers.demo.post("compute", "/servers", server_body(servers.image, public))
    assert refused.status == 403


def test_port_without_an_address_is_accepted(servers: Servers) -> None:
    port_id = servers.create_port(fixed_ips=[])
    shown = servers.boot(networks=[{"port": port_id}])
    assert (shown["status"], shown["addresses"]) == ("ACTIVE", {"shared": []})
    servers.kilonova.delete_servers()
    assert servers.demo.delete("network", f"/ports/{port_id}").status == 204
