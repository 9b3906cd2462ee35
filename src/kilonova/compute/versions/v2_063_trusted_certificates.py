"""Servers are made and rebuilt with the certificates by which their images shall be validated; views show them."""

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
