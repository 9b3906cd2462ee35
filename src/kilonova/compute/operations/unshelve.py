"""Unshelve a server: start its guest on its host, or build it from its image or volume on a new host."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, structs

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import HostCallFailed, call
from kilonova.compute.operations.steps import (
    choose,
    cleanup,
    images,
    move,
    place,
    plugged,
    port_resources,
    ports,
    volumes,
)
from kilonova.compute.operations.steps.server import Harmless, image_transfer, server_of
from kilonova.compute.servers import model, scheduling
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import Image
from kilonova.hosts.messages.verbs import PowerOn, Spawn
from kilonova.hosts.transport import GuestMissing
from kilonova.operations import Entry, Step, transaction_step
from kilonova.scheduler import Request
from kilonova.store import Reader, Transaction


class UnshelveParams(Struct, frozen=True):
    """`host` is None for any host. `zone` is set if the pinned zone changes; None unpins the server."""

    host: str | None
    zone: str | UnsetType | None = UNSET


class Unshelve(Harmless[UnshelveParams]):
    kind = kinds.UNSHELVE
    action = "unshelve"
    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Entry[Unshelve], ...]:
        return (
            *choose.first_steps(choose_host, place.claim, place.release_claim, task_state="unshelving"),
            Step("bind ports", bind, undo=unbind, deadline=120, task_state="unshelving"),
            place.connect_step(task_state="unshelving"),
            Step(place.SPAWN, spawn, undo=place.destroy, deadline=3600, task_state="spawning"),
            plugged.wait_for(expected_ports, task_state="spawning"),
            place.complete_step(task_state="spawning"),
            transaction_step(
                "settle", settle, "state and pin; begins the deletion of the image", task_state="spawning"
            ),
        )


class UnshelveInPlace(Harmless[UnshelveParams]):
    """Unshelve a server that is still on its host."""

    kind = kinds.UNSHELVE_IN_PLACE
    action = "unshelve"
    task_state = "unshelving"

    @staticmethod
    def steps() -> tuple[Entry[UnshelveInPlace], ...]:
        return (
            Step("start guest", start, undo=stop_again, deadline=3600),
            place.complete_step(),
            transaction_step("settle", settle_in_place, "the state; begins the deletion of the image"),
        )


async def request_of(
    reader: Reader, server: Server, params: UnshelveParams, tried: frozenset[str] = frozenset()
) -> Request:
    """The request to the scheduler, with the new pinned zone."""
    pinned = server if params.zone is UNSET else structs.replace(server, pinned_zone=params.zone)
    excluded = tried | await scheduling.hosts_with_cleanup(reader, server.id)
    destination = scheduling.Destination(host=params.host)
    return await scheduling.request_for(reader, pinned, destination=destination, excluded=excluded)


async def choose_host(op: Unshelve) -> choose.Proposal:
    server = await server_of(op)
    request = await request_of(op.db, server, op.params, choose.tried_hosts(op))
    request = await port_resources.add(op, request, [nic.port_id for nic in server.nics])
    return await choose.propose(op, server, request)


async def bind(op: Unshelve) -> None:
    await move.move_ports(op)


async def unbind(op: Unshelve) -> None:
    await ports.move(op, "")


async def expected_ports(op: Unshelve) -> plugged.Expected:
    return plugged.Expected(choose.claimed_host(op), (await server_of(op)).nics)


async def spawn(op: Unshelve) -> None:
    await place.spawn(op, await _rebuilt(op, await server_of(op), choose.claimed_host(op)))


async def settle(op: Unshelve, tx: Transaction) -> None:
    if op.params.zone is not UNSET:
        await model.set_pinned_zone(tx, str(op.server_id), op.params.zone)
    await model.set_launch_time(tx, str(op.server_id))
    await settle_in_place(op, tx)


async def start(op: UnshelveInPlace) -> None:
    """Start the guest. A failed offload may have destroyed it or disconnected its ports and volumes."""
    server = await server_of(op)
    host = server.host_name
    await volumes.move(op, host)
    await ports.move(op, host)
    try:
        await call(op, host, "start guest", PowerOn(guest_id=server.id))
    except HostCallFailed as failure:
        if not isinstance(failure.outcome, GuestMissing):
            raise
        await call(op, host, "start guest", await _rebuilt(op, server, host))


async def stop_again(op: UnshelveInPlace) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server.host_name, "undo start guest", running=False)
    await move.return_volumes(op)


async def settle_in_place(op: Unshelve | UnshelveInPlace, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await images.begin_delete(tx, op, server.shelved_image_id)
    await model.unshelve(tx, server.id)


async def _rebuilt(op: UnshelveInPlace | Unshelve, server: Server, host: str) -> Spawn:
    """The guest with the root disk of its shelved image, for this host."""
    guest = await volumes.describe_guest(op, server)
    if server.shelved_image_id is None:
        return Spawn(guest=guest)
    snapshot = await images.find(op, server.shelved_image_id)
    images.check_hash(snapshot, server.shelved_image_hash)
    image = Image(
        id=snapshot.id,
        name=snapshot.name or "",
        disk_format=snapshot.disk_format or "raw",
        container_format=snapshot.container_format or "bare",
        properties={**server.image_properties, "image_type": "snapshot"},
        hash=server.shelved_image_hash or snapshot.hash,
    )
    return Spawn(guest=structs.replace(guest, image=image), data=image_transfer(op, snapshot.id, host))
