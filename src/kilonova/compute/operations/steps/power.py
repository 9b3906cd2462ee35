"""Powers guests off. A guest may shut down for the time that its image or the configuration sets."""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute.host_calls import MUST_SUCCEED, Policy, call
from kilonova.compute.operations.steps import cleanup
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import PowerOff
from kilonova.operations import Operation

SHUTDOWN_TIMEOUT_PROPERTY = "os_shutdown_timeout"
# Upper bound for an image's `os_shutdown_timeout`.
MAX_SHUTDOWN_SECONDS = 3600
_POWER_OFF_SECONDS = 300.0
_MEMORY_LOST = (states.PAUSED, states.SUSPENDED)


class StopParams(Struct, frozen=True):
    """`grace`: how many seconds the guest has to shut down, if its image sets this."""

    grace: int | UnsetType = UNSET


class WithGrace(Protocol):
    """Parameters with the `grace` of StopParams."""

    @property
    def grace(self) -> int | UnsetType: ...


def shutdown_grace(server: Server) -> int | UnsetType:
    """The parameter `grace` of an operation that stops the server."""
    timeout = server.image_properties.get(SHUTDOWN_TIMEOUT_PROPERTY, "")
    return min(int(timeout), MAX_SHUTDOWN_SECONDS) if timeout.isascii() and timeout.isdigit() else UNSET


def stop_params(server: Server) -> StopParams:
    return StopParams(shutdown_grace(server))


def shutdown_seconds(op: Operation[WithGrace]) -> float:
    grace = op.params.grace
    return float(op.services.config.compute.shutdown_timeout_seconds if grace is UNSET else grace)


def stop_deadline(op: Operation[WithGrace]) -> float:
    """Deadline of the step that stops the guest, in seconds."""
    return _POWER_OFF_SECONDS + shutdown_seconds(op)


async def stop(op: Operation[WithGrace], server: Server, step: str, policy: Policy = MUST_SUCCEED) -> None:
    seconds = shutdown_seconds(op)
    verb = PowerOff(guest_id=server.id, grace=seconds)
    await call(op, server.host_name, step, verb, policy, takes=seconds)


async def start_again(op: Operation, step: str) -> None:
    """Undo `stop`. A paused or suspended guest has lost its memory, so its server becomes stopped."""
    server = await server_of(op)
    was_running = server.vm_state in (states.ACTIVE, states.RESCUED)
    await cleanup.restore(op, server.host_name, f"undo {step}", running=was_running)
    if server.vm_state in _MEMORY_LOST:
        async with op.db.transaction() as tx:
            await model.settle(tx, server.id, "memory loss", states.STOPPED, states.SHUTDOWN)
            await fence(op, tx)
