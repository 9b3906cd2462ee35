"""Block device mappings of a new server: parse, validate and complete them before anything is written.

Both syntaxes of the API, and the mapping in the image of a volume-backed server, become requested devices.
`sources` looks up their volumes, snapshots and images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import orjson
from msgspec import Struct, convert

from kilonova.compute.block_devices import device_names, sources
from kilonova.compute.block_devices.model import LOCAL, VOLUME
from kilonova.compute.block_devices.requested_device import (
    BLANK,
    IMAGE,
    LEGACY_KEY,
    SNAPSHOT,
    SWAP,
    RequestedDevice,
    invalid_mapping,
    parse,
    parse_legacy,
)
from kilonova.compute.flavors.model import Flavor
from kilonova.compute.servers import image_checks
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import is_true
from kilonova.image.client import Image
from kilonova.volume.client import Volume

ATTACH_VOLUME = "os_compute_api:servers:create:attach_volume"
V2_KEY = "block_device_mapping_v2"
# Maximum number of local disks of a server.
MAX_LOCAL_DISKS = 3
_TYPES = frozenset({"disk", "cdrom", "floppy", "lun"})
# Source and destination types. A local image is only allowed as the root disk that imageRef names too.
_SUPPORTED_MAPPINGS = frozenset(
    {(IMAGE, LOCAL), (IMAGE, VOLUME), (SNAPSHOT, VOLUME), (VOLUME, VOLUME), (BLANK, VOLUME), (BLANK, LOCAL)}
)


class RequestedDisks(Struct, frozen=True):
    """`image_properties` are those of the requested image; without one, those of the root volume's image.

    `image_id` and `image_hash` are None for a volume-backed server. `source_hashes` has the hashes of the images that
    volumes are created from, by image id. `volumes` are the existing volumes.
    """

    image_properties: dict[str, str]
    image_id: str | None
    image_hash: str | None
    devices: list[RequestedDevice]
    root_device_name: str
    source_hashes: dict[str, str]
    volumes: list[Volume]


async def resolve(ctx: Context, body: dict[str, object], flavor: Flavor, servers: int) -> RequestedDisks:
    """The disks that the body requests for each of its servers."""
    image_id = str(body.get("imageRef", "")).rstrip("/").rsplit("/", 1)[-1] or None
    devices = _parse_body(body, image_id)
    if devices:
        ctx.authorize(ATTACH_VOLUME)
    if image_id is None and not devices:
        raise BadRequest("Invalid imageRef provided: a server boots from an image or a volume.")
    image = await image_checks.find_active(ctx, image_id) if image_id else None
    requested_root = next((device for device in devices if device.is_root), None)
    if image is not None:
        devices = _add_image_devices(devices, image)
    root = _root(devices, image_id)
    _check_mappings(devices, image_id)
    _check_local(devices, flavor)
    _check_multiple(devices, servers)
    known = await sources.look_up(ctx, devices, has_image=image is not None)
    if root is None or root.destination_type == LOCAL:
        assert image is not None, "the boot sequence and the mappings are checked"
        image_checks.check_disk(ctx, image, flavor)
        properties, backing = image_checks.properties(image), image.id
    elif root is requested_root and image is not None:
        sources.check_size(root, image.min_disk)
        properties, backing = image_checks.properties(image), None
    else:
        properties, backing = await sources.get_root_properties(ctx, root, known), None
    image_checks.check_ram(int(properties.get("min_ram") or 0), flavor)
    name = (
        (root and root.device_name)
        or device_names.with_dev_prefix(properties.get("root_device_name"))
        or device_names.ROOT
    )
    _check_names([name, *(device.device_name for device in devices if device is not root)])
    image_hash = (image.hash or None) if image is not None and backing is not None else None
    source_hashes = {source.id: source.hash for source in known.values() if isinstance(source, Image) and source.hash}
    volumes = [source for source in known.values() if isinstance(source, Volume)]
    completed = _complete(devices, flavor, root, name)
    return RequestedDisks(properties, backing, image_hash, completed, name, source_hashes, volumes)


# Parsing


def _parse_body(body: dict[str, object], image_id: str | None) -> list[RequestedDevice]:
    legacy, current = _entries(body, LEGACY_KEY), _entries(body, V2_KEY)
    if body.get(LEGACY_KEY) and body.get(V2_KEY):
        raise BadRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    if legacy:
        return parse_legacy(legacy, image_id)
    devices = [parse(entry) for entry in current]
    # imageRef beside a root volume supplies only the image properties of the server.
    for device in devices:
        is_other_image = device.mapping == (IMAGE, LOCAL) and device.source_id != image_id
        if image_id is not None and device.is_root and is_other_image:
            raise _invalid_boot_sequence()
    return devices


def _entries(body: dict[str, object], key: str) -> list[dict[str, object]]:
    entries = convert(body.get(key, []), list[dict[str, object]])
    return [entry for entry in entries if "no_device" not in entry]


def _add_image_devices(devices: list[RequestedDevice], image: Image) -> list[RequestedDevice]:
    """Add the volumes that the image of a volume-backed server maps; the caller's devices take precedence."""
    if not image.properties.get(LEGACY_KEY):
        return devices
    own = _parse_image_mapping(image)
    if not any(device.is_root for device in own):
        return devices
    # Clients name the image as the root device. The mapping in the image replaces that device.
    kept = [device for device in devices if device.mapping != (IMAGE, LOCAL) or device.source_id != image.id]
    names = {device.device_name for device in kept} - {None}
    rooted = any(device.is_root for device in kept)
    added = [device for device in own if device.device_name not in names and not (rooted and device.is_root)]
    return [*added, *kept]


