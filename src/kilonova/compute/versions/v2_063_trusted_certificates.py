"""Server views show the certificates by which the image was validated."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.63", __doc__, [view("server", "server detail", "server update").gains("trusted_image_certificates")]
)
