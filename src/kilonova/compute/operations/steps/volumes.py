"""Steps for a server's volumes: reserve them, connect them to its host, move them with it, release them.

The volume service records an attachment for each volume of a server. An attachment without a connector reserves the
volume; one with a connector lets a host connect to it. The server's block device names its attachment. During a live
migration it has another one for the destination, its `standby`. Attachments that an earlier run left are reused if they
are only reserved, and deleted otherwise.

A volume always keeps an attachment, so that no other server gets it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

import orjson
from msgspec import Struct

from kilonova.compute import volume_messages
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import HOST, AttachedVolume, BlockDevice, Connection
from kilonova.compute.host_calls import MUST_READ, READ, Policy, read
from kilonova.compute.operations.steps.choose import CLAIM
from kilonova.compute.operations.steps.server import fence, guest_of, zone_of
from kilonova.compute.servers.server import Server
from kilonova.compute.volume_messages import VolumeFailed
from kilonova.hosts.messages import Disk, Guest
from kilonova.hosts.messages.verbs import GetConnector
from kilonova.hosts.transport import HostCallError
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, TransientError
from kilonova.store import Reader
from kilonova.volume.client import Attachment, Volume, VolumeError

Connector = dict[str, object]
"""What the volume service must know of a host to connect it."""
# Status of an attachment without a connector, and of a completed one.
RESERVED, ATTACHED = "reserved", "attached"
# Temporary statuses of a volume in use, in which the volume service refuses attachments.
BUSY = frozenset({"extending", "uploading", "downloading", "retyping", "backing-up"})
# Temporary statuses of a multiattach volume while another server attaches or detaches it.
BUSY_ELSEWHERE = frozenset({"reserved", "attaching", "detaching"})


class NamesDevice(Protocol):
    """`device` is the uuid of a block device of the server."""

    @property
    def device(self) -> str: ...


class DeviceParams(Struct, frozen=True):
    device: str


class ExtendVolumeParams(Struct, frozen=True):
    volume_id: str


async def of_server(op: Operation) -> list[BlockDevice]:
    """The server's block devices that are volumes."""
    return await devices.volumes_of(op.db, str(op.server_id))


async def device_of(op: Operation[NamesDevice]) -> BlockDevice:
    """The block device that the operation's parameters name."""
    found = await devices.get(op.db, op.params.device)
    if found is None:
        raise Failed("The server no longer has the volume")
    return found


# Connections to one host at a time. The guest must not run while they change.


