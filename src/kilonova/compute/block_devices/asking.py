"""The disks that a new server asks for: read, completed and refused before anything is written.

Both syntaxes of the API, and what an image of a volume-backed server says, become rows of `block_devices`; what they
are made of is looked up with the caller's own token. `compute.block_devices.sources` does the looking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from kilonova.compute.block_devices import naming, sources
from kilonova.compute.block_devices.model import LOCAL, VOLUME
from kilonova.compute.servers import images
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import is_true
from kilonova.store import Row

IMAGE, SNAPSHOT, BLANK, SWAP = "image", "snapshot", "blank", "swap"
OLD, NEW = "block_device_mapping", "block_device_mapping_v2"
# How many disks of one server can be on its host's own storage.
MOST_LOCAL = 3
_TYPES = frozenset({"disk", "cdrom", "floppy", "lun"})
# What becomes what. An image is on the host's disk only as what the server boots from.
_WAYS = frozenset(
    {(IMAGE, LOCAL), (IMAGE, VOLUME), (SNAPSHOT, VOLUME), (VOLUME, VOLUME), (BLANK, VOLUME), (BLANK, LOCAL)}
)
_KEYS = (
    *("source_type", "destination_type", "source_id", "volume_id", "volume_size", "volume_type", "device_name"),
    *("boot_index", "device_type", "disk_bus", "guest_format", "tag"),
)


@dataclass(frozen=True)
class Disks:
    """`image` is what is known of the image it boots from, also of one that only its root volume was made of."""

    image: dict[str, Any]
    image_id: str | None
    """None for a server that boots from a volume."""
    devices: list[Row]
    root_device_name: str


def wrong(reason: str) -> BadRequest:
    return BadRequest(f"Block Device Mapping is Invalid: {reason}")


async def asked(ctx: Context, body: dict[str, Any], flavor: Row, servers: int) -> Disks:
    """What the body asks for, for each of so many servers."""
    image_id = body.get("imageRef", "").rstrip("/").rsplit("/", 1)[-1] or None
    devices = _given(body, image_id)
    if image_id is None and not devices:
        raise BadRequest("Invalid imageRef provided: a server boots from an image or a volume.")
    image_id = image_id or _booted_image(devices)
    image = await images.active(ctx, image_id) if image_id else None
    if image is not None:
        devices = _with_those_of_image(devices, image)
    root = _root(devices, image_id)
    _check_ways(devices)
    _check_local(devices, flavor)
    _check_multiple(devices, servers)
    known = await sources.check(ctx, devices)
    if root is None or root["destination_type"] == LOCAL:
        assert image is not None, "the boot sequence has been judged"
        images.check_disk(ctx, image, flavor)
        backing: str | None = image["id"]
    else:
        described = image if root["source_type"] == BLANK else None
        image, backing = described or await sources.root_image(ctx, root, known), None
    images.check_ram(image, flavor)
    name = (root and root["device_name"]) or naming.full(str(image.get("root_device_name") or "")) or naming.ROOT
    _check_names([name, *(device["device_name"] for device in devices if device is not root)])
    return Disks(image, backing, _rows(devices, flavor, root, name), name)


# Reading


def _given(body: dict[str, Any], image_id: str | None) -> list[Row]:
    old = [entry for entry in body.get(OLD, []) if "no_device" not in entry]
    new = [entry for entry in body.get(NEW, []) if "no_device" not in entry]
    if body.get(OLD) and body.get(NEW):
        raise BadRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    if old:
        return _of_old(old, image_id)
    devices = [_device(entry) for entry in new]
    # An image that is named beside the device to boot from must be the one that this is made of. Beside an empty
    # volume, which somebody is to fill, it says what the server is like.
    for device in devices:
        fits = (device["source_type"], device["source_id"]) == (IMAGE, image_id) or _way(device) == (BLANK, VOLUME)
        if image_id is not None and _is_root(device) and not fits:
            raise _sequence()
    return devices


def _of_old(entries: list[dict[str, Any]], image_id: str | None) -> list[Row]:
    """The first syntax has no boot index: the root is told by its name, else without an image it is the first."""
    devices = []
    for entry in entries:
        virtual = entry.get("virtual_name", "")
        if "volume_id" in entry or "snapshot_id" in entry:
            source, destination = (VOLUME if "volume_id" in entry else SNAPSHOT), VOLUME
        elif virtual == SWAP or virtual.startswith("ephemeral"):
            source, destination = BLANK, LOCAL
        else:
            raise wrong(f"{OLD} needs a volume_id or a snapshot_id.")
        guest_format = SWAP if virtual == SWAP else None
        devices.append(_device({**entry, "source_type": source, "destination_type": destination}, guest_format))
    bootable = [device for device in devices if device["destination_type"] == VOLUME]
    named = [device for device in bootable if device["device_name"] == naming.ROOT]
    for device in (named or ([] if image_id else bootable))[:1]:
        device["boot_index"] = 0
    return devices


def _device(entry: dict[str, Any], guest_format: str | None = None) -> Row:
    source = entry.get("source_type")
    if source is None:
        raise wrong("source_type is missing.")
    identity = entry.get("uuid") or entry.get(f"{source}_id")
    if source != BLANK and not identity:
        raise wrong(f"Missing device UUID: a {source} needs its uuid.")
    if source == BLANK and identity:
        raise wrong("Invalid device UUID: what is blank has no uuid.")
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
        "device_name": naming.full(entry.get("device_name")),
        "guest_format": guest_format or entry.get("guest_format") or None,
        "delete_on_termination": is_true(entry.get("delete_on_termination", False)),
        "multiattach": False,
    }


def _booted_image(devices: list[Row]) -> str | None:
    """The image that a server boots from on its host's disk, where only the devices say so."""
    found = (device["source_id"] for device in devices if _is_root(device) and _way(device) == (IMAGE, LOCAL))
    return next(found, None)


