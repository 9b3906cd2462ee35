"""Steps for a server's volumes: reserve them, connect them to its host, move them with it, release them.

The volume service records an attachment for each volume of a server. An attachment without a connector reserves the
volume; one with a connector lets a host connect to it. The server's block device names its attachment. During a live
migration it has another one for the destination, its `standby`. Attachments that an earlier run left are reused if they
are only reserved, and deleted otherwise.

A volume always keeps an attachment, so that no other server gets it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kilonova.compute import volume_messages
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import hosts
from kilonova.compute.operations.steps.choose import CLAIM
from kilonova.compute.operations.steps.hosts import PROBE_TIMEOUT_SECONDS, HostNotResponding
from kilonova.compute.operations.steps.server import fence, guest_of, zone_of
from kilonova.hosts.messages import Command, Disk, Guest
from kilonova.hosts.messages.verbs import GetConnector
from kilonova.hosts.transport import HostCallError, HostFailed, HostUnreachable
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, TransientError
from kilonova.store import Reader, Row
from kilonova.volume.client import VolumeError

Item = dict[str, Any]
# Key that we add to `connection_info`: the host that it is for.
HOST = "attached_host"
# Status of an attachment without a connector, and of a completed one.
RESERVED, ATTACHED = "reserved", "attached"
# Temporary status of a volume in use, in which the volume service refuses attachments.
BUSY = frozenset({"extending", "uploading", "downloading", "retyping", "backing-up"})


async def of_server(op: Operation) -> list[Row]:
    """The server's block devices that are volumes."""
    return await devices.volumes_of(op.db, str(op.server_id))


async def device_of(op: Operation) -> Row:
    """The block device that the operation's parameters name."""
    found = await devices.get(op.db, op.params["device"])
    if found is None:
        raise Failed("The server no longer has the volume")
    return found


# Connections to one host at a time. The guest must not run while they change.


async def reserve(op: Operation, device: Row) -> str:
    """Reserve the volume, connected to no host. Raises Failed if it is in use elsewhere."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        return await _place(op, device, "", None, auth)


async def connect(op: Operation, device: Row, host: str) -> None:
    """Connect the volume to this host only."""
    connector, auth = await connector_of(op, host), await op.services.identity.auth()
    async with volume_errors():
        await _place(op, device, host, connector, auth)


async def move(op: Operation, host: str) -> None:
    """Connect every volume to this host only, or with an empty host only reserve them. Idempotent.

    Raises Failed; its cause is a HostCallError if the host cannot connect to volumes.
    """
    found = await of_server(op)
    if not found:
        return
    connector = await connector_of(op, host) if host else None
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            await _place(op, device, host, connector, auth)


async def restore_connection(op: Operation, host: str, some: list[Row] | None = None) -> None:
    """Undo a move: connect all or some volumes to the host again and complete them. Deleted volumes are skipped.

    The host need not respond. If it was removed, the volumes stay reserved.
    """
    found = await of_server(op) if some is None else some
    if not found:
        return
    connector = await _last_connector(op, host)
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            try:
                attachment_id = await _place(op, device, host, connector, auth)
                if connection_of(await _reload(op, device)):
                    await _complete(op, attachment_id, auth)
            except VolumeError as error:
                if error.status != 404:
                    raise


async def _reload(op: Operation, device: Row) -> Row:
    found = await devices.get(op.db, device["uuid"])
    return device if found is None else found


async def complete(op: Operation, found: Iterable[Row] | None = None) -> None:
    """Complete the attachments of all or these devices: the volumes are in use."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in await of_server(op) if found is None else found:
            await _complete(op, device["attachment_id"], auth)


async def release(op: Operation, found: Iterable[Row]) -> None:
    """Delete all attachments of these volumes to the server. Idempotent."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            await _delete(op, await _own(op, device, auth), auth)


async def _place(op: Operation, device: Row, host: str, connector: Item | None, auth: Auth) -> str:
    """Leave exactly one attachment, connected to the host or reserved, and return its id."""
    there = await _own(op, device, auth)
    own = next((one for one in there if one["id"] == device["attachment_id"]), None)
    if host and own is not None and _is_connected(own) and connection_of(device).get(HOST) == host:
        await _keep_only(op, device, there, auth)
        return str(own["id"])
    # A reserved attachment first, so that the volume is never free. The connection follows when the others are deleted.
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


# Live migrations: the destination connects to the volumes before the guest arrives.


async def prepare_standby(op: Operation, host: str) -> None:
    """Connect every volume to this host as well. Raises like `move`."""
    found = [device for device in await of_server(op) if connection_of(device).get(HOST) != host]
    if not found:
        return
    connector = await connector_of(op, host)
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            await _create_standby(op, device, host, connector, auth)


async def _create_standby(op: Operation, device: Row, host: str, connector: Item, auth: Auth) -> None:
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


async def drop_standby(op: Operation) -> None:
    """Undo `prepare_standby`: delete all attachments except those that the devices name."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in await of_server(op):
            await _keep_only(op, device, await _own(op, device, auth), auth)


async def settle(op: Operation, host: str) -> None:
    """Connect the volumes to the host of the guest only, and complete them.

    Standby attachments to that host become the devices' attachments. A volume without one is moved.
    """
    for device in await of_server(op):
        ready = _standby_of(device)
        if connection_of(device).get(HOST) != host and ready["connection"].get(HOST) == host:
            await _save(op, device, ready["id"], ready["connection"])
    await restore_connection(op, host)


# Connectors and disks of a host


