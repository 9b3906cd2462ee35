"""Checks of new attachments, and the connection info of connected ones."""

from __future__ import annotations

from kilonova.config import Config
from kilonova.http.errors import BadRequest
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.files import VolumeFiles
from kilonova.volume.volumes import states
from kilonova.volume.volumes.model import Volume

DRIVER = "kilonova_file"
READ_ONLY, WRITABLE = "ro", "rw"
# The file of a volume in these statuses does not exist yet, or is about to be replaced.
_NO_STABLE_FILE = frozenset({states.CREATING, states.DOWNLOADING, states.REVERTING, states.DELETING})


def check_free(volume: Volume, attachments: list[Attachment], server_id: str | None) -> None:
    """Refuse (400) a volume that is attached to another server, or reserved without an attachment."""
    states.check(volume, "attach")
    check_exclusive(volume, attachments, server_id)
    if not attachments and volume.status != states.AVAILABLE and not volume.multiattach:
        raise _not_available(volume)


def check_exclusive(volume: Volume, attachments: list[Attachment], server_id: str | None) -> None:
    """Refuse (400) a second server for a volume without multi-attach. A server that moves has several attachments.

    The status is not trusted here, because administrators can set it.
    """
    others = server_id is None or any(attachment.server_id != server_id for attachment in attachments)
    if attachments and others and not volume.multiattach:
        raise _not_available(volume)


def _not_available(volume: Volume) -> BadRequest:
    return BadRequest(
        f"Invalid volume: Volume {volume.id} status must be available or downloading to reserve, without attachments"
        f" of other servers, but the current status is {volume.status}."
    )


def choose_mode(volume: Volume, requested: str | None) -> str:
    if volume.readonly and requested == WRITABLE:
        raise BadRequest(f"Invalid attaching mode 'rw' for volume {volume.id}.")
    return requested or (READ_ONLY if volume.readonly else WRITABLE)


def connection_info(
    volume: Volume, attachment_id: str, mode: str, config: Config, nbd: dict[str, object] | None = None
) -> dict[str, object]:
    """The connection info, on one level as the API shows it: the path of the file, or the NBD export."""
    if volume.data_id is None or volume.status in _NO_STABLE_FILE:
        raise BadRequest(f"Invalid volume: Volume {volume.id} has no content yet, or its content is being replaced.")
    path = str(VolumeFiles.of(config).volume(volume.id, volume.data_id))
    return {
        **(nbd or {"driver_volume_type": DRIVER, "device_path": path}),
        "format": "raw",
        "access_mode": mode,
        "size": volume.size,
        "volume_id": volume.id,
        "attachment_id": attachment_id,
        "encrypted": False,
        "qos_specs": None,
        "multiattach": volume.multiattach,
    }
