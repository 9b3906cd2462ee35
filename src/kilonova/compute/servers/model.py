"""Reads server rows for a caller, and writes the changes that operations make to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson

from kilonova import clock
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.server_groups import model as groups
from kilonova.compute.server_tags import model as tags
from kilonova.compute.servers import floating_ips, states
from kilonova.compute.zones import model as zones
from kilonova.hosts.heartbeat import is_up
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.operations import views as operations
from kilonova.store import Reader, Row, Transaction

SHOW = "os_compute_api:servers:show"
# Rows and operations are read one after the other. `busy` tells that a row is stale if its operation has ended since.
READ = """servers.*, EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL
) AS busy"""
_DOCUMENTS = ("flavor", "image_properties", "metadata", "nics", "scheduler_hints")


def not_found(server_id: str) -> NotFound:
    return NotFound(f"Instance {server_id} could not be found.")


async def find(ctx: Context, reader: Reader, server_id: str, *, rule: str, lock: bool = False) -> Row:
    """The server, if the caller may see it (else 404) and the rule allows the action (else 403).

    A rule may allow services an action on servers that they may not see.
    """
    sql = f"SELECT {READ} FROM servers WHERE id = $1 AND NOT deleted"
    row = await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, server_id)
    if row is None or not (ctx.may(SHOW, target(row)) or ctx.may(rule, target(row))):
        raise not_found(server_id)
    ctx.authorize(rule, target(row))
    return row


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


async def unfinished(reader: Reader, server_id: str) -> list[Row]:
    """The server's unfinished operations."""
    return await reader.fetch(
        "SELECT id, kind FROM operations WHERE server_id = $1 AND finished_at IS NULL ORDER BY seq", server_id
    )


async def is_being_deleted(reader: Reader, server_id: str) -> bool:
    """Whether a delete of the server is queued or running."""
    return any(operation["kind"] == "delete" for operation in await unfinished(reader, server_id))


async def enrich(ctx: Context, rows: Sequence[Row], view: str) -> Sequence[Row]:
    """Add derived fields: status and task state from operations, zone and host status from the host.

    Returns the rows without servers whose delete has just ended.
    """
    running = await operations.find_running(ctx.db, [row["id"] for row in rows])
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
    floating_to = await floating_ips.addresses_by_port(ctx, rows)
    for row in rows:
        row["floating"] = floating_to
    return [row for row in rows if row["id"] not in gone] if gone else rows


async def _read_again(reader: Reader, rows: Sequence[Row], running: Collection[str]) -> set[str]:
    """Read rows again whose operation has ended since, so that no server shows its old state without a task.

    Returns the ids of deleted servers.
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


# Writes by operations

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
    """Set the state at the end of an operation, and clear the fault."""
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
    """Store the server's copy of a flavor, and `disk_config` if given."""
    await tx.execute(
        "UPDATE servers SET flavor_id = $2, flavor = $3, disk_config = COALESCE(CAST($4 AS TEXT), disk_config)"
        " WHERE id = $1",
        server_id,
        flavor_id,
        orjson.dumps(flavor).decode(),
        disk_config,
    )


async def set_quota_usage(tx: Transaction, server_id: str, *copies: dict[str, Any]) -> None:
    """Set the server's quota usage to the larger of these flavors."""
    await tx.execute(
        "UPDATE servers SET vcpus = $2, ram = $3 WHERE id = $1",
        server_id,
        *(max(flavor[amount] for flavor in copies) for amount in ("vcpus", "ram")),
    )


async def fail(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """Put the server into ERROR with a fault."""
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, fault = $4, updated_at = $5 WHERE id = $1 AND NOT deleted",
        server_id,
        states.ERROR,
        states.NOSTATE,
        _fault(message, details),
        clock.now(),
    )


async def note_fault(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """Set the server's fault without changing its state. The next successful operation clears it."""
    await tx.execute(
        "UPDATE servers SET fault = $2, updated_at = $3 WHERE id = $1 AND NOT deleted",
        server_id,
        _fault(message, details),
        clock.now(),
    )


def _fault(message: str, details: str | None) -> str:
    return orjson.dumps({"code": 500, "message": message, "details": details, "created_at": clock.now()}).decode()
