"""Extra specs and aggregates, set by the API, decide the host of a server or the message of its fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud


async def create_aggregate(c: FullCloud, name: str, host: str, **metadata: str) -> None:
    made = await c.post("/os-aggregates", {"aggregate": {"name": name}}, as_="admin")
    path = f"/os-aggregates/{made.json()['aggregate']['id']}/action"
    for action in ({"add_host": {"host": host}}, {"set_metadata": {"metadata": metadata}}):
        answer = await c.post(path, action, as_="admin")
        assert answer.status == 200, answer.body


async def create_flavor(c: FullCloud, name: str, **specs: str) -> str:
    flavor_id = await make_flavor(c, name)
    body = {"extra_specs": {key.replace("__", ":"): value for key, value in specs.items()}}
    answer = await c.post(f"/flavors/{flavor_id}/os-extra_specs", body, as_="admin")
    assert answer.status == 200, answer.body
    return flavor_id


async def boot_fault(c: FullCloud, flavor_id: str) -> str:
    shown = await c.wait_until_settled((await c.boot(flavorRef=flavor_id))["id"])
    assert shown["status"] == "ERROR"
    return str(shown["fault"]["message"])


def test_aggregate_metadata_selects_hosts_by_flavor_and_project(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            one, two, three = c.hosts.names
            await create_aggregate(c, "fast", two, ssd="true", tier="3")
            await create_aggregate(c, "reserved", three, filter_tenant_id="somebody-else")
            fast = await create_flavor(c, "fast", aggregate_instance_extra_specs__ssd="true")
            assert (await c.boot_active(flavorRef=fast))["OS-EXT-SRV-ATTR:host"] == two
            hosts = {(await c.boot_active())["OS-EXT-SRV-ATTR:host"] for _ in range(4)}
            assert hosts == {one, two}
            faster = await create_flavor(c, "faster", aggregate_instance_extra_specs__tier=">= 4")
            assert await boot_fault(c, faster) == (
                "No valid host was found: 3 hosts: 2 not in an aggregate with tier >= 4, 1 reserved for other projects"
            )
            await create_aggregate(c, "given", three, filter_tenant_id=DEMO, tier="5")
            assert (await c.boot_active(flavorRef=faster))["OS-EXT-SRV-ATTR:host"] == three

    run(scenario())


@pytest.mark.parametrize(
    "specs, reason",
    [
        ({"trait__CUSTOM_MAGIC": "required"}, "2 lack trait CUSTOM_MAGIC"),
        ({"trait__HW_CPU_X86_VMX": "forbidden"}, "2 have forbidden trait HW_CPU_X86_VMX"),
        ({"capabilities__hypervisor_type": "s== QEMU"}, "2 lack capability hypervisor_type s== QEMU"),
        ({"resources__CUSTOM_FPGA": "1"}, "2 lack 1 CUSTOM_FPGA"),
        ({"hw__cpu_policy": "dedicated"}, "2 lack 1 PCPU"),
    ],
)
def test_fault_names_unmet_extra_spec(sqlite_url: str, specs: dict[str, str], reason: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            assert (
                await boot_fault(c, await create_flavor(c, "odd", **specs))
                == f"No valid host was found: 2 hosts: {reason}"
            )

    run(scenario())


def test_extra_specs_determine_allocations(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            specs: dict[str, Any] = {
                "resources__VCPU": "3",
                "resources__DISK_GB": "0",
                "trait__HW_CPU_X86_VMX": "required",
                "capabilities__cpu_info:features": "<in> vmx",
            }
            server = await c.boot_active(flavorRef=await create_flavor(c, "own", **specs))
            rows = await c.db.fetch(
                "SELECT resource_class, used FROM allocations WHERE consumer_uuid = $1", server["id"]
            )
            assert {row["resource_class"]: row["used"] for row in rows} == {"VCPU": 3, "MEMORY_MB": 512}

    run(scenario())


def test_create_rejects_contradictory_extra_specs(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            own = await create_flavor(c, "own", resources1__VGPU="1", resources2__VGPU="1")
            server = {"name": "s", "flavorRef": own, "imageRef": c.image_id, "networks": "auto"}
            answer = await c.post("/servers", {"server": server}, version="2.96")
            status, _, message = fault(answer)
            assert status == 400
            assert "group_policy" in message

    run(scenario())
