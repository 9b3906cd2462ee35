"""The view of an image: its properties are beside its attributes."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.image.images.model import Image


def view(image: Image) -> dict[str, Any]:
    row = image.row
    path = f"/v2/images/{row['id']}"
    return {
        **image.properties,
        "id": row["id"],
        "name": row["name"],
        "status": row["status"],
        "visibility": row["visibility"],
        "owner": row["owner"],
        "disk_format": row["disk_format"],
        "container_format": row["container_format"],
        "min_disk": row["min_disk"],
        "min_ram": row["min_ram"],
        "protected": row["protected"],
        "os_hidden": row["hidden"],
        "size": row["size"],
        "virtual_size": row["virtual_size"],
        "checksum": row["checksum"],
        "os_hash_algo": row["hash_algo"],
        "os_hash_value": row["hash_value"],
        "tags": image.tags,
        "created_at": clock.iso(row["created_at"]),
        "updated_at": clock.iso(row["updated_at"]),
        "self": path,
        "file": f"{path}/file",
        "schema": "/v2/schemas/image",
    }