def _parse_image_mapping(image: Image) -> list[RequestedDevice]:
    try:
        listed = convert(orjson.loads(image.properties[LEGACY_KEY]), list[dict[str, object]])
        entries = [{key: value for key, value in entry.items() if value is not None} for entry in listed]
        wanted = [entry for entry in entries if not is_true(entry.get("no_device", False))]
        if is_true(image.properties.get("bdm_v2", False)):
            return [parse(entry) for entry in wanted]
        return parse_legacy(wanted, None)
    except ValueError:
        raise invalid_mapping(f"the image {image.id} has a property {LEGACY_KEY} that cannot be read.") from None


# Validation


def _root(devices: list[RequestedDevice], image_id: str | None) -> RequestedDevice | None:
    """The root device, or None if the server boots from the image. Raises if the boot indexes are not valid."""
    indexes = sorted(device.boot_index for device in devices if device.boot_index is not None)
    root = next((device for device in devices if device.is_root), None)
    if root is None and image_id is not None:
        indexes.insert(0, 0)
    if not indexes or indexes != list(range(len(indexes))):
        raise _invalid_boot_sequence()
    return root


def _invalid_boot_sequence() -> BadRequest:
    return invalid_mapping(
        "Boot sequence for the instance and image/block device mapping combination is not valid:"
        " boot_index must count from 0 without gaps or duplicates. imageRef has the index 0 if no device has it."
    )


def _check_mappings(devices: list[RequestedDevice], image_id: str | None) -> None:
    for device in devices:
        source, destination = device.mapping
        if (source, destination) not in _SUPPORTED_MAPPINGS:
            raise invalid_mapping(f"Mapping {source} to {destination} is not supported.")
        if device.mapping == (IMAGE, LOCAL) and not (device.is_root and image_id):
            raise invalid_mapping(
                "Mapping image to local is not supported, except for the image that imageRef names, with boot_index 0."
            )
        if (source, destination) == (BLANK, LOCAL) and device.is_root:
            raise invalid_mapping("boot_index 0 is a blank local disk, which is not bootable.")
        if device.volume_type and (destination == LOCAL or source == VOLUME):
            key, value = ("destination_type", LOCAL) if destination == LOCAL else ("source_type", VOLUME)
            raise invalid_mapping(f"Specifying a volume_type with {key}={value} is not supported.")
        if destination == VOLUME and source in (IMAGE, BLANK) and not device.volume_size:
            made = "Images with destination_type 'volume'" if source == IMAGE else "Blank volumes"
            raise invalid_mapping(f"{made} need to have a non-zero size specified: volume_size.")
        if device.device_type and device.device_type not in _TYPES:
            raise invalid_mapping(f"device_type {device.device_type!r} is not one of {', '.join(sorted(_TYPES))}.")
        if device.disk_bus and device.disk_bus not in device_names.BUSES:
            raise invalid_mapping(f"disk_bus {device.disk_bus!r} is none of {', '.join(sorted(device_names.BUSES))}.")
    if duplicate := _find_duplicate(device.volume_id for device in devices):
        raise invalid_mapping(f"volume {duplicate} is mapped twice.")


