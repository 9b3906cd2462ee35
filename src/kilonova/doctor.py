"""Compares what must agree: servers, allocations, placement, ports, guests, and unfinished operations. Reads only.

May run beside a process at work: a server is left out while an operation runs on it or has just ended, and what
stands in several tables of placement is compared by one statement each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from kilonova import clock
from kilonova.compute.servers.states import BUILDING, ERROR, RUNNING, SHUTDOWN
from kilonova.hosts.messages import GuestState
from kilonova.operations import views
from kilonova.remedies import REMEDIES
from kilonova.scheduler.specs import needs
from kilonova.store import Reader, Row

Guests = Iterable[tuple[str, GuestState]]

INSTANCE = "INSTANCE"
_POWER = {RUNNING: "running", SHUTDOWN: "shutdown"}


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the id to look for: of a server, a consumer, a provider, a guest, a port, an operation…"""

    kind: str
    subject: str
    detail: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.kind]


class _Held(msgspec.Struct):
    """What a consumer holds, and on which hypervisors: of what is shared on none, else of what is on none its name."""

    type: str | None
    amounts: Counter[str]
    places: set[str]
    providers: set[str]


class _Facts(msgspec.Struct):
    servers: dict[str, Row]
    allocations: dict[str, _Held]
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
        *_wrong_amounts(facts),
        *await _wrong_providers(db),
        *await _wrong_mirrors(db),
        *await _broken_policies(db),
        *_wrong_ports(facts),
        *_wrong_guests(facts),
    ]


async def _gather(db: Reader, guests: Guests | None) -> _Facts:
    began = clock.now()
    servers = await db.fetch(_SERVERS)
    allocations: dict[str, _Held] = {}
    for row in await db.fetch(_ALLOCATIONS):
        held = allocations.setdefault(row["uuid"], _Held(row["type"], Counter(), set(), set()))
        if row["used"] is not None:
            held.amounts[row["resource_class"]] += row["used"]
            held.providers.add(row["name"])
            held.places.update([] if row["shares"] else [row["node"] or row["name"]])
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
SELECT id, name, vm_state, power_state, host, hypervisor_hostname, nics, flavor, image_properties
FROM servers WHERE NOT deleted ORDER BY created_at, id
"""
# Also consumers that hold nothing. Trees of hosts by parents, not by roots: operators may put hosts below their own.
_ALLOCATIONS = """
WITH RECURSIVE tree (id, node) AS (
    SELECT p.id, h.hypervisor_hostname FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid
    UNION ALL
    SELECT below.id, tree.node FROM resource_providers below JOIN tree ON below.parent_id = tree.id
)
SELECT c.uuid, c.type, a.resource_class, a.used, COALESCE(p.name, 'an unknown provider') AS name, tree.node,
       EXISTS (SELECT 1 FROM provider_traits t
               WHERE t.provider_id = p.id AND t.trait = 'MISC_SHARES_VIA_AGGREGATE') AS shares
FROM consumers c
LEFT JOIN allocations a ON a.consumer_uuid = c.uuid
LEFT JOIN resource_providers p ON p.id = a.provider_id
LEFT JOIN tree ON tree.id = p.id
ORDER BY c.uuid, p.id
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
    for consumer, held in facts.allocations.items():
        if consumer in facts.busy:
            continue
        if not held.amounts:
            yield Finding("consumer without allocations", consumer, f"of type {held.type}")
        elif held.type == INSTANCE and consumer not in facts.servers:
            yield Finding("allocation without server", consumer, f"on {_list(held.providers)}")
    for server in _idle(facts):
        where = server["hypervisor_hostname"]
        found = facts.allocations.get(server["id"])
        if where is None or found is None:
            continue
        if found.places != {where}:
            detail = f"{_named(server)} is on {where}, not {_list(found.places or found.providers)}"
            yield Finding("allocation on the wrong host", server["id"], detail)


def _wrong_amounts(facts: _Facts) -> Iterator[Finding]:
    """What a server holds, summed over all providers, is what its flavor and image ask for."""
    for server in _idle(facts):
        found = facts.allocations.get(server["id"])
        amounts = found.amounts if found else Counter[str]()
        if server["hypervisor_hostname"] is None or (server["vm_state"] == ERROR and not amounts):
            continue
        try:
            wanted = _needs(server)
        except ValueError as error:
            yield Finding("server's needs cannot be read", server["id"], f"{_named(server)}: {error}")
            continue
        if amounts == wanted:
            continue
        if not amounts:
            detail = f"{_named(server)} on {server['hypervisor_hostname']}"
            yield Finding("server without allocation", server["id"], detail)
        else:
            detail = f"{_named(server)} holds {_amounts(amounts)} and needs {_amounts(wanted)}"
            yield Finding("allocation differs from needs", server["id"], detail)


def _needs(server: Row) -> Counter[str]:
    asked = needs(orjson.loads(server["flavor"]), orjson.loads(server["image_properties"]))
    wanted = Counter({name: amount for name, amount in asked["resources"].items() if amount})
    for group in asked["groups"].values():
        wanted.update(group.resources)
    return wanted


# Placement by itself


async def _wrong_providers(db: Reader) -> list[Finding]:
    return [
        *(
            Finding("allocation without inventory", row["consumer_uuid"], f"{row['resource_class']} on {row['name']}")
            for row in await db.fetch(_WITHOUT_INVENTORY)
        ),
        *(_over_capacity(row) for row in await db.fetch(_OVER_CAPACITY)),
    ]


