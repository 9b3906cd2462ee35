"""Networks of real guests: what a Linux in the guest is told of itself, and whom it reaches."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import linux_image

# The guest asks the address that its user data name, again and again.
KNOCK = """#!/bin/sh
while :; do
    if ping -c 1 -W 1 {address} >/dev/null 2>&1; then echo "REACHES {address}"; else echo "MISSES {address}"; fi
    sleep 1
done
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCloud]:
    with real_cloud(tmp_path_factory.mktemp("networks") / "data", steady=True) as running:
        yield running


def test_guests_know_who_they_are_and_reach_whom_they_may(cloud: RealCloud) -> None:
    client = cloud.client()
    left, right = _network(cloud, "left", "10.50.0.0/24"), _network(cloud, "right", "10.60.0.0/24")
    open_group, closed_group = _group(cloud, "open"), _group(cloud, "closed")
    _permit(cloud, open_group)
    target = _port(cloud, left, [closed_group])
    address = target["fixed_ips"][0]["ip_address"]

    asked = _boot(cloud, "asked", target["id"], config_drive=True, metadata={"colour": "green"})
    near = _boot(cloud, "near", _port(cloud, left, [open_group])["id"], user_data=_script(address))
    far = _boot(cloud, "far", _port(cloud, right, [open_group])["id"], user_data=_script(address))

    assert client.get("network", f"/ports/{target['id']}").json()["port"]["status"] == "ACTIVE"
    told = json.loads(cloud.says(asked, r"CONFIGDRIVE (\{.*\})\r?\n").group(1))
    assert (told["uuid"], told["name"], told["meta"]) == (asked, "asked", {"colour": "green"})
    assert cloud.says(asked, rf"DHCP eth0 {address}")
    told = json.loads(cloud.says(asked, r"METADATA (\{.*\})\r?\n").group(1))
    assert (told["uuid"], told["meta"]) == (asked, {"colour": "green"})
    assert json.loads(cloud.says(near, r"METADATA (\{.*\})\r?\n").group(1))["uuid"] == near

    cloud.says(near, f"MISSES {address}")
    cloud.says(far, f"MISSES {address}")
    _permit(cloud, closed_group)
    cloud.says(near, f"REACHES {address}")
    assert f"REACHES {address}" not in cloud.said(far)

    for server in (asked, near, far):
        client.delete("compute", f"/servers/{server}")
    for server in (asked, near, far):
        cloud.wait_gone(server)
    cloud.wait_clean()


def _boot(cloud: RealCloud, name: str, port: str, **more: Any) -> str:
    image = cloud.image("tiny", linux_image().read_bytes(), "qcow2")
    flavor = cloud.flavor("linux", ram=192)
    return cloud.boot(name, image, flavorRef=flavor, networks=[{"port": port}], **more)


def _script(address: str) -> str:
    return base64.b64encode(KNOCK.format(address=address).encode()).decode()


def _network(cloud: RealCloud, name: str, cidr: str) -> str:
    client = cloud.client()
    made: str = client.post("network", "/networks", {"network": {"name": name}}).json()["network"]["id"]
    subnet = {"network_id": made, "ip_version": 4, "cidr": cidr}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return made


def _group(cloud: RealCloud, name: str) -> str:
    made = cloud.client().post("network", "/security-groups", {"security_group": {"name": name}})
    group: str = made.json()["security_group"]["id"]
    return group


def _permit(cloud: RealCloud, group: str) -> None:
    rule = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4", "protocol": "icmp"}
    assert cloud.client().post("network", "/security-group-rules", {"security_group_rule": rule}).status == 201


def _port(cloud: RealCloud, network: str, groups: list[str]) -> dict[str, Any]:
    wanted = {"network_id": network, "security_groups": groups}
    made: dict[str, Any] = cloud.client().post("network", "/ports", {"port": wanted}).json()["port"]
    return made
