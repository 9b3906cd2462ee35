"""Reads the provider trees that may serve a request. SQL conditions exclude as many trees as possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from kilonova.placement.allocations import USED_AMOUNT
from kilonova.placement.candidates.conditions import Conditions, all_of
from kilonova.placement.candidates.model import InventoryUsage, Provider, RequestGroup, ResourceRequest
from kilonova.placement.candidates.search import ReachableProviders, can_allocate
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.store import Reader, Row

Tree = list[Provider]
# Trees per batch: few at first if the limit of candidates is low, and never so many that they block other requests.
MIN_BATCH, MAX_BATCH = 32, 128
# More conditions would only make the statement longer; the search checks all of them.
_MAX_CONDITIONS = 12


async def resolve_in_tree(reader: Reader, request: ResourceRequest) -> ResourceRequest | None:
    """The request with each `in_tree` replaced by the root's uuid; None if an `in_tree` is no provider."""
    uuids = {group.in_tree for group in request.groups.values() if group.in_tree is not None}
    if not uuids:
        return request
    roots = {row["uuid"]: row["root"] for row in await reader.fetch(_ROOTS, sorted(uuids))}
    if len(roots) < len(uuids):
        return None
    groups = {
        suffix: msgspec.structs.replace(group, in_tree=roots[group.in_tree]) if group.in_tree else group
        for suffix, group in request.groups.items()
    }
    return msgspec.structs.replace(request, groups=groups)


async def read_sharing_trees(reader: Reader, request: ResourceRequest) -> list[Tree]:
    """The trees with sharing providers of the requested classes, or of any class if a group has no resources."""
    if all(group.resources for group in request.groups.values()):
        classes = {name for group in request.groups.values() for name in group.resources}
        rows = await reader.fetch(_SHARING_CLASSES, SHARING_TRAIT, sorted(classes))
    else:
        rows = await reader.fetch(_SHARING, SHARING_TRAIT)
    return await read_trees(reader, [row["root_id"] for row in rows], aggregates=True) if rows else []


async def read_matching_trees(
    reader: Reader, request: ResourceRequest, sharing: Sequence[Tree], limit: int | None
) -> AsyncIterator[Tree]:
    """Iterate over the trees that may serve the request, ordered by the root's id, reading batch by batch."""
    aggregates = bool(sharing) or any(
        group.member_of or group.forbidden_aggregates for group in request.groups.values()
    )
    batch = MAX_BATCH if limit is None else min(MAX_BATCH, max(MIN_BATCH, 2 * limit))
    where = Conditions(separate=True)
    after, batch_limit = where.add_argument(0), where.add_argument(batch)
    only = _only_root(request, sharing)
    within = f"AND uuid = {where.add_text(only)}" if only is not None else ""
    conditions = islice(_root_conditions(where, request, sharing), _MAX_CONDITIONS)
    # The subquery limits the roots first, so that the conditions are evaluated for one batch only.
    sql = f"""
        SELECT r.id, CAST({all_of(conditions)} AS BOOLEAN) AS fits
        FROM (SELECT id FROM resource_providers WHERE root_id = id AND id > {after} {within}
              ORDER BY id LIMIT {batch_limit}) r
        ORDER BY r.id
    """
    last = 0
    while True:
        rows = await reader.fetch(sql, last, batch, *where.arguments[2:])
        if found := [row["id"] for row in rows if row["fits"]]:
            for tree in await read_trees(reader, found, aggregates=aggregates):
                yield tree
        if len(rows) < batch:
            return
        await asyncio.sleep(0)
        last = rows[-1]["id"]
        batch = min(MAX_BATCH, 2 * batch)


def _only_root(request: ResourceRequest, sharing: Sequence[Tree]) -> str | None:
    """The only possible root, if a group has `in_tree` and there are no sharing providers."""
    named = [group.in_tree for group in request.groups.values() if group.in_tree is not None]
    return named[0] if named and not sharing else None


async def read_trees(reader: Reader, roots: Sequence[int], *, aggregates: bool) -> list[Tree]:
    """Read whole trees, the providers of each ordered by id."""
    rows = await reader.fetch(_PROVIDERS, roots)
    ids = [row["id"] for row in rows]
    inventories: dict[int, dict[str, InventoryUsage]] = {}
    for row in await reader.fetch(_INVENTORIES, ids):
        inventories.setdefault(row["provider_id"], {})[row["resource_class"]] = _inventory_usage(row)
    traits = _sets(await reader.fetch(_TRAITS, ids))
    memberships = _sets(await reader.fetch(_AGGREGATES, ids)) if aggregates else {}
    found: dict[int, Tree] = {}
    empty: frozenset[str] = frozenset()
    for row in rows:
        key = row["id"]
        provider = Provider(
            row["uuid"],
            row["parent"],
            row["root"],
            inventories.get(key, {}),
            traits.get(key, empty),
            memberships.get(key, empty),
        )
        found.setdefault(row["root_id"], []).append(provider)
    # A tree that gets another root between two statements may be read without its root.
    return [tree for tree in found.values() if any(provider.uuid == provider.root for provider in tree)]