def _check_names(names: Iterable[str | None]) -> None:
    if duplicate := _find_duplicate(names):
        raise invalid_mapping(f"The supplied device path ({duplicate}) is in use: device_name is given twice.")


def _find_duplicate(values: Iterable[str | None]) -> str | None:
    return next((value for value, count in Counter(values).items() if value and count > 1), None)


def _check_local(devices: list[RequestedDevice], flavor: Flavor) -> None:
    """Local disks must fit into the swap and ephemeral sizes of the flavor."""
    local = [device for device in devices if device.destination_type == LOCAL]
    if len(local) > MAX_LOCAL_DISKS:
        raise invalid_mapping(f"You specified more local devices than the limit allows: {MAX_LOCAL_DISKS}.")
    swaps = [device for device in local if device.is_swap]
    if len(swaps) > 1:
        raise invalid_mapping("More than one swap drive requested.")
    if any((device.volume_size or flavor.swap) > flavor.swap for device in swaps):
        raise invalid_mapping("Swap drive requested is larger than instance type allows.")
    sizes = [device.volume_size or flavor.ephemeral for device in local if device.is_ephemeral]
    if sum(sizes) > flavor.ephemeral or 0 in sizes:
        raise invalid_mapping(
            "Ephemeral disks requested are larger than the instance type allows. If no size is given in one block"
            " device mapping, flavor ephemeral size will be used."
        )


def _check_multiple(devices: list[RequestedDevice], servers: int) -> None:
    if servers > 1 and any(device.volume_id for device in devices):
        raise BadRequest("Cannot attach one or more volumes to multiple instances")


# Completion


def _complete(
    devices: list[RequestedDevice], flavor: Flavor, root: RequestedDevice | None, root_name: str
) -> list[RequestedDevice]:
    """The devices to write, with names. If local disks are requested, the flavor's other local disks are added."""
    if root is not None:
        root.device_name = root_name
    local = [device for device in devices if device.mapping == (BLANK, LOCAL)]
    volumes = [device for device in devices if device.is_volume]
    if local:
        local = _complete_local(local, flavor)
    taken = [root_name] if local else device_names.of_flavor(flavor, root_name)
    given = [device.device_name for device in devices if device.device_name]
    others = [device for device in (*local, *volumes) if device is not root]
    device_names.assign(others, [*taken, *given])
    return [device for device in (*volumes, *local) if device is root] + others


def _complete_local(local: list[RequestedDevice], flavor: Flavor) -> list[RequestedDevice]:
    """Local disks with sizes in MB, in the order of the guest's devices: ephemeral disks before swap."""
    swaps = [device for device in local if device.is_swap]
    others = [device for device in local if not device.is_swap]
    if flavor.ephemeral and not others:
        others = [RequestedDevice(source_type=BLANK, destination_type=LOCAL)]
    if flavor.swap and not swaps:
        swaps = [RequestedDevice(source_type=BLANK, destination_type=LOCAL, guest_format=SWAP)]
    for device in others:
        device.volume_size = 1024 * (device.volume_size or flavor.ephemeral)
    for device in swaps:
        device.volume_size = device.volume_size or flavor.swap
    return [*others, *swaps]
