"""Unshelve a server: start its guest on its host, or build it from its image or volume on a new host."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import structs

from kilonova import clock
from kilonova.compute.operations.steps import choose, cleanup, hosts, images, move, place, ports, volumes
from kilonova.compute.operations.steps.server import Harmless, image_transfer, server_of
from kilonova.compute.servers import model, scheduling, states
from kilonova.hosts.messages import Image
from kilonova.hosts.messages.verbs import PowerOn, Spawn
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.scheduler import Request
from kilonova.store import Reader, Row, Transaction


class Unshelve(Harmless):
    """`params`: `host` (or null for any), and `zone` only if the pinned zone changes (null: unpinned)."""

    kind = "unshelve"
    action = "unshelve"
    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            *choose.first_steps(choose_host, place.claim, place.release_claim, task_state="unshelving"),
            Step("bind ports", bind, undo=unbind, deadline=120, task_state="unshelving"),
            place.connect_step(task_state="unshelving"),
            Step(place.SPAWN, spawn, undo=place.destroy, deadline=3600, task_state="spawning"),
            place.complete_step(task_state="spawning"),
            transaction_step(
                "settle", settle, "state and pin; begins the deletion of the image", task_state="spawning"
            ),
        )


class UnshelveInPlace(Harmless):
    """Unshelve a server that is still on its host."""

    kind = "unshelve_in_place"
    action = "unshelve"
    task_state = "unshelving"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("start guest", start, undo=stop_again, deadline=3600),
            place.complete_step(),
            transaction_step("settle", settle_in_place, "the state; begins the deletion of the image"),
        )


async def request_of(
    reader: Reader, server: Row, params: dict[str, Any], tried: frozenset[str] = frozenset()
) -> Request:
    """The request to the scheduler, with the new pinned zone."""
    pinned = {**server, "pinned_zone": params.get("zone", server["pinned_zone"])}
    excluded = tried | await scheduling.hosts_with_cleanup(reader, server["id"])
    destination = scheduling.Destination(host=params["host"])
    return await scheduling.request_for(reader, pinned, destination=destination, excluded=excluded)


async def choose_host(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    request = await request_of(op.db, server, op.params, choose.tried_hosts(op))
    return await choose.propose(op, server, request)


async def bind(op: Operation) -> None:
    await ports.move(op, choose.claimed_host(op))


async def unbind(op: Operation) -> None:
    await ports.move(op, "")


async def spawn(op: Operation) -> None:
    await place.spawn(op, await _rebuilt(op, await server_of(op)))


async def settle(op: Operation, tx: Transaction) -> None:
    if "zone" in op.params:
        await tx.execute("UPDATE servers SET pinned_zone = $2 WHERE id = $1", op.server_id, op.params["zone"])
    await tx.execute("UPDATE servers SET launched_at = $2 WHERE id = $1", op.server_id, clock.now())
    await settle_in_place(op, tx)


async def start(op: Operation) -> None:
    """Start the guest. A failed offload may have destroyed it or disconnected its ports and volumes."""
    server = await server_of(op)
    await volumes.move(op, server["host"])
    await ports.move(op, server["host"])
    try:
        await hosts.call_or_fail(op, server["host"], "start guest", PowerOn(guest_id=server["id"]))
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind == "missing guest"):
            raise
        await hosts.call_or_fail(op, server["host"], "start guest", await _rebuilt(op, server))


async def stop_again(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server["host"], "undo start guest", running=False)
    await move.return_volumes(op)


async def settle_in_place(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await images.begin_delete(tx, op, server["shelved_image_id"])
    await tx.execute("UPDATE servers SET shelved_at = NULL, shelved_image_id = NULL WHERE id = $1", server["id"])
    await model.settle(tx, server["id"], states.ACTIVE, states.RUNNING)


async def _rebuilt(op: Operation, server: Row) -> Spawn:
    """The guest with the root disk of its shelved image."""
    guest = await volumes.describe_guest(op, server)
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
    return Spawn(guest=structs.replace(guest, image=image), data=await image_transfer(op.services, snapshot["id"]))
