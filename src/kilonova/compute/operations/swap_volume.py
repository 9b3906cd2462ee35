"""Swap a volume: copy its data to another volume, attach that one instead, and release the old one."""

from __future__ import annotations

from msgspec import Struct, structs

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import AttachedVolume, Connection
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, volumes
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.operations.steps.volumes import ExtendVolumeParams
from kilonova.compute.servers import model
from kilonova.compute.volume_messages import VolumeFailed
from kilonova.hosts.messages.verbs import SwapDisk
from kilonova.operations import Entry, Step, StepResult, begin, get_kind, transaction_step
from kilonova.store import Transaction

# The id of the new attachment, and its connection.
RESERVE = StepResult("reserve volume", str)
CONNECT = StepResult("connect volume", Connection)
SWAP = "swap disk"


class NewVolume(Struct, frozen=True):
    """`size` is in GiB."""

    id: str
    size: int
    multiattach: bool


class SwapVolumeParams(Struct, frozen=True):
    """`device` is the uuid of the server's block device, `old` the id of its volume."""

    device: str
    old: str
    new: NewVolume


class SwapVolume(Harmless[SwapVolumeParams]):
    kind = kinds.SWAP_VOLUME
    action = "swap_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[SwapVolume], ...]:
        with_it = "it goes with the reservation"
        return (
            Step(RESERVE, reserve, undo=release, deadline=120),
            Step(CONNECT, connect, undo=None, why=with_it, deadline=300),
            # A copy may take a day.
            Step(SWAP, swap, undo=swap_back, deadline=24 * 3600),
            Step("complete volume", complete, undo=None, why=with_it, deadline=120),
            Step("release old volume", release_old, undo=acquire_old, deadline=300),
            transaction_step("settle", settle, "the device"),
        )


async def reserve(op: SwapVolume) -> str:
    """Reserve the new volume. Returns the attachment's id; those of an earlier run are replaced."""
    await volumes.release(op, op.params.new.id)
    async with volumes.volume_errors():
        auth = await op.services.identity.auth()
        made = await op.services.volume.create_attachment(op.params.new.id, str(op.server_id), auth)
    return made.id


async def release(op: SwapVolume) -> None:
    """Release the new volume, unless the guest may still use it."""
    server, device = await server_of(op), await volumes.device_of(op)
    is_kept = device.volume_id == op.params.new.id
    if not is_kept and not await cleanup.is_disk_deferred(op, server.host_name, op.params.old):
        await volumes.release(op, op.params.new.id)


async def connect(op: SwapVolume) -> Connection:
    """Connect the host to the new volume. Returns its connection."""
    server, device, attachment_id = await server_of(op), await volumes.device_of(op), op.result(RESERVE)
    host = server.host_name
    connector = await volumes.connector_of(op, host)
    async with volumes.volume_errors():
        auth = await op.services.identity.auth()
        made = await op.services.volume.attachment(attachment_id, auth)
        if made is None or not made.connection_info:
            made = await op.services.volume.update_attachment(attachment_id, connector, auth, device=device.device_name)
    return volumes.connection_to(made, host)


async def swap(op: SwapVolume) -> None:
    server, device = await server_of(op), await volumes.device_of(op)
    disk = devices.disk_of(structs.replace(device, volume_id=op.params.new.id), op.result(CONNECT))
    verb = SwapDisk(guest_id=server.id, volume_id=op.params.old, disk=disk)
    await call(op, server.host_name, SWAP, verb)


async def swap_back(op: SwapVolume) -> None:
    """Undo `swap`. The swap back copies later writes too."""
    server, device = await server_of(op), await volumes.device_of(op)
    new = op.params.new.id
    if device.volume_id != new:
        await cleanup.attach_disk(op, server.host_name, f"undo {SWAP}", device, instead_of=new)


async def complete(op: SwapVolume) -> None:
    await volumes.complete_attachments(op, op.result(RESERVE))


async def release_old(op: SwapVolume) -> None:
    await volumes.release(op, op.params.old)


async def acquire_old(op: SwapVolume) -> None:
    """Undo `release`. If another server has reserved the old volume, the server keeps the new one."""
    server = await server_of(op)
    try:
        await volumes.restore_connection(op, server.host_name)
    except VolumeFailed:
        async with op.db.transaction() as tx:
            await _exchange(op, tx)
            await fence(op, tx)


async def settle(op: SwapVolume, tx: Transaction) -> None:
    server, device = await server_of(op, tx), await devices.get(tx, op.params.device)
    await _exchange(op, tx)
    await model.settle_unchanged(tx, server.id)
    if device and device.volume_size and device.volume_size < op.params.new.size:
        await begin(
            tx,
            get_kind(kinds.EXTEND_VOLUME, ExtendVolumeParams),
            params=ExtendVolumeParams(op.params.new.id),
            server_id=server.id,
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
            host=server.host,
        )


async def _exchange(op: SwapVolume, tx: Transaction) -> None:
    new, attached = op.params.new, AttachedVolume(op.result(RESERVE), op.result(CONNECT))
    await devices.replace_volume(tx, op.params.device, new.id, new.size, attached, multiattach=new.multiattach)
