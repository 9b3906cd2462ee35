"""Resource providers as hosts describe themselves: brought up to date in batches, written only where they differ.

What operators added through the API is not a host's to remove. See docs/decisions/0010-host-shapes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from kilonova import clock
from kilonova.placement import names
from kilonova.placement.changes import NEXT, delete_providers, facts_changed
from kilonova.placement.facts import SHARES, Inventory, InventoryLike, ProviderFacts, Told, Wanted, flaw
from kilonova.placement.shapes import Amounts, Fate, Held, Known, Misfit, Picture, Planner, Stock, news
from kilonova.store import Transaction

__all__ = ["TREES", "Amounts", "Inventory", "InventoryLike", "ProviderFacts", "drop_unshared", "flaw", "sync"]

log = logging.getLogger(__name__)

# Held, before the rows of any provider, by whoever puts one below another or moves it: a tree's root stands in each of
# its providers.
TREES = "placement.trees"


async def sync(tx: Transaction, hosts: Sequence[ProviderFacts]) -> None:
    """Make the database agree with what the hosts say. Writes nothing where it already does. Raises ValueError.

    What a host no longer has goes; if somebody still uses it, it stays closed to new claims until it is free. A host
    that has the same in another place takes its allocations along there, or else keeps the shape it had.
    """
    for host in hosts:
        if (found := flaw(host)) is not None:
            raise ValueError(f"host {host.name}: {found}")
    told = Told(hosts)
    picture = await _look(tx, told, list(told.groups))
    changing = [group for group, wanted in told.groups.items() if picture.differs(group, wanted)]
    if not changing:
        return
    changing = list(dict.fromkeys([*changing, *(uuid for group in changing for uuid in told.shares.get(group, ()))]))
    if await _lock(tx, told, changing, picture):
        picture = await _look(tx, told, changing)
    await _leave_taken_names(tx, told, changing, picture)
    fates = await _fates(tx, told, changing, picture)
    wanted = [(one, picture.stocks(group, one)) for group in fates for one in told.groups[group]]
    await _Writing(tx, picture).write(wanted, list(fates.values()))
    await _drop_lonely(tx, told, changing, picture, fates)


async def drop_unshared(tx: Transaction, aggregates: Sequence[str]) -> None:
    """Reported sharing providers of these aggregates go once nobody else is in them; those in use are closed."""
    rows = await tx.fetch(_UNSHARED, list(aggregates), SHARES)
    ids = [row["id"] for row in rows]
    if not ids:
        return
    used = {row["provider_id"] for row in await tx.fetch(_IN_USE, ids)}
    await delete_providers(tx, [id for id in ids if id not in used])
    if used:
        await tx.execute("UPDATE inventories SET reserved = total WHERE provider_id = ANY($1)", sorted(used))
        await facts_changed(tx, sorted(used))


# Looking


async def _look(tx: Transaction, told: Told, groups: list[str]) -> Picture:
    rows = await tx.fetch(_TREES, groups)
    nested = [one.uuid for group in groups for one in told.groups[group][1:]]
    if nested:
        rows += await tx.fetch(_ALONE, nested)
    by_id = {
        row["id"]: Known(row["id"], row["uuid"], row["name"], row["parent_id"], row["reported"], {}, {}, {})
        for row in rows
    }
    if by_id:
        await _fill(tx, by_id, told.aggregates)
    picture = Picture()
    picture.known = {known.uuid: known for known in by_id.values()}
    for known in by_id.values():
        owner: Known | None = known
        while owner is not None and owner.uuid not in told.groups:
            owner = None if owner.parent_id is None else by_id.get(owner.parent_id)
        if owner is not None:
            picture.trees.setdefault(owner.uuid, []).append(known)
    return picture


async def _fill(tx: Transaction, by_id: Mapping[int, Known], aggregates: list[str]) -> None:
    ids = list(by_id)
    for row in await tx.fetch("SELECT * FROM inventories WHERE provider_id = ANY($1)", ids):
        by_id[row["provider_id"]].inventory[row["resource_class"]] = Stock.of_row(row)
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


async def _lock(tx: Transaction, told: Told, groups: list[str], picture: Picture) -> bool:
    """Keep claims from coming in between, in the order of ids; whether there is anything to lock."""
    if any(len(told.groups[group]) > 1 for group in groups):
        await tx.hold(TREES)
    ids = {known.id for group in groups for known in picture.trees.get(group, ())}
    ids |= {picture.known[one.uuid].id for group in groups for one in told.groups[group] if one.uuid in picture.known}
    if ids:
        await tx.fetch(_LOCK, sorted(ids), sorted(_left(told, groups, picture)), SHARES)
    return bool(ids)


def _left(told: Told, groups: Iterable[str], picture: Picture) -> set[str]:
    """The aggregates that hosts were in because they shared something, and are no longer."""
    left: set[str] = set()
    for group in groups:
        if told.groups[group] and (known := picture.known.get(told.groups[group][0].uuid)) is not None:
            left |= known.aggregates.get(True, frozenset()) - told.groups[group][0].aggregates
    return left


async def _leave_taken_names(tx: Transaction, told: Told, groups: list[str], picture: Picture) -> None:
    """Somebody else's provider may have the name that a host gives to one of its parts. Then the host does without.

    A host's own provider keeps the name that it has by then, if it was renamed; a new one without a name is a Conflict.
    """
    hosts = told.groups.keys() - {uuid for shares in told.shares.values() for uuid in shares}
    new = {
        one.name: one.uuid
        for group in groups
        for one in told.groups[group]
        if (one.uuid in picture.known or one.uuid not in hosts)
        and (one.uuid not in picture.known or picture.known[one.uuid].name != one.name)
    }
    if not new:
        return
    rows = await tx.fetch("SELECT uuid, name FROM resource_providers WHERE name = ANY($1)", list(new))
    taken = {new[row["name"]]: row["name"] for row in rows if row["uuid"] != new[row["name"]]}
    for name in sorted(taken.values()):
        log.warning("provider %s is left out or keeps another name: somebody else's provider has that name", name)
    if taken:
        for group in groups:
            told.groups[group] = _without(told.groups[group], set(taken), picture)


def _without(providers: list[Wanted], taken: set[str], picture: Picture) -> list[Wanted]:
    """The providers without those that cannot have their name; those that are there already keep their old one."""
    kept = []
    for one in providers:
        known = picture.known.get(one.uuid)
        if one.uuid in taken and known is not None:
            kept.append(one._replace(name=known.name))
        elif one.uuid in taken or one.parent in taken - picture.known.keys():
            taken.add(one.uuid)
        else:
            kept.append(one)
    return kept


# Deciding


async def _fates(tx: Transaction, told: Told, groups: list[str], picture: Picture) -> dict[str, Fate]:
    """What becomes of the groups. Those that cannot change are not among them."""
    held = await _held(tx, told, groups, picture)
    rows = await tx.fetch(_USED, _parts(told, held)) if held else []
    used = {(row["uuid"], row["resource_class"]): row["used"] for row in rows}
    planner = Planner(told, picture, used)
    fates = {}
    for group in groups:
        try:
            fates[group] = planner.fate(group, held.get(group, ()))
        except Misfit as misfit:
            log.warning(
                "host %s keeps the shape it had, because servers use it and %s", told.groups[group][0].name, misfit
            )
    return fates


async def _held(tx: Transaction, told: Told, groups: list[str], picture: Picture) -> dict[str, list[Held]]:
    """The allocations on inventories that groups have lost."""
    lost: dict[tuple[int, str], str] = {}
    for group in groups:
        wanted = {one.uuid: one for one in told.groups[group]}
        for known in picture.trees.get(group, ()):
            if known.reported:
                lost.update(((known.id, name), group) for name in known.lost(wanted.get(known.uuid)))
    held: dict[str, list[Held]] = {}
    if lost:
        for row in await tx.fetch(_HELD, sorted({provider for provider, _ in lost})):
            one = Held(row["consumer_uuid"], row["provider_id"], row["resource_class"], row["used"])
            group_of = lost.get((one.provider, one.resource_class))
            if group_of is not None:
                held.setdefault(group_of, []).append(one)
    return held


def _parts(told: Told, groups: Iterable[str]) -> list[str]:
    """Every provider that the groups' allocations may move to."""
    return [one.uuid for group in groups for part in (group, *told.shares.get(group, ())) for one in told.groups[part]]


