"""Servers in the database: reading them for a caller, and the writes that operations share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson

from kilonova import clock
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.server_groups import model as groups
from kilonova.compute.server_tags import model as tags
from kilonova.compute.servers import floating, states
from kilonova.compute.zones import model as zones
from kilonova.hosts.heartbeat import is_up
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.operations import views as operations
from kilonova.store import Reader, Row, Transaction

SHOW = "os_compute_api:servers:show"
# Rows and operations are read one after the other. What was busy and is no longer has another row by then.
READ = """servers.*, EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL
) AS busy"""
_DOCUMENTS = ("flavor", "image_properties", "metadata", "nics", "scheduler_hints")


def missing(server_id: str) -> NotFound:
    return NotFound(f"Instance {server_id} could not be found.")


async def find(ctx: Context, reader: Reader, server_id: str, *, rule: str, lock: bool = False) -> Row:
    """The server, if the caller may see it (else 404) and the rule allows the act on it (else 403).

    Services may do some things to servers that they do not see.
    """
    sql = f"SELECT {READ} FROM servers WHERE id = $1 AND NOT deleted"
    row = await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, server_id)
    if row is None or not (ctx.may(SHOW, target(row)) or ctx.may(rule, target(row))):
        raise missing(server_id)
    ctx.authorize(rule, target(row))
    return row


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


async def unfinished(reader: Reader, server_id: str) -> list[Row]:
    """Operations of the server that run or wait for their turn."""
    return await reader.fetch(
        "SELECT id, kind FROM operations WHERE server_id = $1 AND finished_at IS NULL ORDER BY seq", server_id
    )


async def is_being_deleted(reader: Reader, server_id: str) -> bool:
    """Whether a deletion is to come, and nothing but that is of use to the server."""
    return any(operation["kind"] == "delete" for operation in await unfinished(reader, server_id))


async def dress(ctx: Context, rows: Sequence[Row], view: str) -> Sequence[Row]:
    """Add what is derived: status and task from the running operations, the zone and its state from the host.

    The rows again, but for servers whose deletion ended just now.
    """
    running = await operations.running_of(ctx.db, [row["id"] for row in rows])
    gone = await _read_again(ctx.db, rows, running)
    hosts = {row["host"] for row in rows if row["host"]}
    zone_of = await zones.zone_of_hosts(ctx.db, hosts, ctx.services.config.scheduler.default_zone)
    host_status = await _host_status(ctx, hosts) if ctx.shows(view, "host_status") else {}
    group_of = await groups.of_servers(ctx.db, [row["id"] for row in rows]) if ctx.shows(view, "server_groups") else {}
    tags_of = await tags.of_servers(ctx.db, [row["id"] for row in rows]) if ctx.shows(view, "tags") else {}
    attached = ctx.shows(view, "os-extended-volumes:volumes_attached")
    volumes_of = await block_devices.of_servers(ctx.db, [row["id"] for row in rows]) if attached else {}
    for row in rows:
        for name in _DOCUMENTS:
            row[name] = orjson.loads(row[name])
        row["fault"] = orjson.loads(row["fault"]) if row["fault"] else None
        operation = running.get(row["id"])
        row["task_state"] = operation.task_state if operation else None
        row["progress"] = operation.progress if operation else 0
        row["status"] = states.status(row["vm_state"], row["task_state"])
        row["zone"] = zone_of[row["host"]] if row["host"] else row["pinned_zone"] or ""
        row["server_groups"] = [group_of[row["id"]]] if row["id"] in group_of else []
        row["tags"] = tags_of.get(row["id"], [])
        row["volumes"] = volumes_of.get(row["id"], [])
        row["host_status"] = host_status.get(row["host"], "")
    floating_to = await floating.of_ports(ctx, rows)
    for row in rows:
        row["floating"] = floating_to
    return [row for row in rows if row["id"] not in gone] if gone else rows


async def _read_again(reader: Reader, rows: Sequence[Row], running: Collection[str]) -> set[str]:
    """Have the rows as operations that ended meanwhile left them, else servers would look idle in the state before.

    The ids of servers that are gone now.
    """
    stale = {row["id"]: row for row in rows if row.get("busy") and not row["deleted"] and row["id"] not in running}
    if not stale:
        return set()
    for fresh in await reader.fetch("SELECT * FROM servers WHERE id = ANY($1)", list(stale)):
        stale[fresh["id"]].update(fresh)
    return {server_id for server_id, row in stale.items() if row["deleted"]}


async def _host_status(ctx: Context, hosts: Iterable[str]) -> dict[str, str]:
    rows = await ctx.db.fetch("SELECT * FROM services WHERE program = 'nova-compute' AND host = ANY($1)", sorted(hosts))
    return {row["host"]: _status_of(row, ctx) for row in rows}


def _status_of(service: Row, ctx: Context) -> str:
    if service["forced_down"]:
        return "DOWN"
    if not is_up(service, ctx.now, ctx.services.config.hosts.down_seconds):
        return "UNKNOWN"
    return "MAINTENANCE" if service["disabled"] else "UP"


# Writes of operations

COLUMNS = (
    *("id", "project_id", "user_id", "name", "hostname", "description", "vm_state", "power_state", "pinned_zone"),
    *("flavor_id", "vcpus", "ram", "flavor", "image_id", "image_properties", "key_name", "public_key"),
    *("user_data", "metadata", "nics", "scheduler_hints", "config_drive", "disk_config", "access_ip_v4"),
    *("access_ip_v6", "reservation_id", "launch_index", "root_device_name", "locked", "deleted", "created_at"),
    *("updated_at", "trusted_certificates"),
)
_INSERT = "INSERT INTO servers ({}) VALUES ({})".format(
    ", ".join(COLUMNS), ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
)


async def insert(tx: Transaction, server: Row) -> None:
    await tx.execute(_INSERT, *(server[name] for name in COLUMNS))


async def settle(tx: Transaction, server_id: str, vm_state: str, power_state: int) -> None:
    """The state in which an operation leaves a server; an old fault is over."""
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, fault = NULL, updated_at = $4 WHERE id = $1",
        server_id,
        vm_state,
        power_state,
        clock.now(),
    )


async def set_host(tx: Transaction, server_id: str, host: str | None, hypervisor_hostname: str | None) -> None:
    await tx.execute(
        "UPDATE servers SET host = $2, hypervisor_hostname = $3, updated_at = $4 WHERE id = $1",
        server_id,
        host,
        hypervisor_hostname,
        clock.now(),
    )


async def set_flavor(
    tx: Transaction, server_id: str, flavor_id: str, flavor: dict[str, Any], disk_config: str | None = None
) -> None:
    """The server's own copy of a flavor. Without a `disk_config` that stays as it is."""
    await tx.execute(
        "UPDATE servers SET flavor_id = $2, flavor = $3, disk_config = COALESCE(CAST($4 AS TEXT), disk_config)"
        " WHERE id = $1",
        server_id,
        flavor_id,
        orjson.dumps(flavor).decode(),
        disk_config,
    )


async def count(tx: Transaction, server_id: str, *copies: dict[str, Any]) -> None:
    """What the server takes of the quota: as much as the larger of these flavors."""
    await tx.execute(
        "UPDATE servers SET vcpus = $2, ram = $3 WHERE id = $1",
        server_id,
        *(max(flavor[amount] for flavor in copies) for amount in ("vcpus", "ram")),
    )


async def fail(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """The server is in error, and says why."""
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, fault = $4, updated_at = $5 WHERE id = $1 AND NOT deleted",
        server_id,
        states.ERROR,
        states.NOSTATE,
        _fault(message, details),
        clock.now(),
    )


async def note_fault(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """Something that was asked for failed, and the server is as it was before; until the next success it says why."""
    await tx.execute(
        "UPDATE servers SET fault = $2, updated_at = $3 WHERE id = $1 AND NOT deleted",
        server_id,
        _fault(message, details),
        clock.now(),
    )


def _fault(message: str, details: str | None) -> str:
    return orjson.dumps({"code": 500, "message": message, "details": details, "created_at": clock.now()}).decode()
