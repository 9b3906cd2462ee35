"""Synchronizes the resource providers that hosts report into the database. Writes only differences.

Hosts never remove what operators added through the API. See docs/decisions/0010-host-shapes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from kilonova import clock
from kilonova.placement import names
from kilonova.placement.changes import NEXT_CHANGE, delete_providers, mark_facts_changed
from kilonova.placement.host_providers import (
    SHARING_TRAIT,
    HostProviders,
    ReportedProvider,
    ReportedProviders,
    validation_error,
)
from kilonova.placement.model import Allocation
from kilonova.placement.reshape_plan import (
    AllocationMove,
    CannotReshape,
    ReshapePlan,
    ReshapePlanner,
    StoredInventory,
    StoredProvider,
    StoredProviders,
    changed_names,
)
from kilonova.store import Row, Transaction

log = logging.getLogger(__name__)

# Lock for changes of parents. Taken before the locks of provider rows, because every provider stores its tree's root.
TREE_LOCK = "placement.trees"


async def sync_providers(tx: Transaction, hosts: Sequence[HostProviders]) -> None:
    """Write the reports of the hosts. Raises ValueError for an invalid report.

    Inventories and providers that a host no longer reports are deleted; while they have allocations they are closed to
    new claims instead. If the host reports the same class on another provider, the allocations move there. If they do
    not fit, the host keeps its stored shape.
    """
    for host in hosts:
        if (error := validation_error(host)) is not None:
            raise ValueError(f"host {host.name}: {error}")
    await _Sync(tx, ReportedProviders(hosts)).run()


async def delete_unshared_providers(tx: Transaction, aggregates: Sequence[str]) -> None:
    """Delete reported sharing providers that are alone in these aggregates. Close those that have allocations."""
    rows = await tx.fetch(_UNSHARED, list(aggregates), SHARING_TRAIT)
    ids = [row["id"] for row in rows]
    if not ids:
        return
    used = {row["provider_id"] for row in await tx.fetch(_IN_USE, ids)}
    await delete_providers(tx, [id for id in ids if id not in used])
    if used:
        await tx.execute("UPDATE inventories SET reserved = total WHERE provider_id = ANY($1)", sorted(used))
        await mark_facts_changed(tx, sorted(used))


class _Sync:
    """One synchronization. `_roots` are the roots of the reported trees that are still to be written."""

    def __init__(self, tx: Transaction, reported: ReportedProviders) -> None:
        self._tx = tx
        self._reported = reported
        self._stored = StoredProviders()
        self._roots = list(reported.trees)

    async def run(self) -> None:
        await self._read()
        self._roots = [root for root in self._roots if self._stored.differs(root, self._reported.trees[root])]
        if not self._roots:
            return
        sharing = (uuid for root in self._roots for uuid in self._reported.sharing_by_host.get(root, ()))
        self._roots = list(dict.fromkeys([*self._roots, *sharing]))
        if await self._lock():
            await self._read()
        await self._resolve_name_conflicts()
        plans = await self._plan()
        targets = [(one, self._stored.target_inventories(root, one)) for root in plans for one in self._tree(root)]
        await _Writer(self._tx, self._stored).write(targets, list(plans.values()))
        await self._delete_unshared(plans)

    def _tree(self, root: str) -> list[ReportedProvider]:
        return self._reported.trees[root]

    # Reading

    async def _read(self) -> None:
        rows = await self._tx.fetch(_TREES, self._roots)
        nested = [provider.uuid for root in self._roots for provider in self._tree(root)[1:]]
        if nested:
            rows += await self._tx.fetch(_BY_UUID, nested)
        by_id = {row["id"]: _stored_provider(row) for row in rows}
        if by_id:
            await _read_details(self._tx, by_id, self._reported.aggregates)
        self._stored = StoredProviders()
        self._stored.by_uuid = {provider.uuid: provider for provider in by_id.values()}
        for provider in by_id.values():
            ancestor: StoredProvider | None = provider
            while ancestor is not None and ancestor.uuid not in self._reported.trees:
                ancestor = None if ancestor.parent_id is None else by_id.get(ancestor.parent_id)
            if ancestor is not None:
                self._stored.trees.setdefault(ancestor.uuid, []).append(provider)

    async def _lock(self) -> bool:
        """Lock the stored providers of the trees in the order of ids, as claims do; False if there are none."""
        if any(len(self._tree(root)) > 1 for root in self._roots):
            await self._tx.lock(TREE_LOCK)
        by_uuid = self._stored.by_uuid
        ids = {provider.id for root in self._roots for provider in self._stored.trees.get(root, ())}
        ids |= {by_uuid[one.uuid].id for root in self._roots for one in self._tree(root) if one.uuid in by_uuid}
        if ids:
            await self._tx.fetch(_LOCK, sorted(ids), sorted(self._left_aggregates(self._roots)), SHARING_TRAIT)
        return bool(ids)

    def _left_aggregates(self, roots: Iterable[str]) -> set[str]:
        """The aggregates of sharing providers that the hosts no longer report."""
        left: set[str] = set()
        for root in roots:
            if (tree := self._tree(root)) and (stored := self._stored.by_uuid.get(tree[0].uuid)) is not None:
                left |= stored.aggregates.get(True, frozenset()) - tree[0].aggregates
        return left

    async def _resolve_name_conflicts(self) -> None:
        """Leave out new nested and sharing providers, and keep old names, where another provider has the reported name.

        A new root provider whose name is taken is not left out: its INSERT raises Conflict.
        """
        by_uuid, trees = self._stored.by_uuid, self._reported.trees
        hosts = trees.keys() - {uuid for sharing in self._reported.sharing_by_host.values() for uuid in sharing}
        new = {
            one.name: one.uuid
            for root in self._roots
            for one in trees[root]
            if (one.uuid in by_uuid or one.uuid not in hosts)
            and (one.uuid not in by_uuid or by_uuid[one.uuid].name != one.name)
        }
        if not new:
            return
        rows = await self._tx.fetch("SELECT uuid, name FROM resource_providers WHERE name = ANY($1)", list(new))
        taken = {new[row["name"]]: row["name"] for row in rows if row["uuid"] != new[row["name"]]}
        for name in sorted(taken.values()):
            log.warning("provider %s is left out or keeps its old name: another provider has that name", name)
        if taken:
            for root in self._roots:
                trees[root] = self._without_conflicts(trees[root], set(taken))

    def _without_conflicts(self, tree: list[ReportedProvider], conflicting: set[str]) -> list[ReportedProvider]:
        """The tree with the stored names of conflicting providers, and without new conflicting providers."""
        by_uuid = self._stored.by_uuid
        kept = []
        for one in tree:
            if one.uuid in conflicting and one.uuid in by_uuid:
                kept.append(one._replace(name=by_uuid[one.uuid].name))
            elif one.uuid in conflicting or one.parent in conflicting - by_uuid.keys():
                conflicting.add(one.uuid)
            else:
                kept.append(one)
        return kept

    # Planning

    async def _plan(self) -> dict[str, ReshapePlan]:
        """The plans by root, without trees that cannot change."""
        affected = await self._affected_allocations()
        rows = await self._tx.fetch(_USED, self._move_targets(affected)) if affected else []
        used = {(row["uuid"], row["resource_class"]): row["used"] for row in rows}
        planner = ReshapePlanner(self._reported, self._stored, used)
        plans = {}
        for root in self._roots:
            try:
                plans[root] = planner.plan(root, affected.get(root, ()))
            except CannotReshape as error:
                name = self._tree(root)[0].name
                log.warning("host %s keeps the shape it had, because servers use it and %s", name, error)
        return plans

    async def _affected_allocations(self) -> dict[str, list[Allocation]]:
        """The allocations on inventories that the trees no longer have, by root."""
        lost: dict[tuple[int, str], str] = {}
        for root in self._roots:
            reported = {one.uuid: one for one in self._tree(root)}
            for stored in self._stored.trees.get(root, ()):
                if stored.reported:
                    lost.update(((stored.id, name), root) for name in stored.lost_classes(reported.get(stored.uuid)))
        affected: dict[str, list[Allocation]] = {}
        if lost:
            for row in await self._tx.fetch(_ALLOCATIONS, sorted({provider_id for provider_id, _ in lost})):
                one = Allocation.decode(row)
                lost_by = lost.get((one.provider_id, one.resource_class))
                if lost_by is not None:
                    affected.setdefault(lost_by, []).append(one)
        return affected

    def _move_targets(self, roots: Iterable[str]) -> list[str]:
        """The uuids of all providers that the trees' allocations may move to."""
        trees = (tree for root in roots for tree in (root, *self._reported.sharing_by_host.get(root, ())))
        return [one.uuid for tree in trees for one in self._tree(tree)]

    async def _delete_unshared(self, plans: Mapping[str, ReshapePlan]) -> None:
        """Delete sharing providers of aggregates that hosts left, or could not join, if no other host uses them."""
        aggregates = self._left_aggregates(plans)
        for root in self._roots:
            if root not in plans and (tree := self._tree(root)):
                aggregates |= tree[0].aggregates
        if aggregates:
            await delete_unshared_providers(self._tx, sorted(aggregates))


