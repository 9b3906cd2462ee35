"""Start, stop and reboot a server, and trigger a crash dump in it."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.crash_dump import TriggerCrashDump
from kilonova.compute.operations.power import HardReboot, Reboot, Start, Stop
from kilonova.compute.operations.steps import power
from kilonova.compute.servers import action_checks, schemas
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING, Schema

RULE = "os_compute_api:servers:"
DUMP = RULE + "trigger_crash_dump"

NOTHING: Schema = {"type": "null"}


@api.action("os-start", body=ANYTHING, checks=[RULE + "start"], status=202)
async def start(ctx: Context, server_id: str) -> Response:
    """Start a stopped server."""
    return await action_checks.begin_action(ctx, server_id, Start, rule=RULE + "start", transition="os-start")


@api.action("os-stop", body=ANYTHING, checks=[RULE + "stop"], status=202)
async def stop(ctx: Context, server_id: str) -> Response:
    """Stop a running server."""
    return await action_checks.begin_action(
        ctx, server_id, Stop, rule=RULE + "stop", transition="os-stop", params_of=power.stop_params
    )


@api.action("reboot", body=schemas.REBOOT, checks=[RULE + "reboot"], status=202)
async def reboot(ctx: Context, server_id: str) -> Response:
    """Reboot a server: soft through its guest system, hard by a power cycle."""
    kind = ctx.body["reboot"]["type"].upper()
    operation = HardReboot if kind == "HARD" else Reboot
    return await action_checks.begin_action(
        ctx, server_id, operation, rule=RULE + "reboot", transition=f"reboot {kind}"
    )


@api.action("trigger_crash_dump", body=NOTHING, checks=[DUMP], status=202)
async def trigger_crash_dump(ctx: Context, server_id: str) -> Response:
    """Trigger a crash dump in a server."""
    return await action_checks.begin_action(
        ctx, server_id, TriggerCrashDump, rule=DUMP, transition="trigger_crash_dump"
    )
