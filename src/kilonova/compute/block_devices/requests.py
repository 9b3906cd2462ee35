"""Block device mappings of a new server: parse, validate and complete them before anything is written.

Both syntaxes of the API, and the mapping in the image of a volume-backed server, become rows of `block_devices`.
`sources` looks up their volumes, snapshots and images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from kilonova.compute.block_devices import device_names, sources
from kilonova.compute.block_devices.model import LOCAL, VOLUME
from kilonova.compute.servers import image_checks
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import is_true
from kilonova.store import Row

IMAGE, SNAPSHOT, BLANK, SWAP = "image", "snapshot", "blank", "swap"
LEGACY_KEY, V2_KEY = "block_device_mapping", "block_device_mapping_v2"
# Maximum number of local disks of a server.
MAX_LOCAL_DISKS = 3
_TYPES = frozenset({"disk", "cdrom", "floppy", "lun"})
# Source and destination types. A local image is only allowed as the root disk.
_SUPPORTED_MAPPINGS = frozenset(
    {(IMAGE, LOCAL), (IMAGE, VOLUME), (SNAPSHOT, VOLUME), (VOLUME, VOLUME), (BLANK, VOLUME), (BLANK, LOCAL)}
)
_KEYS = (
    *("source_type", "destination_type", "source_id", "volume_id", "volume_size", "volume_type", "device_name"),
    *("boot_index", "device_type", "disk_bus", "guest_format", "tag"),
)


@dataclass(frozen=True)
class RequestedDisks:
    """`image` has the properties of the boot image; of a volume-backed server, those of the root volume's image."""

    image: dict[str, Any]
    image_id: str | None
    """None for a volume-backed server."""
    devices: list[Row]
    root_device_name: str


def invalid_mapping(reason: str) -> BadRequest:
    return BadRequest(f"Block Device Mapping is Invalid: {reason}")


async def resolve(ctx: Context, body: dict[str, Any], flavor: Row, servers: int) -> RequestedDisks:
    """The disks that the body requests for each of its servers."""
    image_id = body.get("imageRef", "").rstrip("/").rsplit("/", 1)[-1] or None
    devices = _parse_body(body, image_id)
    if image_id is None and not devices:
        raise BadRequest("Invalid imageRef provided: a server boots from an image or a volume.")
    image_id = image_id or _booted_image(devices)
    image = await image_checks.find_active(ctx, image_id) if image_id else None
    if image is not None:
        devices = _add_image_devices(devices, image)
    root = _root(devices, image_id)
    _check_mappings(devices)
    _check_local(devices, flavor)
    _check_multiple(devices, servers)
    known = await sources.look_up(ctx, devices)
    if root is None or root["destination_type"] == LOCAL:
        assert image is not None, "_root() has checked the boot sequence"
        image_checks.check_disk(ctx, image, flavor)
        backing: str | None = image["id"]
    else:
        described = image if root["source_type"] == BLANK else None
        image, backing = described or await sources.get_root_image(ctx, root, known), None
    image_checks.check_ram(image, flavor)
    name = (
        (root and root["device_name"])
        or device_names.with_dev_prefix(str(image.get("root_device_name") or ""))
        or device_names.ROOT
    )
    _check_names([name, *(device["device_name"] for device in devices if device is not root)])
    return RequestedDisks(image, backing, _rows(devices, flavor, root, name), name)


# Parsing


def _parse_body(body: dict[str, Any], image_id: str | None) -> list[Row]:
    old = [entry for entry in body.get(LEGACY_KEY, []) if "no_device" not in entry]
    new = [entry for entry in body.get(V2_KEY, []) if "no_device" not in entry]
    if body.get(LEGACY_KEY) and body.get(V2_KEY):
        raise BadRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    if old:
        return _parse_legacy(old, image_id)
    devices = [_device(entry) for entry in new]
    # imageRef beside a root device must be the source of that device. Beside a blank volume, which is filled later,
    # imageRef supplies the image properties of the server.
    for device in devices:
        fits = (device["source_type"], device["source_id"]) == (IMAGE, image_id) or _mapping(device) == (BLANK, VOLUME)
        if image_id is not None and _is_root(device) and not fits:
            raise _invalid_boot_sequence()
    return devices


def _parse_legacy(entries: list[dict[str, Any]], image_id: str | None) -> list[Row]:
    """The legacy syntax has no boot index. The root is the volume named /dev/vda; without an image, else the first."""
    devices = []
    for entry in entries:
        virtual = entry.get("virtual_name", "")
        if "volume_id" in entry or "snapshot_id" in entry:
            source, destination = (VOLUME if "volume_id" in entry else SNAPSHOT), VOLUME
        elif virtual == SWAP or virtual.startswith("ephemeral"):
            source, destination = BLANK, LOCAL
        else:
            raise invalid_mapping(f"{LEGACY_KEY} needs a volume_id or a snapshot_id.")
        guest_format = SWAP if virtual == SWAP else None
        devices.append(_device({**entry, "source_type": source, "destination_type": destination}, guest_format))
    bootable = [device for device in devices if device["destination_type"] == VOLUME]
    named = [device for device in bootable if device["device_name"] == device_names.ROOT]
    for device in (named or ([] if image_id else bootable))[:1]:
        device["boot_index"] = 0
    return devices


