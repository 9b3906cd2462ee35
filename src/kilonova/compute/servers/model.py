"""Reads servers for a caller. All writes to the table `servers` are here; they check changes of the state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.servers import states
from kilonova.compute.servers.server import EmbeddedFlavor, Fault, Interface, Server, Value
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Reader, Row, Transaction
from kilonova.store.records import Record, encode_document

SHOW = "os_compute_api:servers:show"
# Servers and operations are read one after the other. `busy` tells that a server is stale if its operation has ended
# since.
BUSY = "EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL) AS busy"


def not_found(server_id: str) -> NotFound:
    return NotFound(f"Instance {server_id} could not be found.")


async def find(ctx: Context, reader: Reader, server_id: str, *, rule: str, lock: bool = False) -> Server:
    """The server, if the caller may see it (else 404) and the rule allows the action (else 403).

    A rule may allow services an action on servers that they may not see.
    """
    return _authorize(ctx, await _fetch(reader, "*", server_id, lock=lock), server_id, rule)


async def find_busy(
    ctx: Context, reader: Reader, server_id: str, *, rule: str, lock: bool = False
) -> tuple[Server, frozenset[str]]:
    """The server as in `find`, and its id if it has an unfinished operation, for `shown_server.enrich`."""
    row = await _fetch(reader, f"*, {BUSY}", server_id, lock=lock)
    server = _authorize(ctx, row, server_id, rule)
    return server, frozenset({server_id} if row and row["busy"] else ())


async def _fetch(reader: Reader, columns: str, server_id: str, *, lock: bool) -> Row | None:
    sql = f"SELECT {columns} FROM servers WHERE id = $1 AND NOT deleted"
    return await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, server_id)


def _authorize(ctx: Context, row: Row | None, server_id: str, rule: str) -> Server:
    server = Server.decode_optional(row)
    if server is None or not (ctx.may(SHOW, target(server)) or ctx.may(rule, target(server))):
        raise not_found(server_id)
    ctx.authorize(rule, target(server))
    return server


def target(server: Server) -> dict[str, str]:
    return {"project_id": server.project_id, "user_id": server.user_id}


_NOT_SHELVED: dict[str, Value] = {"shelved_at": None, "shelved_image_id": None, "shelved_image_hash": None}


class UnfinishedOperation(Record, frozen=True):
    table: ClassVar[str] = "operations"

    id: str
    kind: str


async def unfinished(reader: Reader, server_id: str) -> list[UnfinishedOperation]:
    """The server's unfinished operations, oldest first."""
    sql = "SELECT id, kind FROM operations WHERE server_id = $1 AND finished_at IS NULL ORDER BY seq"
    return UnfinishedOperation.decode_all(await reader.fetch(sql, server_id))


async def is_being_deleted(reader: Reader, server_id: str) -> bool:
    """Whether a delete of the server is queued or running."""
    return any(operation.kind == kinds.DELETE for operation in await unfinished(reader, server_id))


# Changes of the state. Each names its action or change in the state table, and raises InvalidTransition before anything
# is written if the table does not have it.


async def settle(tx: Transaction, server_id: str, action: str, vm_state: str, power_state: int) -> None:
    """Set the state at the end of an operation, and clear the fault."""
    await _change_state(tx, server_id, action, vm_state, power_state=power_state, fault=None)


async def finish_boot(tx: Transaction, server_id: str, interfaces: Sequence[Interface]) -> None:
    now, nics = clock.now(), encode_document(interfaces)
    await _change_state(tx, server_id, "boot", states.ACTIVE, power_state=states.RUNNING, nics=nics, launched_at=now)


async def rebuild(
    tx: Transaction, server_id: str, columns: Mapping[str, str | None], vm_state: str, power_state: int
) -> None:
    """Write the columns that the rebuild changes, and the state after it."""
    now = clock.now()
    await _change_state(
        tx, server_id, "rebuild", vm_state, **columns, power_state=power_state, launched_at=now, fault=None
    )


