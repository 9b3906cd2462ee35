"""Pause and unpause a server: its processors stop, its memory stays on the host."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.suspend import Pause, Unpause
from kilonova.compute.servers import action_checks
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING

PAUSE = "os_compute_api:os-pause-server:"


@api.action("pause", body=ANYTHING, checks=[PAUSE + "pause"], status=202)
async def pause(ctx: Context, server_id: str) -> Response:
    """Pause a server."""
    return await action_checks.begin_action(ctx, server_id, Pause, rule=PAUSE + "pause", transition="pause")


@api.action("unpause", body=ANYTHING, checks=[PAUSE + "unpause"], status=202)
async def unpause(ctx: Context, server_id: str) -> Response:
    """Unpause a paused server."""
    return await action_checks.begin_action(ctx, server_id, Unpause, rule=PAUSE + "unpause", transition="unpause")
