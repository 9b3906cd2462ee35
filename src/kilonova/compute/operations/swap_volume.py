"""Swap a volume: copy its data to another volume, attach that one instead, and release the old one."""

from __future__ import annotations

from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import cleanup, hosts, volumes
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import SwapDisk
from kilonova.operations import Failed, Operation, Step, begin, get_kind, transaction_step
from kilonova.store import Row, Transaction
from kilonova.volume.client import VolumeError

RESERVE, CONNECT, SWAP = "reserve volume", "connect volume", "swap disk"


class SwapVolume(Harmless):
    """`params`: `device`, the uuid of the server's block device; `old`, the id of its volume; and `new`, the other
    volume's `id`, `size` (in GiB) and `multiattach`.
    """

    kind = "swap_volume"
    action = "swap_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
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


async def reserve(op: Operation) -> str:
    """Reserve the new volume. Returns the attachment's id; those of an earlier run are replaced."""
    await volumes.release(op, [_new(op)])
    async with volumes.volume_errors():
        auth = await op.services.identity.auth()
        made = await op.services.volume.create_attachment(op.params["new"]["id"], str(op.server_id), auth)
    return str(made["id"])


async def release(op: Operation) -> None:
    """Release the new volume, unless the guest may still use it."""
    server, device = await server_of(op), await volumes.device_of(op)
    is_kept = device["volume_id"] == op.params["new"]["id"]
    if not is_kept and not await cleanup.is_disk_deferred(op, server["host"], op.params["old"]):
        await volumes.release(op, [_new(op)])


async def connect(op: Operation) -> dict[str, Any]:
    """Connect the host to the new volume. Returns its `connection_info`."""
    server, device, attachment_id = await server_of(op), await volumes.device_of(op), op.results[RESERVE]
    connector = await volumes.connector_of(op, server["host"])
    async with volumes.volume_errors():
        auth = await op.services.identity.auth()
        made = await op.services.volume.attachment(attachment_id, auth)
        if made is None or not made["connection_info"]:
            made = await op.services.volume.update_attachment(
                attachment_id, connector, auth, device=device["device_name"]
            )
    return {**made["connection_info"], volumes.HOST: server["host"]}


async def swap(op: Operation) -> None:
    server, device = await server_of(op), await volumes.device_of(op)
    disk = devices.disk_of({**device, "volume_id": op.params["new"]["id"]}, op.results[CONNECT])
    await hosts.call_or_fail(
        op, server["host"], SWAP, SwapDisk(guest_id=server["id"], volume_id=op.params["old"], disk=disk)
    )


async def swap_back(op: Operation) -> None:
    """Undo `swap`. The swap back copies later writes too."""
    server, device = await server_of(op), await volumes.device_of(op)
    new = op.params["new"]["id"]
    if device["volume_id"] != new:
        await cleanup.attach_disk(op, server["host"], f"undo {SWAP}", device, instead_of=new)


async def complete(op: Operation) -> None:
    await volumes.complete(op, [_new(op)])


async def release_old(op: Operation) -> None:
    await volumes.release(op, [{**await volumes.device_of(op), "volume_id": op.params["old"]}])


async def acquire_old(op: Operation) -> None:
    """Undo `release`. If another server has reserved the old volume, the server keeps the new one."""
    server = await server_of(op)
    try:
        await volumes.restore_connection(op, server["host"])
    except Failed as error:
        if not isinstance(error.__cause__, VolumeError):
            raise
        async with op.db.transaction() as tx:
            await _exchange(op, tx)
            await fence(op, tx)


async def settle(op: Operation, tx: Transaction) -> None:
    server, device = await server_of(op, tx), await devices.get(tx, op.params["device"])
    await _exchange(op, tx)
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])
    if device and device["volume_size"] and device["volume_size"] < op.params["new"]["size"]:
        await begin(
            tx,
            get_kind("extend_volume"),
            params={"volume_id": op.params["new"]["id"]},
            server_id=server["id"],
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
            host=server["host"],
        )


async def _exchange(op: Operation, tx: Transaction) -> None:
    ready = {"id": op.results[RESERVE], "connection": op.results[CONNECT]}
    await devices.replace_volume(tx, op.params["device"], op.params["new"], ready)


def _new(op: Operation) -> Row:
    """The device with the new volume."""
    return {"volume_id": op.params["new"]["id"], "attachment_id": op.results.get(RESERVE), "standby": None}
