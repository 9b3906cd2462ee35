"""Lists servers: filters and who may use them, sorting, and paging."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers import states
from kilonova.compute.servers.model import BUSY
from kilonova.compute.servers.schemas import ALL_FILTERS, OPEN_FILTERS, OPENED_FILTERS
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.sort_keys import requested_order
from kilonova.compute.servers.task_states import steps_with_task_states
from kilonova.compute.zones import model as zones
from kilonova.http import Context, pattern_filters
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.http.filter_values import limited
from kilonova.http.loop_yielder import LoopYielder, collect
from kilonova.http.pagination import marker_not_found, page_limit
from kilonova.http.parameter_types import BOOLEAN, is_true
from kilonova.http.pattern_filters import pattern_condition
from kilonova.store import Row, regular_expressions
from kilonova.store.conditions import Conditions
from kilonova.store.paging import Page
from kilonova.store.records import Record

UNKNOWN_STATUS_REFUSED = api.behaviour("unknown status filter is refused")
_PATTERNS = {
    "name": "name",
    "display_name": "name",
    "description": "description",
    "display_description": "description",
    "hostname": "hostname",
    "key_name": "key_name",
    "reservation_id": "reservation_id",
    "root_device_name": "root_device_name",
    "locked_by": "locked_by",
    "auto_disk_config": "disk_config",
}
_EQUAL = {
    "host": "host",
    "node": "hypervisor_hostname",
    "uuid": "id",
    "image": "image_id",
    "image_ref": "image_id",
    "flavor": "flavor_id",
    "user_id": "user_id",
    "vm_state": "vm_state",
    "access_ip_v4": "access_ip_v4",
    "access_ip_v6": "access_ip_v6",
}
# Every address of a server as a row, in each database's JSON functions.
_ADDRESSES = {
    "sqlite": "json_each(servers.nics) n, json_each(n.value, '$.addresses') a",
    "postgresql": "json_array_elements(CAST(servers.nics AS JSON)) n,"
    " json_array_elements_text(n.value -> 'addresses') a",
}
# Filters by properties of the image.
_IMAGE_PROPERTIES = ("kernel_id", "ramdisk_id")
_IMAGE_PROPERTY = {
    "sqlite": "json_extract(servers.image_properties, '$.{}')",
    "postgresql": "(CAST(servers.image_properties AS JSON) ->> '{}')",
}
_OF_VERSION = {"ip": "NOT LIKE '%:%'", "ip6": "LIKE '%:%'"}
_WORDS = {str(word).lower() for word in BOOLEAN["enum"]}
# A cancelled operation does not set the task state.
_BUSY = (
    "EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL"
    " AND NOT o.cancel_requested AND (o.kind || '/' || o.step) = ANY(?))"
)


class BriefServer(Record, frozen=True):
    table: ClassVar[str] = "servers"

    id: str
    name: str


class FoundServers(NamedTuple):
    """A page of servers, and whether there may be another page. `busy` are those with an unfinished operation."""

    servers: list[Server]
    busy: frozenset[str]
    full: bool


async def list_servers(ctx: Context, *, all_tenants_rule: str) -> FoundServers:
    rows, full = await _list_rows(ctx, f"servers.*, {BUSY}", all_tenants_rule)
    servers = await collect(Server.decode(row) for row in rows)
    return FoundServers(servers, frozenset(row["id"] for row in rows if row["busy"]), full)


async def list_briefly(ctx: Context, *, all_tenants_rule: str) -> tuple[list[BriefServer], bool]:
    """A page of servers, and whether there may be another page."""
    rows, full = await _list_rows(ctx, "id, name", all_tenants_rule)
    return BriefServer.decode_all(rows), full


async def _list_rows(ctx: Context, columns: str, all_tenants_rule: str) -> tuple[list[Row], bool]:
    conditions = Conditions()
    everywhere = _everywhere(ctx, all_tenants_rule)
    if not await _filter(ctx, conditions, everywhere):
        return [], False
    limit = page_limit(ctx)
    if limit == 0:
        return [], False
    order = requested_order(ctx)
    marker = await _marker(ctx, everywhere, order.table)
    page = Page(order.keys, marker=marker, limit=limit, first_argument=len(conditions.arguments) + 1)
    sql = f"SELECT {columns} FROM {order.table} WHERE {conditions.where()} AND {page.where} {page.order}"
    rows = await pattern_filters.fetch(ctx.db, conditions, sql, *conditions.arguments, *page.arguments)
    return rows, len(rows) == limit


async def _filter(ctx: Context, conditions: Conditions, everywhere: bool) -> bool:
    """Add the filters; returns False if nothing can match. Filters that the caller may not use are ignored."""
    requested = ctx.query
    if not ctx.may(ALL_FILTERS):
        requested = {key: values for key, values in requested.items() if key in _open_filters(ctx)}
    _projects(ctx, conditions, everywhere)
    _times(requested, conditions)
    for key, column in _EQUAL.items():
        if key in requested:
            conditions.add(f"{column} = ?", requested[key][-1])
    for key, column in _PATTERNS.items():
        if key in requested:
            conditions.add(*pattern_condition(column, key, requested[key][-1]))
    for key in _IMAGE_PROPERTIES:
        if key in requested:
            value = _IMAGE_PROPERTY[ctx.db.dialect].format(key)
            conditions.add(*pattern_condition(value, key, requested[key][-1]))
    for key, version in _OF_VERSION.items():
        if key in requested:
            addresses = f"SELECT 1 FROM {_ADDRESSES[ctx.db.dialect]} WHERE a.value {version}"
            matches, pattern = pattern_condition("a.value", key, requested[key][-1])
            conditions.add(f"EXISTS ({addresses} AND {matches})", pattern)
    for key, condition in _OTHERS.items():
        if key in requested:
            condition(requested[key][-1], conditions)
    if "availability_zone" in requested:
        await _zone(ctx, requested["availability_zone"][-1], conditions)
    return _status(ctx, requested.get("status", []), conditions)


def _open_filters(ctx: Context) -> set[str]:
    opened = (keys for behaviour, keys in OPENED_FILTERS.items() if ctx.has_behaviour(behaviour))
    return set(OPEN_FILTERS).union(*opened)


def _everywhere(ctx: Context, all_tenants_rule: str) -> bool:
    """Whether `all_tenants` is set; the key without a value sets it too."""
    word = ctx.query_one("all_tenants", "0") or "1"
    if word.lower() not in _WORDS:
        raise BadRequest(f"Invalid input for query parameter all_tenants: {word[:80]!r} is neither true nor false.")
    if not is_true(word):
        return False
    ctx.authorize(all_tenants_rule)
    return True


def _projects(ctx: Context, conditions: Conditions, everywhere: bool) -> None:
    """Limit the list to the caller's project, or with `all_tenants` to the requested one."""
    if not everywhere:
        conditions.add("project_id = ?", ctx.token.project_id or "")
    elif project := ctx.query_one("project_id") or ctx.query_one("tenant_id"):
        conditions.add("project_id = ?", project)


