"""From extra specs and aggregates, over the API, to the host that a server gets or the sentence that says why not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.whole import Whole, whole


async def aggregate(c: Whole, name: str, host: str, **metadata: str) -> None:
    made = await c.post("/os-aggregates", {"aggregate": {"name": name}}, as_="admin")
    path = f"/os-aggregates/{made.json()['aggregate']['id']}/action"
    for action in ({"add_host": {"host": host}}, {"set_metadata": {"metadata": metadata}}):
        answer = await c.post(path, action, as_="admin")
        assert answer.status == 200, answer.body


async def flavor(c: Whole, name: str, **specs: str) -> str:
    flavor_id = await make_flavor(c, name)
    body = {"extra_specs": {key.replace("__", ":"): value for key, value in specs.items()}}
    answer = await c.post(f"/flavors/{flavor_id}/os-extra_specs", body, as_="admin")
    assert answer.status == 200, answer.body
    return flavor_id


async def why_not(c: Whole, flavor_id: str) -> str:
    shown = await c.settled((await c.boot(flavorRef=flavor_id))["id"])
    assert shown["status"] == "ERROR"
    return str(shown["fault"]["message"])


def test_aggregates_decide_by_flavor_and_project(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            one, two, three = c.hosts.names
            await aggregate(c, "fast", two, ssd="true", tier="3")
            await aggregate(c, "reserved", three, filter_tenant_id="somebody-else")
            fast = await flavor(c, "fast", aggregate_instance_extra_specs__ssd="true")
            assert (await c.active(flavorRef=fast))["OS-EXT-SRV-ATTR:host"] == two
            hosts = {(await c.active())["OS-EXT-SRV-ATTR:host"] for _ in range(4)}
            assert hosts == {one, two}
            faster = await flavor(c, "faster", aggregate_instance_extra_specs__tier=">= 4")
            assert await why_not(c, faster) == (
                "No valid host was found: 3 hosts: 2 not in an aggregate with tier >= 4, 1 reserved for other projects"
            )
            await aggregate(c, "given", three, filter_tenant_id=DEMO, tier="5")
            assert (await c.active(flavorRef=faster))["OS-EXT-SRV-ATTR:host"] == three

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
def test_a_spec_that_no_host_meets_is_named(sqlite_url: str, specs: dict[str, str], reason: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            assert await why_not(c, await flavor(c, "odd", **specs)) == f"No valid host was found: 2 hosts: {reason}"

    run(scenario())


def test_specs_are_what_is_claimed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            specs: dict[str, Any] = {
                "resources__VCPU": "3",
                "resources__DISK_GB": "0",
                "trait__HW_CPU_X86_VMX": "required",
                "capabilities__cpu_info:features": "<in> vmx",
            }
            server = await c.active(flavorRef=await flavor(c, "own", **specs))
            rows = await c.db.fetch(
                "SELECT resource_class, used FROM allocations WHERE consumer_uuid = $1", server["id"]
            )
            assert {row["resource_class"]: row["used"] for row in rows} == {"VCPU": 3, "MEMORY_MB": 512}

    run(scenario())


def test_a_contradiction_is_refused_before_anything_is_made(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            own = await flavor(c, "own", resources1__VGPU="1", resources2__VGPU="1")
            server = {"name": "s", "flavorRef": own, "imageRef": c.image_id, "networks": "auto"}
            answer = await c.post("/servers", {"server": server}, version="2.96")
            status, _, message = fault(answer)
            assert status == 400
            assert "group_policy" in message

    run(scenario())