async def reserve(op: Operation, device: BlockDevice) -> str:
    """Reserve the volume, connected to no host. Raises Failed if it is in use elsewhere."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        return await _place(op, device, "", None, auth)


async def connect(op: Operation, device: BlockDevice, host: str) -> None:
    """Connect the volume to this host only."""
    connector, auth = await connector_of(op, host), await op.services.identity.auth()
    async with volume_errors():
        await _place(op, device, host, connector, auth)


async def move(op: Operation, host: str) -> None:
    """Connect every volume to this host only, or with an empty host only reserve them. Idempotent.

    Raises Failed; HostCallFailed if the host cannot connect to volumes.
    """
    found = await of_server(op)
    if not found:
        return
    connector = await connector_of(op, host) if host else None
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            await _place(op, device, host, connector, auth)


async def restore_connection(op: Operation, host: str, some: list[BlockDevice] | None = None) -> None:
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
                if (await _reload(op, device)).connection:
                    await _complete(op, attachment_id, auth)
            except VolumeError as error:
                if error.status != 404:
                    raise


async def _reload(op: Operation, device: BlockDevice) -> BlockDevice:
    return await devices.get(op.db, device.uuid) or device


async def complete(op: Operation) -> None:
    """Complete the attachments of all volumes: they are in use."""
    await complete_attachments(op, *(device.attachment for device in await of_server(op)))


async def complete_attachments(op: Operation, *attachment_ids: str) -> None:
    auth = await op.services.identity.auth()
    async with volume_errors():
        for attachment_id in attachment_ids:
            await _complete(op, attachment_id, auth)


async def release(op: Operation, *volume_ids: str) -> None:
    """Delete all attachments of these volumes to the server. Idempotent."""
    auth = await op.services.identity.auth()
    async with volume_errors():
        for volume_id in volume_ids:
            await _delete(op, await attachments(op, volume_id, auth), auth)


async def _place(op: Operation, device: BlockDevice, host: str, connector: Connector | None, auth: Auth) -> str:
    """Leave exactly one attachment, connected to the host or reserved, and return its id."""
    there = await _own(op, device, auth)
    own = next((one for one in there if one.id == device.attachment_id), None)
    if host and own is not None and _is_connected(own) and device.connected_host == host:
        await _keep_only(op, device, there, auth)
        return own.id
    # A reserved attachment first, so that the volume is never free. The connection follows when the others are deleted.
    kept = next((one for one in there if not _is_connected(one)), None)
    if kept is None:
        kept = await _create(op, device, auth)
    if kept.id != device.attachment_id or device.connection or device.standby:
        await _save(op, device, kept.id, None)
    await _delete(op, [one for one in there if one.id != kept.id], auth)
    if connector is not None:
        made = await op.services.volume.update_attachment(kept.id, connector, auth, device=device.device_name)
        await _save(op, device, kept.id, connection_to(made, host))
    return kept.id


# Live migrations: the destination connects to the volumes before the guest arrives.


async def prepare_standby(op: Operation, host: str) -> None:
    """Connect every volume to this host as well. Raises like `move`."""
    found = [device for device in await of_server(op) if device.connected_host != host]
    if not found:
        return
    connector = await connector_of(op, host)
    auth = await op.services.identity.auth()
    async with volume_errors():
        for device in found:
            await _create_standby(op, device, host, connector, auth)


async def _create_standby(op: Operation, device: BlockDevice, host: str, connector: Connector, auth: Auth) -> None:
    there = await _own(op, device, auth)
    standby = device.standby
    if standby and device.standby_host == host and any(one.id == standby.id for one in there):
        return
    await _delete(op, [one for one in there if one.id != device.attachment_id], auth)
    made = await _create(op, device, auth, connector)
    async with op.db.transaction() as tx:
        await devices.set_standby(tx, device.uuid, AttachedVolume(made.id, connection_to(made, host)))
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
        if device.connected_host != host and device.standby and device.standby_host == host:
            await _save(op, device, device.standby.id, device.standby.connection)
    await restore_connection(op, host)


# Connectors and disks of a host


async def connector_of(op: Operation, host: str) -> Connector:
    """The connector of the host, stored for `restore_connection`. Raises HostCallFailed."""
    return await _read_connector(op, host, MUST_READ)


async def _last_connector(op: Operation, host: str) -> Connector | None:
    """The connector of the host, or the stored one if it does not respond. None if there is none."""
    try:
        return await _read_connector(op, host, READ)
    except HostCallError:
        text = await op.db.fetch_value(_CONNECTOR, host)
        known: Connector | None = orjson.loads(text) if text else None
        return known


async def _read_connector(op: Operation, host: str, policy: Policy) -> Connector:
    found = await read(op, host, GetConnector(), policy, summary="The host cannot have volumes") or {}
    text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    if await op.db.fetch_value(_CONNECTOR, host) != text:
        async with op.db.transaction() as tx:
            await tx.execute("UPDATE hypervisors SET connector = $2 WHERE host = $1", host, text)
    return found


_CONNECTOR = "SELECT connector FROM hypervisors WHERE host = $1"


async def describe_guest(op: Operation, server: Server, host: str | None = None) -> Guest:
    """The server's guest with all disks, and with the connections of its own host or this one."""
    found = await devices.of_server(op.db, server.id)
    claimed = op.find_result(CLAIM)
    zone = await zone_of(op, host or (claimed.host if claimed else server.host or ""))
    return guest_of(server, server.nics, _disks(found, host), devices.local_disks_of(found), zone)


