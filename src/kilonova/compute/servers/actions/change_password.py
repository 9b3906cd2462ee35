"""Change the administrator's password of a server, through the guest agent."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.change_password import ChangePassword, ChangePasswordParams
from kilonova.compute.servers import action_checks
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict
from kilonova.http.parameter_types import STRING, Schema, closed_object, is_true
from kilonova.store import Reader

RULE = "os_compute_api:os-admin-password"
# Hypervisor types whose guests have an agent only if their image says so.
_BY_AGENT = frozenset({"QEMU", "KVM"})
_AGENT = "hw_qemu_guest_agent"

CHANGE_PASSWORD: Schema = closed_object({"adminPass": STRING}, ["adminPass"])


@api.action("changePassword", body=CHANGE_PASSWORD, checks=[RULE], status=202)
async def change_password(ctx: Context, server_id: str) -> Response:
    """Set the administrator's password in a running server."""
    params = ChangePasswordParams(password=ctx.body["changePassword"]["adminPass"])
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="changePassword")
        await _check_agent(tx, server)
        await action_checks.begin_operation(ctx, tx, server, ChangePassword, params)
    return Response()


async def _check_agent(reader: Reader, server: Server) -> None:
    """Check that the image declares a guest agent. Only the host knows whether it runs."""
    sql = "SELECT hypervisor_type FROM hypervisors WHERE host = $1 AND hypervisor_hostname = $2"
    kind = await reader.fetch_value(sql, server.host, server.hypervisor_hostname)
    if kind in _BY_AGENT and not is_true(server.image_properties.get(_AGENT, False)):
        raise Conflict(f"QEMU guest agent is not enabled: the server's image does not have {_AGENT}=yes.")
