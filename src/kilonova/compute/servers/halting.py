"""Halting: a server stands still and later goes on where it was, in its memory or from its host's disk."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.crash_dump import TriggerCrashDump
from kilonova.compute.operations.pause import Pause
from kilonova.compute.operations.resume import Resume
from kilonova.compute.operations.suspend import Suspend
from kilonova.compute.operations.unpause import Unpause
from kilonova.compute.servers import acting
from kilonova.http import Answer, Context
from kilonova.http.pieces import ANYTHING, Schema

PAUSE = "os_compute_api:os-pause-server:"
SUSPEND = "os_compute_api:os-suspend-server:"
DUMP = "os_compute_api:servers:trigger_crash_dump"

NOTHING: Schema = {"type": "null"}


@api.action("pause", body=ANYTHING, checks=[PAUSE + "pause"], status=202)
async def pause(ctx: Context, server_id: str) -> Answer:
    """Stop a server's processors, and leave everything in its memory."""
    return await acting.act(ctx, server_id, Pause, rule=PAUSE + "pause", transition="pause")


@api.action("unpause", body=ANYTHING, checks=[PAUSE + "unpause"], status=202)
async def unpause(ctx: Context, server_id: str) -> Answer:
    """Let a paused server go on."""
    return await acting.act(ctx, server_id, Unpause, rule=PAUSE + "unpause", transition="unpause")


@api.action("suspend", body=ANYTHING, checks=[SUSPEND + "suspend"], status=202)
async def suspend(ctx: Context, server_id: str) -> Answer:
    """Write a server's memory to its host's disk."""
    return await acting.act(ctx, server_id, Suspend, rule=SUSPEND + "suspend", transition="suspend")


@api.action("resume", body=ANYTHING, checks=[SUSPEND + "resume"], status=202)
async def resume(ctx: Context, server_id: str) -> Answer:
    """Let a suspended server go on."""
    return await acting.act(ctx, server_id, Resume, rule=SUSPEND + "resume", transition="resume")


@api.action("trigger_crash_dump", body=NOTHING, checks=[DUMP], status=202)
async def trigger_crash_dump(ctx: Context, server_id: str) -> Answer:
    """Interrupt a server's system so that it writes a dump of itself."""
    return await acting.act(ctx, server_id, TriggerCrashDump, rule=DUMP, transition="trigger_crash_dump")