def _inventory_usage(row: Row) -> InventoryUsage:
    capacity = (row["total"] - row["reserved"]) * row["allocation_ratio"]
    return InventoryUsage(capacity, row["used"], row["min_unit"], row["max_unit"], row["step_size"])


def _sets(rows: Iterable[Row]) -> dict[int, frozenset[str]]:
    return {row["provider_id"]: frozenset(row["names"].split(",")) for row in rows}


# Conditions on a root `r`


def _root_conditions(where: Conditions, request: ResourceRequest, sharing: Sequence[Tree]) -> Iterator[str]:
    """Yield conditions lazily, because each one adds its arguments to `where`."""
    for trait in sorted(request.root_required):
        yield where.has_any_trait("r.id", {trait})
    if request.root_forbidden:
        yield f"NOT {where.has_any_trait('r.id', request.root_forbidden)}"
    for suffix, group in request.groups.items():
        if suffix:
            yield _can_serve(where, group, group, sharing, split=False)
            continue
        for name, amount in group.resources.items():
            part = msgspec.structs.replace(group, resources={name: amount})
            yield _can_serve(where, part, group, sharing, split=True)
        yield from _traits_covered(where, group, sharing)


def _can_serve(
    where: Conditions, part: RequestGroup, group: RequestGroup, sharing: Sequence[Tree], *, split: bool
) -> str:
    """Some provider of the tree, or one that shares with it, can serve `part` of the group."""
    group = msgspec.structs.replace(
        group, required=group.required[:_MAX_CONDITIONS], member_of=group.member_of[:_MAX_CONDITIONS]
    )
    conditions = [
        "p.root_id = r.id",
        *where.in_tree("r.id", group),
        *where.has_capacity("p.id", dict(islice(part.resources.items(), _MAX_CONDITIONS))),
        *([] if split else where.has_traits("p.id", group)),
        *where.lacks_traits("p.id", group),
        *where.in_aggregates("p.id", group, "r.id" if split else None),
    ]
    inside = f"EXISTS (SELECT 1 FROM resource_providers p WHERE {all_of(conditions)})"
    aggregates = frozenset().union(*(provider.aggregates for provider in _sharers(part, sharing, split)))
    if not aggregates:
        return inside
    return f"""({inside} OR r.id IN (
        SELECT q.root_id FROM provider_aggregates g JOIN resource_providers q ON q.id = g.provider_id
        WHERE g.aggregate_uuid = ANY({where.add_argument(sorted(aggregates))})))"""


def _traits_covered(where: Conditions, group: RequestGroup, sharing: Sequence[Tree]) -> Iterator[str]:
    """Some provider of the tree has each required trait, unless a sharing provider may have it."""
    parts = [msgspec.structs.replace(group, resources={name: n}) for name, n in group.resources.items()]
    sharers = [provider for part in parts for provider in _sharers(part, sharing, split=True)]
    for any_of in group.required:
        if not any(any_of & provider.traits for provider in sharers):
            had = where.has_any_trait("p.id", any_of)
            yield f"EXISTS (SELECT 1 FROM resource_providers p WHERE p.root_id = r.id AND {had})"


def _sharers(part: RequestGroup, sharing: Sequence[Tree], split: bool) -> list[Provider]:
    return [
        provider
        for tree in sharing
        for provider in ReachableProviders(tree, ()).eligible(part, split=split)
        if SHARING_TRAIT in provider.traits and can_allocate(provider, part.resources)
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
_INVENTORIES = f"SELECT i.*, {USED_AMOUNT} AS used FROM inventories i WHERE i.provider_id = ANY($1)"
_TRAITS = """
SELECT provider_id, string_agg(trait, ',') AS names FROM provider_traits
WHERE provider_id = ANY($1) GROUP BY provider_id
"""
_AGGREGATES = """
SELECT provider_id, string_agg(aggregate_uuid, ',') AS names FROM provider_aggregates
WHERE provider_id = ANY($1) GROUP BY provider_id
"""
