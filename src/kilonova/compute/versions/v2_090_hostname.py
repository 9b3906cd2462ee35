"""A server's host name can be set and changed, is shown to all users, and can be used as a filter."""

from kilonova.compute.servers.schemas import FILTER_BY_HOSTNAME
from kilonova.compute.servers.shown_server import ShownServer
from kilonova.compute.servers.views import ATTRIBUTES, TEXT
from kilonova.http import Context
from kilonova.http.versions import Microversion, action, request, view


def hostname(shown: ShownServer, ctx: Context) -> str:
    return shown.server.hostname


version = Microversion(
    "2.90",
    __doc__,
    [
        request("POST /servers").gains("server.hostname"),
        request("PUT /servers/{server_id}").gains("server.hostname"),
        action("rebuild").gains("hostname"),
        view("server", "server detail", "server update", "server rebuild").changes(
            "OS-EXT-SRV-ATTR:hostname", before=hostname, schema=TEXT, policy=ATTRIBUTES
        ),
        FILTER_BY_HOSTNAME,
    ],
)
