"""Volumes of servers: what the volume service says of them, what compute says, and what guests have."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from kilonova import datadir
from kilonova.compute.operations.volumes import HOST, RESERVED, way_of
from kilonova.compute.servers.states import ERROR, SHELVED
from kilonova.config import Config
from kilonova.doctor.facts import Facts, Finding, Unasked, Volumes, listed, named
from kilonova.hosts.messages import GuestState
from kilonova.http.client import Refused, Remote, Unreachable
from kilonova.identity.bootstrap import SERVICE_USER
from kilonova.identity.client import Auth, IdentityClient, IdentityError, base_of
from kilonova.store import Reader, Row
from kilonova.volume.client import VolumeClient

# What lasts only while somebody is at it: the volume service itself, or compute.
_WORKED_ON = frozenset({"creating", "deleting", "downloading", "uploading", "extending", "reverting", "retyping"})
_CHANGING_HANDS = frozenset({"attaching", "detaching"})
_TAKEN = frozenset({"reserved", "in-use"})


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.volumes is not None:
        yield from _without_device(facts, facts.volumes)
        for server in facts.idle():
            if server["vm_state"] != ERROR:
                yield from _devices(facts, facts.volumes, server)
        yield from _statuses(facts, facts.volumes)
    yield from _guests(facts, facts.guests or [])


def _all(facts: Facts) -> Iterator[Row]:
    return (device for devices in facts.devices.values() for device in devices)


async def built_in(db: Reader) -> Volumes:
    """What the built-in volume service has, also while no process serves it."""
    attachments = await db.fetch("SELECT id, volume_id, server_id, status, host FROM volume_attachments ORDER BY id")
    volumes = await db.fetch("SELECT id, status FROM volumes ORDER BY id")
    return Volumes(
        statuses={row["id"]: row["status"] for row in volumes},
        attachments={row["id"]: row for row in attachments},
        built_in=True,
    )


async def elsewhere(config: Config) -> Volumes:
    """The same of another volume service, for which this cloud gives the token. Raises Unasked."""
    try:
        endpoints = orjson.loads((config.data_dir / datadir.ENDPOINTS).read_bytes())
        password = datadir.passwords(config.data_dir, [SERVICE_USER])[SERVICE_USER]
        identity = IdentityClient(Remote(base_of(endpoints["identity"])), username=SERVICE_USER, password=password)
        return await told(VolumeClient(Remote(config.volume.url)), await identity.auth())
    except (OSError, ValueError, KeyError) as error:
        raise Unasked(f"nobody serves {config.data_dir}: {error}") from None
    except (IdentityError, Refused, Unreachable) as error:
        raise Unasked(str(error)) from None


async def told(client: VolumeClient, auth: Auth) -> Volumes:
    """What the volume service says by its API."""
    attachments = await client.attachments(auth)
    volumes = await client.volumes(auth, {"all_tenants": "1"})
    hosts = {one["attachment_id"]: one.get("host_name") for volume in volumes for one in volume["attachments"]}
    return Volumes(
        statuses={volume["id"]: volume["status"] for volume in volumes},
        attachments={
            one["id"]: {**one, "server_id": one["instance"], "host": hosts.get(one["id"])} for one in attachments
        },
        built_in=False,
    )


# The volume service and compute


def _without_device(facts: Facts, volumes: Volumes) -> Iterator[Finding]:
    """What others have attached, to whom we do not know, is theirs."""
    known = {(device["attachment_id"], device["server_id"]) for device in _all(facts)}
    to_give_back = {(row["guest_id"], row["volume_id"]) for row in facts.leftovers if "volume_id" in row}
    for one in volumes.attachments.values():
        server_id, volume_id = one["server_id"], one["volume_id"]
        expected = (one["id"], server_id) in known or (server_id, volume_id) in to_give_back
        if expected or server_id in facts.busy:
            continue
        if server_id in facts.servers:
            detail = f"volume {volume_id}, which {named(facts.servers[server_id])} does not have by it"
            yield Finding("attachment without device", one["id"], detail)
        elif server_id in facts.deleted:
            yield Finding("attachment without server", one["id"], f"volume {volume_id}, deleted server {server_id}")


def _devices(facts: Facts, volumes: Volumes, server: Row) -> Iterator[Finding]:
    for device in facts.devices.get(server["id"], ()):
        volume_id = device["volume_id"]
        attachment = volumes.attachments.get(device["attachment_id"])
        if volume_id not in volumes.statuses:
            yield Finding("server's volume missing", server["id"], f"{named(server)} has no volume {volume_id}")
        elif attachment is None or (attachment["server_id"], attachment["volume_id"]) != (server["id"], volume_id):
            yield Finding("device without attachment", server["id"], f"{named(server)} and volume {volume_id}")
        else:
            yield from _wrong_host(server, device, attachment)


def _wrong_host(server: Row, device: Row, attachment: Row) -> Iterator[Finding]:
    """A shelved server's volumes may be parted from its host already, where its offload has failed."""
    where = server["host"] or ""
    connected = attachment["status"] != RESERVED
    if not connected and server["vm_state"] == SHELVED:
        return
    # Some volume services do not tell of the host. Then there is only what they once told us.
    told = way_of(device).get(HOST, "")
    to = (attachment["host"] or told) if connected else ""
    if {to, told} != {where}:
        detail = f"volume {device['volume_id']} is connected to {to or 'no host'}, as {named(server)} has it to "
        detail += f"{told or 'none'}, and it is on {where or 'none'}"
        yield Finding("attachment on the wrong host", attachment["id"], detail)