def _with_those_of_image(devices: list[Row], image: dict[str, Any]) -> list[Row]:
    """An image of a volume-backed server says what its volumes were; what the caller says comes first."""
    if not image.get(OLD):
        return devices
    own = _of_image(image)
    if not any(_is_root(device) for device in own):
        return devices
    # Clients name the image as what to boot from, and it says itself what that means.
    kept = [device for device in devices if _way(device) != (IMAGE, LOCAL) or device["source_id"] != image["id"]]
    names = {device["device_name"] for device in kept} - {None}
    rooted = any(_is_root(device) for device in kept)
    added = [device for device in own if device["device_name"] not in names and not (rooted and _is_root(device))]
    return [*added, *kept]


def _of_image(image: dict[str, Any]) -> list[Row]:
    try:
        listed = image[OLD] if isinstance(image[OLD], list) else orjson.loads(image[OLD])
        entries = [{key: value for key, value in entry.items() if value is not None} for entry in listed]
        wanted = [entry for entry in entries if not is_true(entry.get("no_device", False))]
        if is_true(image.get("bdm_v2", False)):
            return [_device(entry) for entry in wanted]
        return _of_old(wanted, None)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise wrong(f"the image {image['id']} has a property {OLD} that cannot be read.") from None


# Judging


def _root(devices: list[Row], image_id: str | None) -> Row | None:
    """The device to boot from, or None where it is the image. Raises if it is not clear what boots after what."""
    indexes = sorted(device["boot_index"] for device in devices if device["boot_index"] is not None)
    root = next((device for device in devices if _is_root(device)), None)
    if root is None and image_id is not None:
        indexes.insert(0, 0)
    if not indexes or indexes != list(range(len(indexes))):
        raise _sequence()
    return root


def _sequence() -> BadRequest:
    return wrong(
        "Boot sequence for the instance and image/block device mapping combination is not valid:"
        " boot_index counts from 0, each number once, and imageRef stands for the 0."
    )


