"""The data that all checks of the doctor share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from kilonova import clock
from kilonova.compute.migrations.model import MIGRATION, RESIZE
from kilonova.compute.operations.deferred_cleanup import CleanUpGuest, CleanUpSlot, ParkGuest, RestoreDisk, RestoreGuest
from kilonova.doctor.remedies import REMEDIES
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import GuestState
from kilonova.hosts.registry import COMPUTE
from kilonova.store import Reader, Row

Guests = Iterable[tuple[str, GuestState]]


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the id of the server, consumer, provider, guest, port, operation or other object."""

    kind: str
    subject: str
    detail: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.kind]


class ConsumerAllocations(msgspec.Struct):
    """The allocations of a consumer. `nodes` are hypervisors, or names of other providers that do not share."""

    type: str | None
    amounts: Counter[str]
    nodes: set[str]
    providers: set[str]


class Volumes(msgspec.Struct):
    """The volume service's statuses of volumes, and its attachments, by id.

    Attachments have `id`, `volume_id`, `server_id`, `status`, and `host` if the service reports it. Operations of the
    `built_in` service are in our database.
    """

    statuses: dict[str, str]
    attachments: dict[str, Row]
    built_in: bool


class VolumesUnavailable(Exception):
    """The external volume service cannot be read."""


VolumeReader = Callable[[], Awaitable[Volumes]]


class Facts(msgspec.Struct):
    """`devices` are the volumes in block device mappings, by server. `cleanups` are deferred cleanup operations. `busy`
    are the ids of servers, operations and volumes with a running or just finished operation. `deleted` are deleted
    servers with attachments. The guests of `unreachable_hosts` are unknown.
    """

    servers: dict[str, Row]
    allocations: dict[str, ConsumerAllocations]
    unconfirmed_resizes: dict[str, Row]
    ports: dict[str, Row]
    standby: list[Row]
    devices: dict[str, list[Row]]
    volumes: Volumes | None
    deleted: set[str]
    guests: list[tuple[str, GuestState]] | None
    unreachable_hosts: set[str]
    cleanups: list[Row]
    up: set[str]
    busy: set[str]

    def idle_servers(self) -> Iterator[Row]:
        return (server for server in self.servers.values() if server["id"] not in self.busy)


async def gather(
    db: Reader,
    guests: Guests | None,
    read_volumes: VolumeReader | None,
    down_seconds: float,
    unreachable_hosts: Collection[str] = (),
    since: float | None = None,
) -> Facts:
    began = clock.now()
    servers = await db.fetch(_SERVERS)
    allocations = await _allocations(db)
    resizes = await db.fetch(_UNCONFIRMED_RESIZES)
    ports = await db.fetch(_PORTS)
    standby = await db.fetch(_STANDBY)
    devices: dict[str, list[Row]] = {}
    for row in await db.fetch(_DEVICES):
        devices.setdefault(row["server_id"], []).append(row)
    volumes = None if read_volumes is None else await read_volumes()
    attached = {one["server_id"] for one in volumes.attachments.values()} if volumes is not None else set()
    deleted = await db.fetch("SELECT id FROM servers WHERE deleted AND id = ANY($1)", list(attached - {None}))
    found = None if guests is None else list(guests)
    services = await db.fetch("SELECT * FROM services WHERE program = $1", COMPUTE)
    # Last, so that servers that changed during the other reads count as busy.
    recent = await db.fetch(_RECENT, (began if since is None else since) - 1.0)
    return Facts(
        servers={row["id"]: row for row in servers},
        allocations=allocations,
        unconfirmed_resizes={row["server_id"]: row for row in resizes},
        ports={row["id"]: row for row in ports},
        standby=standby,
        devices=devices,
        volumes=volumes,
        deleted={row["id"] for row in deleted},
        guests=found,
        unreachable_hosts=set(unreachable_hosts),
        cleanups=[_cleanup(row) for row in recent if row["kind"] in CLEANUP_KINDS],
        up={row["host"] for row in services if is_up(row, began, down_seconds)},
        busy={name for row in recent if row["kind"] not in CLEANUP_KINDS for name in _involved(row) if name},
    )


async def _allocations(db: Reader) -> dict[str, ConsumerAllocations]:
    found: dict[str, ConsumerAllocations] = {}
    for row in await db.fetch(_ALLOCATIONS):
        held = found.setdefault(row["uuid"], ConsumerAllocations(row["type"], Counter(), set(), set()))
        if row["used"] is not None:
            held.amounts[row["resource_class"]] += row["used"]
            held.providers.add(row["name"])
            held.nodes.update([] if row["shares"] else [row["node"] or row["name"]])
    return found


def _cleanup(row: Row) -> Row:
    error = orjson.loads(row["trouble"]) if row["trouble"] else {}
    return {**orjson.loads(row["params"]), **row, "trouble": error.get("message")}


def _involved(row: Row) -> tuple[str | None, ...]:
    return row["id"], row["server_id"], orjson.loads(row["params"]).get("volume_id")


CLEANUP_KINDS = (CleanUpGuest.kind, CleanUpSlot.kind, RestoreGuest.kind, ParkGuest.kind, RestoreDisk.kind)

_SERVERS = """
SELECT id, name, vm_state, power_state, host, hypervisor_hostname, nics, flavor, image_id, image_properties, vcpus, ram
FROM servers WHERE NOT deleted ORDER BY created_at, id
"""
# Includes consumers without allocations. Follows parents instead of `root_id`, because operators may put a provider of
# their own above hosts.
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
_UNCONFIRMED_RESIZES = f"""
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


# Texts


def label(server: Mapping[str, Any]) -> str:
    return f"server '{server['name']}'"


def format_amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())) or "nothing"


def join_sorted(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