def _statuses(facts: Facts, volumes: Volumes) -> Iterator[Finding]:
    users: dict[str, set[str | None]] = {}
    for row in (*volumes.attachments.values(), *_all(facts)):
        users.setdefault(row["volume_id"], set()).add(row["server_id"])
    attached = {one["volume_id"] for one in volumes.attachments.values()}
    ours = facts.servers.keys() | facts.deleted
    for volume_id, status in volumes.statuses.items():
        behind = users.get(volume_id, set())
        if volume_id in facts.busy or not behind.isdisjoint(facts.busy) or not behind <= ours:
            continue
        if (status in _WORKED_ON and volumes.built_in) or status in _CHANGING_HANDS:
            yield Finding("volume stuck", volume_id, f"it is {status}, and nobody is at it")
        elif status in _TAKEN and volume_id not in attached:
            yield Finding("volume status differs", volume_id, f"it is {status}, and has no attachment")
        elif status == "available" and volume_id in attached:
            yield Finding("volume status differs", volume_id, f"it is {status}, and has an attachment")


# Guests


def _guests(facts: Facts, guests: list[tuple[str, GuestState]]) -> Iterator[Finding]:
    unsure = {(row["host"], row["guest_id"]) for row in facts.leftovers}
    writers: dict[str, list[str]] = {}
    for host, guest in guests:
        server = facts.servers.get(guest.id)
        if guest.slot or guest.id in facts.busy or (host, guest.id) in unsure:
            continue
        for volume_id in guest.volumes if guest.power == "running" else ():
            writers.setdefault(volume_id, []).append(f"{guest.id} on {host}")
        if server is None or server["host"] != host or server["vm_state"] == ERROR:
            continue
        expected = {device["volume_id"] for device in facts.devices.get(guest.id, ())}
        if set(guest.volumes) != expected:
            has, wants = listed(guest.volumes) or "none", listed(expected) or "none"
            yield Finding("guest's volumes differ", guest.id, f"{named(server)} on {host} has {has}, recorded: {wants}")
    shared = {device["volume_id"] for device in _all(facts) if device["multiattach"]}
    for volume_id, where in writers.items():
        if len(where) > 1 and volume_id not in shared:
            yield Finding("volume in several guests", volume_id, f"it runs in {listed(where)}")
