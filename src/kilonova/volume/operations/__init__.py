"""Operations of the volume service. Importing this package registers them all."""

from kilonova.volume.operations import (
    create_snapshot,
    delete_content,
    delete_snapshot,
    delete_volume,
    extend_volume,
    notify_compute,
    replace_content,
    upload_volume,
)

__all__ = [
    "create_snapshot",
    "delete_content",
    "delete_snapshot",
    "delete_volume",
    "extend_volume",
    "notify_compute",
    "replace_content",
    "upload_volume",
]
