"""The proxy for the metadata of images ends, with its limit, also for images of servers."""

from kilonova.compute.servers.actions.create_image import UNLIMITED
from kilonova.http.versions import Microversion, route, view

METADATA = "/images/{image_id}/metadata"

version = Microversion(
    "2.39",
    __doc__,
    [
        *(route(method, METADATA).ends() for method in ("GET", "POST", "PUT")),
        *(route(method, METADATA + "/{key}").ends() for method in ("GET", "PUT", "DELETE")),
        view("limits").loses("maxImageMeta", value=lambda row, ctx: row["metadata_items"], schema={"type": "integer"}),
        UNLIMITED,
    ],
)
