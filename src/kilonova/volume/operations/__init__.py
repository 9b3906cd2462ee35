"""Operations of the volume service, one file each. Importing this package registers them all."""

from kilonova.volume.operations import (
    delete_snapshot,
    delete_volume,
    drop_content,
    extend_volume,
    make_snapshot,
    make_volume,
    reimage_volume,
    revert_volume,
    tell_compute,
    upload_volume,
)

__all__ = [
    "delete_snapshot",
    "delete_volume",
    "drop_content",
    "extend_volume",
    "make_snapshot",
    "make_volume",
    "reimage_volume",
    "revert_volume",
    "tell_compute",
    "upload_volume",
]
