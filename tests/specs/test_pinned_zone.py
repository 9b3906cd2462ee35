"""The pin is mutable (2.104): `PUT /servers/{id}` with `pinned_availability_zone`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import orjson
import pytest

from kilonova.compute.zones.model import create_zone
from tests.compute.migrations.support import put_move
from tests.compute.servers.moves import run_move
from tests.compute.servers.support import act
from tests.support import run
from tests.support.cloud import OTHER, Cloud, cloud, fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

SERVER = "aaaaaaaa-1111-1111-1111-111111111111"
PATH = f"/servers/{SERVER}"
FLAVOR = orjson.dumps(
    {"name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}
).decode()
PIN, ZONE, HOST = "pinned_availability_zone", "OS-EXT-AZ:availability_zone", "OS-EXT-SRV-ATTR:host"


class Pinned(NamedTuple):
    """200 with this pin; `changed` is whether the pin was different before."""

    pin: str | None
    changed: bool = True


class Refused(NamedTuple):
    status: int


# The server is on a host of AZ1.
TABLE = [
    # current pin, requested pin, result
    ("AZ1", None, Pinned(None)),
    (None, None, Pinned(None, changed=False)),
    (None, "AZ1", Pinned("AZ1")),
    (None, "AZ2", Refused(409)),
    (None, "no-such-zone", Refused(409)),
    (None, "nova", Refused(409)),
    ("AZ1", "AZ1", Pinned("AZ1", changed=False)),
    ("AZ1", "AZ2", Refused(409)),
    ("AZ1", "no-such-zone", Refused(409)),
    # A forced move, or a move of its host, has brought the server to another zone.
    ("AZ2", "AZ1", Refused(409)),
    ("AZ2", "AZ2", Pinned("AZ2", changed=False)),
    ("AZ2", None, Pinned(None)),
    ("retired", None, Pinned(None)),
    ("retired", "retired", Pinned("retired", changed=False)),
]


@asynccontextmanager
async def world(database_url: str, **server: Any) -> AsyncIterator[Cloud]:
    """host1 is in AZ1, host2 in AZ2, host3 in the default zone."""
    async with cloud(database_url, hosts=3) as c:
        async with c.db.transaction() as tx:
            await create_zone(tx, "AZ1", ["host1"])
            await create_zone(tx, "AZ2", ["host2"])
        there = {"host": "host1", "hypervisor_hostname": "host1.example", "flavor": FLAVOR}
        await put_server(c.db, SERVER, **{**there, **server})
        yield c


async def stored(c: Cloud) -> dict[str, Any]:
    row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", SERVER)
    assert row is not None
    return row


async def put_pin(c: Cloud, asked: Any, as_: str = "member", version: str = "2.104", **more: Any) -> Any:
    return await c.put(PATH, {"server": {PIN: asked, **more}}, as_=as_, version=version)


@pytest.mark.parametrize("pin, asked, expected", TABLE)
def test_pin_changes(database_url: str, pin: str | None, asked: str | None, expected: Pinned | Refused) -> None:
    async def scenario() -> None:
        async with world(database_url, pinned_zone=pin) as c:
            before = await stored(c)
            shown = (await c.get(PATH, version="2.104")).json()["server"]
            answer = await put_pin(c, asked)
            after = await stored(c)
            if isinstance(expected, Refused):
                assert fault(answer)[0] == expected.status
                assert after == before
                # The rest of the row is unchanged, too.
                more = {"name": "new", "description": "new", "accessIPv4": "10.0.0.7", "OS-DCF:diskConfig": "MANUAL"}
                assert fault(await put_pin(c, asked, **more))[0] == expected.status
                assert await stored(c) == before
            else:
                assert answer.status == 200, answer.body
                assert answer.json()["server"][PIN] == expected.pin
                assert {**after, "pinned_zone": None, "updated_at": 0} == {
                    **before,
                    "pinned_zone": None,
                    "updated_at": 0,
                }
                assert after["pinned_zone"] == expected.pin
                assert (after != before) == expected.changed
                shown |= {PIN: expected.pin, "updated": answer.json()["server"]["updated"]}
                assert answer.json()["server"] == shown == (await c.get(PATH, version="2.104")).json()["server"]

    run(scenario())


@pytest.mark.parametrize("vm_state", ["active", "stopped", "error", "resized", "shelved", "building"])
@pytest.mark.parametrize("busy", [False, True])
def test_pin_can_be_changed_in_any_state(sqlite_url: str, vm_state: str, busy: bool) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, vm_state=vm_state, pinned_zone="AZ1") as c:
            if busy:
                await put_move(c, SERVER, step="migrate guest")
            for asked, status, pin in ((None, 200, None), ("AZ2", 409, None), ("AZ1", 200, "AZ1"), ("AZ2", 409, "AZ1")):
                assert (await put_pin(c, asked)).status == status
                assert (await stored(c))["pinned_zone"] == pin
            assert (await stored(c))["vm_state"] == vm_state

    run(scenario())


@pytest.mark.parametrize("vm_state", ["shelved_offloaded", "error", "building"])
def test_server_without_host_cannot_be_pinned(database_url: str, vm_state: str) -> None:
    """The server can be unpinned, and can only be pinned again once it has a host."""

    async def scenario() -> None:
        async with world(database_url, vm_state=vm_state, host=None, hypervisor_hostname=None, pinned_zone="AZ1") as c:
            assert (await c.get(PATH, version="2.104")).json()["server"][ZONE] == "AZ1"
            assert (await put_pin(c, "AZ1")).status == 200
            assert (await put_pin(c, None)).status == 200
            assert (await c.get(PATH, version="2.104")).json()["server"][ZONE] == ""
            for name in ("AZ1", "AZ2", "nova", "internal"):
                assert fault(await put_pin(c, name))[:2] == (409, "conflictingRequest")
            assert fault(await put_pin(c, ""))[0] == 400
            assert (await stored(c))["pinned_zone"] is None

    run(scenario())


def test_host_without_zone_is_in_the_default_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, host="host3") as c:
            assert fault(await put_pin(c, "AZ1"))[0] == 409
            assert (await put_pin(c, "nova")).status == 200
            assert (await stored(c))["pinned_zone"] == "nova"

    run(scenario())


@proves("PUT /servers/{server_id}")
def test_other_keys_of_the_request_are_changed_too(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, pinned_zone="AZ1") as c:
            assert (await put_pin(c, None, name="new", description="text")).status == 200
            row = await stored(c)
            assert (row["pinned_zone"], row["name"], row["description"]) == (None, "new", "text")
            # An unchanged pin does not prevent other changes.
            assert (await put_pin(c, None, name="newer")).status == 200
            assert (await stored(c))["name"] == "newer"
            # Without the key the pin stays.
            assert (await put_pin(c, "AZ1")).status == 200
            assert (await c.put(PATH, {"server": {"name": "newest"}}, version="2.104")).status == 200
            assert (await stored(c))["pinned_zone"] == "AZ1"

    run(scenario())


@pytest.mark.parametrize("value", [1, True, "", " ", " AZ1", "x" * 256, ["AZ1"], {"name": "AZ1"}, "a\u0000b"])
def test_invalid_names_are_refused(sqlite_url: str, value: Any) -> None:
    async def scenario() -> None:
        async with world(sqlite_url) as c:
            before = await stored(c)
            assert fault(await put_pin(c, value, name="new"))[:2] == (400, "badRequest")
            assert await stored(c) == before

    run(scenario())


@pytest.mark.parametrize("version", ["2.1", "2.96", "2.103"])
@pytest.mark.parametrize("asked", [None, "AZ1"])
def test_before_2_104_the_key_is_unknown(sqlite_url: str, version: str, asked: str | None) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, pinned_zone="AZ1") as c:
            status, _, message = fault(await put_pin(c, asked, version=version))
            assert (status, PIN in message) == (400, True)
            assert (await stored(c))["pinned_zone"] == "AZ1"

    run(scenario())


@pytest.mark.parametrize(
    "who, status",
    [("member", 200), ("manager", 200), ("project-admin", 200), ("admin", 200), ("reader", 403), ("other", 404)],
)
def test_policy_of_update_applies(sqlite_url: str, who: str, status: int) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, pinned_zone="AZ1") as c:
            assert (await put_pin(c, None, as_=who)).status == status
            assert (await stored(c))["pinned_zone"] == (None if status == 200 else "AZ1")

    run(scenario())


def test_servers_of_other_projects_are_404(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, project_id=OTHER) as c:
            for asked in (None, "AZ1", "AZ2"):
                assert fault(await put_pin(c, asked))[0] == 404

    run(scenario())


# The pin decides where the server goes next. Each zone has one host.


@asynccontextmanager
async def two_zones(database_url: str) -> AsyncIterator[FullCloud]:
    async with full_cloud(database_url, hosts=2, zones=("az1", "az2")) as c:
        yield c


async def pin(c: FullCloud, server_id: str, zone: str | None, as_: str = "member") -> int:
    answer = await c.put(f"/servers/{server_id}", {"server": {PIN: zone}}, as_=as_, version="2.104")
    return int(answer.status)


async def place(c: FullCloud, server_id: str) -> tuple[str, str | None, str]:
    shown = await c.show(server_id)
    return shown[ZONE], shown[PIN], shown["status"]


async def last_result(c: FullCloud, server_id: str) -> str | None:
    """The result of the server's newest action."""
    actions = (await c.get(f"/servers/{server_id}/os-instance-actions", as_="admin")).json()["instanceActions"]
    message: str | None = actions[0]["message"]
    return message


