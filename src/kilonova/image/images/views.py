"""The view of an image: its properties are beside its attributes."""

from __future__ import annotations

from kilonova import clock
from kilonova.image.images.model import ImageDetails


def view(details: ImageDetails) -> dict[str, object]:
    image = details.image
    path = f"/v2/images/{image.id}"
    return {
        **details.properties,
        "id": image.id,
        "name": image.name,
        "status": image.status,
        "visibility": image.visibility,
        "owner": image.owner,
        "disk_format": image.disk_format,
        "container_format": image.container_format,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "protected": image.protected,
        "os_hidden": image.hidden,
        "size": image.size,
        "virtual_size": image.virtual_size,
        "checksum": image.checksum,
        "os_hash_algo": image.hash_algo,
        "os_hash_value": image.hash_value,
        "tags": details.tags,
        "created_at": clock.iso(image.created_at),
        "updated_at": clock.iso(image.updated_at),
        "self": path,
        "file": f"{path}/file",
        "schema": "/v2/schemas/image",
    }
