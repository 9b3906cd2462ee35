"""Views of the image proxy, with the field names of the old API."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import LINKS, NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View, attribute
from kilonova.http.views import OMIT
from kilonova.image.client import Image

INTEGER = {"type": "integer"}
# Statuses of the image service, and the status and progress in percent that are shown.
STATUSES = {
    "queued": ("SAVING", 25),
    "saving": ("SAVING", 50),
    "active": ("ACTIVE", 100),
    "killed": ("ERROR", 0),
    "deleted": ("DELETED", 0),
    "pending_delete": ("DELETED", 0),
}
_UNKNOWN = ("UNKNOWN", 0)


def links(image: Image, ctx: Context) -> list[dict[str, str]]:
    path, alternate = f"/images/{image.id}", "application/vnd.openstack.image"
    return [
        {"rel": "self", "href": ctx.url(path)},
        {"rel": "bookmark", "href": ctx.bookmark(path)},
        {"rel": "alternate", "href": ctx.bookmark(path), "type": alternate},
    ]


def server(image: Image, ctx: Context) -> object:
    """The server that the image is a snapshot of."""
    server_id = image.properties.get("instance_uuid")
    if not server_id:
        return OMIT
    path = f"/servers/{server_id}"
    return {"id": server_id, "links": ctx.links(path)}


def disk_config(image: Image, ctx: Context) -> object:
    if "auto_disk_config" not in image.properties:
        return OMIT
    return "AUTO" if image.properties["auto_disk_config"].lower() in ("true", "1", "yes") else "MANUAL"


_BRIEF = {"id": attribute("id", TEXT), "name": attribute("name", NULLABLE), "links": Field(links, LINKS)}

api.view(View("image brief", _BRIEF))
api.view(
    View(
        "image",
        {
            **_BRIEF,
            "status": Field(lambda image, ctx: STATUSES.get(image.status, _UNKNOWN)[0], TEXT),
            "progress": Field(lambda image, ctx: STATUSES.get(image.status, _UNKNOWN)[1], INTEGER),
            "created": attribute("created_at", TEXT),
            "updated": attribute("updated_at", TEXT),
            "minDisk": attribute("min_disk", INTEGER),
            "minRam": attribute("min_ram", INTEGER),
            "metadata": attribute("properties", OBJECT),
            "OS-EXT-IMG-SIZE:size": attribute("size", {"type": ["integer", "null"]}),
            "OS-DCF:diskConfig": Field(disk_config, TEXT, optional=True),
            "server": Field(server, OBJECT, optional=True),
        },
    )
)
