"""Findings about volumes: in the volume service, in block devices, and in guests."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import structs

from kilonova.compute.servers.states import ERROR, SHELVED, SHELVED_OFFLOADED, SHUTDOWN
from kilonova.config import load
from kilonova.doctor import Finding, Unavailable, examine
from kilonova.doctor.volumes import read_built_in, read_external, read_from_api
from kilonova.hosts.messages import GuestState, Power
from kilonova.identity.client import Auth
from kilonova.store import Database
from kilonova.volume.client import VolumeClient
from tests.compute.operations.volume_worlds import make_server
from tests.compute.operations.worlds import World
from tests.doctor.support import (
    OTHER,
    SERVER,
    Opener,
    add_consistent_server,
    add_operation,
    add_server,
    change,
    guest,
    insert,
)
from tests.support import run
from tests.support.full_cloud import full_cloud

VOLUME, ATTACHMENT = "volume-1", "attachment-1"


async def add_volume(db: Database, identity: str = VOLUME, status: str = "in-use") -> None:
    if not await db.fetch_value("SELECT COUNT(*) FROM volume_types"):
        await insert(db, "volume_types", id="type-1")
    await insert(db, "volumes", id=identity, type_id="type-1", status=status)


async def attach(db: Database, **values: Any) -> None:
    defaults = {"id": ATTACHMENT, "volume_id": VOLUME, "server_id": SERVER, "status": "attached", "host": "sim-001"}
    await insert(db, "volume_attachments", **{**defaults, **values})


async def add_device(db: Database, **values: Any) -> None:
    connection = orjson.dumps({"attached_host": "sim-001"}).decode()
    defaults = {"uuid": f"device-{values.get('volume_id')}", "server_id": SERVER, "volume_id": VOLUME}
    await insert(db, "block_devices", **{**defaults, "attachment_id": ATTACHMENT, "connection": connection, **values})


async def with_volume(db: Database) -> None:
    await add_consistent_server(db)
    await add_volume(db)
    await attach(db)
    await add_device(db)


def guest_with(
    *volumes: str, host: str = "sim-001", identity: str = SERVER, power: Power = "running"
) -> tuple[str, GuestState]:
    _, plain = guest(identity=identity, power=power)
    return host, structs.replace(plain, volumes=list(volumes))


def findings(
    database: Opener, prepare: Any, *those: tuple[str, GuestState], guests: bool = True
) -> list[tuple[str, str]]:
    """The guests default to the server's guest with its volume; `guests=False` means no guests."""

    async def collect() -> list[Finding]:
        async with database() as db:
            await prepare(db)
            reported = (those or [guest_with(VOLUME)]) if guests else []
            return await examine(db, reported, partial(read_built_in, db))

    return [(finding.kind, finding.subject) for finding in run(collect())]


def test_consistent_volume_has_no_findings(database: Opener) -> None:
    assert findings(database, with_volume) == []


@pytest.mark.parametrize(
    "sql, found",
    [
        (
            "DELETE FROM block_devices",
            [("attachment without device", ATTACHMENT), ("guest's volumes differ", SERVER)],
        ),
        (
            "DELETE FROM volume_attachments",
            [("device without attachment", SERVER), ("volume status differs", VOLUME)],
        ),
        (
            "UPDATE block_devices SET attachment_id = 'another'",
            [("attachment without device", ATTACHMENT), ("device without attachment", SERVER)],
        ),
        ("UPDATE volume_attachments SET host = 'sim-002'", [("attachment on the wrong host", ATTACHMENT)]),
        (
            "UPDATE volume_attachments SET host = NULL, status = 'reserved'",
            [("attachment on the wrong host", ATTACHMENT)],
        ),
        ("UPDATE block_devices SET connection = NULL", [("attachment on the wrong host", ATTACHMENT)]),
        ("UPDATE volumes SET status = 'detaching'", [("volume stuck", VOLUME)]),
        ("UPDATE volumes SET status = 'attaching'", [("volume stuck", VOLUME)]),
        ("UPDATE volumes SET status = 'uploading'", [("volume stuck", VOLUME)]),
        ("UPDATE volumes SET status = 'available'", [("volume status differs", VOLUME)]),
        ("UPDATE volumes SET status = 'error'", []),
        # An attachment without a server may belong to another user of the volume service.
        (
            "UPDATE volume_attachments SET server_id = NULL",
            [("device without attachment", SERVER)],
        ),
    ],
)
def test_inconsistent_attachment_or_status(database: Opener, sql: str, found: list[tuple[str, str]]) -> None:
    async def prepare(db: Database) -> None:
        await with_volume(db)
        await change(db, sql)

    assert findings(database, prepare) == found