def _device(entry: dict[str, Any], guest_format: str | None = None) -> Row:
    source = entry.get("source_type")
    if source is None:
        raise invalid_mapping("source_type is missing.")
    identity = entry.get("uuid") or entry.get(f"{source}_id")
    if source != BLANK and not identity:
        raise invalid_mapping(f"Missing device UUID: a {source} needs its uuid.")
    if source == BLANK and identity:
        raise invalid_mapping("Invalid device UUID: a blank device has no uuid.")
    index, size = entry.get("boot_index"), entry.get("volume_size")
    return {
        **dict.fromkeys(_KEYS),
        **{key: entry[key] for key in _KEYS if entry.get(key) not in (None, "")},
        "source_type": source,
        "destination_type": entry.get("destination_type") or (VOLUME if source in (VOLUME, SNAPSHOT) else LOCAL),
        "source_id": None if source == BLANK else identity,
        "volume_id": identity if source == VOLUME else None,
        "volume_size": None if size in (None, "") else int(size),
        "boot_index": None if index is None or int(index) < 0 else int(index),
        "device_name": device_names.with_dev_prefix(entry.get("device_name")),
        "guest_format": guest_format or entry.get("guest_format") or None,
        "delete_on_termination": is_true(entry.get("delete_on_termination", False)),
        "multiattach": False,
    }


def _booted_image(devices: list[Row]) -> str | None:
    """The image of a local root disk that only the mapping names."""
    found = (device["source_id"] for device in devices if _is_root(device) and _mapping(device) == (IMAGE, LOCAL))
    return next(found, None)


def _add_image_devices(devices: list[Row], image: dict[str, Any]) -> list[Row]:
    """Add the volumes that the image of a volume-backed server maps; the caller's devices take precedence."""
    if not image.get(LEGACY_KEY):
        return devices
    own = _parse_image_mapping(image)
    if not any(_is_root(device) for device in own):
        return devices
    # Clients name the image as the root device. The mapping in the image replaces that device.
    kept = [device for device in devices if _mapping(device) != (IMAGE, LOCAL) or device["source_id"] != image["id"]]
    names = {device["device_name"] for device in kept} - {None}
    rooted = any(_is_root(device) for device in kept)
    added = [device for device in own if device["device_name"] not in names and not (rooted and _is_root(device))]
    return [*added, *kept]


def _parse_image_mapping(image: dict[str, Any]) -> list[Row]:
    try:
        listed = image[LEGACY_KEY] if isinstance(image[LEGACY_KEY], list) else orjson.loads(image[LEGACY_KEY])
        entries = [{key: value for key, value in entry.items() if value is not None} for entry in listed]
        wanted = [entry for entry in entries if not is_true(entry.get("no_device", False))]
        if is_true(image.get("bdm_v2", False)):
            return [_device(entry) for entry in wanted]
        return _parse_legacy(wanted, None)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise invalid_mapping(f"the image {image['id']} has a property {LEGACY_KEY} that cannot be read.") from None


# Validation


def _root(devices: list[Row], image_id: str | None) -> Row | None:
    """The root device, or None if the server boots from the image. Raises if the boot indexes are not valid."""
    indexes = sorted(device["boot_index"] for device in devices if device["boot_index"] is not None)
    root = next((device for device in devices if _is_root(device)), None)
    if root is None and image_id is not None:
        indexes.insert(0, 0)
    if not indexes or indexes != list(range(len(indexes))):
        raise _invalid_boot_sequence()
    return root


def _invalid_boot_sequence() -> BadRequest:
    return invalid_mapping(
        "Boot sequence for the instance and image/block device mapping combination is not valid:"
        " boot_index must count from 0 without gaps or duplicates, and imageRef has the index 0."
    )


