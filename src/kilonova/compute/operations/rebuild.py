"""Rebuild a server on its host: a new root disk from an image. The old guest is parked until the new one is built.

Volumes keep their content, also the boot volume; `reimage` replaces that.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps import guest, plugged, power, volumes
from kilonova.compute.operations.steps.guest import BUILD, PARK, STOP
from kilonova.compute.operations.steps.server import Harmless, host_of
from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

CONNECT, COMPLETE = "connect volumes", "complete volumes"
# Steps that a server without volumes skips.
WITH_VOLUMES = frozenset({CONNECT, COMPLETE})


class RebuildParams(Struct, frozen=True, kw_only=True):
    """Those of Stop, and `columns`: the changes of the server's row, as the database stores them.

    `columns` is deleted at the end.
    """

    grace: int | UnsetType = UNSET
    columns: dict[str, str | None] = {}


class Rebuild(Harmless[RebuildParams]):
    kind = kinds.REBUILD
    action = "rebuild"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Entry[Rebuild], ...]:
        return (
            Step(STOP, guest.stop_existing, undo=guest.start_again, deadline=power.stop_deadline),
            Step(PARK, guest.park_existing, undo=guest.unpark, deadline=300),
            Step(
                CONNECT,
                connect,
                undo=None,
                why="volumes are connected before, unless an earlier failure left the server without its guest",
                deadline=300,
            ),
            Step(BUILD, guest.rebuild, undo=guest.destroy_rebuilt, deadline=600),
            plugged.wait_for(guest.expected_ports),
            Step(COMPLETE, volumes.complete, undo=None, why="they were in use before", deadline=120),
            transaction_step("settle", guest.settle_rebuilt, "the server's row; begins the cleanup of the old guest"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await guest.remove_columns(self, tx)


async def connect(op: Operation) -> None:
    await volumes.move(op, await host_of(op))
