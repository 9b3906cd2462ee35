"""A server's volumes: reserved for it, connected to its host, moved with it, and given back.

The attachment is the volume service's record of who has a volume. One without a connector reserves the volume; one
with a connector lets a host reach it. A server has one per volume, but for the time of a live migration, when the
destination gets ready. What an earlier run of a step left is found at the volume service, and used or deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kilonova.compute.block_devices import model as devices
from kilonova.hosts.messages import Command, Disk, LookConnector
from kilonova.hosts.transport import HostFailed
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, Passing
from kilonova.store import Row
from kilonova.volume.client import VolumeError

Item = dict[str, Any]
# What we add to a way that the volume service gave: the host it is for.
HOST = "attached_host"


async def of_server(op: Operation) -> list[Row]:
    """The devices of the server that are volumes."""
    return await devices.volumes_of(op.db, str(op.server_id))


async def reserve(op: Operation, device: Row) -> str:
    """The id of an attachment without a connector. Raises Failed if somebody else has the volume."""
    attachment_id = await empty(op, device)
    await keep_only(op, device, attachment_id)
    await _save(op, device, attachment_id, None)
    return attachment_id


async def empty(op: Operation, device: Row) -> str:
    """The id of an attachment without a connector, beside others that the server may have."""
    auth = await op.services.identity.auth()
    async with explained():
        found = next((one for one in await _own(op, device, auth) if not one.get("connection_info")), None)
        made = found or await op.services.volume.create_attachment(device["volume_id"], str(op.server_id), auth)
    return str(made["id"])


async def keep_only(op: Operation, device: Row, attachment_id: str) -> None:
    """Delete the server's other attachments of the volume."""
    auth = await op.services.identity.auth()
    async with explained():
        await _delete(op, [one for one in await _own(op, device, auth) if one["id"] != attachment_id], auth)


async def move(op: Operation, host: str, found: Iterable[Row] | None = None) -> None:
    """Have every volume, or these, attached to the host and nowhere else, or with no host only reserved.

    Done before, or half done, is fine. The guest must not run: between two hosts nobody reaches the volume.
    """
    found = list(await of_server(op) if found is None else found)
    if not found:
        return
    auth = await op.services.identity.auth()
    connector = await connector_of(op, host) if host else None
    async with explained():
        for device in found:
            await _move(op, device, host, connector, auth)


async def _move(op: Operation, device: Row, host: str, connector: Item | None, auth: Auth) -> None:
    volume = op.services.volume
    there = await _own(op, device, auth)
    kept = next((one for one in there if one["id"] == device["attachment_id"]), None)
    way = way_of(device)
    if kept is None or way.get(HOST, "") != host or bool(way) != bool(kept.get("connection_info")):
        # Made first, so that the volume stays reserved while the others go. One that was connected by a run that
        # did not live to save it goes as well: nobody knows to which host.
        way = {}
        fresh = next((one for one in there if not one.get("connection_info")), None)
        kept = fresh or await volume.create_attachment(device["volume_id"], str(op.server_id), auth)
        await _save(op, device, kept["id"], None)
    await _delete(op, [one for one in there if one["id"] != kept["id"]], auth)
    if connector is not None and not way:
        made = await volume.update_attachment(kept["id"], connector, auth)
        await _save(op, device, kept["id"], {**made["connection_info"], HOST: host})


async def complete(op: Operation, found: Iterable[Row] | None = None) -> None:
    """Say that the guest has its volumes, or these: they are in use."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in await of_server(op) if found is None else found:
            await op.services.volume.complete_attachment(device["attachment_id"], auth)


async def release(op: Operation, found: Iterable[Row]) -> None:
    """Delete every attachment of these volumes to the server. Gone already is fine."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in found:
            await _delete(op, await _own(op, device, auth), auth)


# Live migrations: the destination reaches the volumes too, before the guest comes.


async def standby(op: Operation, host: str) -> dict[str, Item]:
    """An attachment to the host for every volume, beside the one there is.

    By the volume's id, the attachment's and the way to the volume: what `adopt` and `disks` take.
    """
    ready: dict[str, Item] = {}
    found = await of_server(op)
    if not found:
        return ready
    auth = await op.services.identity.auth()
    connector = await connector_of(op, host)
    await unstandby(op)
    async with explained():
        for device in found:
            volume_id = device["volume_id"]
            made = await op.services.volume.create_attachment(volume_id, str(op.server_id), auth, connector)
            ready[volume_id] = {"id": made["id"], "connection": {**made["connection_info"], HOST: host}}
    return ready


async def unstandby(op: Operation) -> None:
    """Take back what `standby` did, also half: all attachments but those that the server has."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in await of_server(op):
            own = await _own(op, device, auth)
            await _delete(op, [one for one in own if one["id"] != device["attachment_id"]], auth)


async def adopt(op: Operation, ready: dict[str, Item]) -> None:
    """The guest has come to the host of `standby`: from now on these attachments are the server's, and in use."""
    auth = await op.services.identity.auth()
    async with explained():
        for device in await of_server(op):
            made = ready[device["volume_id"]]
            await _save(op, device, made["id"], made["connection"])
            await op.services.volume.complete_attachment(made["id"], auth)
            own = await _own(op, device, auth)
            await _delete(op, [one for one in own if one["id"] != made["id"]], auth)


# What a host is told


async def connector_of(op: Operation, host: str) -> Item:
    """What the volume service has to know of the host."""
    try:
        found: Item = await op.services.hosts.call(host, Command(host=host, verb=LookConnector()))
    except HostFailed as error:
        if error.passing:
            raise
        raise Failed(f"The host cannot have volumes: {error.public}", fault=str(error)) from error
    return found


async def disks(op: Operation, ready: dict[str, Item] | None = None) -> list[Disk]:
    """The server's volumes for its guest, by the ways that its host has, or those that `standby` made."""
    ways = {volume_id: made["connection"] for volume_id, made in (ready or {}).items()}
    return [devices.disk_of(device, ways.get(device["volume_id"])) for device in await of_server(op)]


def way_of(device: Row) -> Item:
    """How the server's host reaches the volume; nothing while it is only reserved."""
    way: Item = orjson.loads(device["connection"]) if device["connection"] else {}
    return way


# The volume service


async def _own(op: Operation, device: Row, auth: Auth) -> list[Item]:
    """All attachments of the volume to the server, the one that the server's device names first."""
    volume = op.services.volume
    listed = await volume.attachments(auth, volume_id=device["volume_id"], instance_id=str(op.server_id))
    shown = [await volume.attachment(one["id"], auth) for one in listed]
    there = [one for one in shown if one is not None]
    return sorted(there, key=lambda one: (one["id"] != device["attachment_id"], one["id"]))


async def _save(op: Operation, device: Row, attachment_id: str, connection: Item | None) -> None:
    async with op.db.transaction() as tx:
        await devices.set_attachment(tx, device["uuid"], attachment_id, connection)


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
