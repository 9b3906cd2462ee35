"""Rescue a server: boot it from a rescue image, with its own root disk attached."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations.steps import cleanup, hosts, power
from kilonova.compute.operations.steps.server import Harmless, image_transfer, remove_params, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Image
from kilonova.hosts.messages.verbs import GuestVerb, PowerOff, Unrescue
from kilonova.hosts.messages.verbs import Rescue as RescueGuest
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Row, Transaction

STOP, RESCUE = "stop guest", "rescue guest"
PASSWORD = "password"


class Rescue(Harmless):
    """`params`: those of Stop, `password` (deleted at the end), and `image` (for the host; null: the server's own)."""

    kind = "rescue"
    action = "rescue"
    task_state = "rescuing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=power.stop_deadline),
            Step(RESCUE, forward, undo=back, deadline=3600),
            transaction_step("settle", settle, "the state"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await remove_params(self, tx, PASSWORD)


async def stop(op: Operation) -> None:
    server = await server_of(op)
    if server["vm_state"] == states.ACTIVE:
        await power.stop(op, server, STOP)


async def start_again(op: Operation) -> None:
    await power.start_again(op, STOP)


async def forward(op: Operation) -> None:
    server, described = await server_of(op), op.params["image"]
    image_id = described["id"] if described else server["image_id"]
    verb = RescueGuest(
        guest_id=server["id"],
        image=_image(described) if described else None,
        data=await image_transfer(op.services, image_id) if image_id else None,
        password=op.params.get(PASSWORD, ""),
    )
    await hosts.call_or_fail(op, server["host"], RESCUE, verb)


async def back(op: Operation) -> None:
    """Undo `rescue`. A guest that did not run is stopped."""
    server = await server_of(op)
    ran = server["vm_state"] == states.ACTIVE
    verbs: list[type[GuestVerb]] = [Unrescue] if ran else [Unrescue, PowerOff]
    await cleanup.reverse(op, server["host"], f"undo {RESCUE}", *verbs, running=ran)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.RESCUED, states.RUNNING)
    await remove_params(op, tx, PASSWORD)


def described(image: Row) -> dict[str, Any]:
    """The parameter `image` for an image of the image service."""
    keys = ("id", "name", "disk_format", "container_format")
    facts = {key: image.get(key) or "" for key in keys}
    properties = {key: str(value) for key, value in image.items() if key.startswith(("hw_", "os_", "img_")) and value}
    return {**facts, "properties": properties}


def _image(described: dict[str, Any]) -> Image:
    return Image(
        id=described["id"],
        name=described["name"],
        disk_format=described["disk_format"] or "raw",
        container_format=described["container_format"] or "bare",
        properties=described["properties"],
    )
