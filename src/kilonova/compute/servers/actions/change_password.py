"""Change the administrator's password of a server, through the guest agent."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.api import api
from kilonova.compute.operations.change_password import PASSWORD, ChangePassword
from kilonova.compute.servers import action_checks
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict
from kilonova.http.parameter_types import STRING, Schema, closed_object, is_true
from kilonova.store import Reader, Row

RULE = "os_compute_api:os-admin-password"
# Hypervisor types whose guests have an agent only if their image says so.
_BY_AGENT = frozenset({"QEMU", "KVM"})
_AGENT = "hw_qemu_guest_agent"

CHANGE_PASSWORD: Schema = closed_object({"adminPass": STRING}, ["adminPass"])


@api.action("changePassword", body=CHANGE_PASSWORD, checks=[RULE], status=202)
async def change_password(ctx: Context, server_id: str) -> Response:
    """Set the administrator's password in a running server."""
    params: dict[str, Any] = {PASSWORD: ctx.body["changePassword"]["adminPass"]}
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="changePassword")
        await _check_agent(tx, row)
        await action_checks.begin_operation(ctx, tx, row, ChangePassword, params)
    return Response()


async def _check_agent(reader: Reader, row: Row) -> None:
    """Check that the image declares a guest agent. Only the host knows whether it runs."""
    sql = "SELECT hypervisor_type FROM hypervisors WHERE host = $1 AND hypervisor_hostname = $2"
    kind = await reader.fetch_value(sql, row["host"], row["hypervisor_hostname"])
    if kind in _BY_AGENT and not is_true(orjson.loads(row["image_properties"]).get(_AGENT, False)):
        raise Conflict(f"QEMU guest agent is not enabled: the server's image does not have {_AGENT}=yes.")
