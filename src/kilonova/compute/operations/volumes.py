"""A server's volumes: reserved for it, connected to its host, moved with it, and given back.

The attachment is the volume service's record of who has a volume. One without a connector reserves the volume; one
with a connector lets a host reach it. A server has one per volume, which its device names; and while it moves alive
another one for the destination, which its device keeps as `standby`. What else an earlier run has left at the volume
service is used where it is only reserved, and else deleted: nobody knows which host it was for.

A volume is never without an attachment meanwhile, so that nobody else gets it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import silence
from kilonova.compute.operations.choosing import CLAIM
from kilonova.compute.operations.common import fence, guest_of, zone_of
from kilonova.compute.operations.silence import PING, HostSilent
from kilonova.compute.volumes import reasons
from kilonova.hosts.messages import Command, Disk, Guest, LookConnector
from kilonova.hosts.transport import HostFailed, HostTrouble, HostUnreachable
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, Passing
from kilonova.store import Reader, Row
from kilonova.volume.client import VolumeError

Item = dict[str, Any]
# What we add to a way that the volume service gave: the host it is for.
HOST = "attached_host"
# What the volume service calls an attachment without a connector, and one that is complete.
RESERVED, ATTACHED = "reserved", "attached"
# What a volume in use may be for a while, in which nobody gets an attachment.
BUSY = frozenset({"extending", "uploading", "downloading", "retyping", "backing-up"})


async def of_server(op: Operation) -> list[Row]:
    """The devices of the server that are volumes."""
    return await devices.volumes_of(op.db, str(op.server_id))


async def device_of(op: Operation) -> Row:
    """The device that the operation is about."""
    found = await devices.get(op.db, op.params["device"])
    if found is None:
        raise Failed("The server no longer has the volume")
    return found


# One host after the other. The guest must not run: between two hosts nobody reaches the volume.


async def reserve(op: Operation, device: Row) -> str:
    """Have the volume reserved and connected to no host. Raises Failed if somebody else has it."""
    auth = await op.services.identity.auth()
    async with explained():
        return await _place(op, device, "", None, auth)


async def connect(op: Operation, device: Row, host: str) -> None:
    """Have the volume connected to the host and nowhere else."""
    connector, auth = await connector_of(op, host), await op.services.identity.auth()
    async with explained():
        await _place(op, device, host, connector, auth)


async def move(op: Operation, host: str) -> None:
    """Have every volume connected to the host and nowhere else, or with no host only reserved.

    Done before, or half done, is fine. Raises Failed, which a HostTrouble has caused if the host cannot have volumes.
    """
    found = await of_server(op)
    if not found:
        return
    connector = await connector_of(op, host) if host else None
    auth = await op.services.identity.auth()
    async with explained():
        for device in found:
            await _place(op, device, host, connector, auth)


async def put_back(op: Operation, host: str, some: list[Row] | None = None) -> None:
    """For undo steps: have the volumes in use on the host again, all or some. Volumes that are gone are left.

    The host may be silent. One that no longer is a host gets none; then they stay reserved.
    """
    found = await of_server(op) if some is None else some
    if not found:
        return
    connector = await _last_connector(op, host)
    auth = await op.services.identity.auth()
    async with explained():
        for device in found:
            try:
                attachment_id = await _place(op, device, host, connector, auth)
                if way_of(await _again(op, device)):
                    await _complete(op, attachment_id, auth)
            except VolumeError as error:
                if error.status != 404:
                    raise


async def _again(op: Operation, device: Row) -> Row:
    found = await devices.get(op.db, device["uuid"])
    return device if found is None else found


async def complete(op: Operation, found: Iterable[Row] | None = None) -> None:
    """Say that the guest has its volumes, or these: they are in use."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in await of_server(op) if found is None else found:
            await _complete(op, device["attachment_id"], auth)