def test_missing_volume(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await add_device(db)

    assert findings(database, prepare) == [("server's volume missing", SERVER)]


def test_attachment_of_deleted_server(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await add_volume(db)
        await add_server(db, OTHER, deleted=True)
        await attach(db, server_id=OTHER)
        await add_volume(db, "volume-2")
        await attach(db, id="attachment-2", volume_id="volume-2", server_id="of another cloud")

    assert findings(database, prepare, guest()) == [("attachment without server", ATTACHMENT)]


@pytest.mark.parametrize(
    "guests, found",
    [
        ([guest_with()], [("guest's volumes differ", SERVER)]),
        ([guest_with(VOLUME, "volume-2")], [("guest's volumes differ", SERVER)]),
        (
            [guest_with(VOLUME), guest_with(VOLUME, host="sim-002", identity=OTHER)],
            [("volume in several guests", VOLUME), ("guest without server", OTHER)],
        ),
    ],
)
def test_guest_volumes_that_differ(
    database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]
) -> None:
    assert findings(database, with_volume, *guests) == found


def test_multiattach_volume_may_be_in_several_guests(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await with_volume(db)
        await change(db, "UPDATE block_devices SET multiattach = TRUE")

    guests = [guest_with(VOLUME), guest_with(VOLUME, host="sim-002", identity=OTHER)]
    assert findings(database, prepare, *guests) == [("guest without server", OTHER)]


DISCONNECT = (
    "UPDATE volume_attachments SET host = NULL, status = 'reserved'",
    "UPDATE block_devices SET connection = NULL",
    "UPDATE volumes SET status = 'reserved'",
)


@pytest.mark.parametrize("state", [SHELVED, ERROR])
def test_shelved_or_failed_server_may_be_disconnected_from_its_volumes(database: Opener, state: str) -> None:
    async def prepare(db: Database) -> None:
        await with_volume(db)
        await change(db, "UPDATE servers SET vm_state = $1, power_state = $2", state, SHUTDOWN)
        for sql in DISCONNECT:
            await change(db, sql)

    assert findings(database, prepare, guest_with(VOLUME, power="shutdown")) == []


@pytest.mark.parametrize("changes, found", [(DISCONNECT, []), ((), [("attachment on the wrong host", ATTACHMENT)])])
def test_volumes_of_offloaded_server(database: Opener, changes: tuple[str, ...], found: list[Any]) -> None:
    async def prepare(db: Database) -> None:
        await with_volume(db)
        sql = "UPDATE servers SET vm_state = $1, host = NULL, hypervisor_hostname = NULL"
        await change(db, sql, SHELVED_OFFLOADED)
        for sql in ("DELETE FROM allocations", "DELETE FROM consumers", "UPDATE ports SET host_id = ''", *changes):
            await change(db, sql)

    assert findings(database, prepare, guests=False) == found


@pytest.mark.parametrize(
    "operation",
    [
        {"kind": "detach_volume", "server_id": SERVER},
        {"kind": "grow_volume", "server_id": None, "params": orjson.dumps({"volume_id": VOLUME}).decode()},
    ],
)
def test_volume_with_running_operation_is_skipped(database: Opener, operation: dict[str, Any]) -> None:
    async def prepare(db: Database) -> None:
        await with_volume(db)
        await change(db, "UPDATE volumes SET status = 'detaching'")
        await add_operation(db, **operation)

    assert findings(database, prepare) == []


def test_volume_of_deferred_disk_restore_is_skipped(database: Opener) -> None:
    """Until the disk is restored, the attachment must stay."""

    async def prepare(db: Database) -> None:
        await with_volume(db)
        await change(db, "DELETE FROM block_devices")
        params = {"guest_id": SERVER, "host": "sim-001", "volume_id": VOLUME}
        await add_operation(db, kind="restore_disk", server_id=None, params=orjson.dumps(params).decode())

    assert findings(database, prepare) == []


def test_unreachable_external_volume_service(tmp_path: Path) -> None:
    config = load(environ={}, flags={"data": str(tmp_path), "volume.url": "http://127.0.0.1:1/volume"})
    with pytest.raises(Unavailable, match="no running cloud"):
        run(read_external(config))


def test_external_volume_service_is_read_by_its_api(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            world = World()
            world.__dict__.update(vars(c.services), cloud=c, server_id="00000000-0000-4000-8000-000000000001")
            await make_server(c.db, world)
            await change(c.db, "UPDATE operations SET finished_at = 1")
            read_volumes = partial(read_from_api, VolumeClient(c.services.volume._caller), Auth("admin", "a" * 32))
            assert await examine(c.db, await c.list_guests_and_slots(), read_volumes) == []
            await change(c.db, "UPDATE volume_attachments SET host = 'sim-009'")
            found = await examine(c.db, await c.list_guests_and_slots(), read_volumes)
            assert [finding.kind for finding in found] == ["attachment on the wrong host"] * 2
            await change(c.db, "DELETE FROM volume_attachments")
            found = await examine(c.db, await c.list_guests_and_slots(), read_volumes)
            kinds = ["device without attachment"] * 2 + ["volume status differs"] * 2
            assert [finding.kind for finding in found] == kinds

    run(scenario())
