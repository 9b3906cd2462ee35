"""The pin is mutable (2.104): `PUT /servers/{id}` with `pinned_availability_zone`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import orjson
import pytest

from kilonova.compute.zones.model import create_zone
from tests.compute.migrations.support import put_move
from tests.compute.servers.moves import moved
from tests.compute.servers.support import act
from tests.support import run
from tests.support.cloud import OTHER, Cloud, cloud, fault, put_server
from tests.support.proves import proves
from tests.support.whole import Whole, whole

SERVER = "aaaaaaaa-1111-1111-1111-111111111111"
PATH = f"/servers/{SERVER}"
FLAVOR = orjson.dumps(
    {"name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}
).decode()
PIN, ZONE, HOST = "pinned_availability_zone", "OS-EXT-AZ:availability_zone", "OS-EXT-SRV-ATTR:host"


class Pinned(NamedTuple):
    """200, and the pin is then this; `changed` is whether it was another before."""

    pin: str | None
    changed: bool = True


class Refused(NamedTuple):
    status: int


# The server is on a host of AZ1.
TABLE = [
    # pin now, asked, result
    ("AZ1", None, Pinned(None)),
    (None, None, Pinned(None, changed=False)),
    (None, "AZ1", Pinned("AZ1")),
    (None, "AZ2", Refused(409)),
    (None, "no-such-zone", Refused(409)),
    (None, "nova", Refused(409)),
    ("AZ1", "AZ1", Pinned("AZ1", changed=False)),
    ("AZ1", "AZ2", Refused(409)),
    ("AZ1", "no-such-zone", Refused(409)),
    # The server was moved by force, or its host to another zone.
    ("AZ2", "AZ1", Refused(409)),
    ("AZ2", "AZ2", Pinned("AZ2", changed=False)),
    ("AZ2", None, Pinned(None)),
    ("retired", None, Pinned(None)),
    ("retired", "retired", Pinned("retired", changed=False)),
]


@asynccontextmanager
async def world(database_url: str, **server: Any) -> AsyncIterator[Cloud]:
    """host1 is in AZ1, host2 in AZ2, host3 in no zone but the default one."""
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


async def ask(c: Cloud, asked: Any, as_: str = "member", version: str = "2.104", **more: Any) -> Any:
    return await c.put(PATH, {"server": {PIN: asked, **more}}, as_=as_, version=version)


@pytest.mark.parametrize("pin, asked, expected", TABLE)
def test_the_table(database_url: str, pin: str | None, asked: str | None, expected: Pinned | Refused) -> None:
    async def scenario() -> None:
        async with world(database_url, pinned_zone=pin) as c:
            before = await stored(c)
            shown = (await c.get(PATH, version="2.104")).json()["server"]
            answer = await ask(c, asked)
            after = await stored(c)
            if isinstance(expected, Refused):
                assert fault(answer)[0] == expected.status
                assert after == before
                # Nothing else of it either.
                more = {"name": "new", "description": "new", "accessIPv4": "10.0.0.7", "OS-DCF:diskConfig": "MANUAL"}
                assert fault(await ask(c, asked, **more))[0] == expected.status
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
def test_in_any_state(sqlite_url: str, vm_state: str, busy: bool) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, vm_state=vm_state, pinned_zone="AZ1") as c:
            if busy:
                await put_move(c, SERVER, step="migrate guest")
            for asked, status, pin in ((None, 200, None), ("AZ2", 409, None), ("AZ1", 200, "AZ1"), ("AZ2", 409, "AZ1")):
                assert (await ask(c, asked)).status == status
                assert (await stored(c))["pinned_zone"] == pin
            assert (await stored(c))["vm_state"] == vm_state

    run(scenario())


@pytest.mark.parametrize("vm_state", ["shelved_offloaded", "error", "building"])
def test_a_server_that_no_host_has_is_in_no_zone(database_url: str, vm_state: str) -> None:
    """It can be unpinned, and pinned again only once it is somewhere."""

    async def scenario() -> None:
        async with world(database_url, vm_state=vm_state, host=None, hypervisor_hostname=None, pinned_zone="AZ1") as c:
            assert (await c.get(PATH, version="2.104")).json()["server"][ZONE] == "AZ1"
            assert (await ask(c, "AZ1")).status == 200
            assert (await ask(c, None)).status == 200
            assert (await c.get(PATH, version="2.104")).json()["server"][ZONE] == ""
            for name in ("AZ1", "AZ2", "nova", "internal"):
                assert fault(await ask(c, name))[:2] == (409, "conflictingRequest")
            assert fault(await ask(c, ""))[0] == 400
            assert (await stored(c))["pinned_zone"] is None

    run(scenario())


def test_a_host_without_a_zone_is_in_the_default_one(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, host="host3") as c:
            assert fault(await ask(c, "AZ1"))[0] == 409
            assert (await ask(c, "nova")).status == 200
            assert (await stored(c))["pinned_zone"] == "nova"

    run(scenario())


@proves("PUT /servers/{server_id}")
def test_the_rest_of_the_request_is_done_with_it(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, pinned_zone="AZ1") as c:
            assert (await ask(c, None, name="new", description="text")).status == 200
            row = await stored(c)
            assert (row["pinned_zone"], row["name"], row["description"]) == (None, "new", "text")
            # What stays as it is does not keep the rest from being done.
            assert (await ask(c, None, name="newer")).status == 200
            assert (await stored(c))["name"] == "newer"
            # Who does not mention the pin leaves it alone.
            assert (await ask(c, "AZ1")).status == 200
            assert (await c.put(PATH, {"server": {"name": "newest"}}, version="2.104")).status == 200
            assert (await stored(c))["pinned_zone"] == "AZ1"

    run(scenario())


@pytest.mark.parametrize("value", [1, True, "", " ", " AZ1", "x" * 256, ["AZ1"], {"name": "AZ1"}, "a\u0000b"])
def test_what_is_no_name_is_refused(sqlite_url: str, value: Any) -> None:
    async def scenario() -> None:
        async with world(sqlite_url) as c:
            before = await stored(c)
            assert fault(await ask(c, value, name="new"))[:2] == (400, "badRequest")
            assert await stored(c) == before

    run(scenario())


@pytest.mark.parametrize("version", ["2.1", "2.96", "2.103"])
@pytest.mark.parametrize("asked", [None, "AZ1"])
def test_before_2_104_the_key_is_unknown(sqlite_url: str, version: str, asked: str | None) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, pinned_zone="AZ1") as c:
            status, _, message = fault(await ask(c, asked, version=version))
            assert (status, PIN in message) == (400, True)
            assert (await stored(c))["pinned_zone"] == "AZ1"

    run(scenario())


@pytest.mark.parametrize(
    "who, status",
    [("member", 200), ("manager", 200), ("project-admin", 200), ("admin", 200), ("reader", 403), ("other", 404)],
)
def test_who_may_update_may_pin(sqlite_url: str, who: str, status: int) -> None:
    async def scenario() -> None:
        async with world(sqlite_url, pinned_zone="AZ1") as c:
            assert (await ask(c, None, as_=who)).status == status
            assert (await stored(c))["pinned_zone"] == (None if status == 200 else "AZ1")

    run(scenario())


def test_nobody_learns_of_servers_of_others(database_url: str) -> None:
    async def scenario() -> None:
        async with world(database_url, project_id=OTHER) as c:
            for asked in (None, "AZ1", "AZ2"):
                assert fault(await ask(c, asked))[0] == 404

    run(scenario())


# What the pin is for: where the server goes next. Each zone has one host.


@asynccontextmanager
async def two_zones(database_url: str) -> AsyncIterator[Whole]:
    async with whole(database_url, hosts=2, zones=("az1", "az2")) as c:
        yield c


async def pin(c: Whole, server_id: str, zone: str | None, as_: str = "member") -> int:
    answer = await c.put(f"/servers/{server_id}", {"server": {PIN: zone}}, as_=as_, version="2.104")
    return int(answer.status)


async def place(c: Whole, server_id: str) -> tuple[str, str | None, str]:
    shown = await c.show(server_id)
    return shown[ZONE], shown[PIN], shown["status"]


async def told(c: Whole, server_id: str) -> str | None:
    """What the newest action on the server says became of it."""
    actions = (await c.get(f"/servers/{server_id}/os-instance-actions", as_="admin")).json()["instanceActions"]
    message: str | None = actions[0]["message"]
    return message


LIVE = {"host": None, "block_migration": "auto"}


async def confirmed(c: Whole, server_id: str, as_: str) -> None:
    if (await c.show(server_id))["status"] == "VERIFY_RESIZE":
        assert (await act(c, server_id, "confirmResize", as_=as_)).status == 204
        await c.settled(server_id)


@pytest.mark.parametrize(
    "action, bodies, who",
    [
        ("os-migrateLive", [LIVE, LIVE, LIVE], "admin"),
        ("migrate", [None, None, None], "admin"),
        # Members cannot migrate, but resize.
        ("resize", [{"flavorRef": "2"}, {"flavorRef": "2"}, {"flavorRef": "3"}], "member"),
    ],
    ids=["live", "cold", "resize"],
)
def test_unpin_move_and_pin_again(database_url: str, action: str, bodies: list[Any], who: str) -> None:
    async def scenario() -> None:
        async with two_zones(database_url) as c:
            server_id = (await c.active(availability_zone="az1"))["id"]

            async def move(body: Any) -> str | None:
                await moved(c, server_id, action, body, as_=who)
                message = await told(c, server_id)
                await confirmed(c, server_id, who)
                return message

            assert await move(bodies[0]) == "Error"
            assert await place(c, server_id) == ("az1", "az1", "ACTIVE")
            assert await pin(c, server_id, None, as_=who) == 200
            assert await move(bodies[1]) is None
            assert await place(c, server_id) == ("az2", None, "ACTIVE")
            assert await pin(c, server_id, "az1", as_=who) == 409
            assert await pin(c, server_id, "az2", as_=who) == 200
            # The next move obeys the pin as it is then.
            assert await move(bodies[2]) == "Error"
            assert await place(c, server_id) == ("az2", "az2", "ACTIVE")

    run(scenario())


def test_an_offloaded_server_is_unpinned_and_goes_anywhere(database_url: str) -> None:
    async def scenario() -> None:
        async with two_zones(database_url) as c:
            server_id = (await c.active(availability_zone="az1"))["id"]
            await stay_away(c, (await c.show(server_id))[HOST])
            assert (await moved(c, server_id, "shelve", None, as_="member"))["status"] == "SHELVED_OFFLOADED"
            # Its zone has nobody else who could take it.
            await moved(c, server_id, "unshelve", None, as_="member")
            assert await place(c, server_id) == ("az1", "az1", "SHELVED_OFFLOADED")
            assert await pin(c, server_id, "az2") == 409
            assert await pin(c, server_id, None) == 200
            assert await pin(c, server_id, "az1") == 409
            await moved(c, server_id, "unshelve", None, as_="member")
            assert await place(c, server_id) == ("az2", None, "ACTIVE")
            assert await pin(c, server_id, "az2") == 200

    run(scenario())


async def stay_away(c: Whole, host: str) -> None:
    """Nothing new goes to the host."""
    body = {"host": host, "binary": "nova-compute"}
    assert (await c.put("/os-services/disable", body, as_="admin", version="2.11")).status == 200
