"""Servers have a description of their own; before, it was the name."""

from kilonova.http.versions import Microversion, behaviour, request, view

version = Microversion(
    "2.19",
    __doc__,
    [
        request("POST /servers").gains("server.description"),
        request("PUT /servers/{server_id}").gains("server.description"),
        view("server", "server detail", "server update").gains("description"),
        behaviour("a server's description is its own"),
    ],
)
