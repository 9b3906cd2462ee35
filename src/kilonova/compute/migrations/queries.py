"""Lists of migrations: filters, paging, and the details that views show beside the rows."""

from __future__ import annotations

from msgspec import structs

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.migrations import status
from kilonova.compute.migrations.model import LIVE
from kilonova.compute.migrations.status import ShownMigration
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import marker_not_found, page_limit
from kilonova.http.parameter_types import is_true
from kilonova.store import Reader
from kilonova.store.conditions import Conditions

PAGED = api.behaviour("migrations come in pages, newest first")
ALL_PROJECTS = "os_compute_api:os-migrations:index:all_projects"
HOSTS = "os_compute_api:os-migrations:index:host"
# Rows read by one query. The status is not a column, so it is filtered after reading.
BATCH = 1000
_EQUAL = {
    "instance_uuid": "m.server_id",
    "source_compute": "m.source_host",
    "migration_type": "m.type",
    "user_id": "m.user_id",
}


async def fetch_page(ctx: Context) -> tuple[list[ShownMigration], bool]:
    """A page of migrations, and whether it is full. Before 2.59: all migrations, oldest first."""
    conditions = Conditions()
    possible = _filter(ctx, conditions)
    paged = ctx.has_behaviour(PAGED)
    limit = page_limit(ctx) if paged else None
    last = await _marker(ctx) if paged else None
    if not possible or limit == 0:
        return [], False
    found = await _read(ctx, conditions, last=last, limit=limit, descending=paged)
    return found, len(found) == limit


async def fetch_in_progress(reader: Reader, server_id: str) -> list[ShownMigration]:
    """The running live migrations of a server."""
    found = (status.decode(row) for row in await reader.fetch(_OF_SERVER, server_id))
    return [move for move in found if status.in_progress(move)]


async def add_details(reader: Reader, found: list[ShownMigration], *, hosts: bool) -> list[ShownMigration]:
    """Add the destination's IP address and the flavors' integer ids. Without `hosts` fields of hosts are null."""
    moves = [move.migration for move in found]
    flavors = {flavor.flavor_id for move in moves for flavor in (move.old_flavor, move.new_flavor)}
    numbers = await _flavor_numbers(reader, flavors)
    addresses = await _addresses(reader, {move.dest_host for move in moves if move.dest_host} if hosts else set())
    return [
        structs.replace(
            move,
            dest_address=addresses.get(move.migration.dest_host),
            old_flavor_number=numbers.get(move.migration.old_flavor.flavor_id),
            new_flavor_number=numbers.get(move.migration.new_flavor.flavor_id),
            shows_hosts=hosts,
        )
        for move in found
    ]


def _filter(ctx: Context, conditions: Conditions) -> bool:
    """Add the query's conditions. Returns False if nothing can match."""
    _project(ctx, conditions)
    requested = {key: values[-1] for key, values in ctx.query.items()}
    if requested.keys() & {"host", "source_compute"}:
        # Filters would let callers guess the hosts that are hidden from them.
        ctx.authorize(HOSTS)
    for key, column in _EQUAL.items():
        if key in requested:
            conditions.add(f"{column} = ?", requested[key])
    if "host" in requested:
        conditions.add("(m.source_host = ? OR m.dest_host = ?)", requested["host"], requested["host"])
    _times(requested, conditions)
    if "status" in requested:
        possible = status.conditions(requested["status"])
        conditions.add(f"({' OR '.join(possible) or 'FALSE'})")
        if not possible:
            return False
    # Only cross-cell migrations are hidden in Nova, and there are no cells.
    return not is_true(requested.get("hidden"))


def _project(ctx: Context, conditions: Conditions) -> None:
    requested = ctx.query_one("project_id")
    if not ctx.may(ALL_PROJECTS):
        if requested not in (None, ctx.token.project_id):
            ctx.authorize(ALL_PROJECTS)
        requested = ctx.token.project_id or ""
    if requested is not None:
        conditions.add("m.project_id = ?", requested)


def _times(requested: dict[str, str], conditions: Conditions) -> None:
    since, before = (
        clock.parse(requested[key]) if key in requested else None for key in ("changes-since", "changes-before")
    )
    if since is not None and before is not None and before < since:
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")
    if since is not None:
        conditions.add(f"{status.CHANGED_AT} >= ?", since)
    if before is not None:
        conditions.add(f"{status.CHANGED_AT} <= ?", before)


async def _marker(ctx: Context) -> int | None:
    """The id of the migration whose uuid is the marker, which must be visible to the caller."""
    marker = ctx.query_one("marker")
    if marker is None:
        return None
    row = await ctx.db.fetch_one("SELECT id, project_id FROM moves WHERE operation_id = $1", marker)
    if row is None or not (row["project_id"] == ctx.token.project_id or ctx.may(ALL_PROJECTS)):
        raise marker_not_found(marker)
    return int(row["id"])


async def _read(
    ctx: Context, conditions: Conditions, *, last: int | None, limit: int | None, descending: bool
) -> list[ShownMigration]:
    """Migrations after `last`, up to `limit`. Reads in batches until enough have the requested status."""
    wanted = ctx.query_one("status")
    found: list[ShownMigration] = []
    beyond, order = ("<", "DESC") if descending else (">", "ASC")
    batch = BATCH if limit is None or wanted is not None else min(limit, BATCH)
    while True:
        arguments = list(conditions.arguments)
        where = conditions.where()
        if last is not None:
            arguments.append(last)
            where += f" AND m.id {beyond} ${len(arguments)}"
        sql = f"{status.SELECT} WHERE {where} ORDER BY m.id {order} LIMIT {batch}"
        rows = await ctx.db.fetch(sql, *arguments)
        moves = map(status.decode, rows)
        found += [move for move in moves if wanted is None or status.status(move) == wanted]
        if limit is not None and len(found) >= limit:
            return found[:limit]
        if len(rows) < batch:
            return found
        last = rows[-1]["id"]


async def _flavor_numbers(reader: Reader, flavors: set[str]) -> dict[str, int]:
    """The integer ids of flavors, without deleted ones."""
    rows = await reader.fetch("SELECT id, flavor_id FROM flavors WHERE flavor_id = ANY($1)", list(flavors))
    return {row["flavor_id"]: row["id"] for row in rows}


async def _addresses(reader: Reader, hosts: set[str]) -> dict[str | None, str]:
    if not hosts:
        return {}
    rows = await reader.fetch("SELECT host, host_ip FROM hypervisors WHERE host = ANY($1)", list(hosts))
    return {row["host"]: row["host_ip"] for row in rows}


_OF_SERVER = f"{status.SELECT} WHERE m.server_id = $1 AND m.type = '{LIVE}' AND o.finished_at IS NULL ORDER BY m.id"
