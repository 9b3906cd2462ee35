"""Swap a volume: what is on it is copied to another one, which the guest gets instead. The old one is given back."""

from __future__ import annotations

from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import left_disks, silence, volumes
from kilonova.compute.operations.common import Harmless, fence, server_of
from kilonova.compute.operations.extend_volume import ExtendVolume
from kilonova.compute.servers import model
from kilonova.hosts.messages import SwapDisk
from kilonova.operations import Failed, Operation, Step, begin
from kilonova.store import Row, Transaction
from kilonova.volume.client import VolumeError

RESERVE, CONNECT, SWAP = "reserve volume", "connect volume", "swap disk"


class SwapVolume(Harmless):
    """`params`: `device`, the uuid of the server's block device; `old`, the id of its volume; and `new`, the other
    volume's `id`, `size` (in GiB) and `multiattach`.
    """

    kind = "swap_volume"
    action = "swap_volume"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        with_it = "it goes with the reservation"
        return (
            Step(RESERVE, reserve, undo=release, deadline=120),
            Step(CONNECT, connect, undo=None, why=with_it, deadline=300),
            # As long as the copying takes.
            Step(SWAP, swap, undo=swap_back, deadline=24 * 3600),
            Step("complete volume", complete, undo=None, why=with_it, deadline=120),
            Step("release old volume", release_old, undo=acquire_old, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the device", deadline=30, transaction=True),
        )


async def reserve(op: Operation) -> str:
    """The id of the attachment. What an earlier run has left is made anew."""
    await volumes.release(op, [_new(op)])
    async with volumes.explained():
        auth = await op.services.identity.auth()
        made = await op.services.volume.create_attachment(op.params["new"]["id"], str(op.server_id), auth)
    return str(made["id"])


async def release(op: Operation) -> None:
    """Not what the guest on a silent host may have, nor what could not be taken back."""
    server, device = await server_of(op), await volumes.device_of(op)
    is_kept = device["volume_id"] == op.params["new"]["id"]
    if not is_kept and not await left_disks.is_left(op, server["host"], op.params["old"]):
        await volumes.release(op, [_new(op)])


async def connect(op: Operation) -> dict[str, Any]:
    """How the server's host reaches the new volume."""
    server, device, attachment_id = await server_of(op), await volumes.device_of(op), op.results[RESERVE]
    connector = await volumes.connector_of(op, server["host"])
    async with volumes.explained():
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
    await silence.demand(
        op, server["host"], SWAP, SwapDisk(guest_id=server["id"], volume_id=op.params["old"], disk=disk)
    )


async def swap_back(op: Operation) -> None:
    """What the guest has written since goes along."""
    server, device = await server_of(op), await volumes.device_of(op)
    new = op.params["new"]["id"]
    if device["volume_id"] != new:
        await left_disks.give(op, server["host"], f"undo {SWAP}", device, instead_of=new)


async def complete(op: Operation) -> None:
    await volumes.complete(op, [_new(op)])


async def release_old(op: Operation) -> None:
    await volumes.release(op, [{**await volumes.device_of(op), "volume_id": op.params["old"]}])


async def acquire_old(op: Operation) -> None:
    """If somebody else has got it meanwhile, the server keeps the new one."""
    server = await server_of(op)
    try:
        await volumes.put_back(op, server["host"])
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
            ExtendVolume,
            params={"volume_id": op.params["new"]["id"]},
            server_id=server["id"],
            project_id=op.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
            host=server["host"],
        )


async def _exchange(op: Operation, tx: Transaction) -> None:
    ready = {"id": op.results[RESERVE], "connection": op.results[CONNECT]}
    await devices.exchange(tx, op.params["device"], op.params["new"], ready)


def _new(op: Operation) -> Row:
    """The new volume, as its device will be."""
    return {"volume_id": op.params["new"]["id"], "attachment_id": op.results.get(RESERVE), "standby": None}