async def shelve(tx: Transaction, server_id: str, image_id: str | None, image_hash: str | None) -> None:
    """`image_id` is the image of the server's disk; None for a volume-backed server."""
    shelved = {"shelved_at": clock.now(), "shelved_image_id": image_id, "shelved_image_hash": image_hash}
    await _change_state(tx, server_id, "shelve", states.SHELVED, power_state=states.SHUTDOWN, fault=None, **shelved)


async def unshelve(tx: Transaction, server_id: str) -> None:
    state, power = states.ACTIVE, states.RUNNING
    await _change_state(tx, server_id, "unshelve", state, power_state=power, fault=None, **_NOT_SHELVED)


async def soft_delete(tx: Transaction, server_id: str) -> None:
    state, now = states.SOFT_DELETED, clock.now()
    await _change_state(
        tx, server_id, "soft delete", state, power_state=states.SHUTDOWN, fault=None, soft_deleted_at=now
    )


async def restore(tx: Transaction, server_id: str) -> None:
    """Restore a soft-deleted server."""
    await _change_state(
        tx, server_id, "restore", states.ACTIVE, power_state=states.RUNNING, fault=None, soft_deleted_at=None
    )


async def delete(tx: Transaction, server_id: str) -> None:
    """Mark the server as deleted. Its row stays, without user data, files and passwords."""
    state, now = states.DELETED, clock.now()
    secrets: dict[str, Value] = {"user_data": None, "personality": None, "sealed_password": None}
    await _change_state(
        tx,
        server_id,
        "delete",
        state,
        power_state=states.NOSTATE,
        deleted=True,
        nics="[]",
        terminated_at=now,
        **secrets,
    )


async def reset_state(tx: Transaction, server_id: str, vm_state: str) -> None:
    """Set the state that an administrator requests. The power state is not changed. A server in error stays shelved."""
    not_shelved = _NOT_SHELVED if vm_state == states.ACTIVE else {}
    await _change_state(tx, server_id, "os-resetState", vm_state, fault=None, soft_deleted_at=None, **not_shelved)


async def record_guest(
    tx: Transaction, server_id: str, vm_state: str, power_state: int, sealed_password: str | None
) -> None:
    """Record what the host reports of the guest: its state, and the password that it has published."""
    change = "power state sync"
    await _change_state(tx, server_id, change, vm_state, power_state=power_state, sealed_password=sealed_password)


async def _change_state(tx: Transaction, server_id: str, change: str, vm_state: str, /, **columns: Value) -> None:
    """Write state and columns if the present state allows the change. Raises InvalidTransition."""
    before = states.states_before(change, vm_state)
    if not await _write(tx, server_id, before, vm_state=vm_state, **columns, updated_at=clock.now()):
        present = await tx.fetch_value("SELECT vm_state FROM servers WHERE id = $1", server_id)
        raise states.InvalidTransition(f"'{change}' cannot change instance {server_id} from {present} to {vm_state}")


