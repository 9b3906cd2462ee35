"""Rows of port bindings. The active binding is in the port's row, the inactive ones are in `standby_bindings`."""

from __future__ import annotations

from typing import Any, NamedTuple

from kilonova.network import resources
from kilonova.network.errors import binding_not_found, conflict
from kilonova.network.ports import model as ports
from kilonova.store import Reader, Row, Transaction


class Binding(NamedTuple):
    host: str
    vnic_type: str
    profile: str
    active: bool


async def bindings_of_port(reader: Reader, port: Row) -> list[Binding]:
    """All bindings of the port, the active one first."""
    found = await reader.fetch(
        "SELECT host, vnic_type, profile FROM standby_bindings WHERE port_id = $1 ORDER BY created_at, host", port["id"]
    )
    standby = [Binding(row["host"], row["vnic_type"], row["profile"], False) for row in found]
    return [_active(port), *standby] if port["host_id"] else standby


async def get(reader: Reader, port: Row, host: str) -> Binding:
    for binding in await bindings_of_port(reader, port):
        if binding.host == host:
            return binding
    raise binding_not_found(port["id"], host)


async def create(tx: Transaction, port: Row, body: dict[str, Any], now: float) -> Binding:
    """Create an inactive binding. The primary key refuses a second binding to the same host."""
    binding = Binding(
        body["host"], body.get("vnic_type", "normal"), resources.to_json(body.get("profile") or {}), False
    )
    if binding.host == port["host_id"] or not await _insert(tx, port, binding, now):
        raise conflict(
            "PortBindingAlreadyExists", f"Binding for port {port['id']} on host {binding.host} already exists."
        )
    return binding


async def change(tx: Transaction, port: Row, binding: Binding, body: dict[str, Any], now: float) -> Binding:
    profile = resources.to_json(body["profile"] or {}) if "profile" in body else binding.profile
    after = binding._replace(vnic_type=body.get("vnic_type", binding.vnic_type), profile=profile)
    if after.active:
        await _write(tx, port, after, now)
    else:
        await tx.execute(
            "UPDATE standby_bindings SET vnic_type = $3, profile = $4 WHERE port_id = $1 AND host = $2",
            port["id"],
            after.host,
            after.vnic_type,
            after.profile,
        )
    return after


async def activate(tx: Transaction, port: Row, binding: Binding, now: float) -> Binding:
    """Make the binding the active one. The previously active binding becomes inactive."""
    if binding.active:
        raise conflict(
            "PortBindingAlreadyActive", f"Binding for port {port['id']} on host {binding.host} is already active."
        )
    if port["host_id"]:
        await _insert(tx, port, _active(port), now)
    after = binding._replace(active=True)
    await _write(tx, port, after, now)
    return after


async def remove(tx: Transaction, port: Row, binding: Binding, now: float) -> None:
    """Delete the binding. Deleting the active one unbinds the port, and deletes the inactive ones too."""
    if binding.active:
        await _change_port(tx, port, {"host_id": ""}, now)
    else:
        await ports.delete_standby_bindings(tx, port["id"], binding.host)


def _active(port: Row) -> Binding:
    return Binding(port["host_id"], port["vnic_type"], port["profile"], True)


async def _insert(tx: Transaction, port: Row, binding: Binding, now: float) -> bool:
    return bool(
        await tx.execute(
            "INSERT INTO standby_bindings (port_id, host, vnic_type, profile, created_at) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (port_id, host) DO NOTHING",
            port["id"],
            binding.host,
            binding.vnic_type,
            binding.profile,
            now,
        )
    )


async def _write(tx: Transaction, port: Row, binding: Binding, now: float) -> None:
    changes = {"host_id": binding.host, "vnic_type": binding.vnic_type, "profile": binding.profile}
    await _change_port(tx, port, changes, now)


async def _change_port(tx: Transaction, port: Row, changes: Row, now: float) -> None:
    await ports.change(tx, ports.Port(port, [], []), changes, None, now)