def _check_ways(devices: list[Row]) -> None:
    for device in devices:
        source, destination = _way(device)
        local_image = (source, destination) == (IMAGE, LOCAL)
        if (source, destination) not in _WAYS or (local_image and not _is_root(device)):
            raise wrong(f"Mapping {source} to {destination} is not supported.")
        if (source, destination) == (BLANK, LOCAL) and _is_root(device):
            raise wrong("boot_index 0 is of an empty local disk, and nothing boots from that.")
        if device["volume_type"] and (destination == LOCAL or source == VOLUME):
            key, value = ("destination_type", LOCAL) if destination == LOCAL else ("source_type", VOLUME)
            raise wrong(f"Specifying a volume_type with {key}={value} is not supported.")
        if destination == VOLUME and source in (IMAGE, BLANK) and not device["volume_size"]:
            made = "Images with destination_type 'volume'" if source == IMAGE else "Blank volumes"
            raise wrong(f"{made} need to have a non-zero size specified: volume_size.")
        if device["device_type"] and device["device_type"] not in _TYPES:
            raise wrong(f"device_type {device['device_type']!r} is none of {', '.join(sorted(_TYPES))}.")
        if device["disk_bus"] and device["disk_bus"] not in naming.BUSES:
            raise wrong(f"disk_bus {device['disk_bus']!r} is none of {', '.join(sorted(naming.BUSES))}.")
    if twice := _twice(device["volume_id"] for device in devices):
        raise wrong(f"volume {twice} stands there twice.")


def _check_names(names: Iterable[str | None]) -> None:
    if twice := _twice(names):
        raise wrong(f"The supplied device path ({twice}) is in use: device_name stands there twice.")


def _twice(words: Iterable[str | None]) -> str | None:
    return next((word for word, times in Counter(words).items() if word and times > 1), None)


def _check_local(devices: list[Row], flavor: Row) -> None:
    """Local disks are the flavor's, asked for in other pieces at most."""
    local = [device for device in devices if device["destination_type"] == LOCAL]
    if len(local) > MOST_LOCAL:
        raise wrong(f"You specified more local devices than the limit allows: {MOST_LOCAL}.")
    swaps = [device for device in local if _is_swap(device)]
    if len(swaps) > 1:
        raise wrong("More than one swap drive requested.")
    if any((device["volume_size"] or flavor["swap"]) > flavor["swap"] for device in swaps):
        raise wrong("Swap drive requested is larger than instance type allows.")
    sizes = [device["volume_size"] or flavor["ephemeral"] for device in local if _is_ephemeral(device)]
    if sum(sizes) > flavor["ephemeral"] or 0 in sizes:
        raise wrong(
            "Ephemeral disks requested are larger than the instance type allows. If no size is given in one block"
            " device mapping, flavor ephemeral size will be used."
        )


def _check_multiple(devices: list[Row], servers: int) -> None:
    if servers > 1 and any(device["volume_id"] for device in devices):
        raise BadRequest("Cannot attach one or more volumes to multiple instances")


# Completing


def _rows(devices: list[Row], flavor: Row, root: Row | None, root_name: str) -> list[Row]:
    """What is written of them, named; where local disks are asked for, also those that the flavor gives unasked."""
    if root is not None:
        root["device_name"] = root_name
    local = [device for device in devices if _way(device) == (BLANK, LOCAL)]
    volumes = [device for device in devices if device["destination_type"] == VOLUME]
    if local:
        local = _completed(local, flavor)
    taken = [root_name] if local else naming.of_flavor(flavor, root_name)
    given = [device["device_name"] for device in devices if device["device_name"]]
    others = [device for device in (*local, *volumes) if device is not root]
    naming.assign(others, [*taken, *given])
    return [device for device in (*volumes, *local) if device is root] + others


def _completed(local: list[Row], flavor: Row) -> list[Row]:
    """With sizes in MB, and in the order in which guests find them: ephemeral disks before swap."""
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


def _way(device: Row) -> tuple[str, str]:
    return device["source_type"], device["destination_type"]


def _is_root(device: Row) -> bool:
    return bool(device["boot_index"] == 0)


def _is_swap(device: Row) -> bool:
    return _way(device) == (BLANK, LOCAL) and device["guest_format"] == SWAP


def _is_ephemeral(device: Row) -> bool:
    return _way(device) == (BLANK, LOCAL) and device["guest_format"] != SWAP
