"""Rescue: a server runs from another image, with its own disk beside, so that somebody can repair it."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations import leftovers, silence, stopping
from kilonova.compute.operations.common import Harmless, forget, server_of, transfer_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import GuestVerb, Image, PowerOff, Unrescue
from kilonova.hosts.messages import Rescue as RescueGuest
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Row, Transaction

STOP, RESCUE = "stop guest", "rescue guest"
PASSWORD = "password"


class Rescue(Harmless):
    """`params`: those of Stop, `password`, and `image`: what the host is to know of it, or null for the server's own.

    The password is forgotten at the end.
    """

    kind = "rescue"
    action = "rescue"
    task_state = "rescuing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=stopping.deadline),
            Step(RESCUE, forward, undo=back, deadline=3600),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await forget(self, tx, PASSWORD)


async def stop(op: Operation) -> None:
    server = await server_of(op)
    if server["vm_state"] == states.ACTIVE:
        await stopping.stop(op, server, STOP)


async def start_again(op: Operation) -> None:
    await stopping.start_again(op, STOP)


async def forward(op: Operation) -> None:
    server, said = await server_of(op), op.params["image"]
    image_id = said["id"] if said else server["image_id"]
    verb = RescueGuest(
        guest_id=server["id"],
        image=_image(said) if said else None,
        data=await transfer_of(op.services, image_id) if image_id else None,
        password=op.params.get(PASSWORD, ""),
    )
    await silence.demand(op, server["host"], RESCUE, verb)


async def back(op: Operation) -> None:
    """What did not run before stands still again."""
    server = await server_of(op)
    ran = server["vm_state"] == states.ACTIVE
    verbs: list[type[GuestVerb]] = [Unrescue] if ran else [Unrescue, PowerOff]
    await leftovers.reverse(op, server["host"], f"undo {RESCUE}", *verbs, running=ran)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.RESCUED, states.RUNNING)
    await forget(op, tx, PASSWORD)


def described(image: Row) -> dict[str, Any]:
    """What the operation keeps of an image, as the image service shows it."""
    keys = ("id", "name", "disk_format", "container_format")
    facts = {key: image.get(key) or "" for key in keys}
    told = {key: str(value) for key, value in image.items() if key.startswith(("hw_", "os_", "img_")) and value}
    return {**facts, "properties": told}


def _image(said: dict[str, Any]) -> Image:
    return Image(
        id=said["id"],
        name=said["name"],
        disk_format=said["disk_format"] or "raw",
        container_format=said["container_format"] or "bare",
        properties=said["properties"],
    )
