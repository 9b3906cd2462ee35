"""The kinds of the volume service's operations. The database stores them."""

from __future__ import annotations

CREATE_VOLUME = "create_volume"
CREATE_VOLUME_SNAPSHOT = "create_volume_snapshot"
DELETE_VOLUME = "delete_volume"
DELETE_VOLUME_CONTENT = "delete_volume_content"
DELETE_VOLUME_SNAPSHOT = "delete_volume_snapshot"
GROW_VOLUME = "grow_volume"
NOTIFY_COMPUTE = "notify_compute"
REIMAGE_VOLUME = "reimage_volume"
REVERT_VOLUME = "revert_volume"
UPLOAD_VOLUME = "upload_volume"
