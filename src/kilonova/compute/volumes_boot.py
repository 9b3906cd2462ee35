"""`/os-volumes_boot`: an old name of `/servers`, from when only it could boot from volumes."""

from __future__ import annotations

import kilonova.compute.servers.actions
import kilonova.compute.servers.api  # noqa: F401  the routes that are repeated here
from kilonova.compute.api import api
from kilonova.http.versions import SERVER_ACTION

OLD = "/os-volumes_boot"
_ROUTES = (
    *("GET /servers", "POST /servers", "GET /servers/detail", "GET /servers/{server_id}"),
    *("PUT /servers/{server_id}", "DELETE /servers/{server_id}"),
)
_ACTIONS = (
    *("confirmResize", "revertResize", "reboot", "resize", "rebuild", "createImage", "os-start", "os-stop"),
    "trigger_crash_dump",
)

# Their keys there.
ROUTES = [
    api.add_alias(key, api.routes[key].path.replace("/servers", OLD))
    for key in (*_ROUTES, *(f"POST {SERVER_ACTION}#{name}" for name in _ACTIONS))
]