async def _drop_lonely(
    tx: Transaction, told: Told, groups: list[str], picture: Picture, fates: Mapping[str, Fate]
) -> None:
    """What was shared in aggregates that hosts left, or could not join, may have nobody left to share it with."""
    left = _left(told, fates, picture)
    for group in groups:
        if group not in fates and told.groups[group]:
            left |= told.groups[group][0].aggregates
    if left:
        await drop_unshared(tx, sorted(left))


# Writing


class _Writing:
    """Writes what differs, and notes which providers it touched."""

    def __init__(self, tx: Transaction, picture: Picture) -> None:
        self._tx = tx
        self._known = dict(picture.known)
        self._created: set[int] = set()
        self._touched: set[int] = set()

    async def write(self, wanted: list[tuple[Wanted, dict[str, Stock]]], fates: list[Fate]) -> None:
        await self._create([one for one, _ in wanted if one.uuid not in self._known])
        pairs = [(one, self._known[one.uuid]) for one, _ in wanted]
        await self._place(pairs)
        stocks = [(self._known[one.uuid], target) for one, target in wanted]
        closed = [(known, {name: known.inventory[name].closed()}) for fate in fates for known, name in fate.closed]
        await self._put_inventories(stocks + closed)
        await self._move(fates)
        await self._drop_inventories([pair for fate in fates for pair in fate.dropped])
        await self._tell(
            "provider_traits", "trait", [(known.id, news(one.traits, known.traits)) for one, known in pairs]
        )
        await self._tell(
            "provider_aggregates",
            "aggregate_uuid",
            [(known.id, news(one.aggregates, known.aggregates)) for one, known in pairs],
        )
        await self._delete([known for fate in fates for known in fate.gone])
        changed = sorted(self._touched - self._created)
        if changed:
            await facts_changed(self._tx, changed)

    async def _create(self, new: list[Wanted]) -> None:
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
        rows = await self._tx.fetch(_ALONE, [one.uuid for one in new])
        for row in rows:
            self._known[row["uuid"]] = Known(row["id"], row["uuid"], row["name"], row["parent_id"], True, {}, {}, {})
            self._created.add(row["id"])
        self._touched |= {row["parent_id"] for row in rows if row["parent_id"] is not None}

    async def _place(self, pairs: list[tuple[Wanted, Known]]) -> None:
        """Names and parents. A host's own provider stays below what an operator put it below."""
        named = [(known.id, one.name) for one, known in pairs if known.name != one.name or not known.reported]
        if named:
            await self._tx.execute_many("UPDATE resource_providers SET name = $2, reported = TRUE WHERE id = $1", named)
        moved = []
        for one, known in pairs:
            if one.parent is not None and known.parent_id != self._known[one.parent].id:
                moved.append((known.id, self._known[one.parent].id))
        if moved:
            await self._tx.execute_many("UPDATE resource_providers SET parent_id = $2 WHERE id = $1", moved)
            for provider_id, _ in moved:  # parents first, so each finds its root right
                await self._tx.execute(_ROOT_OF_SUBTREE, provider_id)
        self._touched |= {row[0] for row in (*named, *moved)}

    async def _put_inventories(self, targets: list[tuple[Known, dict[str, Stock]]]) -> None:
        put = [
            (known.id, name, *stock.amounts, stock.own, stock.imposed)
            for known, target in targets
            for name, stock in target.items()
            if known.inventory.get(name) != stock
        ]
        if put:
            await names.ensure(self._tx, "resource_classes", {row[1] for row in put})
            await self._tx.execute_many(_PUT_INVENTORY, put)
            self._touched |= {row[0] for row in put}

    async def _drop_inventories(self, dropped: list[tuple[Known, str]]) -> None:
        if dropped:
            await self._tx.execute_many(
                "DELETE FROM inventories WHERE provider_id = $1 AND resource_class = $2",
                [(known.id, name) for known, name in dropped],
            )
            self._touched |= {known.id for known, _ in dropped}

    async def _move(self, fates: list[Fate]) -> None:
        moves = [move for fate in fates for move in fate.moves]
        if not moves:
            return
        sources = [(held.consumer, held.provider, held.resource_class) for held, _ in moves]
        targets = [(held.consumer, self._known[target].id, held.resource_class, held.used) for held, target in moves]
        await self._tx.execute_many(_LEAVE, sources)
        await self._tx.execute_many(_ARRIVE, targets)
        consumers = sorted({held.consumer for held, _ in moves})
        await self._tx.execute("UPDATE consumers SET generation = generation + 1 WHERE uuid = ANY($1)", consumers)
        self._touched |= {held.provider for held, _ in moves} | {self._known[target].id for _, target in moves}

    async def _tell(self, table: str, column: str, changes: list[tuple[int, _News]]) -> None:
        put = [(provider_id, name) for provider_id, new in changes if new for name in sorted(new[0])]
        drop = [(provider_id, name) for provider_id, new in changes if new for name in sorted(new[1])]
        if put and column == "trait":
            await names.ensure(self._tx, "traits", {name for _, name in put})
        if put:
            await self._tx.execute_many(
                f"INSERT INTO {table} (provider_id, {column}, reported) VALUES ($1, $2, TRUE) ON CONFLICT DO NOTHING",
                put,
            )
        if drop:
            await self._tx.execute_many(f"DELETE FROM {table} WHERE provider_id = $1 AND {column} = $2", drop)
        self._touched |= {provider_id for provider_id, _ in (*put, *drop)}

    async def _delete(self, gone: list[Known]) -> None:
        if gone:
            ids = {known.id for known in gone}
            await delete_providers(self._tx, sorted(ids))
            self._touched |= {known.parent_id for known in gone if known.parent_id is not None}
            self._touched -= ids


