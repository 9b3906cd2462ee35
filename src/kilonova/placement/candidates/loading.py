"""Reads the providers that can matter to an ask: whole trees, narrowed by the database as far as one statement can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from kilonova.placement.candidates.conditions import Conditions, every
from kilonova.placement.candidates.model import Ask, Group, Provider, Stock
from kilonova.placement.candidates.search import Surroundings, gives
from kilonova.placement.facts import SHARES
from kilonova.store import Reader, Row

Tree = list[Provider]
# Trees read at once: few at first where few arrangements are wanted, never so many that others wait long.
FEWEST, MOST = 32, 128
# Conditions beyond these only make the statement longer; the search checks all.
_SLOTS = 12


async def resolved(reader: Reader, ask: Ask) -> Ask | None:
    """The ask with every `in_tree` naming the root; None if one names no provider, so that nothing can meet it."""
    uuids = {group.in_tree for group in ask.groups.values() if group.in_tree is not None}
    if not uuids:
        return ask
    roots = {row["uuid"]: row["root"] for row in await reader.fetch(_ROOTS, sorted(uuids))}
    if len(roots) < len(uuids):
        return None
    groups = {
        suffix: msgspec.structs.replace(group, in_tree=roots[group.in_tree]) if group.in_tree else group
        for suffix, group in ask.groups.items()
    }
    return msgspec.structs.replace(ask, groups=groups)


async def sharing_trees(reader: Reader, ask: Ask) -> list[Tree]:
    """The trees that share something asked for with others; where a group asks for nothing, all that share."""
    if all(group.resources for group in ask.groups.values()):
        classes = {name for group in ask.groups.values() for name in group.resources}
        rows = await reader.fetch(_SHARING_CLASSES, SHARES, sorted(classes))
    else:
        rows = await reader.fetch(_SHARING, SHARES)
    return await read(reader, [row["root_id"] for row in rows], aggregates=True) if rows else []


async def trees(reader: Reader, ask: Ask, sharing: Sequence[Tree], wanted: int | None) -> AsyncIterator[Tree]:
    """The trees that may meet the ask, in the order of their making, read as the caller goes on."""
    aggregates = bool(sharing) or any(group.member_of or group.forbidden_aggregates for group in ask.groups.values())
    portion = MOST if wanted is None else min(MOST, max(FEWEST, 2 * wanted))
    where = Conditions(apart=True)
    after, most = where.put(0), where.put(portion)
    only = _only(ask, sharing)
    within = f"AND uuid = {where.text(only)}" if only is not None else ""
    # The roots are counted off before the conditions are asked, lest the database look at all of them for a few.
    sql = f"""
        SELECT r.id, CAST({every(islice(_narrowing(where, ask, sharing), _SLOTS))} AS BOOLEAN) AS fits
        FROM (SELECT id FROM resource_providers WHERE root_id = id AND id > {after} {within}
              ORDER BY id LIMIT {most}) r
        ORDER BY r.id
    """
    last = 0
    while True:
        rows = await reader.fetch(sql, last, portion, *where.arguments[2:])
        if found := [row["id"] for row in rows if row["fits"]]:
            for tree in await read(reader, found, aggregates=aggregates):
                yield tree
        if len(rows) < portion:
            return
        await asyncio.sleep(0)
        last = rows[-1]["id"]
        portion = min(MOST, 2 * portion)


def _only(ask: Ask, sharing: Sequence[Tree]) -> str | None:
    """The only root that can matter, if a group names its tree and nobody shares anything with others."""
    named = [group.in_tree for group in ask.groups.values() if group.in_tree is not None]
    return named[0] if named and not sharing else None


async def read(reader: Reader, roots: Sequence[int], *, aggregates: bool) -> list[Tree]:
    """Whole trees, each in the order in which its providers were made."""
    rows = await reader.fetch(_PROVIDERS, roots)
    ids = [row["id"] for row in rows]
    stocks: dict[int, dict[str, Stock]] = {}
    for row in await reader.fetch(_STOCKS, ids):
        stocks.setdefault(row["provider_id"], {})[row["resource_class"]] = _stock(row)
    traits = _sets(await reader.fetch(_TRAITS, ids))
    groups = _sets(await reader.fetch(_AGGREGATES, ids)) if aggregates else {}
    found: dict[int, Tree] = {}
    nothing: frozenset[str] = frozenset()
    for row in rows:
        key = row["id"]
        provider = Provider(
            row["uuid"],
            row["parent"],
            row["root"],
            stocks.get(key, {}),
            traits.get(key, nothing),
            groups.get(key, nothing),
        )
        found.setdefault(row["root_id"], []).append(provider)
    # A tree that changes hands between two statements may be read without its root.
    return [tree for tree in found.values() if any(provider.uuid == provider.root for provider in tree)]


def _stock(row: Row) -> Stock:
    capacity = (row["total"] - row["reserved"]) * row["allocation_ratio"]
    return Stock(capacity, row["used"], row["min_unit"], row["max_unit"], row["step_size"])


def _sets(rows: Iterable[Row]) -> dict[int, frozenset[str]]:
    return {row["provider_id"]: frozenset(row["names"].split(",")) for row in rows}


# Conditions on a root `r`


def _narrowing(where: Conditions, ask: Ask, sharing: Sequence[Tree]) -> Iterator[str]:
    """One after the other: what is not taken has no arguments either."""
    for trait in sorted(ask.root_required):
        yield where.has_one("r.id", {trait})
    if ask.root_forbidden:
        yield f"NOT {where.has_one('r.id', ask.root_forbidden)}"
    for suffix, group in ask.groups.items():
        if suffix:
            yield _served(where, group, group, sharing, spread=False)
            continue
        for name, amount in group.resources.items():
            part = msgspec.structs.replace(group, resources={name: amount})
            yield _served(where, part, group, sharing, spread=True)
        yield from _covered(where, group, sharing)


def _served(where: Conditions, part: Group, group: Group, sharing: Sequence[Tree], *, spread: bool) -> str:
    """Some provider of the tree, or one that shares with it, can serve the group or this part of it."""
    group = msgspec.structs.replace(group, required=group.required[:_SLOTS], member_of=group.member_of[:_SLOTS])
    said = [
        "p.root_id = r.id",
        *where.in_tree("r.id", group),
        *where.gives("p.id", dict(islice(part.resources.items(), _SLOTS))),
        *([] if spread else where.has_traits("p.id", group)),
        *where.lacks_traits("p.id", group),
        *where.is_member("p.id", group, "r.id" if spread else None),
    ]
    inside = f"EXISTS (SELECT 1 FROM resource_providers p WHERE {every(said)})"
    aggregates = frozenset().union(*(provider.aggregates for provider in _sharers(part, sharing, spread)))
    if not aggregates:
        return inside
    return f"""({inside} OR r.id IN (
        SELECT q.root_id FROM provider_aggregates g JOIN resource_providers q ON q.id = g.provider_id
        WHERE g.aggregate_uuid = ANY({where.put(sorted(aggregates))})))"""


def _covered(where: Conditions, group: Group, sharing: Sequence[Tree]) -> Iterator[str]:
    """Some provider of the tree has each trait, unless a sharing one might contribute it."""
    parts = [msgspec.structs.replace(group, resources={name: n}) for name, n in group.resources.items()]
    helpers = [provider for part in parts for provider in _sharers(part, sharing, spread=True)]
    for any_of in group.required:
        if not any(any_of & provider.traits for provider in helpers):
            had = where.has_one("p.id", any_of)
            yield f"EXISTS (SELECT 1 FROM resource_providers p WHERE p.root_id = r.id AND {had})"


def _sharers(part: Group, sharing: Sequence[Tree], spread: bool) -> list[Provider]:
    return [
        provider
        for tree in sharing
        for provider in Surroundings(tree, ()).of(part, spread=spread)
        if SHARES in provider.traits and gives(provider, part.resources)
    ]


_ROOTS = """
SELECT p.uuid, root.uuid AS root FROM resource_providers p JOIN resource_providers root ON root.id = p.root_id
WHERE p.uuid = ANY($1)
"""
_SHARING = """
SELECT DISTINCT p.root_id
FROM provider_traits t JOIN resource_providers p ON p.id = t.provider_id
WHERE t.trait = $1 AND EXISTS (SELECT 1 FROM provider_aggregates g WHERE g.provider_id = p.id)
"""
_SHARING_CLASSES = f"""{_SHARING}
  AND EXISTS (SELECT 1 FROM inventories i WHERE i.provider_id = p.id AND i.resource_class = ANY($2))
"""
_PROVIDERS = """
SELECT p.id, p.uuid, p.root_id, parent.uuid AS parent, root.uuid AS root
FROM resource_providers p JOIN resource_providers root ON root.id = p.root_id
LEFT JOIN resource_providers parent ON parent.id = p.parent_id
WHERE p.root_id = ANY($1) ORDER BY p.root_id, p.id
"""
_STOCKS = """
SELECT i.provider_id, i.resource_class, i.total, i.reserved, i.min_unit, i.max_unit, i.step_size, i.allocation_ratio,
    COALESCE((SELECT CAST(SUM(a.used) AS BIGINT) FROM allocations a
              WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0) AS used
FROM inventories i WHERE i.provider_id = ANY($1)
"""
_TRAITS = """
SELECT provider_id, string_agg(trait, ',') AS names FROM provider_traits
WHERE provider_id = ANY($1) GROUP BY provider_id
"""
_AGGREGATES = """
SELECT provider_id, string_agg(aggregate_uuid, ',') AS names FROM provider_aggregates
WHERE provider_id = ANY($1) GROUP BY provider_id
"""
