"""Checks of a volume attachment: the volume's status and the device name. They run before anything is written."""

from __future__ import annotations

import re

from kilonova.compute.block_devices import device_names
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.block_devices.sources import MULTIATTACH
from kilonova.compute.servers import states
from kilonova.compute.servers.server import Server
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.identity.client import Auth
from kilonova.store import Transaction
from kilonova.volume.client import Volume

# Statuses in which a multiattach volume can be attached to one more server.
SHAREABLE_STATUSES = frozenset({"available", "in-use", "reserved", "attaching", "detaching"})
_LETTERS = re.compile(r"^/dev/(?:xvd|[a-z]d)?([a-z]+)[0-9]*$")


def invalid(reason: str) -> BadRequest:
    return BadRequest(f"Invalid volume: {reason}")


def not_found_message(volume_id: str) -> str:
    return f"Volume {volume_id} could not be found."


def caller_auth(ctx: Context) -> Auth:
    return Auth(ctx.auth_token, ctx.token.project_id)


def check_available(ctx: Context, volume: Volume, failure_reason: str = "") -> None:
    """Check that the volume is available, or multiattach."""
    if volume.multiattach and not ctx.has_behaviour(MULTIATTACH):
        raise BadRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    if volume.status != "available" and not (volume.multiattach and volume.status in SHAREABLE_STATUSES):
        raise invalid(
            f"volume '{volume.id}' status must be 'available'. Currently in '{volume.status}' status.{failure_reason}"
        )


def check_server(server: Server, volume: Volume, tag: str | None) -> None:
    """Refuse tags and multiattach volumes for shelved-offloaded servers."""
    if server.vm_state != states.SHELVED_OFFLOADED:
        return
    if tag is not None:
        raise BadRequest("Attaching volumes with tags is not supported for shelved-offloaded instances.")
    if volume.multiattach:
        raise BadRequest("Attaching multiattach volumes is not supported for shelved-offloaded instances.")


async def check_not_attached_elsewhere(tx: Transaction, server_id: str, volume_id: str, *, multiattach: bool) -> None:
    """Check in the database, too: the status from the volume service may be out of date."""
    await tx.lock(f"volume {volume_id}")
    if not multiattach and await tx.fetch_value(_ATTACHED_ELSEWHERE, volume_id, server_id):
        raise invalid(f"volume '{volume_id}' is attached to another instance, or about to be.")


_ATTACHED_ELSEWHERE = """
SELECT 1 FROM block_devices d WHERE d.volume_id = $1 AND d.server_id <> $2 AND (d.attachment_id IS NOT NULL OR EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = d.server_id AND o.finished_at IS NULL))
"""


def device_name(server: Server, devices: list[BlockDevice], requested: str | None) -> str:
    """The requested name, or the next free one if none is requested; 409 if the name is in use."""
    own = [device.device_name for device in devices if device.device_name]
    local = not all(device.is_volume for device in devices)
    root = server.root_device_name or device_names.ROOT
    taken = [*own, *([root] if local else device_names.of_flavor(server.flavor, root))]
    if requested is None:
        return device_names.next_free(taken)
    if _letters(requested) in map(_letters, taken):
        raise Conflict(f"The supplied device path ({requested}) is in use.")
    return requested


def _letters(name: str) -> str:
    """The letters of a device name, which identify a disk regardless of its bus prefix."""
    found = _LETTERS.match(name)
    return found[1] if found else name
