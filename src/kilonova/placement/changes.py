"""The change sequence: every write that matters to a choice of host moves its provider to the front of it.

Schedulers read only what stands behind their last mark. Numbers are handed out without a global lock, so two
transactions may share one or commit out of order; docs/decisions/0005-claims.md says why that is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from kilonova import clock
from kilonova.store import Transaction

# The providers that went count too: a number that schedulers have seen must not be given out again.
HIGHEST = """(SELECT COALESCE(MAX(change), 0) FROM (
    SELECT MAX(change) AS change FROM resource_providers
    UNION ALL SELECT MAX(change) FROM departed_providers) known)"""
# On one provider the numbers only grow, because its row is locked before this is asked.
NEXT = f"({HIGHEST} + 1)"
# A scheduler that has not looked for so long has read everything anew since.
REMEMBERED = 3600.0

_USED = (
    f"UPDATE resource_providers SET generation = generation + 1, change = {NEXT}, updated_at = $2 WHERE id = ANY($1)"
)
_FACTS = f"""
UPDATE resource_providers SET generation = generation + 1, change = {NEXT}, facts = {NEXT}, updated_at = $2
WHERE id = ANY($1)
"""
_FREED = f"UPDATE resource_providers SET change = {NEXT} WHERE id = ANY($1)"
_SILENT_FACTS = _FACTS.replace("generation = generation + 1, ", "")
_HOSTS = f"UPDATE resource_providers SET change = {NEXT}, facts = {NEXT} WHERE id = ANY($1)"
_DEPART = f"""
INSERT INTO departed_providers (id, change, gone_at)
SELECT id, {NEXT}, CAST($2 AS DOUBLE PRECISION) FROM resource_providers WHERE id = ANY($1)
"""
# The last one stays, because the sequence goes on from it.
_FORGET = """
DELETE FROM departed_providers WHERE gone_at < $1 AND change < (SELECT MAX(change) FROM departed_providers)
"""
_LOCK_HOSTS = """
SELECT id FROM resource_providers
WHERE uuid IN (SELECT uuid FROM hypervisors WHERE host = ANY($1))
ORDER BY id FOR UPDATE
"""


async def allocations_changed(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """The providers' allocations changed. Their rows must be locked by `tx`."""
    await tx.execute(_USED, provider_ids, clock.now())


async def allocations_gone(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """Less is used of the providers, at the wish of a client of the API: for those no generation moves."""
    await tx.execute(_FREED, provider_ids)


async def facts_changed(tx: Transaction, provider_ids: Sequence[int], *, generation: bool = True) -> None:
    """The providers' name, place, inventory, traits or aggregates changed. Their rows must be locked by `tx`.

    Without `generation` clients of the API that read the provider before can still write to it.
    """
    await tx.execute(_FACTS if generation else _SILENT_FACTS, provider_ids, clock.now())


async def hosts_changed(tx: Transaction, hosts: Sequence[str]) -> None:
    """Something outside placement changed for these hosts: service flags, zone, a new or departing hypervisor.

    Call it in the transaction of the change, and before a hypervisor's row goes. Nobody's generation moves.
    """
    roots = await lock_hosts(tx, hosts)
    if roots:
        await tx.execute(_HOSTS, roots)


async def lock_hosts(tx: Transaction, hosts: Sequence[str]) -> list[int]:
    """The root providers of these hosts, whose rows are locked by `tx` from now on."""
    return [row["id"] for row in await tx.fetch(_LOCK_HOSTS, list(hosts))]


async def delete_providers(tx: Transaction, provider_ids: Sequence[int]) -> None:
    """Delete providers, children and parents together, and let schedulers know. Their rows must be locked by `tx`."""
    now = clock.now()
    await tx.execute(_DEPART, provider_ids, now)
    await tx.execute("DELETE FROM resource_providers WHERE id = ANY($1)", provider_ids)
    await tx.execute(_FORGET, now - REMEMBERED)
