"""Rescue a server: boot it from a rescue image, with its own root disk attached."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, power
from kilonova.compute.operations.steps.server import Harmless, image_transfer, remove_params, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts import messages
from kilonova.hosts.messages.verbs import GuestVerb, PowerOff, Unrescue
from kilonova.hosts.messages.verbs import Rescue as RescueGuest
from kilonova.image.client import Image
from kilonova.operations import Entry, Failed, Step, transaction_step
from kilonova.store import Transaction

STOP, RESCUE = "stop guest", "rescue guest"
PASSWORD = "password"


class RescueImage(Struct, frozen=True):
    id: str
    name: str
    disk_format: str
    container_format: str
    properties: dict[str, str]
    hash: str = ""


class RescueParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`password` is deleted at the end. `image` is None for the server's own image."""

    password: str = ""
    image: RescueImage | None
    grace: int | UnsetType = UNSET


class Rescue(Harmless[RescueParams]):
    kind = kinds.RESCUE
    action = "rescue"
    task_state = "rescuing"

    @staticmethod
    def steps() -> tuple[Entry[Rescue], ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=power.stop_deadline),
            Step(RESCUE, forward, undo=back, deadline=3600),
            transaction_step("settle", settle, "the state"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await remove_params(self, tx, PASSWORD)


async def stop(op: Rescue) -> None:
    server = await server_of(op)
    if server.vm_state == states.ACTIVE:
        await power.stop(op, server, STOP)


async def start_again(op: Rescue) -> None:
    await power.start_again(op, STOP)


async def forward(op: Rescue) -> None:
    server, image = await server_of(op), op.params.image
    image_id = image.id if image else server.image_id
    verb = RescueGuest(
        guest_id=server.id,
        image=_message(image) if image else None,
        data=image_transfer(op, image_id, server.host_name) if image_id else None,
        password=op.params.password,
    )
    await call(op, server.host_name, RESCUE, verb)


async def back(op: Rescue) -> None:
    """Undo `rescue`. A guest that did not run is stopped."""
    server = await server_of(op)
    ran = server.vm_state == states.ACTIVE
    verbs: list[type[GuestVerb[object]]] = [Unrescue] if ran else [Unrescue, PowerOff]
    await cleanup.reverse(op, server.host_name, f"undo {RESCUE}", *verbs, running=ran)


async def settle(op: Rescue, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), "rescue", states.RESCUED, states.RUNNING)
    await remove_params(op, tx, PASSWORD)


def describe(image: Image) -> RescueImage:
    properties = {
        key: value for key, value in image.properties.items() if key.startswith(("hw_", "os_", "img_")) and value
    }
    return RescueImage(
        id=image.id,
        name=image.name or "",
        disk_format=image.disk_format or "",
        container_format=image.container_format or "",
        properties=properties,
        hash=image.hash,
    )


def _message(image: RescueImage) -> messages.Image:
    return messages.Image(
        id=image.id,
        name=image.name,
        disk_format=image.disk_format or "raw",
        container_format=image.container_format or "bare",
        properties=image.properties,
        hash=image.hash,
    )
