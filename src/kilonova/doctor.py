"""Compares what must agree: servers, allocations, ports, guests on the hosts, and unfinished operations. Reads only.

May run beside a process at work: a server is left out while an operation runs on it or has just ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from kilonova import clock
from kilonova.compute.servers.states import BUILDING, ERROR, RUNNING, SHUTDOWN
from kilonova.hosts.messages import GuestState
from kilonova.operations import views
from kilonova.store import Reader, Row

Guests = Iterable[tuple[str, GuestState]]

_POWER = {RUNNING: "running", SHUTDOWN: "shutdown"}


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the id to look for: of a server, a consumer, a guest, a port or an operation."""

    kind: str
    subject: str
    detail: str


class _Facts(msgspec.Struct):
    servers: dict[str, Row]
    allocations: dict[str, set[str]]
    ports: dict[str, Row]
    guests: list[tuple[str, GuestState]] | None
    busy: set[str]


async def examine(db: Reader, guests: Guests | None = None) -> list[Finding]:
    """`guests` is every guest on every host; without it guests are not compared."""
    facts = await _gather(db, guests)
    return [
        *await _stuck(db),
        *_transient(facts),
        *_wrong_allocations(facts),
        *_wrong_ports(facts),
        *_wrong_guests(facts),
    ]


async def _gather(db: Reader, guests: Guests | None) -> _Facts:
    began = clock.now()
    servers = await db.fetch(_SERVERS)
    allocations: dict[str, set[str]] = {}
    for row in await db.fetch(_ALLOCATIONS):
        allocations.setdefault(row["consumer_uuid"], set()).add(row["name"])
    ports = await db.fetch(_PORTS)
    found = None if guests is None else list(guests)
    # Last, so that whatever moved while the rest was read counts as busy.
    busy = await db.fetch(_BUSY, began - 1.0)
    return _Facts(
        servers={row["id"]: row for row in servers},
        allocations=allocations,
        ports={row["id"]: row for row in ports},
        guests=found,
        busy={row["server_id"] for row in busy},
    )


_SERVERS = """
SELECT id, name, vm_state, power_state, host, hypervisor_hostname, nics
FROM servers WHERE NOT deleted ORDER BY created_at, id
"""
_ALLOCATIONS = """
SELECT a.consumer_uuid, p.name FROM allocations a
JOIN resource_providers p ON p.id = a.provider_id JOIN consumers c ON c.uuid = a.consumer_uuid
WHERE COALESCE(c.type, 'INSTANCE') = 'INSTANCE' GROUP BY a.consumer_uuid, p.name ORDER BY a.consumer_uuid
"""
_PORTS = "SELECT id, device_id, host_id FROM ports WHERE device_owner LIKE 'compute:%' ORDER BY id"
_BUSY = "SELECT DISTINCT server_id FROM operations WHERE finished_at IS NULL OR finished_at >= $1"


async def _stuck(db: Reader) -> list[Finding]:
    return [
        Finding("operation stuck", row.id, f"{row.kind} is {row.state} at step '{row.step}': {row.reason}")
        for row in await views.stuck(db)
    ]


def _transient(facts: _Facts) -> Iterator[Finding]:
    for server in _idle(facts):
        if server["vm_state"] == BUILDING:
            yield Finding("transient state without operation", server["id"], f"{_named(server)} is building")


def _wrong_allocations(facts: _Facts) -> Iterator[Finding]:
    for consumer, providers in facts.allocations.items():
        if consumer not in facts.servers and consumer not in facts.busy:
            yield Finding("allocation without server", consumer, f"on {_list(providers)}")
    for server in _idle(facts):
        held = facts.allocations.get(server["id"], set())
        where = server["hypervisor_hostname"]
        if where is None or (server["vm_state"] == ERROR and not held):
            continue
        if not held:
            yield Finding("server without allocation", server["id"], f"{_named(server)} on {where}")
        elif held != {where}:
            yield Finding(
                "allocation on the wrong host", server["id"], f"{_named(server)} is on {where}, not {_list(held)}"
            )


def _wrong_ports(facts: _Facts) -> Iterator[Finding]:
    for port in facts.ports.values():
        if port["device_id"] not in facts.servers and port["device_id"] not in facts.busy:
            yield Finding("port without server", port["id"], f"bound to {port['device_id'] or 'nothing'}")
    for server in _idle(facts):
        for nic in orjson.loads(server["nics"]):
            bound = facts.ports.get(nic["port_id"])
            if bound is None or bound["device_id"] != server["id"]:
                yield Finding("server's port missing", server["id"], f"{_named(server)} has no port {nic['port_id']}")


def _wrong_guests(facts: _Facts) -> Iterator[Finding]:
    if facts.guests is None:
        return
    seen: dict[str, list[tuple[str, GuestState]]] = {}
    for host, guest in facts.guests:
        seen.setdefault(guest.id, []).append((host, guest))
    for identity, places in seen.items():
        if identity in facts.busy:
            continue
        server = facts.servers.get(identity)
        for host, guest in places:
            yield from _wrong_guest(server, host, guest)
    for server in _idle(facts):
        if server["host"] and server["vm_state"] != ERROR and server["id"] not in seen:
            yield Finding("guest missing", server["id"], f"{_named(server)} is not on {server['host']}")


def _wrong_guest(server: Mapping[str, Any] | None, host: str, guest: GuestState) -> Iterator[Finding]:
    if server is None:
        yield Finding("guest without server", guest.id, f"{guest.name} on {host}")
    elif server["host"] != host:
        yield Finding("guest on the wrong host", guest.id, f"{guest.name} is on {host}, not {server['host']}")
    elif server["vm_state"] != ERROR and _POWER.get(server["power_state"]) != guest.power:
        recorded = _POWER.get(server["power_state"], "unknown")
        yield Finding("guest power differs", guest.id, f"{guest.name} is {guest.power}, recorded as {recorded}")


def _idle(facts: _Facts) -> Iterator[Row]:
    return (server for server in facts.servers.values() if server["id"] not in facts.busy)


def _named(server: Mapping[str, Any]) -> str:
    return f"server '{server['name']}'"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
