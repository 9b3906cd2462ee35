"""Views of the image proxy, with the field names of the old API."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.servers import image_checks
from kilonova.compute.servers.views import LINKS, NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT

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
_FACTS = frozenset({"disk_format", "container_format", "min_disk", "min_ram"})
# Attributes that the image service has beside an image's properties.
RESERVED = image_checks.IMAGE_ATTRIBUTES | _FACTS


def metadata(image: Any, ctx: Context | None = None) -> dict[str, str]:
    """The image's properties."""
    return {key: value for key, value in image_checks.properties(image).items() if key not in _FACTS}


def links(image: Any, ctx: Context) -> list[dict[str, str]]:
    path, alternate = f"/images/{image['id']}", "application/vnd.openstack.image"
    return [
        {"rel": "self", "href": ctx.url(path)},
        {"rel": "bookmark", "href": ctx.bookmark(path)},
        {"rel": "alternate", "href": ctx.bookmark(path), "type": alternate},
    ]


def server(image: Any, ctx: Context) -> Any:
    """The server that the image is a snapshot of."""
    if not image.get("instance_uuid"):
        return OMIT
    path = f"/servers/{image['instance_uuid']}"
    shown = [{"rel": "self", "href": ctx.url(path)}, {"rel": "bookmark", "href": ctx.bookmark(path)}]
    return {"id": image["instance_uuid"], "links": shown}


def disk_config(image: Any, ctx: Context) -> Any:
    if "auto_disk_config" not in image:
        return OMIT
    return "AUTO" if str(image["auto_disk_config"]).lower() in ("true", "1", "yes") else "MANUAL"


_BRIEF = {"id": col("id", TEXT), "name": col("name", NULLABLE), "links": Field(links, LINKS)}

api.view(View("image brief", _BRIEF))
api.view(
    View(
        "image",
        {
            **_BRIEF,
            "status": Field(lambda image, ctx: STATUSES.get(image["status"], _UNKNOWN)[0], TEXT),
            "progress": Field(lambda image, ctx: STATUSES.get(image["status"], _UNKNOWN)[1], INTEGER),
            "created": col("created_at", TEXT),
            "updated": col("updated_at", TEXT),
            "minDisk": col("min_disk", INTEGER),
            "minRam": col("min_ram", INTEGER),
            "metadata": Field(metadata, OBJECT),
            "OS-EXT-IMG-SIZE:size": col("size", {"type": ["integer", "null"]}),
            "OS-DCF:diskConfig": Field(disk_config, TEXT, optional=True),
            "server": Field(server, OBJECT, optional=True),
        },
    )
)
