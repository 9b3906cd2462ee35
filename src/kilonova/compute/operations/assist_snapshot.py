"""Assisted volume snapshot: answers the volume service that no host can help, and sets the snapshot's status.

Snapshots of the volumes that Kilonova's hosts connect need no assistance.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps.server import Harmless
from kilonova.operations import Entry, Failed, Step
from kilonova.volume.client import VolumeError


class AssistSnapshotParams(Struct, frozen=True):
    """`status` is the status that the snapshot gets."""

    snapshot_id: str
    status: str


class AssistSnapshot(Harmless[AssistSnapshotParams]):
    kind = kinds.ASSIST_SNAPSHOT
    action = "volume_snapshot"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AssistSnapshot], ...]:
        return (Step("refuse", refuse, undo=None, why="nothing was done", deadline=120),)


async def refuse(op: AssistSnapshot) -> None:
    auth = await op.services.identity.auth()
    with suppress(VolumeError):  # the snapshot is deleted or not waiting
        await op.services.volume.set_snapshot_status(op.params.snapshot_id, op.params.status, auth)
    raise Failed("The host cannot make or delete snapshots of volumes for the volume service")