def _over_capacity(row: Row) -> Finding:
    """Whether too much was claimed or capacity was taken away afterwards, which is allowed, nothing kept tells."""
    what = f"{row['used']} {row['resource_class']} in use on {row['name']}, which has {int(row['capacity'])}"
    return Finding("provider over capacity", row["uuid"], f"{what}: {_made_of(row)}")


def _made_of(row: Row) -> str:
    """`(8 - 1) * 1.5`, the words that operators change."""
    return f"(total {row['total']} - reserved {row['reserved']}) * ratio {row['allocation_ratio']:g}"


_WITHOUT_INVENTORY = """
SELECT a.consumer_uuid, a.resource_class, COALESCE(p.name, 'an unknown provider') AS name
FROM allocations a
LEFT JOIN inventories i ON i.provider_id = a.provider_id AND i.resource_class = a.resource_class
LEFT JOIN resource_providers p ON p.id = a.provider_id
WHERE i.provider_id IS NULL ORDER BY a.consumer_uuid, a.resource_class
"""
_OVER_CAPACITY = """
SELECT p.uuid, p.name, u.resource_class, u.used, u.capacity, u.total, u.reserved, u.allocation_ratio FROM (
    SELECT i.provider_id, i.resource_class, (i.total - i.reserved) * i.allocation_ratio AS capacity,
           i.total, i.reserved, i.allocation_ratio, CAST(SUM(a.used) AS BIGINT) AS used
    FROM allocations a
    JOIN inventories i ON i.provider_id = a.provider_id AND i.resource_class = a.resource_class
    GROUP BY i.provider_id, i.resource_class, i.total, i.reserved, i.allocation_ratio
) u JOIN resource_providers p ON p.id = u.provider_id
WHERE u.used > u.capacity ORDER BY p.id, u.resource_class
"""


# Placement beside compute


async def _wrong_mirrors(db: Reader) -> list[Finding]:
    return [
        *(
            Finding("aggregate not mirrored", row["uuid"], f"{row['host']} is in it, its provider is not")
            for row in await db.fetch(_NOT_IN_PLACEMENT)
        ),
        *(
            Finding("aggregate not mirrored", row["uuid"], f"the provider of {row['host']} is in it, the host is not")
            for row in await db.fetch(_ONLY_IN_PLACEMENT)
        ),
        *(_wrong_trait(row) for row in await db.fetch(_DISABLED)),
    ]


def _wrong_trait(row: Row) -> Finding:
    state = "disabled, and its provider lacks" if row["disabled"] else "enabled, and its provider has"
    return Finding("disabled service not mirrored", row["uuid"], f"{row['host']} is {state} COMPUTE_STATUS_DISABLED")


_NOT_IN_PLACEMENT = """
SELECT a.uuid, h.host FROM aggregate_hosts ah
JOIN aggregates a ON a.id = ah.aggregate_id
JOIN hypervisors h ON h.host = ah.host
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_aggregates pa ON pa.provider_id = p.id AND pa.aggregate_uuid = a.uuid
WHERE pa.provider_id IS NULL ORDER BY a.uuid, h.host
"""
# What a host itself says it is part of is no mirror.
_ONLY_IN_PLACEMENT = """
SELECT a.uuid, h.host FROM provider_aggregates pa
JOIN aggregates a ON a.uuid = pa.aggregate_uuid
JOIN resource_providers p ON p.id = pa.provider_id
JOIN hypervisors h ON h.uuid = p.uuid
LEFT JOIN aggregate_hosts ah ON ah.aggregate_id = a.id AND ah.host = h.host
WHERE ah.host IS NULL AND NOT pa.reported ORDER BY a.uuid, h.host
"""
_DISABLED = """
SELECT h.host, p.uuid, s.disabled FROM hypervisors h
JOIN services s ON s.id = h.service_id
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_traits t ON t.provider_id = p.id AND t.trait = 'COMPUTE_STATUS_DISABLED'
WHERE s.disabled = (t.provider_id IS NULL) ORDER BY h.host
"""


# Server groups


async def _broken_policies(db: Reader) -> list[Finding]:
    groups: dict[str, list[Row]] = {}
    for row in await db.fetch(_MEMBERS):
        groups.setdefault(row["id"], []).append(row)
    return [finding for rows in groups.values() if (finding := _broken_policy(rows)) is not None]


def _broken_policy(rows: list[Row]) -> Finding | None:
    group = rows[0]
    spread = Counter({row["host"]: row["servers"] for row in rows})
    most = group["max_server_per_host"] or 1
    crowded = {host: number for host, number in spread.items() if number > most}
    if group["policy"] == "affinity" and len(spread) > 1:
        where = f"on {len(spread)} hosts: {_list(spread)}"
    elif group["policy"] == "anti-affinity" and crowded:
        where = ", ".join(f"{number} on {host}" for host, number in sorted(crowded.items()))
    else:
        return None
    return Finding("server group policy broken", group["id"], f"{group['policy']} of '{group['name']}': {where}")


_MEMBERS = """
SELECT g.id, g.name, g.policy, g.max_server_per_host, s.host, COUNT(*) AS servers
FROM server_groups g
JOIN server_group_members m ON m.group_id = g.id
JOIN servers s ON s.id = m.server_id
WHERE NOT s.deleted AND s.host IS NOT NULL
GROUP BY g.id, g.name, g.policy, g.max_server_per_host, s.host ORDER BY g.id, s.host
"""


# Ports and guests


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


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())) or "nothing"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