async def disks(op: Operation, host: str | None = None) -> list[Disk]:
    """The disks of the server's volumes, with the connections of its own host or this one."""
    return await disks_of(op.db, str(op.server_id), host)


async def disks_of(reader: Reader, server_id: str, host: str | None = None) -> list[Disk]:
    return _disks(await devices.of_server(reader, server_id), host)


def _disks(found: Iterable[BlockDevice], host: str | None) -> list[Disk]:
    return [devices.disk_of(one, _connection_for(one, host)) for one in found if one.volume_id is not None]


def _connection_for(device: BlockDevice, host: str | None) -> Connection | None:
    if device.standby and device.connected_host != host == device.standby_host:
        return device.standby.connection
    return device.connection


def connection_to(attachment: Attachment, host: str) -> Connection:
    return {**attachment.connection, HOST: host}


# The volume service


async def attachments(op: Operation, volume_id: str, auth: Auth) -> list[Attachment]:
    """All attachments of the volume to the server."""
    return await op.services.volume.attachments(auth, volume_id=volume_id, instance_id=str(op.server_id))


async def _own(op: Operation, device: BlockDevice, auth: Auth) -> list[Attachment]:
    """All attachments of the volume to the server; the one that the device names comes first."""
    there = await attachments(op, device.volume, auth)
    return sorted(there, key=lambda one: (one.id != device.attachment_id, one.id))


def _is_connected(attachment: Attachment) -> bool:
    return attachment.status != RESERVED


async def _create(op: Operation, device: BlockDevice, auth: Auth, connector: Connector | None = None) -> Attachment:
    """Create an attachment. Waits while the volume has a temporary status."""
    volume, volume_id, name = op.services.volume, device.volume, device.device_name
    try:
        return await volume.create_attachment(volume_id, str(op.server_id), auth, connector, device=name)
    except VolumeError as refusal:
        found = await volume.show(volume_id, auth)
        if found is not None and _is_busy(found):
            raise TransientError(str(refusal)) from refusal
        if found is not None and found.status.startswith("error"):
            raise await volume_messages.failure_with_message(
                op, volume_id, f"The volume service refused: {refusal}"
            ) from refusal
        raise


def _is_busy(volume: Volume) -> bool:
    return volume.status in BUSY or (volume.multiattach and volume.status in BUSY_ELSEWHERE)


async def _complete(op: Operation, attachment_id: str, auth: Auth) -> None:
    """Complete an attachment. Idempotent, even if the volume service refuses the second call."""
    try:
        await op.services.volume.complete_attachment(attachment_id, auth)
    except VolumeError as refusal:
        found = await op.services.volume.attachment(attachment_id, auth)
        if found is None or found.status != ATTACHED:
            raise refusal


async def _keep_only(op: Operation, device: BlockDevice, there: Iterable[Attachment], auth: Auth) -> None:
    """Delete all attachments except the one that the device names."""
    await _delete(op, [one for one in there if one.id != device.attachment_id], auth)
    if device.standby:
        async with op.db.transaction() as tx:
            await devices.set_standby(tx, device.uuid, None)
            await fence(op, tx)


async def _save(op: Operation, device: BlockDevice, attachment_id: str, connection: Connection | None) -> None:
    """Store the device's attachment, and clear its standby."""
    async with op.db.transaction() as tx:
        await devices.set_attachment(tx, device.uuid, attachment_id, connection)
        await fence(op, tx)


async def _delete(op: Operation, found: Iterable[Attachment], auth: Auth) -> None:
    for attachment in found:
        await op.services.volume.delete_attachment(attachment.id, auth)


@asynccontextmanager
async def volume_errors() -> AsyncIterator[None]:
    """Turn errors of the volume service into VolumeFailed, or TransientError if it is overloaded."""
    try:
        yield
    except VolumeError as error:
        if error.status == 429:
            raise TransientError(str(error)) from error
        raise VolumeFailed(f"The volume service refused: {error}", fault=str(error)) from error
