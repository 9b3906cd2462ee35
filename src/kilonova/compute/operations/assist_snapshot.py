"""Help with a snapshot: the volume service asks a guest's host to go on in another file, and is told the outcome.

Hosts here give guests volumes whose snapshots need no help, and refuse what others would need.
"""

from __future__ import annotations

from contextlib import suppress

from kilonova.compute.operations.common import Harmless
from kilonova.operations import Failed, Operation, Step
from kilonova.volume.client import VolumeError


class AssistSnapshot(Harmless):
    """`params`: `snapshot_id`, and the `status` that it gets where no host can help."""

    kind = "assist_snapshot"
    action = "volume_snapshot"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("refuse", refuse, undo=None, why="nothing was done", deadline=120),)


async def refuse(op: Operation) -> None:
    auth = await op.services.identity.auth()
    with suppress(VolumeError):  # it knows no such snapshot, or waits for nothing
        await op.services.volume.set_snapshot_status(op.params["snapshot_id"], op.params["status"], auth)
    raise Failed("The host cannot make or delete snapshots of volumes for the volume service")
