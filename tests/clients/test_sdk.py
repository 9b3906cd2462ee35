"""openstacksdk at common microversions."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from openstack.exceptions import (
    BadRequestException,
    ConflictException,
    ForbiddenException,
    NotFoundException,
    ResourceFailure,
)

from tests.support.cloud_process import CloudProcess

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqGzU4zHF7cqqQxXL9TbXKM3Ot2ZcS2rm8Jdm8Y8m8r somebody"

# The SDK emits deprecation warnings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("sdk") / "data", "--zones", "east,west") as running:
        yield running


def connect(cloud: CloudProcess, name: str, version: str | None) -> Any:
    os.environ.pop("OS_CLOUD", None)
    config = openstack.config.OpenStackConfig(config_files=[str(cloud.data / "clouds.yaml")])
    options = {} if version is None else {"compute_default_microversion": version}
    return openstack.connection.Connection(config=config.get_one(cloud=name, **options))


@pytest.mark.parametrize("version", [None, "2.1", "2.53", "2.96", "2.106"])
def test_server_lifecycle(cloud: CloudProcess, version: str | None) -> None:
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
    server = compute.wait_for_server(server, interval=0.1, wait=120)
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
    server = compute.wait_for_server(server, status="SHUTOFF", interval=0.1, wait=120)
    compute.start_server(server)
    server = compute.wait_for_server(server, interval=0.1, wait=120)
    compute.reboot_server(server, "HARD")
    server = compute.wait_for_server(server, interval=0.1, wait=120)
    server = compute.update_server(server, name=f"renamed-{version}")
    assert server.name == f"renamed-{version}"
    assert [action.action for action in compute.server_actions(server)] == ["reboot", "start", "stop", "create"]

    compute.delete_server(server)
    compute.wait_for_delete(server, interval=0.1, wait=120)
    compute.delete_keypair(key)
    assert list(demo.network.ports(device_id=server.id)) == []


@pytest.mark.parametrize("version", [None, "2.1", "2.53", "2.96", "2.106"])
def test_admin_resources(cloud: CloudProcess, version: str | None) -> None:
    admin = connect(cloud, "kilonova", version)
    assert {zone.name for zone in admin.compute.availability_zones()} >= {"east", "west"}
    computes = [service for service in admin.compute.services() if service.binary == "nova-compute"]
    assert {service.state for service in computes} == {"up"}
    # Since 2.105 administrators of a project see only its assigned hypervisors.
    hypervisors = list(connect(cloud, "kilonova-system", version).compute.hypervisors(details=True))
    assert {hypervisor.name for hypervisor in hypervisors} == {service.host for service in computes}
    flavor = admin.compute.create_flavor(name=f"big-{version}", ram=1024, vcpus=2, disk=5)
    assert admin.compute.find_flavor(f"big-{version}").vcpus == 2
    admin.compute.delete_flavor(flavor)
    assert admin.compute.get_limits().absolute.instances == 10


def boot(demo: Any, **keys: Any) -> Any:
    """Create a server of the smallest flavor without waiting."""
    attributes = {
        "name": "s",
        "image_id": demo.image.find_image("cirros-sim").id,
        "flavor_id": demo.compute.find_flavor("m1.tiny").id,
        "networks": "none",
        **keys,
    }
    return demo.compute.create_server(**attributes)


def delete(demo: Any, *servers: Any) -> None:
    for server in servers:
        demo.compute.delete_server(server)
    for server in servers:
        demo.compute.wait_for_delete(server, interval=0.1, wait=120)


def test_upload_download_and_boot_image(cloud: CloudProcess, tmp_path: Path) -> None:
    demo = connect(cloud, "kilonova-demo", "2.98")
    content = os.urandom(300_000)
    image = demo.image.create_image(
        "mine", data=content, disk_format="raw", container_format="bare", hw_rng_model="virtio", allow_duplicates=True
    )
    assert demo.image.get_image(image.id).status == "active"
    assert demo.image.get_image(image.id).size == len(content)
    demo.image.download_image(image, output=str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content
    server = demo.compute.wait_for_server(boot(demo, image_id=image.id), interval=0.1, wait=120)
    assert server.image["id"] == image.id
    assert server.image["properties"]["hw_rng_model"] == "virtio"
    delete(demo, server)
    demo.image.delete_image(image)
    with pytest.raises(BadRequestException, match=f"Can not find requested image {image.id}"):
        boot(demo, image_id=image.id)


def test_boot_with_existing_port(cloud: CloudProcess) -> None:
    demo = connect(cloud, "kilonova-demo", "2.96")
    network = demo.network.find_network("private")
    port = demo.network.create_port(network_id=network.id)
    server = demo.compute.wait_for_server(boot(demo, networks=[{"port": port.id}]), interval=0.1, wait=120)
    assert [entry["addr"] for entry in server.addresses["private"]] == [port.fixed_ips[0]["ip_address"]]
    with pytest.raises(ConflictException, match="still in use"):
        boot(demo, networks=[{"port": port.id}])
    delete(demo, server)
    assert demo.network.get_port(port.id).device_id == ""
    demo.network.delete_port(port)


def test_project_cleanup(cloud: CloudProcess) -> None:
    admin = connect(cloud, "kilonova", None)
    project = admin.identity.create_project(name="temporary", domain_id="default")
    role, user = admin.identity.find_role("member"), admin.identity.find_user("admin")
    admin.identity.assign_project_role_to_user(project, user, role)
    member = admin.connect_as_project(project)
    network = member.network.create_network(name="temporary")
    subnet = member.network.create_subnet(network_id=network.id, cidr="10.77.0.0/24", ip_version=4)
    router = member.network.create_router(name="temporary")
    member.network.add_interface_to_router(router.id, subnet_id=subnet.id)
    volume = member.block_storage.create_volume(size=1, name="temporary")
    member.block_storage.wait_for_status(volume, interval=0.1)
    found: queue.Queue[Any] = queue.Queue()
    member.project_cleanup(dry_run=True, wait_timeout=60, status_queue=found)
    assert {network.id, router.id, volume.id} <= {each.id for each in iter_queue(found)}
    assert member.network.find_network("temporary")
    member.project_cleanup(dry_run=False, wait_timeout=60)
    assert member.network.find_network("temporary") is None
    assert member.network.find_router("temporary") is None


def iter_queue(items: queue.Queue[Any]) -> Iterator[Any]:
    while not items.empty():
        yield items.get()


def test_lists_follow_pagination(cloud: CloudProcess) -> None:
    demo, admin = connect(cloud, "kilonova-demo", "2.96"), connect(cloud, "kilonova", "2.96")
    boot(demo, name="many", max_count=5)
    created = list(demo.compute.servers(name="many"))
    assert sorted(server.name for server in created) == [f"many-{number}" for number in range(1, 6)]
    for server in created:
        demo.compute.wait_for_server(server, interval=0.1, wait=120)
    expected = [server.id for server in created]
    for limit in (1, 2, 5):
        assert [server.id for server in demo.compute.servers(name="many", limit=limit)] == expected
        found = demo.compute.servers(details=False, limit=limit, sort_key="display_name", sort_dir="asc")
        assert [server.name for server in found] == [f"many-{number}" for number in range(1, 6)]
    assert list(admin.compute.servers(name="many")) == []
    everywhere = list(admin.compute.servers(all_projects=True, name="many"))
    assert {server.id for server in everywhere} == set(expected)
    assert {server.project_id for server in everywhere} == {demo.current_project_id}
    assert all(server.compute_host for server in everywhere)
    with pytest.raises(ForbiddenException):
        list(demo.compute.servers(all_projects=True))
    assert demo.compute.find_server("many-3").id in expected
    actions = list(demo.compute.server_actions(created[0]))
    (events,) = [demo.compute.get_server_action(action.request_id, created[0].id).events for action in actions]
    assert {event.result for event in events} == {"Success"}
    delete(demo, *created)


def test_error_messages_of_the_sdk(cloud: CloudProcess) -> None:
    demo, reader = connect(cloud, "kilonova-demo", "2.96"), connect(cloud, "kilonova-demo-reader", "2.96")
    server = demo.compute.wait_for_server(boot(demo), interval=0.1, wait=120)
    with pytest.raises(ConflictException, match=f"Cannot 'start' instance {server.id} while it is in vm_state active"):
        demo.compute.start_server(server)
    with pytest.raises(ForbiddenException, match="Policy doesn't allow"):
        reader.compute.stop_server(server)
    with pytest.raises(BadRequestException, match="zone is not available"):
        boot(demo, availability_zone="north")
    with pytest.raises(ForbiddenException, match="Quota exceeded for instances, cores"):
        boot(demo, min_count=30)
    with pytest.raises(NotFoundException, match="could not be found"):
        demo.compute.get_server("11111111-1111-1111-1111-111111111111")
    delete(demo, server)
    admin = connect(cloud, "kilonova", "2.96")
    huge = admin.compute.create_flavor(name="huge", ram=512, vcpus=1, disk=10**6)
    failed = boot(admin, flavor_id=huge.id)
    project = admin.current_project_id
    try:
        with pytest.raises(ResourceFailure):
            admin.compute.wait_for_server(failed, interval=0.1, wait=120)
        assert (
            admin.compute.get_server(failed.id).fault["message"].startswith("No valid host was found: 3 hosts: 3 lack")
        )
    finally:
        delete(admin, failed)
        admin.compute.delete_flavor(huge)
    assert list(admin.compute.servers(all_projects=True, project_id=project)) == []


def test_cloud_layer_create_and_delete_server(cloud: CloudProcess) -> None:
    demo = connect(cloud, "kilonova-demo", None)
    server = demo.create_server(
        "all-in-one", image="cirros-sim", flavor="m1.tiny", network="private", wait=True, auto_ip=False, timeout=120
    )
    assert server.status == "ACTIVE"
    assert demo.get_server("all-in-one").id == server.id
    assert [found.id for found in demo.list_servers(bare=True)] == [server.id]
    assert server.private_v4.startswith("10.")
    assert demo.delete_server("all-in-one", wait=True, timeout=120)
    assert demo.get_server("all-in-one") is None
