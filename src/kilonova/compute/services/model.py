"""Services in the database. Changes of compute services are also passed on to placement and the schedulers."""

from __future__ import annotations

from typing import TypedDict, Unpack

from msgspec import structs

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.aggregates import model as aggregates
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.service import Service
from kilonova.placement import mark_hosts_changed, mirror
from kilonova.store import Reader, Transaction


class Changes(TypedDict, total=False):
    disabled: bool
    disabled_reason: str | None
    forced_down: bool


async def lock(tx: Transaction, column: str, value: int | str) -> Service | None:
    """The service by its `id` or `uuid`."""
    return Service.decode_optional(await tx.fetch_one(f"SELECT * FROM services WHERE {column} = $1 FOR UPDATE", value))


async def lock_by_name(tx: Transaction, host: str, binary: str) -> Service | None:
    sql = "SELECT * FROM services WHERE host = $1 AND program = $2 FOR UPDATE"
    return Service.decode_optional(await tx.fetch_one(sql, host, binary))


async def change(tx: Transaction, service: Service, **values: Unpack[Changes]) -> Service:
    changed = structs.replace(service, **values)
    await tx.execute(
        "UPDATE services SET disabled = $2, disabled_reason = $3, forced_down = $4, updated_at = $5 WHERE id = $1",
        changed.id,
        changed.disabled,
        changed.disabled_reason,
        changed.forced_down,
        clock.now(),
    )
    if changed.program == COMPUTE:
        if changed.disabled != service.disabled:
            await mirror.set_service_disabled(tx, changed.host, changed.disabled)
        await mark_hosts_changed(tx, [changed.host])
    return changed


async def zone(reader: Reader, service: Service, default_zone: str) -> str:
    if service.program != COMPUTE:
        return zones.INTERNAL
    return (await zones.zone_of_hosts(reader, [service.host], default_zone))[service.host]


async def count_stale_guests(reader: Reader, host: str) -> int:
    """The number of guests that must still be removed from the host because their servers were moved away."""
    found: int = await reader.fetch_value(_STALE_GUESTS, host)
    return found


_STALE_GUESTS = f"""
SELECT COUNT(*) FROM operations WHERE kind = '{kinds.CLEAN_UP_GUEST}' AND host = $1 AND finished_at IS NULL
"""


async def has_servers(reader: Reader, service: Service) -> bool:
    sql = "SELECT id FROM servers WHERE host = $1 AND NOT deleted LIMIT 1"
    return service.program == COMPUTE and await reader.fetch_value(sql, service.host) is not None


async def delete(tx: Transaction, service: Service) -> None:
    """Delete the service with its hypervisors, their resource providers and their memberships in aggregates.

    Raises `mirror.HostInUse` if a provider still has allocations. A running agent registers itself again.
    """
    if service.program == COMPUTE:
        await mirror.lock_host_for_delete(tx, service.host)
        for aggregate in await aggregates.of_host(tx, service.host):
            await aggregates.remove_hosts(tx, aggregate, [service.host])
        await mirror.delete_host(tx, service.host)
        await tx.execute("DELETE FROM hypervisors WHERE service_id = $1", service.id)
    await tx.execute("DELETE FROM services WHERE id = $1", service.id)
