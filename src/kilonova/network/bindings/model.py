"""Port bindings. The active binding is in the port's row, the inactive ones are in `standby_bindings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, structs

from kilonova.network.errors import binding_not_found, conflict
from kilonova.network.ports import model as ports
from kilonova.network.ports.model import Port, PortDetails
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record, encode_document


class StandbyBinding(Record, frozen=True):
    table: ClassVar[str] = "standby_bindings"

    host: str
    vnic_type: str
    profile: dict[str, object]


class Binding(Struct, frozen=True):
    host: str
    vnic_type: str
    profile: dict[str, object]
    active: bool


async def bindings_of_port(reader: Reader, port: Port) -> list[Binding]:
    """All bindings of the port, the active one first."""
    sql = "SELECT host, vnic_type, profile FROM standby_bindings WHERE port_id = $1 ORDER BY created_at, host"
    found = StandbyBinding.decode_all(await reader.fetch(sql, port.id))
    standby = [Binding(each.host, each.vnic_type, each.profile, False) for each in found]
    return [_active(port), *standby] if port.host_id else standby


async def get(reader: Reader, port: Port, host: str) -> Binding:
    for binding in await bindings_of_port(reader, port):
        if binding.host == host:
            return binding
    raise binding_not_found(port.id, host)


async def create(tx: Transaction, port: Port, body: Mapping[str, Any], now: float) -> Binding:
    """Create an inactive binding. The primary key refuses a second binding to the same host."""
    binding = Binding(body["host"], body.get("vnic_type", "normal"), body.get("profile") or {}, False)
    if binding.host == port.host_id or not await _insert(tx, port, binding, now):
        raise conflict("PortBindingAlreadyExists", f"Binding for port {port.id} on host {binding.host} already exists.")
    return binding


async def change(tx: Transaction, port: Port, binding: Binding, body: Mapping[str, Any], now: float) -> Binding:
    profile = body["profile"] or {} if "profile" in body else binding.profile
    after = structs.replace(binding, vnic_type=body.get("vnic_type", binding.vnic_type), profile=profile)
    if after.active:
        await _write(tx, port, after, now)
    else:
        await tx.execute(
            "UPDATE standby_bindings SET vnic_type = $3, profile = $4 WHERE port_id = $1 AND host = $2",
            port.id,
            after.host,
            after.vnic_type,
            encode_document(after.profile),
        )
    return after


async def activate(tx: Transaction, port: Port, binding: Binding, now: float) -> Binding:
    """Make the binding the active one. The previously active binding becomes inactive."""
    if binding.active:
        raise conflict(
            "PortBindingAlreadyActive", f"Binding for port {port.id} on host {binding.host} is already active."
        )
    if port.host_id:
        await _insert(tx, port, _active(port), now)
    after = structs.replace(binding, active=True)
    await _write(tx, port, after, now)
    return after


async def remove(tx: Transaction, port: Port, binding: Binding, now: float) -> None:
    """Delete the binding. Deleting the active one unbinds the port, and deletes the inactive ones too."""
    if binding.active:
        await _change_port(tx, port, {"host_id": ""}, now)
    else:
        await ports.delete_standby_bindings(tx, port.id, binding.host)


def _active(port: Port) -> Binding:
    return Binding(port.host_id, port.vnic_type, port.profile, True)


async def _insert(tx: Transaction, port: Port, binding: Binding, now: float) -> bool:
    return bool(
        await tx.execute(
            "INSERT INTO standby_bindings (port_id, host, vnic_type, profile, created_at) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (port_id, host) DO NOTHING",
            port.id,
            binding.host,
            binding.vnic_type,
            encode_document(binding.profile),
            now,
        )
    )


async def _write(tx: Transaction, port: Port, binding: Binding, now: float) -> None:
    changes = {"host_id": binding.host, "vnic_type": binding.vnic_type, "profile": binding.profile}
    await _change_port(tx, port, changes, now)


async def _change_port(tx: Transaction, port: Port, changes: Mapping[str, object], now: float) -> None:
    await ports.change(tx, PortDetails(port, [], []), changes, None, now)