def _stored_provider(row: Row) -> StoredProvider:
    return StoredProvider(row["id"], row["uuid"], row["name"], row["parent_id"], row["reported"], {}, {}, {})


async def _read_details(tx: Transaction, by_id: Mapping[int, StoredProvider], aggregates: list[str]) -> None:
    ids = list(by_id)
    for row in await tx.fetch("SELECT * FROM inventories WHERE provider_id = ANY($1)", ids):
        by_id[row["provider_id"]].inventory[row["resource_class"]] = StoredInventory.from_row(row)
    sets: dict[str, frozenset[str]] = {}
    for row in await tx.fetch(_TRAITS, ids):
        text = row["traits"]
        traits = sets.get(text)
        if traits is None:
            traits = sets[text] = frozenset(text.split(","))
        by_id[row["provider_id"]].traits[row["reported"]] = traits
    for row in await tx.fetch(_AGGREGATES, ids, aggregates):
        joined = by_id[row["provider_id"]].aggregates
        joined[row["reported"]] = joined.get(row["reported"], frozenset()) | {row["aggregate_uuid"]}


class _Writer:
    """Writes differences, and collects the ids of the providers that it changes."""

    def __init__(self, tx: Transaction, stored: StoredProviders) -> None:
        self._tx = tx
        self._stored = dict(stored.by_uuid)
        self._created: set[int] = set()
        self._changed: set[int] = set()

    async def write(
        self, targets: list[tuple[ReportedProvider, dict[str, StoredInventory]]], plans: list[ReshapePlan]
    ) -> None:
        await self._create([one for one, _ in targets if one.uuid not in self._stored])
        pairs = [(one, self._stored[one.uuid]) for one, _ in targets]
        await self._update_names_and_parents(pairs)
        open_ = [(self._stored[one.uuid], inventories) for one, inventories in targets]
        closed = [(stored, {name: stored.inventory[name].closed()}) for plan in plans for stored, name in plan.closed]
        await self._put_inventories(open_ + closed)
        await self._move_allocations([move for plan in plans for move in plan.moves])
        await self._drop_inventories([pair for plan in plans for pair in plan.dropped])
        traits = [(stored.id, changed_names(one.traits, stored.traits)) for one, stored in pairs]
        await self._update_names("provider_traits", "trait", traits)
        aggregates = [(stored.id, changed_names(one.aggregates, stored.aggregates)) for one, stored in pairs]
        await self._update_names("provider_aggregates", "aggregate_uuid", aggregates)
        await self._delete([stored for plan in plans for stored in plan.deleted])
        changed = sorted(self._changed - self._created)
        if changed:
            await mark_facts_changed(self._tx, changed)

    async def _create(self, new: list[ReportedProvider]) -> None:
        if not new:
            return
        now = clock.now()
        roots = [(one.uuid, one.name, now) for one in new if one.parent is None]
        if roots:
            await self._tx.execute_many(_CREATE, roots)
            await self._tx.execute("UPDATE resource_providers SET root_id = id WHERE root_id IS NULL")
        children = [(one.uuid, one.name, now, one.parent) for one in new if one.parent is not None]
        if children:
            await self._tx.execute_many(_CREATE_CHILD, children)
        rows = await self._tx.fetch(_BY_UUID, [one.uuid for one in new])
        for row in rows:
            self._stored[row["uuid"]] = _stored_provider(row)
            self._created.add(row["id"])
        self._changed |= {row["parent_id"] for row in rows if row["parent_id"] is not None}

    async def _update_names_and_parents(self, pairs: list[tuple[ReportedProvider, StoredProvider]]) -> None:
        """Update names and parents of nested providers. The parent of a root provider is left to operators."""
        named = [(stored.id, one.name) for one, stored in pairs if stored.name != one.name or not stored.reported]
        if named:
            await self._tx.execute_many("UPDATE resource_providers SET name = $2, reported = TRUE WHERE id = $1", named)
        moved = []
        for one, stored in pairs:
            if one.parent is not None and stored.parent_id != self._stored[one.parent].id:
                moved.append((stored.id, self._stored[one.parent].id))
        if moved:
            await self._tx.execute_many("UPDATE resource_providers SET parent_id = $2 WHERE id = $1", moved)
            for provider_id, _ in moved:  # in the order of `pairs`, parents first, so that each parent has its new root
                await self._tx.execute(_ROOT_OF_SUBTREE, provider_id)
        self._changed |= {row[0] for row in (*named, *moved)}

    async def _put_inventories(self, targets: list[tuple[StoredProvider, dict[str, StoredInventory]]]) -> None:
        put = [
            (stored.id, name, *one.amounts, one.host_ratio, one.aggregate_ratio)
            for stored, inventories in targets
            for name, one in inventories.items()
            if stored.inventory.get(name) != one
        ]
        if put:
            await names.ensure_rows(self._tx, "resource_classes", {row[1] for row in put})
            await self._tx.execute_many(_PUT_INVENTORY, put)
            self._changed |= {row[0] for row in put}

    async def _drop_inventories(self, dropped: list[tuple[StoredProvider, str]]) -> None:
        if dropped:
            await self._tx.execute_many(
                "DELETE FROM inventories WHERE provider_id = $1 AND resource_class = $2",
                [(stored.id, name) for stored, name in dropped],
            )
            self._changed |= {stored.id for stored, _ in dropped}

    async def _move_allocations(self, moves: list[AllocationMove]) -> None:
        if not moves:
            return
        sources = [(one.consumer_uuid, one.provider_id, one.resource_class) for one, _ in moves]
        targets = [(one.consumer_uuid, self._stored[target].id, one.resource_class, one.used) for one, target in moves]
        await self._tx.execute_many(_DELETE_ALLOCATION, sources)
        await self._tx.execute_many(_ADD_ALLOCATION, targets)
        consumers = sorted({one.consumer_uuid for one, _ in moves})
        await self._tx.execute("UPDATE consumers SET generation = generation + 1 WHERE uuid = ANY($1)", consumers)
        self._changed |= {one.provider_id for one, _ in moves} | {self._stored[target].id for _, target in moves}

    async def _update_names(self, table: str, column: str, changes: list[tuple[int, _NameChanges]]) -> None:
        """Insert and delete traits or aggregates of providers."""
        put = [(provider_id, name) for provider_id, change in changes if change for name in sorted(change[0])]
        drop = [(provider_id, name) for provider_id, change in changes if change for name in sorted(change[1])]
        if put and column == "trait":
            await names.ensure_rows(self._tx, "traits", {name for _, name in put})
        if put:
            await self._tx.execute_many(
                f"INSERT INTO {table} (provider_id, {column}, reported) VALUES ($1, $2, TRUE) ON CONFLICT DO NOTHING",
                put,
            )
        if drop:
            await self._tx.execute_many(f"DELETE FROM {table} WHERE provider_id = $1 AND {column} = $2", drop)
        self._changed |= {provider_id for provider_id, _ in (*put, *drop)}

    async def _delete(self, deleted: list[StoredProvider]) -> None:
        if deleted:
            ids = {stored.id for stored in deleted}
            await delete_providers(self._tx, sorted(ids))
            self._changed |= {stored.parent_id for stored in deleted if stored.parent_id is not None}
            self._changed -= ids


