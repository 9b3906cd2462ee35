"""Transfers stand at `/volume-transfers`, and say whether the snapshots of the volume stay behind (`no_snapshots`)."""

from kilonova.http.versions import Microversion, route, view
from kilonova.volume.transfers.api import NEW

version = Microversion(
    "3.55",
    __doc__,
    [
        route("POST", NEW).begins(),
        route("GET", NEW).begins(),
        route("GET", f"{NEW}/detail").begins(),
        route("GET", f"{NEW}/{{transfer_id}}").begins(),
        route("DELETE", f"{NEW}/{{transfer_id}}").begins(),
        route("POST", f"{NEW}/{{transfer_id}}/accept").begins(),
        view("transfer", "new transfer").gains("no_snapshots"),
    ],
)
