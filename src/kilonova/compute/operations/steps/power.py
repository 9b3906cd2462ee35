"""Powers guests off. A guest may shut down for the time that its image or the configuration sets."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.operations.steps import cleanup, hosts
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import PowerOff
from kilonova.operations import Operation
from kilonova.store import Row

SHUTDOWN_TIMEOUT_PROPERTY = "os_shutdown_timeout"
# Upper bound for an image's `os_shutdown_timeout`.
MAX_SHUTDOWN_SECONDS = 3600
_POWER_OFF_SECONDS = 300.0
_MEMORY_LOST = (states.PAUSED, states.SUSPENDED)


def shutdown_params(server: Row) -> dict[str, Any]:
    """Parameters of an operation that stops the server: `grace`, if its image sets a shutdown timeout."""
    timeout = str(orjson.loads(server["image_properties"]).get(SHUTDOWN_TIMEOUT_PROPERTY, ""))
    return {"grace": min(int(timeout), MAX_SHUTDOWN_SECONDS)} if timeout.isascii() and timeout.isdigit() else {}


def shutdown_seconds(op: Operation) -> float:
    return float(op.params.get("grace", op.services.config.compute.shutdown_timeout_seconds))


def stop_deadline(op: Operation) -> float:
    """Deadline of the step that stops the guest, in seconds."""
    return _POWER_OFF_SECONDS + shutdown_seconds(op)


def power_off_verb(op: Operation, guest_id: str) -> PowerOff:
    return PowerOff(guest_id=guest_id, grace=shutdown_seconds(op))


async def stop(op: Operation, server: Row, step: str) -> None:
    await hosts.call_or_fail(op, server["host"], step, power_off_verb(op, server["id"]), takes=shutdown_seconds(op))


async def start_again(op: Operation, step: str) -> None:
    """Undo `stop`. A paused or suspended guest has lost its memory, so its server becomes stopped."""
    server = await server_of(op)
    was_running = server["vm_state"] in (states.ACTIVE, states.RESCUED)
    await cleanup.restore(op, server["host"], f"undo {step}", running=was_running)
    if server["vm_state"] in _MEMORY_LOST:
        async with op.db.transaction() as tx:
            await model.settle(tx, server["id"], states.STOPPED, states.SHUTDOWN)
            await fence(op, tx)