async def fail(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """Put the server into ERROR with a fault. A deleted server stays deleted."""
    before, now, fault = states.CHANGES["failure"].allowed, clock.now(), _fault(message, details)
    await _write(tx, server_id, before, vm_state=states.ERROR, power_state=states.NOSTATE, fault=fault, updated_at=now)


# Other changes


_COLUMNS = Server.__struct_fields__
_INSERT = "INSERT INTO servers ({}) VALUES ({})".format(
    ", ".join(_COLUMNS), ", ".join(f"${place}" for place, _ in enumerate(_COLUMNS, 1))
)


async def insert(tx: Transaction, server: Server) -> None:
    await tx.execute(_INSERT, *server.encode().values())


async def update(tx: Transaction, server: Server, columns: Mapping[str, str | None]) -> Server:
    """Write the columns that a user has changed. Returns the changed server."""
    now = clock.now()
    await _write(tx, server.id, None, **columns, updated_at=now)
    return server.with_columns({**columns, "updated_at": now})


async def settle_unchanged(tx: Transaction, server_id: str) -> None:
    """End an operation that does not change the state: clear the fault."""
    await _change(tx, server_id, fault=None)


async def note_fault(tx: Transaction, server_id: str, message: str, details: str | None = None) -> None:
    """Set the server's fault without changing its state. The next successful operation clears it."""
    existing = states.CHANGES["failure"].allowed
    await _write(tx, server_id, existing, fault=_fault(message, details), updated_at=clock.now())


async def clear_fault(tx: Transaction, server_id: str) -> None:
    await _write(tx, server_id, None, fault=None)


async def set_host(tx: Transaction, server_id: str, host: str | None, hypervisor_hostname: str | None) -> None:
    await _change(tx, server_id, host=host, hypervisor_hostname=hypervisor_hostname)


async def set_flavor(
    tx: Transaction, server_id: str, flavor_id: str, flavor: EmbeddedFlavor, disk_config: str | None = None
) -> None:
    """Store the server's copy of a flavor, and `disk_config` if given."""
    given = {} if disk_config is None else {"disk_config": disk_config}
    await _write(tx, server_id, None, flavor_id=flavor_id, flavor=encode_document(flavor), **given)


async def set_quota_usage(tx: Transaction, server_id: str, *flavors: EmbeddedFlavor) -> None:
    """Set the server's quota usage to the larger of these flavors."""
    vcpus, ram = max(flavor.vcpus for flavor in flavors), max(flavor.ram for flavor in flavors)
    await _write(tx, server_id, None, vcpus=vcpus, ram=ram)


async def set_interfaces(tx: Transaction, server_id: str, interfaces: Sequence[Interface]) -> None:
    """Store the server's interfaces, and clear its fault."""
    await _change(tx, server_id, nics=encode_document(interfaces), fault=None)


async def replace_interfaces(tx: Transaction, server_id: str, interfaces: Sequence[Interface]) -> None:
    """Store what the network service tells of the server's interfaces. That is no change of the server itself."""
    await _write(tx, server_id, None, nics=encode_document(interfaces))


async def set_metadata(tx: Transaction, server_id: str, metadata: Mapping[str, str]) -> None:
    await _change(tx, server_id, metadata=encode_document(metadata))


async def set_pinned_zone(tx: Transaction, server_id: str, zone: str | None) -> None:
    await _write(tx, server_id, None, pinned_zone=zone)


async def set_launch_time(tx: Transaction, server_id: str) -> None:
    await _write(tx, server_id, None, launched_at=clock.now())


async def set_change_time(tx: Transaction, server_id: str) -> None:
    """For changes of other tables that a server shows, such as its tags."""
    await _change(tx, server_id)


async def clear_password(tx: Transaction, server_id: str) -> None:
    await _write(tx, server_id, None, sealed_password=None)


async def lock(tx: Transaction, server_id: str, reason: str | None, locked_by: str) -> None:
    await _change(tx, server_id, locked=True, locked_reason=reason, locked_by=locked_by)


async def unlock(tx: Transaction, server_id: str) -> None:
    await _change(tx, server_id, locked=False, locked_reason=None, locked_by=None)


async def _change(tx: Transaction, server_id: str, **columns: Value) -> None:
    """Write the columns and the time of the change, which users see."""
    await _write(tx, server_id, None, **columns, updated_at=clock.now())


async def _write(tx: Transaction, server_id: str, vm_states: Collection[str] | None, /, **columns: Value) -> bool:
    """Write the columns; with `vm_states` only if the server is in one of them. Returns whether they were written."""
    changes = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, 2))
    sql, arguments = f"UPDATE servers SET {changes} WHERE id = $1", [*columns.values()]
    if vm_states is None:
        return bool(await tx.execute(sql, server_id, *arguments))
    sql += f" AND vm_state = ANY(${len(arguments) + 2})"
    return bool(await tx.execute(sql, server_id, *arguments, list(vm_states)))


def _fault(message: str, details: str | None) -> str:
    return encode_document(Fault(code=500, message=message, details=details, created_at=clock.now()))
