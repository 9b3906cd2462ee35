"""Where a new server is asked to go: zones, forced hosts, requested hosts."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.support import NOTHING, holdings, make_flavor, refused
from tests.support import run
from tests.support.whole import Whole, whole


async def disable(c: Whole, host: str) -> None:
    body = {"host": host, "binary": "nova-compute"}
    assert (await c.put("/os-services/disable", body, as_="admin")).status == 200


class TestRequested:
    """From 2.74 by `host` and `hypervisor_hostname`: through the scheduler."""

    def test_it_goes_there(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3) as c:
                for keys in (
                    {"host": "sim-002"},
                    {"hypervisor_hostname": "sim-002"},
                    {"host": "sim-002", "hypervisor_hostname": "sim-002"},
                    {"host": "sim-002", "availability_zone": "nova"},
                ):
                    shown = await c.active(as_="admin", **keys)
                    assert shown["OS-EXT-SRV-ATTR:host"] == "sim-002"
                several = await c.boot(as_="admin", host="sim-003", min_count=3)
                assert (await c.settled(several["id"]))["OS-EXT-SRV-ATTR:host"] == "sim-003"

        run(scenario())

    def test_the_filters_still_speak(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, zones=("a", "b", "c")) as c:
                await disable(c, "sim-001")
                await make_flavor(c, "huge", ram=16000)

                async def fails(**keys: Any) -> str:
                    shown = await c.settled((await c.boot(as_="admin", **keys))["id"])
                    assert shown["status"] == "ERROR"
                    assert await holdings(c, shown["id"]) == NOTHING
                    message: str = shown["fault"]["message"]
                    return message

                assert "1 disabled" in await fails(host="sim-001")
                assert "lacks 16000 MB memory" in await fails(host="sim-002", flavorRef="huge")
                zones = {row["host"]: row["zone"] for row in await _zones(c)}
                elsewhere = next(zone for host, zone in zones.items() if host == "sim-003")
                assert "not in zone" in await fails(hypervisor_hostname="sim-002", availability_zone=elsewhere)

        run(scenario())

    def test_who_may_and_what_makes_no_sense(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                for keys in ({"host": "sim-001"}, {"hypervisor_hostname": "sim-001"}):
                    for caller in ("member", "manager"):
                        assert (await refused(c, as_=caller, **keys))[0] == 403
                    assert (await refused(c, as_="admin", version="2.73", **keys))[0] == 400
                    for form in ("nova:sim-001", "nova::sim-001", ":sim-002:sim-002"):
                        status, message = await refused(c, as_="admin", availability_zone=form, **keys)
                        assert status == 400
                        assert "availability_zone" in message
                for keys in (
                    {"host": "nowhere"},
                    {"hypervisor_hostname": "nowhere"},
                    {"host": "sim-001", "hypervisor_hostname": "sim-002"},
                ):
                    status, message = await refused(c, as_="admin", **keys)
                    assert (status, message.startswith("Compute host ")) == (400, True)
                for value in ("", "a b", 1, None, "x" * 256):
                    assert (await refused(c, as_="admin", host=value))[0] == 400

        run(scenario())


async def _zones(c: Whole) -> Any:
    return await c.db.fetch(
        "SELECT h.host, m.value AS zone FROM aggregate_hosts h"
        " JOIN aggregate_metadata m ON m.aggregate_id = h.aggregate_id AND m.key = 'availability_zone'"
    )


class TestForced:
    """By `zone:host:node`: past the filters, but not past zone and room."""

    def test_a_disabled_host_takes_it(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                await disable(c, "sim-001")
                for form in ("nova:sim-001", "nova::sim-001", "nova:sim-001:sim-001", "::sim-001"):
                    shown = await c.active(as_="admin", availability_zone=form)
                    assert shown["OS-EXT-SRV-ATTR:host"] == "sim-001"
                    assert shown["pinned_availability_zone"] == ("nova" if form.startswith("nova") else None)

        run(scenario())

    def test_room_is_never_made_up(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                await make_flavor(c, "huge", ram=16000)
                shown = await c.settled(
                    (await c.boot(as_="admin", availability_zone="nova:sim-001", flavorRef="huge"))["id"]
                )
                assert shown["status"] == "ERROR"
                assert "1 lacks 16000 MB memory" in shown["fault"]["message"]

        run(scenario())

    def test_what_makes_no_sense(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                for form in ("nova:a:b:c", "nova:nowhere", "nova::nowhere", "nova:sim-001:sim-002", "mars:sim-001"):
                    assert (await refused(c, as_="admin", availability_zone=form))[0] == 400
                    assert (await refused(c, availability_zone=form))[0] == 403

        run(scenario())


def test_a_zone_for_those_who_ask_for_none(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=4, zones=("a", "b"), scheduler__default_schedule_zone="b") as c:
            for _ in range(3):
                shown = await c.active()
                assert shown["OS-EXT-AZ:availability_zone"] == shown["pinned_availability_zone"] == "b"
            assert (await c.active(availability_zone="a"))["OS-EXT-AZ:availability_zone"] == "a"

    run(scenario())


def test_specs_that_make_no_sense_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            await make_flavor(c, "odd")
            specs = {"extra_specs": {"resources:VCPU": "many"}}
            assert (await c.post("/flavors/odd/os-extra_specs", specs, as_="admin", version="2.1")).status == 200
            status, message = await refused(c, flavorRef="odd")
            assert status == 400
            assert "resources:VCPU" in message

    run(scenario())
