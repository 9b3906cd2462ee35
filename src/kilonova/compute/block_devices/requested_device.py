"""A requested block device, and how both syntaxes of the API describe it."""

from __future__ import annotations

from msgspec import Struct, convert
from msgspec.structs import asdict

from kilonova.compute.block_devices import device_names
from kilonova.compute.block_devices.model import LOCAL, VOLUME, BlockDevice
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id

IMAGE, SNAPSHOT, BLANK, SWAP = "image", "snapshot", "blank", "swap"
LEGACY_KEY = "block_device_mapping"


class RequestedDevice(Struct, kw_only=True):
    """A block device without its server. Sizes, names and `multiattach` are completed while the request is checked."""

    source_type: str
    destination_type: str
    source_id: str | None = None
    volume_id: str | None = None
    volume_size: int | None = None
    volume_type: str | None = None
    device_name: str | None = None
    boot_index: int | None = None
    device_type: str | None = None
    disk_bus: str | None = None
    guest_format: str | None = None
    tag: str | None = None
    delete_on_termination: bool = False
    multiattach: bool = False

    @property
    def mapping(self) -> tuple[str, str]:
        return self.source_type, self.destination_type

    @property
    def is_root(self) -> bool:
        return self.boot_index == 0

    @property
    def is_volume(self) -> bool:
        return self.destination_type == VOLUME

    @property
    def is_swap(self) -> bool:
        return self.mapping == (BLANK, LOCAL) and self.guest_format == SWAP

    @property
    def is_ephemeral(self) -> bool:
        return self.mapping == (BLANK, LOCAL) and self.guest_format != SWAP

    def record(self, server_id: str, created_at: float) -> BlockDevice:
        """The device of a new server."""
        return BlockDevice(uuid=new_id(), server_id=server_id, created_at=created_at, **asdict(self))


class _Entry(Struct):
    """Numbers may be floats, such as 2.0: JSON Schema takes those for integers."""

    source_type: str | None = None
    destination_type: str | None = None
    uuid: str | None = None
    volume_id: str | None = None
    snapshot_id: str | None = None
    image_id: str | None = None
    volume_size: int | float | str | None = None
    volume_type: str | None = None
    device_name: str | None = None
    boot_index: int | float | str | None = None
    device_type: str | None = None
    disk_bus: str | None = None
    guest_format: str | None = None
    tag: str | None = None
    virtual_name: str = ""
    delete_on_termination: bool | str = False


def invalid_mapping(reason: str) -> BadRequest:
    return BadRequest(f"Block Device Mapping is Invalid: {reason}")


def parse(entry: object) -> RequestedDevice:
    """Parse an entry of `block_device_mapping_v2`."""
    return _device(convert(entry, _Entry))


def parse_legacy(entries: list[dict[str, object]], image_id: str | None) -> list[RequestedDevice]:
    """The legacy syntax has no boot index. The root is the volume named /dev/vda; without an image, else the first."""
    devices = [_legacy_device(convert(entry, _Entry)) for entry in entries]
    bootable = [device for device in devices if device.is_volume]
    named = [device for device in bootable if device.device_name == device_names.ROOT]
    for device in (named or ([] if image_id else bootable))[:1]:
        device.boot_index = 0
    return devices


def _legacy_device(entry: _Entry) -> RequestedDevice:
    if entry.volume_id is not None or entry.snapshot_id is not None:
        entry.source_type, entry.destination_type = (VOLUME if entry.volume_id is not None else SNAPSHOT), VOLUME
    elif entry.virtual_name == SWAP or entry.virtual_name.startswith("ephemeral"):
        entry.source_type, entry.destination_type = BLANK, LOCAL
    else:
        raise invalid_mapping(f"{LEGACY_KEY} needs a volume_id or a snapshot_id.")
    if entry.virtual_name == SWAP:
        entry.guest_format = SWAP
    return _device(entry)


def _device(entry: _Entry) -> RequestedDevice:
    source = entry.source_type
    if source is None:
        raise invalid_mapping("source_type is missing.")
    sources = {VOLUME: entry.volume_id, SNAPSHOT: entry.snapshot_id, IMAGE: entry.image_id}
    identity = entry.uuid or sources.get(source)
    if source != BLANK and not identity:
        raise invalid_mapping(f"Missing device UUID: a {source} needs its uuid.")
    if source == BLANK and identity:
        raise invalid_mapping("Invalid device UUID: a blank device has no uuid.")
    index, size = entry.boot_index, entry.volume_size
    return RequestedDevice(
        source_type=source,
        destination_type=entry.destination_type or (VOLUME if source in (VOLUME, SNAPSHOT) else LOCAL),
        source_id=None if source == BLANK else identity,
        volume_id=identity if source == VOLUME else None,
        volume_size=None if size in (None, "") else int(size),
        volume_type=entry.volume_type or None,
        device_name=device_names.with_dev_prefix(entry.device_name),
        boot_index=None if index is None or int(index) < 0 else int(index),
        device_type=entry.device_type or None,
        disk_bus=entry.disk_bus or None,
        guest_format=entry.guest_format or None,
        tag=entry.tag or None,
        delete_on_termination=is_true(entry.delete_on_termination),
    )
