"""The change sequence: every write that affects scheduling gives its provider the next number.

Schedulers read only providers with a number above the last one that they have seen. Numbers are assigned without a
global lock, so two transactions may use the same number or commit out of order; docs/decisions/0005-claims.md says why
that is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from kilonova import clock
from kilonova.store import Transaction

# Includes deleted providers: a number that schedulers have seen must not be assigned again.
LAST_CHANGE = """(SELECT COALESCE(MAX(change), 0) FROM (
    SELECT MAX(change) AS change FROM resource_providers
    UNION ALL SELECT MAX(change) FROM departed_providers) known)"""
# The numbers of one provider only grow, because its row is locked before this is evaluated.
NEXT_CHANGE = f"({LAST_CHANGE} + 1)"
# A scheduler that has not read changes for this long reads everything again.
DELETED_RETENTION_SECONDS = 3600.0

_ALLOCATIONS_CHANGED = f"""
UPDATE resource_providers SET generation = generation + 1, change = {NEXT_CHANGE}, updated_at = $2 WHERE id = ANY($1)
"""
_FACTS_CHANGED = f"""
UPDATE resource_providers
SET generation = generation + 1, change = {NEXT_CHANGE}, facts = {NEXT_CHANGE}, updated_at = $2 WHERE id = ANY($1)
"""
_ALLOCATIONS_FREED = f"UPDATE resource_providers SET change = {NEXT_CHANGE} WHERE id = ANY($1)"
_FACTS_CHANGED_SAME_GENERATION = _FACTS_CHANGED.replace("generation = generation + 1, ", "")
_HOSTS_CHANGED = f"UPDATE resource_providers SET change = {NEXT_CHANGE}, facts = {NEXT_CHANGE} WHERE id = ANY($1)"
_RECORD_DELETED = f"""
INSERT INTO departed_providers (id, change, gone_at)
SELECT id, {NEXT_CHANGE}, CAST($2 AS DOUBLE PRECISION) FROM resource_providers WHERE id = ANY($1)
"""
# The row with the highest number stays, because the sequence continues from it.
_FORGET_DELETED = """
DELETE FROM departed_providers WHERE gone_at < $1 AND change < (SELECT MAX(change) FROM departed_providers)
"""
_LOCK_HOSTS = """
SELECT id FROM resource_providers
WHERE uuid IN (SELECT uuid FROM hypervisors WHERE host = ANY($1))
ORDER BY id FOR UPDATE
"""


async def mark_allocations_changed(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """Record that allocations of the providers changed. `tx` must hold the locks of their rows."""
    await tx.execute(_ALLOCATIONS_CHANGED, provider_ids, clock.now())


async def mark_allocations_freed(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """Record that an API client freed allocations of the providers, which leaves their generations as they are."""
    await tx.execute(_ALLOCATIONS_FREED, provider_ids)


async def mark_facts_changed(tx: Transaction, provider_ids: Sequence[int], *, generation: bool = True) -> None:
    """Record a change of name, parent, inventory, traits or aggregates. `tx` must hold the locks of the rows.

    Without `generation`, API clients that have read the provider before can still write to it.
    """
    await tx.execute(_FACTS_CHANGED if generation else _FACTS_CHANGED_SAME_GENERATION, provider_ids, clock.now())


async def mark_hosts_changed(tx: Transaction, hosts: Sequence[str]) -> None:
    """Record a change of the hosts outside placement: service flags, zone, a created or deleted hypervisor.

    Call it in the transaction of the change, and before a hypervisor's row is deleted. Generations stay as they are.
    """
    roots = await lock_root_providers(tx, hosts)
    if roots:
        await tx.execute(_HOSTS_CHANGED, roots)


async def lock_root_providers(tx: Transaction, hosts: Sequence[str]) -> list[int]:
    """Lock the root providers of these hosts and return their ids."""
    return [row["id"] for row in await tx.fetch(_LOCK_HOSTS, list(hosts))]


async def delete_providers(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """Delete providers, parents together with their children. `tx` must hold the locks of their rows."""
    now = clock.now()
    await tx.execute(_RECORD_DELETED, provider_ids, now)
    await tx.execute("DELETE FROM resource_providers WHERE id = ANY($1)", provider_ids)
    await tx.execute(_FORGET_DELETED, now - DELETED_RETENTION_SECONDS)
