"""A server's host name can be set and changed, is shown to all users, and can be used as a filter."""

from typing import Any

from kilonova.compute.servers.views import ATTRIBUTES, TEXT
from kilonova.http import Context
from kilonova.http.versions import Microversion, action, behaviour, request, view


def hostname(row: Any, ctx: Context) -> Any:
    return row["hostname"]


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
        behaviour("everybody filters servers by hostname"),
    ],
)
