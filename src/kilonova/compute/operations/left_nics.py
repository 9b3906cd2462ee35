"""Interfaces that an undo cannot give or take because the host is silent: done on its return, by durable operations."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations import leftovers, nics
from kilonova.compute.operations.common import fence, nic_of
from kilonova.hosts.messages import AttachNic, DetachNic
from kilonova.operations import Operation, Step


class RestoreNic(Operation):
    """Have a guest with or without an interface, as its server's record says.

    `params`: `guest_id`, `host`, `port_id`, and of the operation that left it behind `operation`, `round` and a higher
    `epoch`.
    """

    kind = "restore nic"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "it is the undoing of something else"
        return (Step("restore nic", _restore, undo=None, why=why, deadline=leftovers.FOR_EVER),)


async def take(op: Operation, host: str, step: str, port_id: str) -> None:
    """For undo steps: have the interface out of the operation's guest, now or on the host's return."""
    verb = DetachNic(guest_id=str(op.server_id), port_id=port_id)
    if not await leftovers.now_or_later(op, host, step, verb):
        await _leave(op, host, port_id)


async def give(op: Operation, host: str, step: str, nic: dict[str, Any]) -> None:
    """For undo steps: have the operation's guest with the interface, now or on the host's return."""
    verb = AttachNic(guest_id=str(op.server_id), nic=nic_of(nic))
    if not await leftovers.now_or_later(op, host, step, verb):
        await _leave(op, host, nic["port_id"])


async def _leave(op: Operation, host: str, port_id: str) -> None:
    async with op.db.transaction() as tx:
        await leftovers.leave(op, tx, RestoreNic, host, port_id, {"port_id": port_id})
        await fence(op, tx)


async def _restore(op: Operation) -> None:
    guest_id, host, port_id = op.params["guest_id"], op.params["host"], op.params["port_id"]
    server = await leftovers.idle(op)
    row = server and await op.db.fetch_one("SELECT host, nics FROM servers WHERE id = $1", guest_id)
    nic = nics.find(row, port_id) if row and row["host"] == host else None
    if nic is not None:
        await leftovers.fenced(op, AttachNic(guest_id=guest_id, nic=nic_of(nic)))
    elif row is None or row["host"] == host:
        await leftovers.fenced(op, DetachNic(guest_id=guest_id, port_id=port_id))
