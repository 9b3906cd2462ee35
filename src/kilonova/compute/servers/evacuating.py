"""Evacuation: a server of a host that is down is to be built again elsewhere."""

from __future__ import annotations

from typing import Any

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.evacuate import Evacuate
from kilonova.compute.servers import acting, states
from kilonova.compute.servers.create import new_password
from kilonova.compute.servers.schemas import HOST
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pieces import STRING, Schema, closed
from kilonova.store import Reader, Row

RULE = "os_compute_api:os-evacuate"
NO_PASSWORD = "evacuation answers without a password"
LEFT_STOPPED = "an evacuated server is left stopped"

EVACUATE: Schema = closed({"host": HOST, "adminPass": STRING})


@api.action("evacuate", body=EVACUATE, checks=[RULE], dry_run=True)
async def evacuate(ctx: Context, server_id: str) -> Answer:
    """Build a server of a failed host again on another."""
    asked = ctx.body["evacuate"]
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="evacuate")
        await _check_hosts(ctx, tx, row, asked.get("host"))
        params = _params(ctx, row, asked)
        if not dry_run.asked(ctx):
            await acting.start_move(ctx, tx, row, Evacuate, moves.EVACUATION, params)
    if dry_run.asked(ctx):
        return await dry_run.answer_move(ctx, row, params)
    if ctx.behaves(NO_PASSWORD):
        return Answer()
    return Answer({"adminPass": asked.get("adminPass") or new_password()})


async def _check_hosts(ctx: Context, reader: Reader, row: Row, destination: str | None) -> None:
    if destination is not None:
        if await _service(reader, destination) is None:
            raise NotFound(f"Compute host {destination} could not be found.")
        if destination == row["host"]:
            raise BadRequest("The target host can't be the same one.")
    source = await _service(reader, row["host"])
    if source is not None and is_up(source, ctx.now, ctx.services.config.hosts.down_seconds):
        raise BadRequest(f"Compute service of {row['host']} is still in use.")


def _params(ctx: Context, row: Row, asked: dict[str, Any]) -> dict[str, Any]:
    return moves.params_of(
        host=asked.get("host"),
        unverified=asked.get("unverified", False),
        start=row["vm_state"] == states.ACTIVE and not ctx.behaves(LEFT_STOPPED),
    )


async def _service(reader: Reader, host: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM services WHERE host = $1 AND program = $2", host, COMPUTE)