def _times(requested: dict[str, list[str]], conditions: Conditions) -> None:
    since = clock.parse(requested["changes-since"][-1]) if "changes-since" in requested else None
    before = clock.parse(requested["changes-before"][-1]) if "changes-before" in requested else None
    if since is not None and before is not None and before < since:
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")
    if since is not None:
        conditions.add("updated_at >= ?", since)
    if before is not None:
        # Times are shown in whole seconds, so the filter includes the whole second.
        conditions.add("updated_at < ?", before // 1 + 1)
    statuses = {word.upper() for word in requested.get("status", [])}
    if "deleted" in requested and is_true(requested["deleted"][-1]):
        if "soft_deleted" in requested and not is_true(requested["soft_deleted"][-1]):
            conditions.add("deleted")
        else:
            conditions.add("(deleted OR vm_state = ?)", states.SOFT_DELETED)
    elif "deleted" in requested or (since is None and before is None and "DELETED" not in statuses):
        conditions.add("NOT deleted")
        # Soft-deleted servers are hidden unless a filter asks for them.
        if "vm_state" not in requested and "SOFT_DELETED" not in statuses:
            conditions.add("vm_state <> ?", states.SOFT_DELETED)


def _status(ctx: Context, requested: list[str], conditions: Conditions) -> bool:
    if not requested:
        return True
    wanted = {word.upper() for word in requested}
    if not wanted & states.STATUSES and ctx.has_behaviour(UNKNOWN_STATUS_REFUSED):
        raise BadRequest(f"Invalid status value: {', '.join(sorted(wanted))}")
    if "DELETED" in wanted and not ctx.may(ALL_FILTERS):
        raise Forbidden("Only administrators may list deleted instances")
    vm_states = [state for state, word in states.STATUS.items() if word in wanted]
    tasks = [task for task, word in states.STATUS_OF_TASK.items() if word in wanted]
    if not vm_states and not tasks:
        return False
    # A task state with a status of its own hides the status of the vm_state.
    conditions.add(
        f"((vm_state = ANY(?) AND NOT {_BUSY}) OR {_BUSY})",
        vm_states,
        steps_with_task_states(states.STATUS_OF_TASK),
        steps_with_task_states(tasks),
    )
    return True


async def _zone(ctx: Context, pattern: str, conditions: Conditions) -> None:
    matches, argument = pattern_condition("pinned_zone", "availability_zone", pattern)
    services = await zones.services(ctx.db, ctx.services.config.scheduler.default_zone)
    names: set[str] = set()
    yielder = LoopYielder()
    for zone in {zone for _, zone in services}:
        if regular_expressions.matches(pattern, zone):
            names.add(zone)
        await yielder.maybe_yield()
    hosts = [service.host for service, zone in services if zone in names]
    conditions.add(f"(host = ANY(?) OR (host IS NULL AND {matches}))", hosts, argument)


def _task(value: str, conditions: Conditions) -> None:
    conditions.add(_BUSY, steps_with_task_states([value]))


def _number(column: str) -> Callable[[str, Conditions], None]:
    def condition(value: str, conditions: Conditions) -> None:
        if value.isascii() and value.isdigit() and len(value) < 10:
            conditions.add(f"{column} = ?", int(value))
        else:
            conditions.add("FALSE")

    return condition


def _locked(value: str, conditions: Conditions) -> None:
    if value.lower() not in _WORDS:
        raise BadRequest(f"Invalid input for query parameter locked: {value[:80]!r} is neither true nor false.")
    conditions.add("locked" if is_true(value) else "NOT locked")


def _config_drive(value: str, conditions: Conditions) -> None:
    """True or false; anything else is a pattern of the text that views show."""
    if value.lower() in _WORDS:
        conditions.add("config_drive" if is_true(value) else "NOT config_drive")
    else:
        shown = "CASE WHEN config_drive THEN 'True' ELSE '' END"
        conditions.add(*pattern_condition(shown, "config_drive", value))


def _moment(column: str) -> Callable[[str, Conditions], None]:
    def condition(value: str, conditions: Conditions) -> None:
        """Match the whole second, as times are shown."""
        second = clock.parse(value) // 1
        conditions.add(f"{column} >= ?", second)
        conditions.add(f"{column} < ?", second + 1)

    return condition


def _tags(key: str) -> Callable[[str, Conditions], None]:
    """A filter by comma-separated tags: all or any of them, perhaps negated."""
    wrong, any_of = "NOT " if key.startswith("not-") else "", key.endswith("-any")

    def condition(value: str, conditions: Conditions) -> None:
        tags = sorted(limited(key, {tag for tag in value.split(",") if tag}))
        if tags:
            conditions.add(f"{wrong}({_TAGGED}) >= ?", tags, 1 if any_of else len(tags))

    return condition


_TAGGED = "SELECT COUNT(*) FROM server_tags t WHERE t.server_id = servers.id AND t.tag = ANY(?)"

_OTHERS: dict[str, Callable[[str, Conditions], None]] = {
    "task_state": _task,
    **{key: _tags(key) for key in ("tags", "tags-any", "not-tags", "not-tags-any")},
    "power_state": _number("power_state"),
    "launch_index": _number("launch_index"),
    "locked": _locked,
    "config_drive": _config_drive,
    "created_at": _moment("created_at"),
    "launched_at": _moment("launched_at"),
    "terminated_at": _moment("terminated_at"),
}


async def _marker(ctx: Context, everywhere: bool, table: str) -> Row | None:
    marker = ctx.query_one("marker")
    if marker is None:
        return None
    row = await ctx.db.fetch_one(f"SELECT * FROM {table} WHERE id = $1", marker)
    if row is None or not (everywhere or row["project_id"] == ctx.token.project_id):
        raise marker_not_found(marker)
    return row
