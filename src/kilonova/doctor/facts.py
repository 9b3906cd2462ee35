"""What the doctor reads once and compares in many ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from kilonova import clock
from kilonova.compute.migrations.model import MIGRATION, RESIZE
from kilonova.compute.operations.left_disks import RestoreDisk
from kilonova.compute.operations.leftovers import ClearGuest, ClearSlot, ParkGuest, RestoreGuest
from kilonova.doctor.remedies import REMEDIES
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import GuestState
from kilonova.hosts.registry import COMPUTE
from kilonova.store import Reader, Row

Guests = Iterable[tuple[str, GuestState]]


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the id to look for: of a server, a consumer, a provider, a guest, a port, an operation…"""

    kind: str
    subject: str
    detail: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.kind]


class Held(msgspec.Struct):
    """What a consumer holds, and on which hypervisors: of what is shared on none, else of what is on none its name."""

    type: str | None
    amounts: Counter[str]
    places: set[str]
    providers: set[str]


class Volumes(msgspec.Struct):
    """What the volume service says, by id: the statuses of volumes; and of attachments `id`, `volume_id`, `server_id`,
    `status`, and `host` as far as it tells. Operations of a `built_in` one are ours.
    """

    statuses: dict[str, str]
    attachments: dict[str, Row]
    built_in: bool


class Unasked(Exception):
    """The volume service is elsewhere and cannot be asked."""


Look = Callable[[], Awaitable[Volumes]]


class Facts(msgspec.Struct):
    """`waiting` has by server the resize that is neither confirmed nor reverted, and `devices` those that are volumes;
    `leftovers` is what is to be done on hosts of operations that have ended; `busy` is every server, operation and
    volume that something happens to; `deleted` are servers that are no more and have attachments; of hosts that are
    `unasked` nobody knows which guests they have.
    """

    servers: dict[str, Row]
    allocations: dict[str, Held]
    waiting: dict[str, Row]
    ports: dict[str, Row]
    standby: list[Row]
    devices: dict[str, list[Row]]
    volumes: Volumes | None
    deleted: set[str]
    guests: list[tuple[str, GuestState]] | None
    unasked: set[str]
    leftovers: list[Row]
    up: set[str]
    busy: set[str]

    def idle(self) -> Iterator[Row]:
        return (server for server in self.servers.values() if server["id"] not in self.busy)


async def gather(
    db: Reader,
    guests: Guests | None,
    look: Look | None,
    down_seconds: float,
    unasked: Collection[str] = (),
    since: float | None = None,
) -> Facts:
    began = clock.now()
    servers = await db.fetch(_SERVERS)
    allocations = await _allocations(db)
    waiting = await db.fetch(_WAITING)
    ports = await db.fetch(_PORTS)
    standby = await db.fetch(_STANDBY)
    devices: dict[str, list[Row]] = {}
    for row in await db.fetch(_DEVICES):
        devices.setdefault(row["server_id"], []).append(row)
    volumes = None if look is None else await look()
    attached = {one["server_id"] for one in volumes.attachments.values()} if volumes is not None else set()
    deleted = await db.fetch("SELECT id FROM servers WHERE deleted AND id = ANY($1)", list(attached - {None}))
    found = None if guests is None else list(guests)
    services = await db.fetch("SELECT * FROM services WHERE program = $1", COMPUTE)
    # Last, so that whatever moved while the rest was read counts as busy.
    recent = await db.fetch(_RECENT, (began if since is None else since) - 1.0)
    return Facts(
        servers={row["id"]: row for row in servers},
        allocations=allocations,
        waiting={row["server_id"]: row for row in waiting},
        ports={row["id"]: row for row in ports},
        standby=standby,
        devices=devices,
        volumes=volumes,
        deleted={row["id"] for row in deleted},
        guests=found,
        unasked=set(unasked),
        leftovers=[_leftover(row) for row in recent if row["kind"] in LEFTOVERS],
        up={row["host"] for row in services if is_up(row, began, down_seconds)},
        busy={name for row in recent if row["kind"] not in LEFTOVERS for name in _concerned(row) if name},
    )


async def _allocations(db: Reader) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for row in await db.fetch(_ALLOCATIONS):
        held = found.setdefault(row["uuid"], Held(row["type"], Counter(), set(), set()))
        if row["used"] is not None:
            held.amounts[row["resource_class"]] += row["used"]
            held.providers.add(row["name"])
            held.places.update([] if row["shares"] else [row["node"] or row["name"]])
    return found


def _leftover(row: Row) -> Row:
    trouble = orjson.loads(row["trouble"]) if row["trouble"] else {}
    return {**orjson.loads(row["params"]), **row, "trouble": trouble.get("message")}


def _concerned(row: Row) -> tuple[str | None, ...]:
    return row["id"], row["server_id"], orjson.loads(row["params"]).get("volume_id")


LEFTOVERS = (ClearGuest.kind, ClearSlot.kind, RestoreGuest.kind, ParkGuest.kind, RestoreDisk.kind)

_SERVERS = """
SELECT id, name, vm_state, power_state, host, hypervisor_hostname, nics, flavor, image_id, image_properties, vcpus, ram
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
_WAITING = f"""
SELECT m.server_id, m.operation_id, m.source_host, m.source_node, m.old_flavor
FROM moves m JOIN operations o ON o.id = m.operation_id JOIN servers s ON s.id = m.server_id
WHERE m.type IN ('{MIGRATION}', '{RESIZE}') AND m.outcome IS NULL AND o.state = 'done' AND NOT s.deleted
ORDER BY m.id
"""
_PORTS = "SELECT id, device_id, host_id FROM ports WHERE device_owner LIKE 'compute:%' ORDER BY id"
_STANDBY = """
SELECT b.port_id, b.host, p.device_id FROM standby_bindings b JOIN ports p ON p.id = b.port_id
WHERE p.device_owner LIKE 'compute:%' ORDER BY b.port_id, b.host
"""
_DEVICES = """
SELECT server_id, volume_id, attachment_id, connection, multiattach FROM block_devices
WHERE volume_id IS NOT NULL ORDER BY id
"""
_RECENT = """
SELECT id, kind, server_id, params, trouble, created_at, finished_at FROM operations
WHERE finished_at IS NULL OR finished_at >= $1
"""


# Words


def named(server: Mapping[str, Any]) -> str:
    return f"server '{server['name']}'"


def amounts_in_words(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())) or "nothing"


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
