"""Who may have a volume, how, and by which way: what is decided when an attachment is made or connected."""

from __future__ import annotations

from typing import Any

from kilonova.config import Config
from kilonova.http.errors import BadRequest
from kilonova.store import Row
from kilonova.volume.files import VolumeFiles
from kilonova.volume.volumes import states

DRIVER = "kilonova_file"
READ_ONLY, WRITABLE = "ro", "rw"
# The file of such a volume is not there yet, or about to be another one.
_UNSETTLED = frozenset({states.CREATING, states.DOWNLOADING, states.REVERTING, states.DELETING})


def check_free(volume: Row, attachments: list[Row], server_id: str | None) -> None:
    """Refuse (400) a volume that somebody else has, or has reserved without an attachment."""
    states.check(volume, "attach")
    check_alone(volume, attachments, server_id)
    if not attachments and volume["status"] != states.AVAILABLE and not volume["multiattach"]:
        raise _taken(volume)


def check_alone(volume: Row, attachments: list[Row], server_id: str | None) -> None:
    """A volume is one server's, which may have several attachments while it moves; or anybody's if it is shared.

    Whatever its status: administrators set that at will.
    """
    others = server_id is None or any(one["server_id"] != server_id for one in attachments)
    if attachments and others and not volume["multiattach"]:
        raise _taken(volume)


def _taken(volume: Row) -> BadRequest:
    return BadRequest(
        f"Invalid volume: Volume {volume['id']} status must be available or downloading to reserve, and nobody else may"
        f" have it, but the current status is {volume['status']}."
    )


def mode_of(volume: Row, asked: str | None) -> str:
    if volume["readonly"] and asked == WRITABLE:
        raise BadRequest(f"Invalid attaching mode 'rw' for volume {volume['id']}.")
    return asked or (READ_ONLY if volume["readonly"] else WRITABLE)


def connection_of(
    volume: Row, attachment_id: str, mode: str, config: Config, way: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The way to the volume, all on one level as the API shows it: by its file, or by another `way`."""
    if volume["data_id"] is None or volume["status"] in _UNSETTLED:
        raise BadRequest(f"Invalid volume: Volume {volume['id']} has no content, or is about to get other content.")
    path = str(VolumeFiles.of(config).volume(volume["id"], volume["data_id"]))
    return {
        **(way or {"driver_volume_type": DRIVER, "device_path": path}),
        "format": "raw",
        "access_mode": mode,
        "size": volume["size"],
        "volume_id": volume["id"],
        "attachment_id": attachment_id,
        "encrypted": False,
        "qos_specs": None,
        "multiattach": volume["multiattach"],
    }
