"""The data that all checks of the doctor share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.migrations.model import MIGRATION, RESIZE, MoveFlavor
from kilonova.compute.operations.deferred_cleanup import CleanUpGuest, CleanUpSlot, ParkGuest, RestoreDisk, RestoreGuest
from kilonova.compute.operations.steps.images import snapshot_id
from kilonova.compute.servers.server import EmbeddedFlavor, Interface
from kilonova.doctor.remedies import REMEDIES
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import GuestState
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.service import Service
from kilonova.operations.row import decode_error
from kilonova.store import Reader, Row
from kilonova.store.records import Record

Guests = Iterable[tuple[str, GuestState]]


class Finding(msgspec.Struct, frozen=True):
    """`subject` is the id of the server, consumer, provider, guest, port, operation or other object."""

    kind: str
    subject: str
    detail: str

    @property
    def remedy(self) -> str:
        return REMEDIES[self.kind]


class CheckedServer(Record, frozen=True):
    table: ClassVar[str] = "servers"

    id: str
    name: str
    vm_state: str
    power_state: int
    host: str | None
    hypervisor_hostname: str | None
    nics: list[Interface]
    flavor: EmbeddedFlavor
    image_id: str | None
    image_properties: dict[str, str]
    vcpus: int
    ram: int

    @property
    def label(self) -> str:
        return f"server '{self.name}'"


class UnconfirmedResize(Record, frozen=True):
    table: ClassVar[str] = "moves"

    server_id: str
    operation_id: str
    source_host: str
    source_node: str
    old_flavor: MoveFlavor


class CheckedPort(msgspec.Struct, frozen=True):
    """A port whose owner is compute."""

    id: str
    device_id: str
    host_id: str


class StandbyBinding(msgspec.Struct, frozen=True):
    """`device_id` is the server of the port."""

    port_id: str
    host: str
    device_id: str


class Ports(msgspec.Struct):
    """The ports of servers. In an external service, they may be those of another compute service.

    The second bindings of an external service are unknown: it does not list them.
    """

    ports: dict[str, CheckedPort]
    standby: list[StandbyBinding]
    built_in: bool


class UnfilledImage(msgspec.Struct, frozen=True):
    """An image that waits for its data: it is `queued` or `saving`."""

    id: str
    status: str


class Cleanup(msgspec.Struct, frozen=True, kw_only=True):
    """A deferred cleanup operation. `trouble` is why its last attempt failed."""

    id: str
    kind: str
    host: str
    guest_id: str
    slot: str | None
    volume_id: str | None
    trouble: str | None
    created_at: float
    finished_at: float | None


class ConsumerAllocations(msgspec.Struct):
    """The allocations of a consumer. `nodes` are hypervisors, or names of other providers that do not share."""

    type: str | None
    amounts: Counter[str]
    nodes: set[str]
    providers: set[str]


class VolumeAttachment(msgspec.Struct, frozen=True):
    """An attachment of the volume service. Not every service reports its host."""

    id: str
    volume_id: str
    server_id: str | None
    status: str
    host: str | None


class Volumes(msgspec.Struct):
    """The volume service's statuses of volumes, and its attachments, by id.

    Operations of the `built_in` service are in our database.
    """

    statuses: dict[str, str]
    attachments: dict[str, VolumeAttachment]
    built_in: bool


class Unavailable(Exception):
    """An external service cannot be read."""


# They return None if their part is not to be checked.
VolumeReader = Callable[[], Awaitable[Volumes | None]]
PortReader = Callable[[], Awaitable[Ports | None]]
ImageReader = Callable[[], Awaitable[list[UnfilledImage] | None]]


class Facts(msgspec.Struct):
    """`ports` are those of our servers, deleted ones too, and None if they are unknown. `unfilled` are snapshots
    without data, with the operations that create them. `devices` are the volumes in block device mappings, by server.
    `cleanups` are deferred cleanup operations. `busy`
    are the ids of servers, operations and volumes with a running or just finished operation. `deleted` are deleted
    servers with attachments. The guests of `unreachable_hosts` are unknown.
    """

    servers: dict[str, CheckedServer]
    allocations: dict[str, ConsumerAllocations]
    unconfirmed_resizes: dict[str, UnconfirmedResize]
    ports: dict[str, CheckedPort] | None
    standby: list[StandbyBinding]
    unfilled: list[tuple[UnfilledImage, str]]
    devices: dict[str, list[BlockDevice]]
    volumes: Volumes | None
    deleted: set[str]
    guests: list[tuple[str, GuestState]] | None
    unreachable_hosts: set[str]
    cleanups: list[Cleanup]
    up: set[str]
    busy: set[str]

    def idle_servers(self) -> Iterator[CheckedServer]:
        return (server for server in self.servers.values() if server.id not in self.busy)


async def gather(
    db: Reader,
    guests: Guests | None,
    read_volumes: VolumeReader | None,
    read_ports: PortReader,
    read_images: ImageReader,
    down_seconds: float,
    unreachable_hosts: Collection[str] = (),
    since: float | None = None,
) -> Facts:
    began = clock.now()
    servers = CheckedServer.decode_all(await db.fetch(_SERVERS))
    allocations = await _allocations(db)
    resizes = UnconfirmedResize.decode_all(await db.fetch(_UNCONFIRMED_RESIZES))
    ports = await read_ports()
    unfilled = await _snapshots(db, await read_images() or [])
    devices: dict[str, list[BlockDevice]] = {}
    for device in BlockDevice.decode_all(await db.fetch(_DEVICES)):
        devices.setdefault(device.server_id, []).append(device)
    volumes = None if read_volumes is None else await read_volumes()
    attached = {one.server_id for one in volumes.attachments.values()} if volumes is not None else set()
    deleted = await db.fetch("SELECT id FROM servers WHERE deleted AND id = ANY($1)", list(attached - {None}))
    found = None if guests is None else list(guests)
    services = Service.decode_all(await db.fetch("SELECT * FROM services WHERE program = $1", COMPUTE))
    # Last, so that servers that changed during the other reads count as busy.
    recent = await db.fetch(_RECENT, (began if since is None else since) - 1.0)
    return Facts(
        servers={server.id: server for server in servers},
        allocations=allocations,
        unconfirmed_resizes={resize.server_id: resize for resize in resizes},
        ports=None if ports is None else await _own_ports(db, ports, servers),
        standby=[] if ports is None else ports.standby,
        unfilled=unfilled,
        devices=devices,
        volumes=volumes,
        deleted={row["id"] for row in deleted},
        guests=found,
        unreachable_hosts=set(unreachable_hosts),
        cleanups=[_cleanup(row) for row in recent if row["kind"] in CLEANUP_KINDS],
        up={service.host for service in services if is_up(service, began, down_seconds)},
        busy={name for row in recent if row["kind"] not in CLEANUP_KINDS for name in _involved(row) if name},
    )


async def _own_ports(db: Reader, found: Ports, servers: Iterable[CheckedServer]) -> dict[str, CheckedPort]:
    """The ports without those that belong to other users of an external service."""
    if found.built_in:
        return found.ports
    named = {nic.port_id for server in servers for nic in server.nics}
    devices = {port.device_id for port in found.ports.values()}
    known = {row["id"] for row in await db.fetch("SELECT id FROM servers WHERE id = ANY($1)", sorted(devices))}
    return {port.id: port for port in found.ports.values() if port.device_id in known or port.id in named}


async def _snapshots(db: Reader, images: list[UnfilledImage]) -> list[tuple[UnfilledImage, str]]:
    """Those of the images that operations of ours create, with the ids of the operations."""
    if not images:
        return []
    rows = await db.fetch("SELECT id FROM operations WHERE kind = ANY($1)", list(_SNAPSHOT_KINDS))
    operations = {snapshot_id(row["id"]): row["id"] for row in rows}
    return [(image, operations[image.id]) for image in images if image.id in operations]


async def _allocations(db: Reader) -> dict[str, ConsumerAllocations]:
    found: dict[str, ConsumerAllocations] = {}
    for row in await db.fetch(_ALLOCATIONS):
        held = found.setdefault(row["uuid"], ConsumerAllocations(row["type"], Counter(), set(), set()))
        if row["used"] is not None:
            held.amounts[row["resource_class"]] += row["used"]
            held.providers.add(row["name"])
            held.nodes.update([] if row["shares"] else [row["node"] or row["name"]])
    return found


class _Params(msgspec.Struct):
    """Parameters of operations that the checks read. The first two are those of cleanups."""

    guest_id: str = ""
    host: str | None = None
    slot: str | None = None
    volume_id: str | None = None


_decode_params = msgspec.json.Decoder(_Params).decode


def _cleanup(row: Row) -> Cleanup:
    params = _decode_params(row["params"])
    return Cleanup(
        id=row["id"],
        kind=row["kind"],
        host=params.host or "",
        guest_id=params.guest_id,
        slot=params.slot,
        volume_id=params.volume_id,
        trouble=decode_error(row["trouble"]).message if row["trouble"] else None,
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


def _involved(row: Row) -> tuple[str | None, ...]:
    return row["id"], row["server_id"], _decode_params(row["params"]).volume_id


_SNAPSHOT_KINDS = (kinds.CREATE_IMAGE, kinds.CREATE_VOLUME_IMAGE, kinds.CREATE_BACKUP, kinds.SHELVE)
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
_DEVICES = "SELECT * FROM block_devices WHERE volume_id IS NOT NULL ORDER BY id"
_RECENT = """
SELECT id, kind, server_id, params, trouble, created_at, finished_at FROM operations
WHERE finished_at IS NULL OR finished_at >= $1
"""


# Texts


def format_amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())) or "nothing"


def join_sorted(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
