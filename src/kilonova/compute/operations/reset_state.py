"""Reset a server's state, after its unfinished operation is undone.

An unconfirmed resize is confirmed. The image of a shelved server that becomes active is deleted.
"""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import is_down
from kilonova.compute.operations.steps import images, move
from kilonova.compute.operations.steps.images import Requester
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.operations import Entry, Failed, Operation, transaction_step
from kilonova.services import Services
from kilonova.store import Reader, Transaction


class ResetStateParams(Struct, frozen=True):
    state: str


class ResetState(Operation[ResetStateParams]):
    kind = kinds.RESET_STATE
    action = "resetState"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[ResetState], ...]:
        return (
            transaction_step(
                "settle",
                settle,
                "the state; begins the cleanup of the guest that a resize has parked, or the deletion of the image",
            ),
        )


async def settle(op: ResetState, tx: Transaction) -> None:
    await reset(op.services, tx, await server_of(op, tx), op.params.state, op)


async def reset(services: Services, tx: Transaction, server: Server, state: str, requester: Requester) -> None:
    """Reset the state of a server without an unfinished operation."""
    await check(services, tx, server, state)
    if state == states.ACTIVE:
        await images.begin_delete(tx, requester, server.shelved_image_id)
    await move.end_resize(tx, server, parked=True)
    await model.reset_state(tx, server.id, state)


async def check(services: Services, reader: Reader, server: Server, state: str) -> None:
    """Raise Failed if the only copy of a shelved server's disk may be the image, which the reset would delete."""
    if state != states.ACTIVE or not server.is_shelved:
        return
    # A shelved server in error cannot be offloaded. Only after this reset can it be evacuated.
    if server.vm_state == states.SHELVED and await is_down(services, reader, server.host_name):
        raise Failed(
            f"Cannot 'os-resetState' instance {server.id} while it is in vm_state {server.vm_state}: its host"
            f" {server.host_name} is down, so its guest may be lost. Offload the server and unshelve it."
        )
    sql = "SELECT 1 FROM operations WHERE server_id = $1 AND kind = ANY($2) AND created_at >= $3 LIMIT 1"
    destroyers = [kinds.SHELVE_OFFLOAD, kinds.DELETE]
    if await reader.fetch_value(sql, server.id, destroyers, server.shelved_at):
        raise Failed(
            f"Cannot 'os-resetState' instance {server.id} while it is in vm_state {server.vm_state}: its offload or its"
            " deletion has begun, so its guest may be destroyed. Unshelve it."
        )
