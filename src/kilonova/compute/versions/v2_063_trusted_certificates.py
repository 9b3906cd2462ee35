"""Servers are created and rebuilt with trusted certificates to validate their images; views show them."""

from kilonova.http.versions import Microversion, action, request, view

version = Microversion(
    "2.63",
    __doc__,
    [
        view("server", "server detail", "server update", "server rebuild").gains("trusted_image_certificates"),
        request("POST /servers").gains("server.trusted_image_certificates"),
        action("rebuild").gains("trusted_image_certificates"),
    ],
)