async def connector_of(op: Operation, host: str) -> Item:
    """The connector of the host, stored for `restore_connection`. Raises Failed."""
    since = time.monotonic()
    try:
        return await _read_connector(op, host)
    except HostUnreachable:
        if not await hosts.is_unresponsive(op, host, since):
            raise
        trouble: HostCallError = HostNotResponding(host, op.services.config.operations.host_timeout_seconds)
    except HostFailed as error:
        if error.passing:
            raise
        trouble = error
    raise Failed(f"The host cannot have volumes: {trouble.public}", fault=str(trouble)) from trouble


async def _last_connector(op: Operation, host: str) -> Item | None:
    """The connector of the host, or the stored one if it does not respond. None if there is none."""
    try:
        return await _read_connector(op, host)
    except HostCallError:
        text = await op.db.fetch_value(_CONNECTOR, host)
        known: Item | None = orjson.loads(text) if text else None
        return known


async def _read_connector(op: Operation, host: str) -> Item:
    found: Item = await op.services.hosts.call(
        host, Command(host=host, verb=GetConnector()), timeout=PROBE_TIMEOUT_SECONDS
    )
    text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    if await op.db.fetch_value(_CONNECTOR, host) != text:
        async with op.db.transaction() as tx:
            await tx.execute("UPDATE hypervisors SET connector = $2 WHERE host = $1", host, text)
    return found


_CONNECTOR = "SELECT connector FROM hypervisors WHERE host = $1"


async def describe_guest(op: Operation, server: Row, host: str | None = None) -> Guest:
    """The server's guest with all disks, and with the connections of its own host or this one."""
    found = await devices.of_server(op.db, server["id"])
    goes_to = op.results.get(CLAIM) or {"host": server["host"]}
    zone = await zone_of(op, host or goes_to["host"])
    nics = orjson.loads(server["nics"])
    return guest_of(server, nics, _disks(found, host), devices.local_disks_of(found), zone)


async def disks(op: Operation, host: str | None = None) -> list[Disk]:
    """The disks of the server's volumes, with the connections of its own host or this one."""
    return await disks_of(op.db, str(op.server_id), host)


async def disks_of(reader: Reader, server_id: str, host: str | None = None) -> list[Disk]:
    return _disks(await devices.of_server(reader, server_id), host)


def _disks(found: Iterable[Row], host: str | None) -> list[Disk]:
    return [devices.disk_of(one, _connection_for(one, host)) for one in found if one["volume_id"] is not None]


def _connection_for(device: Row, host: str | None) -> Item:
    own, ready = connection_of(device), _standby_of(device)["connection"]
    return ready if host is not None and own.get(HOST) != host == ready.get(HOST) else own


def connection_of(device: Row) -> Item:
    """The `connection_info` of the server's host; empty while the volume is only reserved."""
    connection: Item = orjson.loads(device["connection"]) if device["connection"] else {}
    return connection


def _standby_of(device: Row) -> Item:
    ready: Item = orjson.loads(device["standby"]) if device["standby"] else {"id": None, "connection": {}}
    return ready


# The volume service


async def _own(op: Operation, device: Row, auth: Auth) -> list[Item]:
    """All attachments of the volume to the server; the one that the device names comes first."""
    there = await op.services.volume.attachments(auth, volume_id=device["volume_id"], instance_id=str(op.server_id))
    return sorted(there, key=lambda one: (one["id"] != device["attachment_id"], one["id"]))


def _is_connected(attachment: Item) -> bool:
    return bool(attachment["status"] != RESERVED)


async def _create(op: Operation, device: Row, auth: Auth, connector: Item | None = None) -> Item:
    """Create an attachment. Waits while the volume has a temporary status."""
    volume, volume_id, name = op.services.volume, device["volume_id"], device["device_name"]
    try:
        made: Item = await volume.create_attachment(volume_id, str(op.server_id), auth, connector, device=name)
    except VolumeError as refusal:
        found = await volume.show(volume_id, auth)
        if found is not None and found["status"] in BUSY:
            raise TransientError(str(refusal)) from refusal
        if found is not None and found["status"].startswith("error"):
            raise await volume_messages.failure_with_message(
                op, volume_id, f"The volume service refused: {refusal}"
            ) from refusal
        raise
    return made


async def _complete(op: Operation, attachment_id: str, auth: Auth) -> None:
    """Complete an attachment. Idempotent, even if the volume service refuses the second call."""
    try:
        await op.services.volume.complete_attachment(attachment_id, auth)
    except VolumeError as refusal:
        found = await op.services.volume.attachment(attachment_id, auth)
        if found is None or found["status"] != ATTACHED:
            raise refusal


async def _keep_only(op: Operation, device: Row, there: Iterable[Item], auth: Auth) -> None:
    """Delete all attachments except the one that the device names."""
    await _delete(op, [one for one in there if one["id"] != device["attachment_id"]], auth)
    if device["standby"]:
        async with op.db.transaction() as tx:
            await devices.set_standby(tx, device["uuid"], None)
            await fence(op, tx)


async def _save(op: Operation, device: Row, attachment_id: str, connection: Item | None) -> None:
    """Store the device's attachment, and clear its standby."""
    async with op.db.transaction() as tx:
        await devices.set_attachment(tx, device["uuid"], attachment_id, connection)
        await fence(op, tx)


async def _delete(op: Operation, attachments: Iterable[Item], auth: Auth) -> None:
    for attachment in attachments:
        await op.services.volume.delete_attachment(attachment["id"], auth)


@asynccontextmanager
async def volume_errors() -> AsyncIterator[None]:
    """Turn errors of the volume service into Failed, or TransientError if it is overloaded."""
    try:
        yield
    except VolumeError as error:
        if error.status == 429:
            raise TransientError(str(error)) from error
        raise Failed(f"The volume service refused: {error}", fault=str(error)) from error
