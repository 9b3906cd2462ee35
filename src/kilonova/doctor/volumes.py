"""Checks volumes: the volume service against compute's block devices and the guests."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.steps.volumes import RESERVED
from kilonova.compute.servers.states import ERROR, SHELVED
from kilonova.config import Config
from kilonova.doctor.external_services import reading
from kilonova.doctor.facts import CheckedServer, Facts, Finding, VolumeAttachment, Volumes, join_sorted
from kilonova.hosts.messages import GuestState
from kilonova.identity.client import Auth
from kilonova.store import Reader
from kilonova.volume.client import VolumeClient

# Transient statuses: set by the volume service, or by compute.
_IN_PROGRESS = frozenset({"creating", "deleting", "downloading", "uploading", "extending", "reverting", "retyping"})
_ATTACHING = frozenset({"attaching", "detaching"})
_ATTACHED = frozenset({"reserved", "in-use"})


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.volumes is not None:
        yield from _without_device(facts, facts.volumes)
        for server in facts.idle_servers():
            if server.vm_state != ERROR:
                yield from _devices(facts, facts.volumes, server)
        yield from _statuses(facts, facts.volumes)
    yield from _guests(facts, facts.guests or [])


def _all_devices(facts: Facts) -> Iterator[BlockDevice]:
    return (device for devices in facts.devices.values() for device in devices)


async def read_built_in(db: Reader) -> Volumes:
    """Read the built-in volume service from the database; works also while no process serves it."""
    attachments = await db.fetch("SELECT id, volume_id, server_id, status, host FROM volume_attachments ORDER BY id")
    volumes = await db.fetch("SELECT id, status FROM volumes ORDER BY id")
    return Volumes(
        statuses={row["id"]: row["status"] for row in volumes},
        attachments={row["id"]: VolumeAttachment(**row) for row in attachments},
        built_in=True,
    )


async def read_external(config: Config) -> Volumes:
    """Read an external volume service with a token of the service user. Raises Unavailable."""
    async with reading(config, "volume") as (caller, auth):
        return await read_from_api(VolumeClient(caller), auth)


async def read_from_api(client: VolumeClient, auth: Auth) -> Volumes:
    attachments = await client.attachments(auth)
    volumes = await client.volumes(auth, {"all_tenants": "1"})
    hosts = {use.attachment_id: use.host_name for volume in volumes for use in volume.attachments}
    return Volumes(
        statuses={volume.id: volume.status for volume in volumes},
        attachments={
            one.id: VolumeAttachment(one.id, one.volume_id, one.instance, one.status, hosts.get(one.id))
            for one in attachments
        },
        built_in=False,
    )


# The volume service against compute


def _without_device(facts: Facts, volumes: Volumes) -> Iterator[Finding]:
    """Attachments to unknown servers belong to other users of the volume service."""
    known = {(device.attachment_id, device.server_id) for device in _all_devices(facts)}
    to_detach = {(one.guest_id, one.volume_id) for one in facts.cleanups if one.volume_id}
    for one in volumes.attachments.values():
        server_id, volume_id = one.server_id, one.volume_id
        expected = (one.id, server_id) in known or (server_id, volume_id) in to_detach
        if expected or server_id in facts.busy:
            continue
        if server_id in facts.servers:
            detail = f"volume {volume_id}: {facts.servers[server_id].label} has no block device with this attachment"
            yield Finding("attachment without device", one.id, detail)
        elif server_id in facts.deleted:
            yield Finding("attachment without server", one.id, f"volume {volume_id}, deleted server {server_id}")


def _devices(facts: Facts, volumes: Volumes, server: CheckedServer) -> Iterator[Finding]:
    for device in facts.devices.get(server.id, ()):
        volume_id = device.volume
        attachment = volumes.attachments.get(device.attachment_id or "")
        if volume_id not in volumes.statuses:
            yield Finding("server's volume missing", server.id, f"{server.label} has no volume {volume_id}")
        elif attachment is None or (attachment.server_id, attachment.volume_id) != (server.id, volume_id):
            yield Finding("device without attachment", server.id, f"{server.label} and volume {volume_id}")
        else:
            yield from _wrong_host(server, device, attachment)


def _wrong_host(server: CheckedServer, device: BlockDevice, attachment: VolumeAttachment) -> Iterator[Finding]:
    """A shelved server's volumes may already be disconnected from its host, if its offload has failed."""
    where = server.host or ""
    connected = attachment.status != RESERVED
    if not connected and server.vm_state == SHELVED:
        return
    # Some volume services do not report the host. Then only the stored connection has it.
    stored = device.connected_host
    to = (attachment.host or stored) if connected else ""
    if {to, stored} != {where}:
        detail = f"volume {device.volume_id} is connected to {to or 'no host'}, in the stored connection to "
        detail += f"{stored or 'no host'}, and {server.label} is on {where or 'no host'}"
        yield Finding("attachment on the wrong host", attachment.id, detail)


def _statuses(facts: Facts, volumes: Volumes) -> Iterator[Finding]:
    users: dict[str, set[str | None]] = {}
    for one in volumes.attachments.values():
        users.setdefault(one.volume_id, set()).add(one.server_id)
    for device in _all_devices(facts):
        users.setdefault(device.volume, set()).add(device.server_id)
    attached = {one.volume_id for one in volumes.attachments.values()}
    ours = facts.servers.keys() | facts.deleted
    for volume_id, status in volumes.statuses.items():
        servers = users.get(volume_id, set())
        if volume_id in facts.busy or not servers.isdisjoint(facts.busy) or not servers <= ours:
            continue
        if (status in _IN_PROGRESS and volumes.built_in) or status in _ATTACHING:
            yield Finding("volume stuck", volume_id, f"it is {status}, without an operation")
        elif status in _ATTACHED and volume_id not in attached:
            yield Finding("volume status differs", volume_id, f"it is {status}, and has no attachment")
        elif status == "available" and volume_id in attached:
            yield Finding("volume status differs", volume_id, f"it is {status}, and has an attachment")


# Guests


def _guests(facts: Facts, guests: list[tuple[str, GuestState]]) -> Iterator[Finding]:
    uncertain = {(one.host, one.guest_id) for one in facts.cleanups}
    writers: dict[str, list[str]] = {}
    for host, guest in guests:
        server = facts.servers.get(guest.id)
        if guest.slot or guest.id in facts.busy or (host, guest.id) in uncertain:
            continue
        for volume_id in guest.volumes if guest.power == "running" else ():
            writers.setdefault(volume_id, []).append(f"{guest.id} on {host}")
        if server is None or server.host != host or server.vm_state == ERROR:
            continue
        expected = {device.volume for device in facts.devices.get(guest.id, ())}
        if set(guest.volumes) != expected:
            has, wants = join_sorted(guest.volumes) or "none", join_sorted(expected) or "none"
            yield Finding("guest's volumes differ", guest.id, f"{server.label} on {host} has {has}, recorded: {wants}")
    shared = {device.volume for device in _all_devices(facts) if device.multiattach}
    for volume_id, where in writers.items():
        if len(where) > 1 and volume_id not in shared:
            yield Finding("volume in several guests", volume_id, f"it runs in {join_sorted(where)}")