LIVE = {"host": None, "block_migration": "auto"}


async def confirmed(c: FullCloud, server_id: str, as_: str) -> None:
    if (await c.show(server_id))["status"] == "VERIFY_RESIZE":
        assert (await act(c, server_id, "confirmResize", as_=as_)).status == 204
        await c.wait_until_settled(server_id)


@pytest.mark.parametrize(
    "action, bodies, who",
    [
        ("os-migrateLive", [LIVE, LIVE, LIVE], "admin"),
        ("migrate", [None, None, None], "admin"),
        # Members cannot migrate, but can resize.
        ("resize", [{"flavorRef": "2"}, {"flavorRef": "2"}, {"flavorRef": "3"}], "member"),
    ],
    ids=["live", "cold", "resize"],
)
def test_unpinned_server_moves_and_is_pinned_again(database_url: str, action: str, bodies: list[Any], who: str) -> None:
    async def scenario() -> None:
        async with two_zones(database_url) as c:
            server_id = (await c.boot_active(availability_zone="az1"))["id"]

            async def move(body: Any) -> str | None:
                await run_move(c, server_id, action, body, as_=who)
                message = await last_result(c, server_id)
                await confirmed(c, server_id, who)
                return message

            assert await move(bodies[0]) == "Error"
            assert await place(c, server_id) == ("az1", "az1", "ACTIVE")
            assert await pin(c, server_id, None, as_=who) == 200
            assert await move(bodies[1]) is None
            assert await place(c, server_id) == ("az2", None, "ACTIVE")
            assert await pin(c, server_id, "az1", as_=who) == 409
            assert await pin(c, server_id, "az2", as_=who) == 200
            # The next move respects the new pin.
            assert await move(bodies[2]) == "Error"
            assert await place(c, server_id) == ("az2", "az2", "ACTIVE")

    run(scenario())


def test_unpinned_offloaded_server_goes_to_any_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with two_zones(database_url) as c:
            server_id = (await c.boot_active(availability_zone="az1"))["id"]
            await disable(c, (await c.show(server_id))[HOST])
            assert (await run_move(c, server_id, "shelve", None, as_="member"))["status"] == "SHELVED_OFFLOADED"
            # Its zone has no other host.
            await run_move(c, server_id, "unshelve", None, as_="member")
            assert await place(c, server_id) == ("az1", "az1", "SHELVED_OFFLOADED")
            assert await pin(c, server_id, "az2") == 409
            assert await pin(c, server_id, None) == 200
            assert await pin(c, server_id, "az1") == 409
            await run_move(c, server_id, "unshelve", None, as_="member")
            assert await place(c, server_id) == ("az2", None, "ACTIVE")
            assert await pin(c, server_id, "az2") == 200

    run(scenario())


async def disable(c: FullCloud, host: str) -> None:
    """Disable the host."""
    body = {"host": host, "binary": "nova-compute"}
    assert (await c.put("/os-services/disable", body, as_="admin", version="2.11")).status == 200
