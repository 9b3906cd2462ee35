"""openstacksdk does what the tour does, at the versions that people use; it knows the newest by number only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import openstack
import pytest

from tests.support.process import Cloud

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqGzU4zHF7cqqQxXL9TbXKM3Ot2ZcS2rm8Jdm8Y8m8r somebody"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("sdk") / "data", "--zones", "east,west") as running:
        yield running


def connect(cloud: Cloud, name: str, version: str | None) -> Any:
    os.environ.pop("OS_CLOUD", None)
    config = openstack.config.OpenStackConfig(config_files=[str(cloud.data / "clouds.yaml")])
    options = {} if version is None else {"compute_default_microversion": version}
    return openstack.connection.Connection(config=config.get_one(cloud=name, **options))


@pytest.mark.parametrize("version", [None, "2.1", "2.53", "2.96", "2.106"])
def test_a_server_from_boot_to_delete(cloud: Cloud, version: str | None) -> None:
    demo = connect(cloud, "kilonova-demo", version)
    compute = demo.compute
    image = demo.image.find_image("cirros-sim")
    network = demo.network.find_network("private")
    key = compute.create_keypair(name="key", public_key=KEY)
    server = compute.create_server(
        name=f"web-{version}",
        image_id=image.id,
        flavor_id=compute.find_flavor("m1.tiny").id,
        networks=[{"uuid": network.id}],
        key_name=key.name,
        metadata={"role": "web"},
        availability_zone="east",
    )
    server = compute.wait_for_server(server, interval=0.1, wait=30)
    assert server.status == "ACTIVE"
    assert server.availability_zone == "east"
    assert server.key_name == key.name
    assert server.metadata == {"role": "web"}
    (address,) = server.addresses["private"]
    (port,) = demo.network.ports(device_id=server.id)
    assert address["addr"] == port.fixed_ips[0]["ip_address"]
    assert [found.id for found in compute.servers(name=f"web-{version}$")] == [server.id]
    assert [found.id for found in compute.servers(details=False, status="ACTIVE")] == [server.id]

    compute.stop_server(server)
    server = compute.wait_for_server(server, status="SHUTOFF", interval=0.1, wait=30)
    compute.start_server(server)
    server = compute.wait_for_server(server, interval=0.1, wait=30)
    compute.reboot_server(server, "HARD")
    server = compute.wait_for_server(server, interval=0.1, wait=30)
    server = compute.update_server(server, name=f"renamed-{version}")
    assert server.name == f"renamed-{version}"
    assert [action.action for action in compute.server_actions(server)] == ["reboot", "start", "stop", "create"]

    compute.delete_server(server)
    compute.wait_for_delete(server, interval=0.1, wait=30)
    compute.delete_keypair(key)
    assert list(demo.network.ports(device_id=server.id)) == []


@pytest.mark.parametrize("version", [None, "2.1", "2.53", "2.96", "2.106"])
def test_what_an_administrator_sees(cloud: Cloud, version: str | None) -> None:
    admin = connect(cloud, "kilonova", version)
    assert {zone.name for zone in admin.compute.availability_zones()} >= {"east", "west"}
    computes = [service for service in admin.compute.services() if service.binary == "nova-compute"]
    assert {service.state for service in computes} == {"up"}
    hypervisors = list(admin.compute.hypervisors(details=True))
    assert {hypervisor.name for hypervisor in hypervisors} == {service.host for service in computes}
    flavor = admin.compute.create_flavor(name=f"big-{version}", ram=1024, vcpus=2, disk=5)
    assert admin.compute.find_flavor(f"big-{version}").vcpus == 2
    admin.compute.delete_flavor(flavor)
    assert admin.compute.get_limits().absolute.instances == 10
