"""Lists servers: filters and who may use them, sorting, and paging."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers import states
from kilonova.compute.servers.model import BUSY
from kilonova.compute.servers.schemas import OPEN_FILTERS, OPENED_FILTERS
from kilonova.compute.servers.server import Server
from kilonova.compute.zones import model as zones
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.http.filter_values import limited
from kilonova.http.loop_yielder import LoopYielder, collect
from kilonova.http.pagination import marker_not_found, page_limit
from kilonova.http.parameter_types import BOOLEAN, is_true
from kilonova.operations.definition import all_kinds
from kilonova.store import Invalid, Row, TooSlow, regular_expressions
from kilonova.store.conditions import Conditions
from kilonova.store.paging import Page, SortKey
from kilonova.store.records import Record

ALL_FILTERS = "os_compute_api:servers:allow_all_filters"
UNKNOWN_STATUS_REFUSED = api.behaviour("unknown status filter is refused")
_REGULAR_EXPRESSION = "~"
_PATTERNS = {
    "name": "name",
    "display_name": "name",
    "description": "description",
    "display_description": "description",
    "hostname": "hostname",
    "key_name": "key_name",
    "reservation_id": "reservation_id",
    "root_device_name": "root_device_name",
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
_OF_VERSION = {"ip": "NOT LIKE '%:%'", "ip6": "LIKE '%:%'"}
_WORDS = {str(word).lower() for word in BOOLEAN["enum"]}
_SORT_COLUMNS = {
    **{
        name: name
        for name in (
            *("created_at", "updated_at", "launched_at", "terminated_at", "host", "hostname", "vm_state"),
            *("power_state", "project_id", "user_id", "key_name", "launch_index", "reservation_id", "locked"),
            *("config_drive", "access_ip_v4", "access_ip_v6", "root_device_name", "vcpus"),
        )
    },
    "display_name": "name",
    "display_description": "description",
    "uuid": "id",
    "id": "id",
    "image_ref": "image_id",
    "instance_type_id": "flavor_id",
    "memory_mb": "ram",
    "node": "hypervisor_hostname",
    "availability_zone": "pinned_zone",
}
_NULLABLE = frozenset(
    {
        *("launched_at", "terminated_at", "host", "key_name", "access_ip_v4", "access_ip_v6", "root_device_name"),
        *("description", "image_id", "hypervisor_hostname", "pinned_zone"),
    }
)
# A cancelled operation does not set the task state.
_BUSY = (
    "EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL"
    " AND NOT o.cancel_requested AND (o.kind || '/' || o.step) = ANY(?))"
)
_HOST_SORT_KEYS = frozenset({"host", "node"})


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
    marker = await _marker(ctx, everywhere)
    page = Page(_sort(ctx), marker=marker, limit=limit, first_argument=len(conditions.arguments) + 1)
    sql = f"SELECT {columns} FROM servers WHERE {conditions.where()} AND {page.where} {page.order}"
    try:
        read = ctx.db.search if _has_regular_expression(conditions) else ctx.db.fetch
        rows = await read(sql, *conditions.arguments, *page.arguments)
    except Invalid as error:
        # PostgreSQL rejects some patterns that SQLite accepts.
        raise BadRequest(f"Invalid input for query parameters: {error}") from None
    except TooSlow as error:
        raise BadRequest(f"Invalid input for query parameters: {error}; use simpler patterns.") from None
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
            conditions.add(*_match(column, key, requested[key][-1]))
    for key, version in _OF_VERSION.items():
        if key in requested:
            addresses = f"SELECT 1 FROM {_ADDRESSES[ctx.db.dialect]} WHERE a.value {version}"
            matches, pattern = _match("a.value", key, requested[key][-1])
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
        conditions.add("(deleted OR vm_state = ?)", states.SOFT_DELETED)
    elif "deleted" in requested or (since is None and before is None and "DELETED" not in statuses):
        conditions.add("NOT deleted")
        # Soft-deleted servers are hidden unless a filter asks for them.
        if "vm_state" not in requested and "SOFT_DELETED" not in statuses:
            conditions.add("vm_state <> ?", states.SOFT_DELETED)


def _match(column: str, key: str, value: str) -> tuple[str, str]:
    """The condition for a pattern, and its argument. Most patterns are plain text and need no regular expression."""
    try:
        regular_expressions.check_pattern(value)
    except regular_expressions.InvalidPattern as error:
        raise BadRequest(f"Invalid input for query parameter {key}: {error}") from None
    plain = regular_expressions.as_like(value)
    return (f"{column} {_REGULAR_EXPRESSION} ?", value) if plain is None else (f"{column} LIKE ? ESCAPE '\\'", plain)


def _has_regular_expression(conditions: Conditions) -> bool:
    return any(f" {_REGULAR_EXPRESSION} " in part for part in conditions.parts)


def _status(ctx: Context, requested: list[str], conditions: Conditions) -> bool:
    if not requested:
        return True
    wanted = {word.upper() for word in requested}
    unknown = wanted - states.STATUSES
    if unknown and ctx.has_behaviour(UNKNOWN_STATUS_REFUSED):
        raise BadRequest(f"Invalid status value: {', '.join(sorted(unknown))}")
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
    matches, argument = _match("pinned_zone", "availability_zone", pattern)
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


def steps_with_task_states(tasks: Iterable[str]) -> list[str]:
    """`kind/step` of every step with one of these task states, since task states are not stored."""
    wanted = set(tasks)
    return [
        f"{operation.kind}/{step.name}"
        for operation in all_kinds()
        for step in operation.table().steps
        if (step.task_state or operation.task_state) in wanted
    ]


def _number(column: str) -> Callable[[str, Conditions], None]:
    def condition(value: str, conditions: Conditions) -> None:
        if value.isascii() and value.isdigit() and len(value) < 10:
            conditions.add(f"{column} = ?", int(value))
        else:
            conditions.add("FALSE")

    return condition


def _flag(column: str) -> Callable[[str, Conditions], None]:
    def condition(value: str, conditions: Conditions) -> None:
        conditions.add(column if is_true(value) else f"NOT {column}")

    return condition


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
    "locked": _flag("locked"),
    "config_drive": _flag("config_drive"),
    "created_at": _moment("created_at"),
    "launched_at": _moment("launched_at"),
    "terminated_at": _moment("terminated_at"),
}


def _sort(ctx: Context) -> list[SortKey]:
    keys = ctx.query.get("sort_key", [])
    directions = ctx.query.get("sort_dir", [])
    if len(directions) > max(len(keys), 1):
        raise BadRequest("There are more sort_dir than sort_key in the query.")
    if not keys:
        keys = ["created_at"]
    sort = []
    for place, key in enumerate(keys):
        if key not in _SORT_COLUMNS:
            raise BadRequest(f"Sort key supplied is not valid: {key}")
        if key in _HOST_SORT_KEYS and not ctx.may(ALL_FILTERS):
            raise Forbidden(f"Policy doesn't allow sorting by {key}.")
        descending = (directions[place] if place < len(directions) else "desc") == "desc"
        column = _SORT_COLUMNS[key]
        sort.append(SortKey(column, descending, nullable=column in _NULLABLE))
    return [*sort, SortKey("id", sort[-1].descending)]


async def _marker(ctx: Context, everywhere: bool) -> Row | None:
    marker = ctx.query_one("marker")
    if marker is None:
        return None
    row = await ctx.db.fetch_one("SELECT * FROM servers WHERE id = $1", marker)
    if row is None or not (everywhere or row["project_id"] == ctx.token.project_id):
        raise marker_not_found(marker)
    return row
