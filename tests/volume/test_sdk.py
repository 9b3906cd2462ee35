"""Volumes with openstacksdk, at the oldest and the newest microversion."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from openstack.exceptions import BadRequestException, ConflictException, HttpException, NotFoundException

from tests.support.cloud_process import CloudProcess

VERSIONS = [None, "3.71"]
# Deprecation warnings of the SDK itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("sdk") / "data", "--hosts", "1") as running:
        yield running


def connect(cloud: CloudProcess, name: str, version: str | None = None) -> Any:
    os.environ.pop("OS_CLOUD", None)
    config = openstack.config.OpenStackConfig(config_files=[str(cloud.data / "clouds.yaml")])
    options = {} if version is None else {"block_storage_default_microversion": version}
    return openstack.connection.Connection(config=config.get_one(cloud=name, **options))


def settled(service: Any, thing: Any, status: str = "available") -> Any:
    """Fetch the resource again and wait for the status."""
    return service.wait_for_status(thing.fetch(service), status=status, interval=0.05, wait=120)


def gone(service: Any, thing: Any) -> None:
    service.wait_for_delete(thing, interval=0.05, wait=120)


def content(cloud: CloudProcess, volume_id: str) -> bytes:
    (file,) = Path(cloud.data, "volumes").glob(f"{volume_id}.*")
    with file.open("rb") as opened:
        return opened.read(4)


@pytest.mark.parametrize("version", VERSIONS)
def test_volume_lifecycle(cloud: CloudProcess, version: str | None) -> None:
    service = connect(cloud, "kilonova-demo", version).block_storage
    created = service.create_volume(name=f"v-{version}", size=1, description="d", metadata={"a": "1"})
    volume = settled(service, created)
    assert (volume.size, volume.volume_type, volume.is_bootable) == (1, "__DEFAULT__", False)
    assert service.find_volume(f"v-{version}").id == volume.id
    assert volume.id in [found.id for found in service.volumes(details=False)]
    assert [found.id for found in service.volumes(name=f"v-{version}", status="available")] == [volume.id]

    assert service.update_volume(volume, name=f"renamed-{version}").name == f"renamed-{version}"
    service.set_volume_metadata(volume, b="2")
    service.delete_volume_metadata(service.get_volume(volume), ["a"])
    assert service.get_volume_metadata(volume).metadata == {"b": "2"}
    service.set_volume_bootable_status(volume, True)
    service.set_volume_image_metadata(volume, os_distro="kilo")
    volume = service.get_volume(volume)
    assert (volume.is_bootable, volume.volume_image_metadata) == (True, {"os_distro": "kilo"})
    service.set_volume_readonly(volume, True)
    service.extend_volume(volume, 2)
    volume = settled(service, volume)
    assert (volume.size, volume.metadata["readonly"]) == (2, "True")
    with pytest.raises(BadRequestException):
        service.extend_volume(volume, 1)

    service.delete_volume(volume)
    gone(service, volume)
    with pytest.raises(NotFoundException):
        service.get_volume(volume.id)


def test_content_is_copied_from_image_to_volume_to_snapshot_to_volume(cloud: CloudProcess) -> None:
    demo = connect(cloud, "kilonova-demo")
    service = demo.block_storage
    image = demo.image.create_image(
        name="bytes", data=b"abcd" * 256, disk_format="raw", container_format="bare", wait=True
    )
    volume = settled(service, service.create_volume(size=1, image_id=image.id))
    assert volume.is_bootable
    assert volume.volume_image_metadata["image_id"] == image.id
    snapshot = settled(service, service.create_snapshot(volume_id=volume.id, name="s", metadata={"k": "v"}))
    assert [found.id for found in service.snapshots(name="s")] == [snapshot.id]
    assert service.update_snapshot(snapshot, name="t").name == "t"
    copies = [
        settled(service, service.create_volume(size=2, snapshot_id=snapshot.id)),
        settled(service, service.create_volume(size=1, source_volume_id=volume.id)),
    ]
    assert [content(cloud, each.id) for each in (volume, *copies)] == [b"abcd"] * 3
    with pytest.raises(HttpException):  # it has a snapshot
        service.delete_volume(volume, ignore_missing=False)
    service.delete_snapshot(snapshot)
    gone(service, snapshot)
    for each in (volume, *copies):
        service.delete_volume(each)
        gone(service, each)
    assert not list(Path(cloud.data, "volumes").glob("*.*"))


def test_attachments(cloud: CloudProcess) -> None:
    demo = connect(cloud, "kilonova-demo", "3.71")
    service = demo.block_storage
    volume = settled(service, service.create_volume(size=1))
    server = demo.compute.create_server(
        name="s",
        image_id=demo.image.find_image("cirros-sim").id,
        flavor_id=demo.compute.find_flavor("m1.tiny").id,
        networks="auto",
    )
    server = demo.compute.wait_for_server(server, interval=0.1, wait=120)
    created = service.create_attachment(volume.id, connector=None, instance=server.id)
    assert (created.status, service.get_volume(volume).status) == ("reserved", "reserved")
    assert service.update_attachment(created, connector={"host": "h"}).connection_info == {}
    way = connect(cloud, "kilonova", "3.71").block_storage.get_attachment(created.id).connection_info
    assert Path(way["device_path"]).parent == cloud.data / "volumes"
    service.complete_attachment(created)
    shown = service.get_volume(volume)
    assert (shown.status, shown.attachments[0]["server_id"]) == ("in-use", server.id)
    assert [found.id for found in service.attachments()] == [created.id]
    service.delete_attachment(created)
    assert service.get_volume(volume).status == "available"
    demo.compute.delete_server(server)
    service.delete_volume(volume)
    gone(service, volume)


@pytest.mark.parametrize("version", VERSIONS)
def test_types(cloud: CloudProcess, version: str | None) -> None:
    admin, demo = (connect(cloud, name, version) for name in ("kilonova", "kilonova-demo"))
    service, project = admin.block_storage, admin.identity.find_project("demo")
    created = service.create_type(name=f"fast-{version}", is_public=False, extra_specs={"multiattach": "<is> True"})
    assert service.find_type(created.name).id == created.id
    with pytest.raises(ConflictException):
        service.create_type(name=created.name)
    assert created.id not in [found.id for found in demo.block_storage.types()]
    service.add_type_access(created, project.id)
    assert [each["project_id"] for each in service.get_type_access(created)] == [project.id]
    assert created.id in [found.id for found in demo.block_storage.types()]
    volume = settled(demo.block_storage, demo.block_storage.create_volume(size=1, volume_type=created.name))
    assert volume.is_multiattach
    assert service.update_type(created, description="quick").description == "quick"
    service.update_type_extra_specs(created, a="1")
    service.delete_type_extra_specs(created, ["multiattach"])
    assert service.get_type(created.id).extra_specs == {"a": "1"}
    assert service.get_type("default").name == "__DEFAULT__"
    demo.block_storage.retype_volume(volume, "__DEFAULT__")
    assert demo.block_storage.get_volume(volume).volume_type == "__DEFAULT__"
    service.remove_type_access(created, project.id)
    service.delete_type(created, ignore_missing=False)
    demo.block_storage.delete_volume(volume)
    gone(demo.block_storage, volume)


def test_default_types(cloud: CloudProcess) -> None:
    admin = connect(cloud, "kilonova", "3.67")
    service, project = admin.block_storage, admin.identity.find_project("demo")
    created = service.create_type(name="usual")
    assert service.set_default_type(project.id, created.id).volume_type_id == created.id
    assert service.show_default_type(project.id).volume_type_id == created.id
    assert [found.project_id for found in service.default_types()] == [project.id]
    assert connect(cloud, "kilonova-demo").block_storage.get_type("default").id == created.id
    service.unset_default_type(project.id)
    service.delete_type(created, ignore_missing=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_transfers(cloud: CloudProcess, version: str | None) -> None:
    giver = connect(cloud, "kilonova-demo", version).block_storage
    taker = connect(cloud, "kilonova", version).block_storage
    volume = settled(giver, giver.create_volume(size=1))
    created = giver.create_transfer(volume_id=volume.id, name=f"gift-{version}")
    assert giver.get_volume(volume).status == "awaiting-transfer"
    assert giver.find_transfer(created.name).id == created.id
    assert [found.id for found in giver.transfers()] == [created.id]
    giver.delete_transfer(created, ignore_missing=False)
    created = giver.create_transfer(volume_id=volume.id)
    assert taker.accept_transfer(created.id, created.auth_key).volume_id == volume.id
    assert [found.id for found in taker.volumes()] == [volume.id]
    assert list(giver.volumes()) == []
    taker.delete_volume(volume)
    gone(taker, volume)


def test_quotas_and_limits(cloud: CloudProcess) -> None:
    admin, demo = connect(cloud, "kilonova"), connect(cloud, "kilonova-demo")
    service, project = admin.block_storage, admin.identity.find_project("demo")
    assert service.update_quota_set(project, volumes=1).volumes == 1
    volume = settled(demo.block_storage, demo.block_storage.create_volume(size=1))
    assert service.get_quota_set(project, usage=True).usage["gigabytes"] == 1
    with pytest.raises(HttpException, match="Maximum number of volumes allowed") as refused:
        demo.block_storage.create_volume(size=1)
    assert refused.value.status_code == 413
    limits = demo.block_storage.get_limits().absolute
    assert (limits.max_total_volumes, limits.total_volumes_used) == (1, 1)
    service.revert_quota_set(project)
    assert service.get_quota_set(project).volumes == service.get_quota_set_defaults(project).volumes == 10
    service.update_quota_class_set("default", volumes=12)
    assert service.get_quota_class_set("default").volumes == service.get_quota_set(project).volumes == 12
    service.update_quota_class_set("default", volumes=10)
    demo.block_storage.delete_volume(volume)
    gone(demo.block_storage, volume)


def test_services_pools_and_zones(cloud: CloudProcess) -> None:
    service = connect(cloud, "kilonova", "3.71").block_storage
    assert [(part.binary, part.state) for part in service.services()] == [
        ("cinder-scheduler", "up"),
        ("cinder-volume", "up"),
    ]
    part = service.find_service("cinder-volume")
    service.disable_service(part, reason="disks")
    assert service.find_service("cinder-volume").disabled_reason == "disks"
    with pytest.raises(ConflictException, match="disabled: disks"):
        service.create_volume(size=1)
    service.enable_service(part)
    assert service.find_service("cinder-volume").status == "enabled"
    (pool,) = service.backend_pools()
    assert pool.capabilities["total_capacity_gb"] > 0
    assert service.get_capabilities(part.host).vendor_name == "Kilonova"
    assert [zone.name for zone in service.availability_zones()] == ["nova"]
    assert "os-hosts" in [each.alias for each in service.extensions()]
    assert {each.resource for each in service.resource_filters()} >= {"volume", "snapshot"}
    assert service.summary(all_projects=True).total_count == 0
