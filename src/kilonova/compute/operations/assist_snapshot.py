"""Assisted volume snapshot: answers the volume service that no host can help, and sets the snapshot's status.

Snapshots of the volumes that Kilonova's hosts connect need no assistance.
"""

from __future__ import annotations

from contextlib import suppress

from kilonova.compute.operations.steps.server import Harmless
from kilonova.operations import Failed, Operation, Step
from kilonova.volume.client import VolumeError


class AssistSnapshot(Harmless):
    """`params`: `snapshot_id`, and the `status` that the snapshot gets."""

    kind = "assist_snapshot"
    action = "volume_snapshot"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("refuse", refuse, undo=None, why="nothing was done", deadline=120),)


async def refuse(op: Operation) -> None:
    auth = await op.services.identity.auth()
    with suppress(VolumeError):  # the snapshot is deleted or not waiting
        await op.services.volume.set_snapshot_status(op.params["snapshot_id"], op.params["status"], auth)
    raise Failed("The host cannot make or delete snapshots of volumes for the volume service")
