"""Attach a volume: reserve it, connect it to the server's host, attach it to the guest.

A server without a host only reserves it.
"""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, volumes
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.operations.steps.volumes import DeviceParams
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import AttachDisk
from kilonova.operations import Entry, Failed, Step, transaction_step
from kilonova.store import Transaction

ATTACH = "attach disk"


class AttachVolume(Harmless[DeviceParams]):
    """The transaction that begins the operation inserts the block device."""

    kind = kinds.ATTACH_VOLUME
    action = "attach_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AttachVolume], ...]:
        with_it = "it goes with the reservation"
        return (
            Step("reserve volume", reserve, undo=release, deadline=120),
            Step("connect volume", connect, undo=None, why=with_it, deadline=300),
            Step(ATTACH, attach, undo=detach, deadline=300),
            Step("complete volume", complete, undo=None, why=with_it, deadline=120),
            transaction_step("settle", settle, "an old fault"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await devices.remove(tx, self.params.device)
        await super().failed(tx, error)


async def reserve(op: AttachVolume) -> None:
    await volumes.reserve(op, await volumes.device_of(op))


async def release(op: AttachVolume) -> None:
    """Release the volume, unless the guest on an unreachable host may still use it."""
    server, device = await server_of(op), await volumes.device_of(op)
    if not (server.host and await cleanup.is_disk_deferred(op, server.host, device.volume)):
        await volumes.release(op, device.volume)


async def connect(op: AttachVolume) -> None:
    server = await server_of(op)
    if server.host:
        await volumes.connect(op, await volumes.device_of(op), server.host)


async def attach(op: AttachVolume) -> None:
    server = await server_of(op)
    if server.host:
        disk = devices.disk_of(await volumes.device_of(op))
        await call(op, server.host, ATTACH, AttachDisk(guest_id=server.id, disk=disk))


async def detach(op: AttachVolume) -> None:
    server, device = await server_of(op), await volumes.device_of(op)
    if server.host:
        await cleanup.detach_disk(op, server.host, f"undo {ATTACH}", device.volume)


async def complete(op: AttachVolume) -> None:
    """Complete the attachment, also of a server without a host: its users see the volume in use."""
    await volumes.complete_attachments(op, (await volumes.device_of(op)).attachment)


async def settle(op: AttachVolume, tx: Transaction) -> None:
    await model.settle_unchanged(tx, str(op.server_id))
