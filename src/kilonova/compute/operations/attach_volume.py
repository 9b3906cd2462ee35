"""Attach a volume: reserve it, connect it to the server's host, attach it to the guest.

A server without a host only reserves it.
"""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import cleanup, hosts, volumes
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import AttachDisk
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

ATTACH = "attach disk"


class AttachVolume(Harmless):
    """`params`: `device`, the uuid of the block device, which the operation's own transaction inserts."""

    kind = "attach_volume"
    action = "attach_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        with_it = "it goes with the reservation"
        return (
            Step("reserve volume", reserve, undo=release, deadline=120),
            Step("connect volume", connect, undo=None, why=with_it, deadline=300),
            Step(ATTACH, attach, undo=detach, deadline=300),
            Step("complete volume", complete, undo=None, why=with_it, deadline=120),
            transaction_step("settle", settle, "an old fault"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await devices.remove(tx, self.params["device"])
        await super().failed(tx, error)


async def reserve(op: Operation) -> None:
    await volumes.reserve(op, await volumes.device_of(op))


async def release(op: Operation) -> None:
    """Release the volume, unless the guest on an unreachable host may still use it."""
    server, device = await server_of(op), await volumes.device_of(op)
    if not (server["host"] and await cleanup.is_disk_deferred(op, server["host"], device["volume_id"])):
        await volumes.release(op, [device])


async def connect(op: Operation) -> None:
    server = await server_of(op)
    if server["host"]:
        await volumes.connect(op, await volumes.device_of(op), server["host"])


async def attach(op: Operation) -> None:
    server = await server_of(op)
    if server["host"]:
        disk = devices.disk_of(await volumes.device_of(op))
        await hosts.call_or_fail(op, server["host"], ATTACH, AttachDisk(guest_id=server["id"], disk=disk))


async def detach(op: Operation) -> None:
    server, device = await server_of(op), await volumes.device_of(op)
    if server["host"]:
        await cleanup.detach_disk(op, server["host"], f"undo {ATTACH}", device["volume_id"])


async def complete(op: Operation) -> None:
    """Complete the attachment, also of a server without a host: its users see the volume in use."""
    await volumes.complete(op, [await volumes.device_of(op)])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])