def _check_mappings(devices: list[Row]) -> None:
    for device in devices:
        source, destination = _mapping(device)
        local_image = (source, destination) == (IMAGE, LOCAL)
        if (source, destination) not in _SUPPORTED_MAPPINGS or (local_image and not _is_root(device)):
            raise invalid_mapping(f"Mapping {source} to {destination} is not supported.")
        if (source, destination) == (BLANK, LOCAL) and _is_root(device):
            raise invalid_mapping("boot_index 0 is a blank local disk, which is not bootable.")
        if device["volume_type"] and (destination == LOCAL or source == VOLUME):
            key, value = ("destination_type", LOCAL) if destination == LOCAL else ("source_type", VOLUME)
            raise invalid_mapping(f"Specifying a volume_type with {key}={value} is not supported.")
        if destination == VOLUME and source in (IMAGE, BLANK) and not device["volume_size"]:
            made = "Images with destination_type 'volume'" if source == IMAGE else "Blank volumes"
            raise invalid_mapping(f"{made} need to have a non-zero size specified: volume_size.")
        if device["device_type"] and device["device_type"] not in _TYPES:
            raise invalid_mapping(f"device_type {device['device_type']!r} is not one of {', '.join(sorted(_TYPES))}.")
        if device["disk_bus"] and device["disk_bus"] not in device_names.BUSES:
            raise invalid_mapping(
                f"disk_bus {device['disk_bus']!r} is none of {', '.join(sorted(device_names.BUSES))}."
            )
    if duplicate := _find_duplicate(device["volume_id"] for device in devices):
        raise invalid_mapping(f"volume {duplicate} is mapped twice.")


def _check_names(names: Iterable[str | None]) -> None:
    if duplicate := _find_duplicate(names):
        raise invalid_mapping(f"The supplied device path ({duplicate}) is in use: device_name is given twice.")


def _find_duplicate(values: Iterable[str | None]) -> str | None:
    return next((value for value, count in Counter(values).items() if value and count > 1), None)


def _check_local(devices: list[Row], flavor: Row) -> None:
    """Local disks must fit into the swap and ephemeral sizes of the flavor."""
    local = [device for device in devices if device["destination_type"] == LOCAL]
    if len(local) > MAX_LOCAL_DISKS:
        raise invalid_mapping(f"You specified more local devices than the limit allows: {MAX_LOCAL_DISKS}.")
    swaps = [device for device in local if _is_swap(device)]
    if len(swaps) > 1:
        raise invalid_mapping("More than one swap drive requested.")
    if any((device["volume_size"] or flavor["swap"]) > flavor["swap"] for device in swaps):
        raise invalid_mapping("Swap drive requested is larger than instance type allows.")
    sizes = [device["volume_size"] or flavor["ephemeral"] for device in local if _is_ephemeral(device)]
    if sum(sizes) > flavor["ephemeral"] or 0 in sizes:
        raise invalid_mapping(
            "Ephemeral disks requested are larger than the instance type allows. If no size is given in one block"
            " device mapping, flavor ephemeral size will be used."
        )


def _check_multiple(devices: list[Row], servers: int) -> None:
    if servers > 1 and any(device["volume_id"] for device in devices):
        raise BadRequest("Cannot attach one or more volumes to multiple instances")


# Completion


def _rows(devices: list[Row], flavor: Row, root: Row | None, root_name: str) -> list[Row]:
    """The rows to write, with device names. If local disks are requested, the flavor's other local disks are added."""
    if root is not None:
        root["device_name"] = root_name
    local = [device for device in devices if _mapping(device) == (BLANK, LOCAL)]
    volumes = [device for device in devices if device["destination_type"] == VOLUME]
    if local:
        local = _complete_local(local, flavor)
    taken = [root_name] if local else device_names.of_flavor(flavor, root_name)
    given = [device["device_name"] for device in devices if device["device_name"]]
    others = [device for device in (*local, *volumes) if device is not root]
    device_names.assign(others, [*taken, *given])
    return [device for device in (*volumes, *local) if device is root] + others


def _complete_local(local: list[Row], flavor: Row) -> list[Row]:
    """Local disks with sizes in MB, in the order of the guest's devices: ephemeral disks before swap."""
    swaps = [device for device in local if _is_swap(device)]
    others = [device for device in local if not _is_swap(device)]
    if flavor["ephemeral"] and not others:
        others = [_device({"source_type": BLANK, "volume_size": flavor["ephemeral"]})]
    if flavor["swap"] and not swaps:
        swaps = [_device({"source_type": BLANK, "volume_size": flavor["swap"], "guest_format": SWAP})]
    for device in others:
        device["volume_size"] = 1024 * (device["volume_size"] or flavor["ephemeral"])
    for device in swaps:
        device["volume_size"] = device["volume_size"] or flavor["swap"]
    return [*others, *swaps]


def _mapping(device: Row) -> tuple[str, str]:
    return device["source_type"], device["destination_type"]


def _is_root(device: Row) -> bool:
    return bool(device["boot_index"] == 0)


def _is_swap(device: Row) -> bool:
    return _mapping(device) == (BLANK, LOCAL) and device["guest_format"] == SWAP


def _is_ephemeral(device: Row) -> bool:
    return _mapping(device) == (BLANK, LOCAL) and device["guest_format"] != SWAP
