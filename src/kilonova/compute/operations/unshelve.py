"""Unshelve: a shelved server runs again, on the host that still has its guest, or anew from its image or volume."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import structs

from kilonova import clock
from kilonova.compute.operations import choosing, images, landing, leftovers, moving, ports, silence, volumes
from kilonova.compute.operations.common import Harmless, server_of, transfer_of
from kilonova.compute.servers import model, placing, states
from kilonova.hosts.messages import Image, PowerOn, Spawn
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step
from kilonova.scheduler import Request
from kilonova.store import Reader, Row, Transaction


class Unshelve(Harmless):
    """`params`: `host` (a name, or null for any), and `zone`, only where it changes: the new pin, or null for none."""

    kind = "unshelve"
    action = "unshelve"
    # Losing a race for a host is a round too; how many hosts may fail to build the server is configured.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            *choosing.first_steps(choose, landing.take, landing.give_back, task_state="unshelving"),
            Step("bind ports", bind, undo=unbind, deadline=120, task_state="unshelving"),
            landing.connect_step(task_state="unshelving"),
            Step(landing.SPAWN, spawn, undo=landing.destroy, deadline=3600, task_state="spawning"),
            landing.complete_step(task_state="spawning"),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state and pin, and the image may go",
                deadline=30,
                transaction=True,
                task_state="spawning",
            ),
        )


class UnshelveInPlace(Harmless):
    """Of a server that has not left its host."""

    kind = "unshelve_in_place"
    action = "unshelve"
    task_state = "unshelving"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("start guest", start, undo=stop_again, deadline=3600),
            landing.complete_step(),
            Step(
                "settle",
                settle_in_place,
                undo=None,
                why="one transaction: the state, and the image may go",
                deadline=30,
                transaction=True,
            ),
        )


async def request_of(
    reader: Reader, server: Row, params: dict[str, Any], tried: frozenset[str] = frozenset()
) -> Request:
    """What an unshelve asks of the scheduler. The pin is the one that will be."""
    pinned = {**server, "pinned_zone": params.get("zone", server["pinned_zone"])}
    excluded = tried | await placing.uncleared(reader, server["id"])
    destination = placing.Destination(host=params["host"])
    return await placing.request_for(reader, pinned, destination=destination, excluded=excluded)


async def choose(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    request = await request_of(op.db, server, op.params, choosing.tried(op))
    return await choosing.plan(op, server, request)


async def bind(op: Operation) -> None:
    await ports.move(op, choosing.claimed(op))


async def unbind(op: Operation) -> None:
    await ports.move(op, "")


async def spawn(op: Operation) -> None:
    await landing.spawn(op, await _rebuilt(op, await server_of(op)))


async def settle(op: Operation, tx: Transaction) -> None:
    if "zone" in op.params:
        await tx.execute("UPDATE servers SET pinned_zone = $2 WHERE id = $1", op.server_id, op.params["zone"])
    await tx.execute("UPDATE servers SET launched_at = $2 WHERE id = $1", op.server_id, clock.now())
    await settle_in_place(op, tx)


async def start(op: Operation) -> None:
    """An offload that failed may have destroyed the guest, or parted it from ports and volumes, and left it here."""
    server = await server_of(op)
    await volumes.move(op, server["host"])
    await ports.move(op, server["host"])
    try:
        await silence.demand(op, server["host"], "start guest", PowerOn(guest_id=server["id"]))
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind == "missing guest"):
            raise
        await silence.demand(op, server["host"], "start guest", await _rebuilt(op, server))


async def stop_again(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], "undo start guest", running=False)
    await moving.return_volumes(op)


async def settle_in_place(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await images.begin_drop(tx, op, server["shelved_image_id"])
    await tx.execute("UPDATE servers SET shelved_at = NULL, shelved_image_id = NULL WHERE id = $1", server["id"])
    await model.settle(tx, server["id"], states.ACTIVE, states.RUNNING)


async def _rebuilt(op: Operation, server: Row) -> Spawn:
    """The guest as it was built at first, but with the disk it had when it was shelved."""
    guest = await volumes.guest(op, server)
    if server["shelved_image_id"] is None:
        return Spawn(guest=guest)
    snapshot = await images.find(op, server["shelved_image_id"])
    image = Image(
        id=snapshot["id"],
        name=snapshot["name"] or "",
        disk_format=snapshot["disk_format"],
        container_format=snapshot["container_format"],
        properties={**orjson.loads(server["image_properties"]), "image_type": "snapshot"},
    )
    return Spawn(guest=structs.replace(guest, image=image), data=await transfer_of(op.services, snapshot["id"]))