_NameChanges = tuple[frozenset[str], frozenset[str]] | None

_PROVIDER = "id, uuid, name, parent_id, reported"
_TREES = """
SELECT p.id, p.uuid, p.name, p.parent_id, p.reported
FROM resource_providers r JOIN resource_providers p ON p.root_id = r.root_id
WHERE r.uuid = ANY($1)
"""
# Includes sharing providers of the aggregates that hosts leave, since these may be deleted.
_LOCK = """
SELECT id FROM resource_providers
WHERE id = ANY($1)
   OR id IN (SELECT a.provider_id FROM provider_aggregates a JOIN provider_traits t ON t.provider_id = a.provider_id
        WHERE a.aggregate_uuid = ANY($2) AND t.trait = $3)
ORDER BY id FOR UPDATE
"""
_BY_UUID = f"SELECT {_PROVIDER} FROM resource_providers WHERE uuid = ANY($1)"
_TRAITS = """
SELECT provider_id, reported, string_agg(trait, ',' ORDER BY trait) AS traits
FROM provider_traits WHERE provider_id = ANY($1) GROUP BY provider_id, reported
"""
# Aggregates that an operator added matter only where a host reports them too.
_AGGREGATES = """
SELECT provider_id, aggregate_uuid, reported FROM provider_aggregates
WHERE provider_id = ANY($1) AND (reported OR aggregate_uuid = ANY($2))
"""
_CREATE = f"""
INSERT INTO resource_providers (uuid, name, generation, change, facts, created_at, updated_at, reported)
VALUES ($1, $2, 1, {NEXT_CHANGE}, {NEXT_CHANGE}, $3, $3, TRUE) ON CONFLICT (uuid) DO NOTHING
"""
_CREATE_CHILD = f"""
INSERT INTO resource_providers
    (uuid, name, generation, change, facts, created_at, updated_at, reported, parent_id, root_id)
SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), 1, {NEXT_CHANGE}, {NEXT_CHANGE}, CAST($3 AS DOUBLE PRECISION),
    CAST($3 AS DOUBLE PRECISION), TRUE, id, root_id
FROM resource_providers WHERE uuid = $4
ON CONFLICT (uuid) DO NOTHING
"""
_ROOT_OF_SUBTREE = """
UPDATE resource_providers
SET root_id = (SELECT parent.root_id FROM resource_providers child
    JOIN resource_providers parent ON parent.id = child.parent_id WHERE child.id = $1)
WHERE id IN (
    WITH RECURSIVE tree (id) AS (
        SELECT id FROM resource_providers WHERE id = $1
        UNION ALL
        SELECT c.id FROM resource_providers c JOIN tree ON c.parent_id = tree.id)
    SELECT id FROM tree)
"""
_PUT_INVENTORY = """
INSERT INTO inventories
    (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size, allocation_ratio, own_ratio,
     aggregate_ratio)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (provider_id, resource_class) DO UPDATE SET total = excluded.total, reserved = excluded.reserved,
    min_unit = excluded.min_unit, max_unit = excluded.max_unit, step_size = excluded.step_size,
    allocation_ratio = excluded.allocation_ratio, own_ratio = excluded.own_ratio,
    aggregate_ratio = excluded.aggregate_ratio
"""
_ALLOCATIONS = "SELECT consumer_uuid, provider_id, resource_class, used FROM allocations WHERE provider_id = ANY($1)"
_USED = """
SELECT p.uuid, a.resource_class, CAST(SUM(a.used) AS BIGINT) AS used
FROM resource_providers p JOIN allocations a ON a.provider_id = p.id
WHERE p.uuid = ANY($1) GROUP BY p.uuid, a.resource_class
"""
_DELETE_ALLOCATION = "DELETE FROM allocations WHERE consumer_uuid = $1 AND provider_id = $2 AND resource_class = $3"
_ADD_ALLOCATION = """
INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used) VALUES ($1, $2, $3, $4)
ON CONFLICT (consumer_uuid, provider_id, resource_class) DO UPDATE SET used = allocations.used + excluded.used
"""
_IN_USE = "SELECT DISTINCT provider_id FROM allocations WHERE provider_id = ANY($1)"
_UNSHARED = """
SELECT id FROM resource_providers
WHERE reported
  AND id IN (SELECT t.provider_id FROM provider_traits t JOIN provider_aggregates a ON a.provider_id = t.provider_id
        WHERE t.trait = $2 AND a.reported AND a.aggregate_uuid = ANY($1))
  AND NOT EXISTS (SELECT 1 FROM provider_aggregates mine
        JOIN provider_aggregates other ON other.aggregate_uuid = mine.aggregate_uuid
        WHERE mine.provider_id = resource_providers.id AND other.provider_id <> mine.provider_id)
ORDER BY id FOR UPDATE
"""
