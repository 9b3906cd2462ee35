"""Mirrors compute's host aggregates, allocation ratios and service state into placement.

Each function runs in the transaction of the change that it mirrors, and marks the hosts as changed for schedulers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

from kilonova.placement import names, providers
from kilonova.placement.changes import delete_providers, lock_root_providers, mark_facts_changed, mark_hosts_changed
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.store import Row, Transaction

log = logging.getLogger(__name__)

DISABLED_TRAIT = "COMPUTE_STATUS_DISABLED"
RATIO_CLASSES = {
    "cpu_allocation_ratio": "VCPU",
    "ram_allocation_ratio": "MEMORY_MB",
    "disk_allocation_ratio": "DISK_GB",
}


class HostInUse(Exception):
    """The host's providers cannot be deleted, because consumers have allocations on them."""

    def __init__(self, host: str, consumers: int) -> None:
        super().__init__(f"host {host} still holds allocations of {consumers} consumers")
        self.host = host
        self.consumers = consumers


async def add_to_aggregate(tx: Transaction, aggregate_uuid: str, hosts: Sequence[str]) -> None:
    """Add the root providers of the hosts to the aggregate."""
    roots = await lock_root_providers(tx, hosts)
    rows = await tx.fetch(_IN_AGGREGATE, aggregate_uuid, roots)
    joining = sorted(set(roots) - {row["provider_id"] for row in rows})
    if joining:
        await tx.execute_many(_JOIN, [(root, aggregate_uuid) for root in joining])
        await mark_facts_changed(tx, joining)
    await mark_hosts_changed(tx, hosts)


async def remove_from_aggregate(tx: Transaction, aggregate_uuid: str, hosts: Sequence[str]) -> None:
    """Remove the root providers of the hosts from the aggregate. Memberships that hosts report stay."""
    roots = await lock_root_providers(tx, hosts)
    rows = await tx.fetch(f"{_IN_AGGREGATE} AND NOT reported", aggregate_uuid, roots)
    leaving = [row["provider_id"] for row in rows]
    if leaving:
        await tx.execute(_LEAVE, aggregate_uuid, leaving)
        await mark_facts_changed(tx, leaving)
    await mark_hosts_changed(tx, hosts)


async def set_service_disabled(tx: Transaction, host: str, disabled: bool) -> None:
    """Add the trait `COMPUTE_STATUS_DISABLED` to the host's root providers, or remove it."""
    await _set_disabled_trait(tx, [host], disabled)
    await mark_hosts_changed(tx, [host])


async def update_allocation_ratios(tx: Transaction, hosts: Sequence[str]) -> None:
    """Apply the allocation ratios in the metadata of the hosts' aggregates.

    The smallest ratio among a host's aggregates applies to the host's whole tree. When the last aggregate with a ratio
    is gone, the ratio that the host reports applies again. Without any aggregate ratio, before and now, an operator's
    ratio stays.
    """
    await _apply_ratios(tx, hosts, await _aggregate_ratios(tx, hosts))
    await mark_hosts_changed(tx, hosts)


async def lock_host_for_delete(tx: Transaction, host: str) -> None:
    """Lock the host's providers and the sharing providers of its aggregates.

    A transaction that locks more than `delete_host` does must call this first, because claims lock all providers in the
    order of ids.
    """
    await tx.lock(providers.TREE_LOCK)
    await tx.fetch(_LOCK_HOST_AND_SHARING, [host], SHARING_TRAIT)


async def delete_host(tx: Transaction, host: str) -> None:
    """Delete the host's providers, and sharing providers that no other host uses.

    Call it before the rows of its hypervisors are deleted. Raises HostInUse.
    """
    await lock_host_for_delete(tx, host)
    ids = [row["id"] for row in await tx.fetch(f"{_TREES} SELECT id FROM tree", [host])]
    consumers = await tx.fetch_value(
        "SELECT COUNT(DISTINCT consumer_uuid) FROM allocations WHERE provider_id = ANY($1)", ids
    )
    if consumers:
        raise HostInUse(host, consumers)
    rows = await tx.fetch(
        "SELECT DISTINCT aggregate_uuid FROM provider_aggregates WHERE reported AND provider_id = ANY($1)", ids
    )
    await delete_providers(tx, ids)
    await providers.delete_unshared_providers(tx, [row["aggregate_uuid"] for row in rows])


async def mirror_registered_hosts(tx: Transaction, hosts: Sequence[str]) -> None:
    """Mirror what compute knows of the hosts onto the providers that they have just reported."""
    missing: dict[str, list[str]] = {}
    for row in await tx.fetch(_NOT_MIRRORED, list(hosts)):
        missing.setdefault(row["aggregate_uuid"], []).append(row["host"])
    disabled = [row["host"] for row in await tx.fetch(_DISABLED_WITHOUT_TRAIT, list(hosts), DISABLED_TRAIT)]
    ratios = await _aggregate_ratios(tx, hosts)
    affected = {host for members in missing.values() for host in members}.union(disabled, (host for host, _ in ratios))
    if not affected:
        return
    # One statement locks all trees in the order of ids; the calls below lock host by host.
    await _lock_host_trees(tx, sorted(affected))
    for aggregate_uuid, members in missing.items():
        await add_to_aggregate(tx, aggregate_uuid, members)
    if disabled:
        await _set_disabled_trait(tx, disabled, True)
    if ratios:
        await _apply_ratios(tx, sorted({host for host, _ in ratios}), ratios)


