"""Real guests on networks of a real Neutron: a host with libvirt, Open vSwitch in user space and ovn-controller."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.support.cloud_process import KILONOVA, Client
from tests.support.ports import free_port
from tests.support.virt_hosts import Host, Process, Site, linux_image, temporary_site
from tests.support.virt_ovs import OpenSwitch

pytestmark = pytest.mark.long

GUEST_SECONDS = 180.0
ONE, TWO = "guests-1", "guests-2"
PING = """#!/bin/sh
while :; do
    if ping -c 1 -W 1 {address} >/dev/null; then echo "PING OK"; else echo "PING NONE"; fi
    sleep 1
done
"""


class GuestCloud:
    """Kilonova with agents on hosts of real guests, which Neutron knows as chassis of OVN."""

    def __init__(self, kilonova: Kilonova, switches: dict[str, OpenSwitch]) -> None:
        self.kilonova = kilonova
        self.switches = switches
        self.user = kilonova.user("demo", "demo", "2.96")
        self.admin = kilonova.user("admin", "admin", "2.96")
        self.image = self._create_image()

    def boot(self, network: dict[str, Any], script: str = "", **more: Any) -> str:
        if script:
            more["user_data"] = base64.b64encode(script.encode()).decode()
        hints = {name: more.pop(name) for name in list(more) if ":" in name}
        body = server_body(self.image, network, config_drive=True, **more) | hints
        answer = self.user.post("compute", "/servers", body)
        assert answer.status == 202, answer.body
        server: str = answer.json()["server"]["id"]
        return server

    def wait_until_active(self, server: str) -> None:
        self.user.wait(server, GUEST_SECONDS, status="ACTIVE", task_state=None)  # type: ignore[arg-type]

    def act(self, server: str, action: dict[str, Any], as_admin: bool = False) -> None:
        client = self.admin if as_admin else self.user
        answer = client.post("compute", f"/servers/{server}/action", action)
        assert answer.status == 202, answer.body

    def console(self, server: str) -> str:
        answer = self.user.post("compute", f"/servers/{server}/action", {"os-getConsoleOutput": {}})
        return str(answer.json()["output"]) if answer.status == 200 else ""

    def wait_for_output(self, server: str, pattern: str, start: int = 0) -> re.Match[str]:
        found = wait_for(
            lambda: re.search(pattern, self.console(server)[start:]), f"{server} writes {pattern}", GUEST_SECONDS
        )
        assert found is not None
        return found

    def taps(self, host: str) -> list[str]:
        """The guests' devices that are connected to the host's Open vSwitch."""
        return [name for name in self.switches[host].ports("br-int") if name.startswith("tap")]

    def ports(self, server: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin.get("network", f"/ports?device_id={server}").json()["ports"]
        return found

    def _create_image(self) -> dict[str, Any]:
        admin = self.kilonova.admin
        body = {"name": "linux", "disk_format": "qcow2", "container_format": "bare", "visibility": "public"}
        image: dict[str, Any] = admin.post("image", "/images", body).json()
        data = linux_image().read_bytes()
        assert admin.request("PUT", "image", f"/images/{image['id']}/file", content=data).status == 204
        return image


@pytest.fixture(scope="module")
def guests(cloud: Cloud, started_kilonova: Kilonova, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestCloud]:
    # Both need the address in the catalogue.
    started_kilonova.kill()
    data = tmp_path_factory.mktemp("guests") / "data"
    with ExitStack() as stack:
        site = stack.enter_context(temporary_site())
        southbound = stack.enter_context(southbound_database(cloud, site))
        nats_port = free_port(site.address)
        nats = subprocess.Popen(["nats-server", "-a", site.address, "-p", str(nats_port)], stderr=subprocess.DEVNULL)
        stack.callback(nats.wait)
        stack.callback(nats.kill)
        common = {
            "KILONOVA_MESSAGING__URL": f"nats://{site.address}:{nats_port}",
            "KILONOVA_INSECURE": "true",
            "KILONOVA_HOSTS__REPORT_SECONDS": "1",
        }
        kilonova = Kilonova(cloud, data, environ={**common, "KILONOVA_HOST": "0.0.0.0"}, hosts=0)
        stack.enter_context(kilonova)
        switches = {name: OpenSwitch(site.host(name)) for name in (ONE, TWO)}
        for switch in switches.values():
            switch.join_ovn(southbound)
            stack.callback(switch.leave_ovn)
            stack.callback(start_agent(switch.host, cloud, common).kill)
        created = GuestCloud(kilonova, switches)
        for name in switches:
            wait_for(partial(is_ready, created.admin, name), f"{name} reports to Kilonova and Neutron")
        yield created
        kilonova.delete_servers(GUEST_SECONDS)
        created.admin.delete("image", f"/images/{created.image['id']}")


def start_agent(host: Host, cloud: Cloud, common: dict[str, str]) -> Process:
    settings = {
        "KILONOVA_DATA": str(host.directory / "agent"),
        "KILONOVA_DRIVER": "libvirt",
        "KILONOVA_AGENT__HOST": host.name,
        "KILONOVA_AGENT__ADDRESS": host.address,
        "KILONOVA_AGENT__IMAGE_URL": f"http://{host.site.address}:{cloud.settings.port('compute')}/image",
        "KILONOVA_AGENT__INSTANCES_PATH": str(host.instances),
        "KILONOVA_BRIDGES__ENABLED": "false",
        "KILONOVA_LIBVIRT__VIRT_TYPE": "qemu",
        "KILONOVA_LIBVIRT__CACHE_MODE": "writeback",
        "KILONOVA_LIBVIRT__RESERVED_MEMORY_MB": "0",
    }
    return host.start_process([KILONOVA, "agent"], env={**common, **settings}, log="agent")


def tap(port: dict[str, Any]) -> str:
    return f"tap{port['id'][:11]}"


def is_ready(admin: Client, host: str) -> bool:
    services = admin.get("compute", f"/os-services?host={host}&binary=nova-compute").json()["services"]
    agents = admin.get("network", f"/agents?host={host}").json()["agents"]
    return any(one["state"] == "up" for one in services) and any(one["alive"] for one in agents)


@contextmanager
def southbound_database(cloud: Cloud, site: Site) -> Iterator[str]:
    """OVN's southbound database at the site's address: hosts of the site cannot reach the loopback interface."""
    port = free_port(site.address)
    control = cloud.settings.state / "ovn/sb.ctl"

    def call(command: str) -> None:
        remote = f"ptcp:{port}:{site.address}"
        subprocess.run(["ovs-appctl", "-t", control, f"ovsdb-server/{command}", remote], check=True)

    call("add-remote")
    try:
        yield f"tcp:{site.address}:{port}"
    finally:
        call("remove-remote")


def test_guests_reach_each_other_as_security_groups_allow(guests: GuestCloud) -> None:
    network = guests.user.get("network", "/networks?name=shared").json()["networks"][0]
    answering = guests.boot(network)
    guests.wait_until_active(answering)
    (port,) = guests.ports(answering)
    address, host = port["fixed_ips"][0]["ip_address"], port["binding:host_id"]
    assert port["status"] == "ACTIVE"
    assert port["binding:vif_details"]["datapath_type"] == "netdev"
    # No tunnels connect the hosts of this test.
    hints = {"os:scheduler_hints": {"same_host": [answering]}}
    asking = guests.boot(network, PING.format(address=address), **hints)
    guests.wait_until_active(asking)
    guests.wait_for_output(answering, f"DHCP eth0 {address}")
    guests.wait_for_output(asking, "DHCP eth0 ")
    guests.wait_for_output(asking, "PING OK")
    (other,) = guests.ports(asking)
    assert other["binding:host_id"] == host
    assert guests.taps(host) == sorted([tap(port), tap(other)])

    guests.user.put("network", f"/ports/{port['id']}", {"port": {"security_groups": []}})
    guests.wait_for_output(asking, "PING NONE", start=len(guests.console(asking)))

    guests.act(asking, {"os-stop": None})
    guests.user.wait(asking, GUEST_SECONDS, status="SHUTOFF")
    assert guests.taps(host) == [tap(port)]
    guests.kilonova.delete_servers(GUEST_SECONDS)
    assert guests.taps(host) == []
    assert guests.kilonova.leftovers() == []


def test_interface_is_attached_and_detached(guests: GuestCloud) -> None:
    network = guests.user.get("network", "/networks?name=shared").json()["networks"][0]
    server = guests.boot(network, "#!/bin/sh\nuntil [ -e /sys/class/net/eth1 ]; do sleep 0.2; done; echo ETH1\n")
    guests.wait_until_active(server)
    guests.wait_for_output(server, "BOOTED")
    (first,) = guests.ports(server)
    host = first["binding:host_id"]
    body = {"interfaceAttachment": {"net_id": network["id"]}}
    answer = guests.user.post("compute", f"/servers/{server}/os-interface", body)
    assert answer.status == 200, answer.body
    attached = answer.json()["interfaceAttachment"]["port_id"]
    guests.wait_for_output(server, "ETH1")
    wait_for(lambda: all(port["status"] == "ACTIVE" for port in guests.ports(server)), "both ports are ACTIVE")
    assert len(guests.taps(host)) == 2
    assert guests.user.delete("compute", f"/servers/{server}/os-interface/{attached}").status == 202
    wait_for(lambda: guests.taps(host) == [tap(first)], "the port is unplugged")
    guests.kilonova.delete_servers(GUEST_SECONDS)


def test_config_drive_has_the_addresses_of_a_network_without_dhcp(guests: GuestCloud) -> None:
    user = guests.user
    network = user.post("network", "/networks", {"network": {"name": "static"}}).json()["network"]
    subnet = {"network_id": network["id"], "ip_version": 4, "cidr": "10.77.0.0/24", "enable_dhcp": False}
    subnet["dns_nameservers"] = ["10.77.0.53"]
    assert user.post("network", "/subnets", {"subnet": subnet}).status == 201
    server = guests.boot(network, "#!/bin/sh\necho NETWORK $(cat /config/openstack/latest/network_data.json) END\n")
    data = json.loads(guests.wait_for_output(server, r"NETWORK (\{.*\}) END")[1])
    (port,) = guests.ports(server)
    (found,) = data["networks"]
    assert (found["type"], found["ip_address"]) == ("ipv4", port["fixed_ips"][0]["ip_address"])
    assert found["routes"][0]["gateway"] == "10.77.0.1"
    assert data["links"][0]["mtu"] == network["mtu"]
    assert data["services"] == [{"type": "dns", "address": "10.77.0.53"}]
    guests.kilonova.delete_servers(GUEST_SECONDS)
    assert user.delete("network", f"/networks/{network['id']}").status == 204


def test_guest_migrates_live_with_its_port(guests: GuestCloud) -> None:
    network = guests.user.get("network", "/networks?name=shared").json()["networks"][0]
    server = guests.boot(network)
    guests.wait_until_active(server)
    guests.wait_for_output(server, "BOOTED")
    (port,) = guests.ports(server)
    source = port["binding:host_id"]
    (destination,) = {ONE, TWO} - {source}
    guests.act(server, {"os-migrateLive": {"host": None, "block_migration": "auto"}}, as_admin=True)
    guests.wait_until_active(server)
    (port,) = guests.ports(server)
    assert (port["binding:host_id"], port["status"]) == (destination, "ACTIVE")
    assert (guests.taps(source), guests.taps(destination)) == ([], [tap(port)])
    guests.kilonova.delete_servers(GUEST_SECONDS)
    assert guests.taps(destination) == []
    assert guests.kilonova.leftovers() == []