async def release(op: Operation, found: Iterable[Row]) -> None:
    """Delete every attachment of these volumes to the server. Gone already is fine."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in found:
            await _delete(op, await _own(op, device, auth), auth)


async def _place(op: Operation, device: Row, host: str, connector: Item | None, auth: Auth) -> str:
    """The id of the one attachment that is left: connected to the host, or where that is not possible reserved."""
    there = await _own(op, device, auth)
    own = next((one for one in there if one["id"] == device["attachment_id"]), None)
    if host and own is not None and _is_connected(own) and way_of(device).get(HOST) == host:
        await _keep_only(op, device, there, auth)
        return str(own["id"])
    # The new one first, so that the volume stays reserved while the others go; and only then the way to the new host.
    kept = next((one for one in there if not _is_connected(one)), None)
    if kept is None:
        kept = await _create(op, device, auth)
    if kept["id"] != device["attachment_id"] or device["connection"] or device["standby"]:
        await _save(op, device, kept["id"], None)
    await _delete(op, [one for one in there if one["id"] != kept["id"]], auth)
    if connector is not None:
        made = await op.services.volume.update_attachment(kept["id"], connector, auth, device=device["device_name"])
        await _save(op, device, kept["id"], {**made["connection_info"], HOST: host})
    return str(kept["id"])


# Live migrations: the destination reaches the volumes too, before the guest comes.


async def standby(op: Operation, host: str) -> None:
    """Have every volume connected to the host too, beside where it is. Raises like `move`."""
    found = [device for device in await of_server(op) if way_of(device).get(HOST) != host]
    if not found:
        return
    connector = await connector_of(op, host)
    auth = await op.services.identity.auth()
    async with explained():
        for device in found:
            await _stand_by(op, device, host, connector, auth)


async def _stand_by(op: Operation, device: Row, host: str, connector: Item, auth: Auth) -> None:
    there = await _own(op, device, auth)
    ready = _standby_of(device)
    if ready["connection"].get(HOST) == host and any(one["id"] == ready["id"] for one in there):
        return
    await _delete(op, [one for one in there if one["id"] != device["attachment_id"]], auth)
    made = await _create(op, device, auth, connector)
    ready = {"id": made["id"], "connection": {**made["connection_info"], HOST: host}}
    async with op.db.transaction() as tx:
        await devices.set_standby(tx, device["uuid"], ready)
        await fence(op, tx)


async def unstandby(op: Operation) -> None:
    """Take back what `standby` did, also half: all attachments but those that the server has."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in await of_server(op):
            await _keep_only(op, device, await _own(op, device, auth), auth)


async def settle(op: Operation, host: str) -> None:
    """The guest is on the host, or taken to be: its volumes are in use there, and connected nowhere else.

    Those that stand by there are taken. One that is not even that is moved, whatever the guest makes of it.
    """
    for device in await of_server(op):
        ready = _standby_of(device)
        if way_of(device).get(HOST) != host and ready["connection"].get(HOST) == host:
            await _save(op, device, ready["id"], ready["connection"])
    await put_back(op, host)


# What a host is told


async def connector_of(op: Operation, host: str) -> Item:
    """What the volume service has to know of the host, which is kept for `put_back`. Raises Failed."""
    since = time.monotonic()
    try:
        return await _look(op, host)
    except HostUnreachable:
        if not await silence.is_silent(op, host, since):
            raise
        trouble: HostTrouble = HostSilent(host, op.services.config.operations.host_seconds)
    except HostFailed as error:
        if error.passing:
            raise
        trouble = error
    raise Failed(f"The host cannot have volumes: {trouble.public}", fault=str(trouble)) from trouble


async def _last_connector(op: Operation, host: str) -> Item | None:
    """The same; of a host that does not answer, what it last said. None: it never did, or is no host any more."""
    try:
        return await _look(op, host)
    except HostTrouble:
        text = await op.db.fetch_value(_CONNECTOR, host)
        known: Item | None = orjson.loads(text) if text else None
        return known


async def _look(op: Operation, host: str) -> Item:
    found: Item = await op.services.hosts.call(host, Command(host=host, verb=LookConnector()), timeout=PING)
    text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    if await op.db.fetch_value(_CONNECTOR, host) != text:
        async with op.db.transaction() as tx:
            await tx.execute("UPDATE hypervisors SET connector = $2 WHERE host = $1", host, text)
    return found


_CONNECTOR = "SELECT connector FROM hypervisors WHERE host = $1"


