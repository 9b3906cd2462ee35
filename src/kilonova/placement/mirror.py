"""What compute says about hosts, written down in placement: aggregates, ratios, who is disabled, who is gone.

Each function is called in the transaction of the change that it mirrors, and tells the schedulers of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

from kilonova.placement import names, providers
from kilonova.placement.changes import delete_providers, facts_changed, hosts_changed, lock_hosts
from kilonova.placement.facts import SHARES
from kilonova.store import Row, Transaction

log = logging.getLogger(__name__)

DISABLED = "COMPUTE_STATUS_DISABLED"
RATIOS = {"cpu_allocation_ratio": "VCPU", "ram_allocation_ratio": "MEMORY_MB", "disk_allocation_ratio": "DISK_GB"}


class InUse(Exception):
    """The host's providers cannot go, because consumers still hold something on them."""

    def __init__(self, host: str, consumers: int) -> None:
        super().__init__(f"host {host} still holds allocations of {consumers} consumers")
        self.host = host
        self.consumers = consumers


async def aggregate_joined(tx: Transaction, aggregate_uuid: str, hosts: Sequence[str]) -> None:
    """The hosts are now in this host aggregate: so are their root providers."""
    roots = await lock_hosts(tx, hosts)
    rows = await tx.fetch(_IN_AGGREGATE, aggregate_uuid, roots)
    joining = sorted(set(roots) - {row["provider_id"] for row in rows})
    if joining:
        await tx.execute_many(_JOIN, [(root, aggregate_uuid) for root in joining])
        await facts_changed(tx, joining)
    await hosts_changed(tx, hosts)


async def aggregate_left(tx: Transaction, aggregate_uuid: str, hosts: Sequence[str]) -> None:
    """The hosts are no longer in this host aggregate. What they report of themselves stays."""
    roots = await lock_hosts(tx, hosts)
    rows = await tx.fetch(f"{_IN_AGGREGATE} AND NOT reported", aggregate_uuid, roots)
    leaving = [row["provider_id"] for row in rows]
    if leaving:
        await tx.execute(_LEAVE, aggregate_uuid, leaving)
        await facts_changed(tx, leaving)
    await hosts_changed(tx, hosts)


async def service_disabled(tx: Transaction, host: str, disabled: bool) -> None:
    """The host's compute service was disabled or enabled: its root providers have the trait, or have it not."""
    await _mark_disabled(tx, [host], disabled)
    await hosts_changed(tx, [host])


async def ratios_changed(tx: Transaction, hosts: Sequence[str]) -> None:
    """The hosts' aggregates, or the ratios in those aggregates' metadata, may have changed.

    The smallest ratio that an aggregate of a host names replaces what stood before in the whole tree of that host. When
    none does any more, the host's own wish returns. Where aggregates said nothing and say nothing, nothing changes:
    an operator's ratio stays.
    """
    await _impose(tx, hosts, await _imposed(tx, hosts))
    await hosts_changed(tx, hosts)


async def lock_departing(tx: Transaction, host: str) -> None:
    """Lock all that a host takes along: its providers, and what it shares with others.

    Whoever does more than `host_deleted` in the same transaction calls this first, because claims lock in the order
    of ids, pools and hosts together.
    """
    await tx.hold(providers.TREES)
    await tx.fetch(_LOCK_DEPARTING, [host], SHARES)


async def host_deleted(tx: Transaction, host: str) -> None:
    """The host's compute service goes: so do its providers, and what it alone shared.

    Call it before the rows of its hypervisors go. Raises InUse.
    """
    await lock_departing(tx, host)
    ids = [row["id"] for row in await tx.fetch(f"{_TREES} SELECT id FROM tree", [host])]
    consumers = await tx.fetch_value(
        "SELECT COUNT(DISTINCT consumer_uuid) FROM allocations WHERE provider_id = ANY($1)", ids
    )
    if consumers:
        raise InUse(host, consumers)
    rows = await tx.fetch(
        "SELECT DISTINCT aggregate_uuid FROM provider_aggregates WHERE reported AND provider_id = ANY($1)", ids
    )
    await delete_providers(tx, ids)
    await providers.drop_unshared(tx, [row["aggregate_uuid"] for row in rows])


