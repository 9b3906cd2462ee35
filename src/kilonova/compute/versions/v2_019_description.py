"""Servers have a description of their own; before, it was the name."""

from kilonova.compute.servers.create import OWN_DESCRIPTION
from kilonova.http.versions import Microversion, action, request, view

version = Microversion(
    "2.19",
    __doc__,
    [
        request("POST /servers").gains("server.description"),
        request("PUT /servers/{server_id}").gains("server.description"),
        action("rebuild").gains("description"),
        view("server", "server detail", "server update", "server rebuild").gains("description"),
        OWN_DESCRIPTION,
    ],
)