async def guest(op: Operation, server: Row, host: str | None = None) -> Guest:
    """The server's guest with all its disks, by the ways that its own host has, or this one."""
    found = await devices.of_server(op.db, server["id"])
    goes_to = op.results.get(CLAIM) or {"host": server["host"]}
    zone = await zone_of(op, host or goes_to["host"])
    nics = orjson.loads(server["nics"])
    return guest_of(server, nics, _disks(found, host), devices.local_disks_of(found), zone)


async def disks(op: Operation, host: str | None = None) -> list[Disk]:
    """The server's volumes for its guest, by the ways that its own host has, or this one."""
    return await disks_of(op.db, str(op.server_id), host)


async def disks_of(reader: Reader, server_id: str, host: str | None = None) -> list[Disk]:
    return _disks(await devices.of_server(reader, server_id), host)


def _disks(found: Iterable[Row], host: str | None) -> list[Disk]:
    return [devices.disk_of(one, _way_from(one, host)) for one in found if one["volume_id"] is not None]


def _way_from(device: Row, host: str | None) -> Item:
    own, ready = way_of(device), _standby_of(device)["connection"]
    return ready if host is not None and own.get(HOST) != host == ready.get(HOST) else own


def way_of(device: Row) -> Item:
    """How the server's host reaches the volume; nothing while it is only reserved."""
    way: Item = orjson.loads(device["connection"]) if device["connection"] else {}
    return way


def _standby_of(device: Row) -> Item:
    ready: Item = orjson.loads(device["standby"]) if device["standby"] else {"id": None, "connection": {}}
    return ready


# The volume service


async def _own(op: Operation, device: Row, auth: Auth) -> list[Item]:
    """All attachments of the volume to the server, the one that the server's device names first."""
    there = await op.services.volume.attachments(auth, volume_id=device["volume_id"], instance_id=str(op.server_id))
    return sorted(there, key=lambda one: (one["id"] != device["attachment_id"], one["id"]))


def _is_connected(attachment: Item) -> bool:
    return bool(attachment["status"] != RESERVED)


async def _create(op: Operation, device: Row, auth: Auth, connector: Item | None = None) -> Item:
    """Whatever else happens to the volume is waited for."""
    volume, volume_id, name = op.services.volume, device["volume_id"], device["device_name"]
    try:
        made: Item = await volume.create_attachment(volume_id, str(op.server_id), auth, connector, device=name)
    except VolumeError as refusal:
        found = await volume.show(volume_id, auth)
        if found is not None and found["status"] in BUSY:
            raise Passing(str(refusal)) from refusal
        if found is not None and found["status"].startswith("error"):
            raise await reasons.failure(op, volume_id, f"The volume service refused: {refusal}") from refusal
        raise
    return made


async def _complete(op: Operation, attachment_id: str, auth: Auth) -> None:
    """Complete already is fine, whatever the volume service thinks of being told twice."""
    try:
        await op.services.volume.complete_attachment(attachment_id, auth)
    except VolumeError as refusal:
        found = await op.services.volume.attachment(attachment_id, auth)
        if found is None or found["status"] != ATTACHED:
            raise refusal


async def _keep_only(op: Operation, device: Row, there: Iterable[Item], auth: Auth) -> None:
    """Delete all but the attachment that the server has."""
    await _delete(op, [one for one in there if one["id"] != device["attachment_id"]], auth)
    if device["standby"]:
        async with op.db.transaction() as tx:
            await devices.set_standby(tx, device["uuid"], None)
            await fence(op, tx)


async def _save(op: Operation, device: Row, attachment_id: str, connection: Item | None) -> None:
    """The attachment that the server has from now on; none stands by it any more."""
    async with op.db.transaction() as tx:
        await devices.set_attachment(tx, device["uuid"], attachment_id, connection)
        await fence(op, tx)


async def _delete(op: Operation, attachments: Iterable[Item], auth: Auth) -> None:
    for attachment in attachments:
        await op.services.volume.delete_attachment(attachment["id"], auth)


@asynccontextmanager
async def explained() -> AsyncIterator[None]:
    """What the volume service refuses, in its words."""
    try:
        yield
    except VolumeError as error:
        if error.status == 429:
            raise Passing(str(error)) from error
        raise Failed(f"The volume service refused: {error}", fault=str(error)) from error