_News = tuple[frozenset[str], frozenset[str]] | None

_PROVIDER = "id, uuid, name, parent_id, reported"
_TREES = """
SELECT p.id, p.uuid, p.name, p.parent_id, p.reported
FROM resource_providers r JOIN resource_providers p ON p.root_id = r.root_id
WHERE r.uuid = ANY($1)
"""
# With what is shared in the aggregates that hosts leave, since it may go with them.
_LOCK = """
SELECT id FROM resource_providers
WHERE id = ANY($1)
   OR id IN (SELECT a.provider_id FROM provider_aggregates a JOIN provider_traits t ON t.provider_id = a.provider_id
        WHERE a.aggregate_uuid = ANY($2) AND t.trait = $3)
ORDER BY id FOR UPDATE
"""
_ALONE = f"SELECT {_PROVIDER} FROM resource_providers WHERE uuid = ANY($1)"
_TRAITS = """
SELECT provider_id, reported, string_agg(trait, ',' ORDER BY trait) AS traits
FROM provider_traits WHERE provider_id = ANY($1) GROUP BY provider_id, reported
"""
# Of the aggregates that only operators speak of no host needs to know, except where it wants to join one.
_AGGREGATES = """
SELECT provider_id, aggregate_uuid, reported FROM provider_aggregates
WHERE provider_id = ANY($1) AND (reported OR aggregate_uuid = ANY($2))
"""
_CREATE = f"""
INSERT INTO resource_providers (uuid, name, generation, change, facts, created_at, updated_at, reported)
VALUES ($1, $2, 1, {NEXT}, {NEXT}, $3, $3, TRUE) ON CONFLICT (uuid) DO NOTHING
"""
_CREATE_CHILD = f"""
INSERT INTO resource_providers
    (uuid, name, generation, change, facts, created_at, updated_at, reported, parent_id, root_id)
SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), 1, {NEXT}, {NEXT}, CAST($3 AS DOUBLE PRECISION),
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
_HELD = "SELECT consumer_uuid, provider_id, resource_class, used FROM allocations WHERE provider_id = ANY($1)"
_USED = """
SELECT p.uuid, a.resource_class, CAST(SUM(a.used) AS BIGINT) AS used
FROM resource_providers p JOIN allocations a ON a.provider_id = p.id
WHERE p.uuid = ANY($1) GROUP BY p.uuid, a.resource_class
"""
_LEAVE = "DELETE FROM allocations WHERE consumer_uuid = $1 AND provider_id = $2 AND resource_class = $3"
_ARRIVE = """
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
