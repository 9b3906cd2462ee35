"""Server views show the image's properties as they were when the server was created."""

from kilonova.compute.servers.views import image_without_properties
from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.98",
    __doc__,
    [
        view("server", "server detail", "server update", "server rebuild").changes(
            "image", before=image_without_properties
        )
    ],
)
