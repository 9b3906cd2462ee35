"""Switching guests off: their systems get the time that their image, or the configuration, gives them for it."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import fence, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import PowerOff
from kilonova.operations import Operation
from kilonova.store import Row

PROPERTY = "os_shutdown_timeout"
# So long an image may have it last, in seconds.
LONGEST = 3600
_SECONDS = 300.0
_HALTED = (states.PAUSED, states.SUSPENDED)


def params_of(server: Row) -> dict[str, Any]:
    """What an operation that stops the server has to know before it begins: `grace`, where the image says it."""
    said = str(orjson.loads(server["image_properties"]).get(PROPERTY, ""))
    return {"grace": min(int(said), LONGEST)} if said.isascii() and said.isdigit() else {}


def grace(op: Operation) -> float:
    return float(op.params.get("grace", op.services.config.compute.shutdown_seconds))


def deadline(op: Operation) -> float:
    """Of the step that stops the guest."""
    return _SECONDS + grace(op)


def verb(op: Operation, guest_id: str) -> PowerOff:
    return PowerOff(guest_id=guest_id, grace=grace(op))


async def stop(op: Operation, server: Row, step: str) -> None:
    await silence.demand(op, server["host"], step, verb(op, server["id"]), takes=grace(op))


async def start_again(op: Operation, step: str) -> None:
    """The undoing. What a guest had in its memory is lost: one that was paused or suspended is a stopped one now."""
    server = await server_of(op)
    was_running = server["vm_state"] in (states.ACTIVE, states.RESCUED)
    await leftovers.restore(op, server["host"], f"undo {step}", running=was_running)
    if server["vm_state"] in _HALTED:
        async with op.db.transaction() as tx:
            await model.settle(tx, server["id"], states.STOPPED, states.SHUTDOWN)
            await fence(op, tx)
