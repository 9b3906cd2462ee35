"""Server views show the certificates by which the image was validated; a rebuild takes them."""

from kilonova.http.versions import Microversion, action, view

version = Microversion(
    "2.63",
    __doc__,
    [
        view("server", "server detail", "server update", "server rebuild").gains("trusted_image_certificates"),
        action("rebuild").gains("trusted_image_certificates"),
    ],
)