async def hosts_registered(tx: Transaction, hosts: Sequence[str]) -> None:
    """Hosts have (again) described themselves: what compute said of them earlier holds for new providers too."""
    missing: dict[str, list[str]] = {}
    for row in await tx.fetch(_NOT_MIRRORED, list(hosts)):
        missing.setdefault(row["aggregate_uuid"], []).append(row["host"])
    disabled = [row["host"] for row in await tx.fetch(_DISABLED_WITHOUT_TRAIT, list(hosts), DISABLED)]
    imposed = await _imposed(tx, hosts)
    concerned = {host for members in missing.values() for host in members}.union(
        disabled, (host for host, _ in imposed)
    )
    if not concerned:
        return
    # All at once: what follows locks some of them one after the other.
    await _locked_trees(tx, sorted(concerned))
    for aggregate_uuid, members in missing.items():
        await aggregate_joined(tx, aggregate_uuid, members)
    if disabled:
        await _mark_disabled(tx, disabled, True)
    if imposed:
        await _impose(tx, sorted({host for host, _ in imposed}), imposed)


async def _mark_disabled(tx: Transaction, hosts: Sequence[str], disabled: bool) -> None:
    roots = await lock_hosts(tx, hosts)
    rows = await tx.fetch(
        "SELECT provider_id FROM provider_traits WHERE trait = $1 AND provider_id = ANY($2)", DISABLED, roots
    )
    marked = {row["provider_id"] for row in rows}
    changing = sorted(set(roots) - marked if disabled else marked)
    if not changing:
        return
    if disabled:
        await names.ensure(tx, "traits", [DISABLED])
        await tx.execute_many(
            "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)", [(root, DISABLED) for root in changing]
        )
    else:
        await tx.execute("DELETE FROM provider_traits WHERE trait = $1 AND provider_id = ANY($2)", DISABLED, changing)
    await facts_changed(tx, changing)


async def _impose(tx: Transaction, hosts: Sequence[str], imposed: Mapping[tuple[str, str], float]) -> None:
    rows = await tx.fetch(_HOST_RATIOS, list(hosts), list(RATIOS.values()))
    if all(imposed.get((row["host"], row["resource_class"])) == row["aggregate_ratio"] for row in rows):
        return
    await _locked_trees(tx, hosts)
    changes = []
    for row in await tx.fetch(_HOST_RATIOS, list(hosts), list(RATIOS.values())):
        ratio = imposed.get((row["host"], row["resource_class"]))
        if ratio != row["aggregate_ratio"]:
            effective = row["own_ratio"] if ratio is None else ratio
            changes.append((row["provider_id"], row["resource_class"], effective, ratio))
    if changes:
        await tx.execute_many(_IMPOSE, changes)
        await facts_changed(tx, sorted({change[0] for change in changes}))


async def _imposed(tx: Transaction, hosts: Sequence[str]) -> dict[tuple[str, str], float]:
    """The smallest ratio that aggregates name, by host and class."""
    found: dict[tuple[str, str], float] = {}
    for row in await tx.fetch(_AGGREGATE_RATIOS, list(RATIOS), list(hosts)):
        ratio = _ratio(row)
        if ratio is not None:
            key = row["host"], RATIOS[row["key"]]
            found[key] = min(ratio, found.get(key, ratio))
    return found


def _ratio(row: Row) -> float | None:
    try:
        ratio = float(row["value"])
    except ValueError:
        ratio = math.nan
    if 0 < ratio < math.inf:
        return ratio
    log.warning("aggregate %s: %s is not a ratio: %.40r", row["name"], row["key"], row["value"])
    return None


async def _locked_trees(tx: Transaction, hosts: Iterable[str]) -> list[Row]:
    # One statement in the order of ids, as claims lock too.
    return await tx.fetch(_LOCK_TREES, list(hosts))


# By parents, not by root: an operator may have put hosts below a provider of their own.
_TREES = """
WITH RECURSIVE tree (id, host) AS (
    SELECT p.id, h.host FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = ANY($1)
    UNION ALL
    SELECT c.id, tree.host FROM resource_providers c JOIN tree ON c.parent_id = tree.id)
"""
_LOCK_TREES = f"SELECT id FROM resource_providers WHERE id IN ({_TREES} SELECT id FROM tree) ORDER BY id FOR UPDATE"
_LOCK_DEPARTING = f"""
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
# Without a wish of the host's own it is an operator's inventory, and so is its ratio.
_HOST_RATIOS = f"""
{_TREES}
SELECT tree.host, i.provider_id, i.resource_class, i.own_ratio, i.aggregate_ratio
FROM tree JOIN inventories i ON i.provider_id = tree.id
WHERE i.resource_class = ANY($2) AND i.own_ratio IS NOT NULL
"""
_IMPOSE = """
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
