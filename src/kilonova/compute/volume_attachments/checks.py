"""Checks of a volume attachment: the volume's status and the device name. They run before anything is written."""

from __future__ import annotations

import re
from typing import Any

import orjson

from kilonova.compute import volume_messages
from kilonova.compute.block_devices import device_names
from kilonova.compute.block_devices.sources import MULTIATTACH
from kilonova.compute.servers import states
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.identity.client import Auth
from kilonova.store import Row, Transaction

Item = dict[str, Any]
# Statuses in which a multiattach volume can be attached to one more server.
SHAREABLE_STATUSES = frozenset({"available", "in-use", "reserved", "attaching", "detaching"})
_LETTERS = re.compile(r"^/dev/(?:xvd|[a-z]d)?([a-z]+)[0-9]*$")


def invalid(reason: str) -> BadRequest:
    return BadRequest(f"Invalid volume: {reason}")


def not_found_message(volume_id: str) -> str:
    return f"Volume {volume_id} could not be found."


async def find_volume(ctx: Context, volume_id: str) -> Item | None:
    """The volume as the caller sees it. A volume in error also gets `reason`, the volume service's user message."""
    auth = Auth(ctx.auth_token, ctx.token.project_id)
    found = await ctx.services.volume.show(volume_id, auth)
    if found is not None and found["status"].startswith("error"):
        found["reason"] = await volume_messages.message_for_caller(ctx.services, volume_id, auth)
    return found


def check_available(ctx: Context, volume: Item) -> None:
    """Check that the volume is available, or multiattach."""
    if volume["multiattach"] and not ctx.has_behaviour(MULTIATTACH):
        raise BadRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    status = volume["status"]
    if status != "available" and not (volume["multiattach"] and status in SHAREABLE_STATUSES):
        reason = volume.get("reason", "")
        raise invalid(f"volume '{volume['id']}' status must be 'available'. Currently in '{status}' status.{reason}")


def check_server(row: Row, volume: Item, tag: str | None) -> None:
    """Refuse tags and multiattach volumes for shelved-offloaded servers."""
    if row["vm_state"] != states.SHELVED_OFFLOADED:
        return
    if tag is not None:
        raise BadRequest("Attaching volumes with tags is not supported for shelved-offloaded instances.")
    if volume["multiattach"]:
        raise BadRequest("Attaching multiattach volumes is not supported for shelved-offloaded instances.")


async def check_not_attached_elsewhere(tx: Transaction, server_id: str, volume: Item) -> None:
    """Check in the database, too: the status from the volume service may be out of date."""
    await tx.lock(f"volume {volume['id']}")
    if not volume["multiattach"] and await tx.fetch_value(_ATTACHED_ELSEWHERE, volume["id"], server_id):
        raise invalid(f"volume '{volume['id']}' is attached to another instance, or about to be.")


_ATTACHED_ELSEWHERE = """
SELECT 1 FROM block_devices d WHERE d.volume_id = $1 AND d.server_id <> $2 AND (d.attachment_id IS NOT NULL OR EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = d.server_id AND o.finished_at IS NULL))
"""


def device_name(row: Row, devices: list[Row], requested: str | None) -> str:
    """The requested name, or the next free one if none is requested; 409 if the name is in use."""
    own = [device["device_name"] for device in devices if device["device_name"]]
    local = any(device["destination_type"] == "local" for device in devices)
    root = row["root_device_name"] or device_names.ROOT
    taken = [*own, *([root] if local else device_names.of_flavor(orjson.loads(row["flavor"]), root))]
    if requested is None:
        return device_names.next_free(taken)
    if _letters(requested) in map(_letters, taken):
        raise Conflict(f"The supplied device path ({requested}) is in use.")
    return requested


def _letters(name: str) -> str:
    """The letters of a device name, which identify a disk regardless of its bus prefix."""
    found = _LETTERS.match(name)
    return found[1] if found else name
