"""Quotas by the unified limits of a real Keystone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.support.cloud_process import Client, Response


class Limits:
    """Limits of the compute service in Keystone."""

    def __init__(self, cloud: Cloud) -> None:
        self.client = cloud.client()
        services = self.client.get("identity", "/services?type=compute")["services"]
        self.service = services[0]["id"]

    def register(self, region: str | None = None, **limits: int) -> None:
        where = {"service_id": self.service, "region_id": region}
        many = [{**where, "resource_name": _name(key), "default_limit": limits[key]} for key in limits]
        self.client.post("identity", "/registered_limits", {"registered_limits": many})

    def set(self, project: str, region: str | None = None, **limits: int) -> None:
        where = {"service_id": self.service, "region_id": region, "project_id": project}
        many = [{**where, "resource_name": _name(key), "resource_limit": limits[key]} for key in limits]
        self.client.post("identity", "/limits", {"limits": many})

    def clear(self) -> None:
        for collection in ("limits", "registered_limits"):
            for item in self.client.get("identity", f"/{collection}?service_id={self.service}")[collection]:
                self.client.delete("identity", f"/{collection}/{item['id']}")


def _name(key: str) -> str:
    return key.replace("__", ":")


@pytest.fixture
def limits(cloud: Cloud, started_kilonova: Kilonova) -> Iterator[Limits]:
    found = Limits(cloud)
    found.clear()
    yield found
    found.clear()


@pytest.fixture
def unified(started_kilonova: Kilonova, cloud: Cloud, limits: Limits, tmp_path: Path) -> Iterator[Kilonova]:
    """A Kilonova with unified limits in the place of the common one."""
    started_kilonova.stop()
    settings = {"KILONOVA_QUOTA__DRIVER": "unified", "KILONOVA_QUOTA__UNIFIED_LIMITS_CACHE_SECONDS": "0"}
    with Kilonova(cloud, tmp_path / "data", environ=settings) as running:
        yield running
        running.delete_servers()


def boot(user: Client, **more: Any) -> Response:
    image = next(each for each in user.get("image", "/images").json()["images"] if each["name"] == "tiny")
    network = user.get("network", "/networks?name=shared").json()["networks"][0]
    return user.post("compute", "/servers", server_body(image, network, **more))


def test_limits_of_keystone_are_enforced(unified: Kilonova, limits: Limits, cloud: Cloud) -> None:
    demo, admin = unified.user(), unified.admin
    assert "already used 0 of 0 servers" in boot(demo).json()["forbidden"]["message"]
    limits.register(servers=1, class__MEMORY_MB=-1)
    limits.register("RegionOne", class__VCPU=2)
    assert boot(demo).status == 202
    assert "already used 1 of 1 servers" in boot(demo).json()["forbidden"]["message"]
    limits.set(demo.project_id, servers=5)
    assert boot(demo).status == 202
    assert "Quota exceeded for class:VCPU" in boot(demo).json()["forbidden"]["message"]
    shown = demo.get("compute", f"/os-quota-sets/{demo.project_id}/detail").json()["quota_set"]
    assert (shown["instances"], shown["cores"]["limit"], shown["ram"]["limit"]) == (
        {"limit": 5, "in_use": 2, "reserved": 0},
        2,
        -1,
    )
    defaults = demo.get("compute", f"/os-quota-sets/{demo.project_id}/defaults").json()["quota_set"]
    assert (defaults["instances"], defaults["cores"]) == (1, 2)
    changed = admin.put("compute", f"/os-quota-sets/{demo.project_id}", {"quota_set": {"instances": 50}})
    assert (changed.status, changed.json()["quota_set"]["instances"]) == (200, 5)


def test_known_limits_go_on_without_keystone(unified: Kilonova, limits: Limits, cloud: Cloud) -> None:
    demo = unified.user()
    limits.register(servers=1, server_key_pairs=1)
    assert boot(demo).status == 202
    with cloud.killed("keystone"):
        # Without Keystone, Glance and Neutron may refuse the boot; a key pair needs neither.
        first, second = (demo.post("compute", "/os-keypairs", {"keypair": {"name": name}}) for name in "ab")
        assert (first.status, second.status) == (200, 403), (first.body, second.body)
    assert demo.delete("compute", "/os-keypairs/a").status == 202
    wait_for(lambda: boot(demo).status == 403, "limits are enforced again")