async def _set_disabled_trait(tx: Transaction, hosts: Sequence[str], disabled: bool) -> None:
    roots = await lock_root_providers(tx, hosts)
    rows = await tx.fetch(
        "SELECT provider_id FROM provider_traits WHERE trait = $1 AND provider_id = ANY($2)", DISABLED_TRAIT, roots
    )
    having_trait = {row["provider_id"] for row in rows}
    changing = sorted(set(roots) - having_trait if disabled else having_trait)
    if not changing:
        return
    if disabled:
        await names.ensure_rows(tx, "traits", [DISABLED_TRAIT])
        await tx.execute_many(
            "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)",
            [(root, DISABLED_TRAIT) for root in changing],
        )
    else:
        await tx.execute(
            "DELETE FROM provider_traits WHERE trait = $1 AND provider_id = ANY($2)", DISABLED_TRAIT, changing
        )
    await mark_facts_changed(tx, changing)


async def _apply_ratios(tx: Transaction, hosts: Sequence[str], ratios: Mapping[tuple[str, str], float]) -> None:
    rows = await tx.fetch(_HOST_RATIOS, list(hosts), list(RATIO_CLASSES.values()))
    if all(ratios.get((row["host"], row["resource_class"])) == row["aggregate_ratio"] for row in rows):
        return
    await _lock_host_trees(tx, hosts)
    changes = []
    for row in await tx.fetch(_HOST_RATIOS, list(hosts), list(RATIO_CLASSES.values())):
        ratio = ratios.get((row["host"], row["resource_class"]))
        if ratio != row["aggregate_ratio"]:
            effective = row["own_ratio"] if ratio is None else ratio
            changes.append((row["provider_id"], row["resource_class"], effective, ratio))
    if changes:
        await tx.execute_many(_SET_RATIO, changes)
        await mark_facts_changed(tx, sorted({change[0] for change in changes}))


async def _aggregate_ratios(tx: Transaction, hosts: Sequence[str]) -> dict[tuple[str, str], float]:
    """The smallest ratio among the aggregates, by host and class."""
    found: dict[tuple[str, str], float] = {}
    for row in await tx.fetch(_AGGREGATE_RATIOS, list(RATIO_CLASSES), list(hosts)):
        ratio = _ratio(row)
        if ratio is not None:
            key = row["host"], RATIO_CLASSES[row["key"]]
            found[key] = min(ratio, found.get(key, ratio))
    return found


def _ratio(row: Row) -> float | None:
    try:
        ratio = float(row["value"])
    except ValueError:
        ratio = math.nan
    if 0 < ratio < math.inf:
        return ratio
    log.warning("aggregate %s: %s must be a positive number, not %.40r", row["name"], row["key"], row["value"])
    return None


async def _lock_host_trees(tx: Transaction, hosts: Iterable[str]) -> None:
    # One statement in the order of ids, as in claims.
    await tx.fetch(_LOCK_TREES, list(hosts))


# Follows parents instead of `root_id`, because an operator may have put hosts below another provider.
_TREES = """
WITH RECURSIVE tree (id, host) AS (
    SELECT p.id, h.host FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = ANY($1)
    UNION ALL
    SELECT c.id, tree.host FROM resource_providers c JOIN tree ON c.parent_id = tree.id)
"""
_LOCK_TREES = f"SELECT id FROM resource_providers WHERE id IN ({_TREES} SELECT id FROM tree) ORDER BY id FOR UPDATE"
_LOCK_HOST_AND_SHARING = f"""
{_TREES}
SELECT id FROM resource_providers
WHERE id IN (SELECT id FROM tree)
   OR id IN (SELECT t.provider_id FROM provider_traits t
        JOIN provider_aggregates theirs ON theirs.provider_id = t.provider_id
        JOIN provider_aggregates own ON own.aggregate_uuid = theirs.aggregate_uuid AND own.reported
        WHERE t.trait = $2 AND own.provider_id IN (SELECT id FROM tree))
ORDER BY id FOR UPDATE
"""
_IN_AGGREGATE = "SELECT provider_id FROM provider_aggregates WHERE aggregate_uuid = $1 AND provider_id = ANY($2)"
_JOIN = "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)"
_LEAVE = "DELETE FROM provider_aggregates WHERE aggregate_uuid = $1 AND provider_id = ANY($2)"
_AGGREGATE_RATIOS = """
SELECT ah.host, a.name, m.key, m.value
FROM aggregate_metadata m
JOIN aggregates a ON a.id = m.aggregate_id
JOIN aggregate_hosts ah ON ah.aggregate_id = m.aggregate_id
WHERE m.key = ANY($1) AND ah.host = ANY($2)
"""
# An inventory without `own_ratio` was made by an operator, who also decides its ratio.
_HOST_RATIOS = f"""
{_TREES}
SELECT tree.host, i.provider_id, i.resource_class, i.own_ratio, i.aggregate_ratio
FROM tree JOIN inventories i ON i.provider_id = tree.id
WHERE i.resource_class = ANY($2) AND i.own_ratio IS NOT NULL
"""
_SET_RATIO = """
UPDATE inventories SET allocation_ratio = $3, aggregate_ratio = $4 WHERE provider_id = $1 AND resource_class = $2
"""
_NOT_MIRRORED = """
SELECT a.uuid AS aggregate_uuid, h.host
FROM aggregate_hosts ah
JOIN aggregates a ON a.id = ah.aggregate_id
JOIN hypervisors h ON h.host = ah.host
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_aggregates pa ON pa.provider_id = p.id AND pa.aggregate_uuid = a.uuid
WHERE ah.host = ANY($1) AND pa.provider_id IS NULL
"""
_DISABLED_WITHOUT_TRAIT = """
SELECT h.host
FROM services s
JOIN hypervisors h ON h.service_id = s.id
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_traits t ON t.provider_id = p.id AND t.trait = $2
WHERE s.disabled AND s.host = ANY($1) AND t.provider_id IS NULL
"""
