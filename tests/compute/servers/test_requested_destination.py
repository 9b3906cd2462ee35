"""Destinations in create requests: zones, forced hosts, and requested hosts."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.moves import disable_host
from tests.compute.servers.support import NO_RESOURCES, count_server_resources, create_refusal, make_flavor
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud


class TestRequestedHost:
    """`host` and `hypervisor_hostname` (2.74): the scheduler's filters apply."""

    def test_server_is_built_on_the_requested_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3) as c:
                for keys in (
                    {"host": "sim-002"},
                    {"hypervisor_hostname": "sim-002"},
                    {"host": "sim-002", "hypervisor_hostname": "sim-002"},
                    {"host": "sim-002", "availability_zone": "nova"},
                ):
                    shown = await c.boot_active(as_="admin", **keys)
                    assert shown["OS-EXT-SRV-ATTR:host"] == "sim-002"
                several = await c.boot(as_="admin", host="sim-003", min_count=3)
                assert (await c.wait_until_settled(several["id"]))["OS-EXT-SRV-ATTR:host"] == "sim-003"

        run(scenario())

    def test_requested_host_must_pass_the_filters(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, zones=("a", "b", "c")) as c:
                await disable_host(c, "sim-001")
                await make_flavor(c, "huge", ram=16000)

                async def fails(**keys: Any) -> str:
                    shown = await c.wait_until_settled((await c.boot(as_="admin", **keys))["id"])
                    assert shown["status"] == "ERROR"
                    assert await count_server_resources(c, shown["id"]) == NO_RESOURCES
                    message: str = shown["fault"]["message"]
                    return message

                assert "1 disabled" in await fails(host="sim-001")
                assert "lacks 16000 MB memory" in await fails(host="sim-002", flavorRef="huge")
                zones = {row["host"]: row["zone"] for row in await _zones(c)}
                other_zone = next(zone for host, zone in zones.items() if host == "sim-003")
                assert "not in zone" in await fails(hypervisor_hostname="sim-002", availability_zone=other_zone)

        run(scenario())

    def test_requested_host_permissions_and_bad_values(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                for keys in ({"host": "sim-001"}, {"hypervisor_hostname": "sim-001"}):
                    for caller in ("member", "manager"):
                        assert (await create_refusal(c, as_=caller, **keys))[0] == 403
                    assert (await create_refusal(c, as_="admin", version="2.73", **keys))[0] == 400
                    for form in ("nova:sim-001", "nova::sim-001", ":sim-002:sim-002"):
                        status, message = await create_refusal(c, as_="admin", availability_zone=form, **keys)
                        assert status == 400
                        assert "availability_zone" in message
                for keys in (
                    {"host": "unknown"},
                    {"hypervisor_hostname": "unknown"},
                    {"host": "sim-001", "hypervisor_hostname": "sim-002"},
                ):
                    status, message = await create_refusal(c, as_="admin", **keys)
                    assert (status, message.startswith("Compute host ")) == (400, True)
                for value in ("", "a b", 1, None, "x" * 256):
                    assert (await create_refusal(c, as_="admin", host=value))[0] == 400

        run(scenario())


async def _zones(c: FullCloud) -> Any:
    return await c.db.fetch(
        "SELECT h.host, m.value AS zone FROM aggregate_hosts h"
        " JOIN aggregate_metadata m ON m.aggregate_id = h.aggregate_id AND m.key = 'availability_zone'"
    )


class TestForcedHost:
    """`zone:host:node`: only the zone and the room are checked, not the filters."""

    def test_forced_host_may_be_disabled(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                await disable_host(c, "sim-001")
                for form in ("nova:sim-001", "nova::sim-001", "nova:sim-001:sim-001", "::sim-001"):
                    shown = await c.boot_active(as_="admin", availability_zone=form)
                    assert shown["OS-EXT-SRV-ATTR:host"] == "sim-001"
                    assert shown["pinned_availability_zone"] == ("nova" if form.startswith("nova") else None)

        run(scenario())

    def test_forced_host_must_have_room(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                await make_flavor(c, "huge", ram=16000)
                shown = await c.wait_until_settled(
                    (await c.boot(as_="admin", availability_zone="nova:sim-001", flavorRef="huge"))["id"]
                )
                assert shown["status"] == "ERROR"
                assert "1 lacks 16000 MB memory" in shown["fault"]["message"]

        run(scenario())

    def test_forced_host_bad_values(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                for form in ("nova:a:b:c", "nova:unknown", "nova::unknown", "nova:sim-001:sim-002", "mars:sim-001"):
                    assert (await create_refusal(c, as_="admin", availability_zone=form))[0] == 400
                    assert (await create_refusal(c, availability_zone=form))[0] == 403

        run(scenario())


def test_default_schedule_zone_applies_without_a_requested_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=4, zones=("a", "b"), scheduler__default_schedule_zone="b") as c:
            for _ in range(3):
                shown = await c.boot_active()
                assert shown["OS-EXT-AZ:availability_zone"] == shown["pinned_availability_zone"] == "b"
            assert (await c.boot_active(availability_zone="a"))["OS-EXT-AZ:availability_zone"] == "a"

    run(scenario())


def test_bad_resource_extra_specs_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            await make_flavor(c, "odd")
            specs = {"extra_specs": {"resources:VCPU": "many"}}
            assert (await c.post("/flavors/odd/os-extra_specs", specs, as_="admin", version="2.1")).status == 200
            status, message = await create_refusal(c, flavorRef="odd")
            assert status == 400
            assert "resources:VCPU" in message

    run(scenario())
