"""Suspend and resume a server: its memory is written to its host's disk and read back."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.suspend import Resume, Suspend
from kilonova.compute.servers import action_checks
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING

SUSPEND = "os_compute_api:os-suspend-server:"


@api.action("suspend", body=ANYTHING, checks=[SUSPEND + "suspend"], status=202)
async def suspend(ctx: Context, server_id: str) -> Response:
    """Suspend a server: write its memory to its host's disk."""
    return await action_checks.begin_action(ctx, server_id, Suspend, rule=SUSPEND + "suspend", transition="suspend")


@api.action("resume", body=ANYTHING, checks=[SUSPEND + "resume"], status=202)
async def resume(ctx: Context, server_id: str) -> Response:
    """Resume a suspended server."""
    return await action_checks.begin_action(ctx, server_id, Resume, rule=SUSPEND + "resume", transition="resume")
