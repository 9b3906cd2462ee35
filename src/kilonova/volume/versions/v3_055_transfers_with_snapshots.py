"""Transfers are at `/volume-transfers`, and can leave out the snapshots of the volume (`no_snapshots`)."""

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
