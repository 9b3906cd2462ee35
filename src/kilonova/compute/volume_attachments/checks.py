"""What volumes a server may get, and by which name of a device: refused as users know it before anything is written."""

from __future__ import annotations

import re
from typing import Any

import orjson

from kilonova.compute.block_devices import naming
from kilonova.compute.block_devices.sources import MULTIATTACH
from kilonova.compute.servers import states
from kilonova.compute.volumes import reasons
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.identity.client import Auth
from kilonova.store import Row, Transaction

Item = dict[str, Any]
# What may be said of a shared volume that others have, or are about to have or to give back.
SHARED = frozenset({"available", "in-use", "reserved", "attaching", "detaching"})
_LETTERS = re.compile(r"^/dev/(?:xvd|[a-z]d)?([a-z]+)[0-9]*$")


def invalid(reason: str) -> BadRequest:
    return BadRequest(f"Invalid volume: {reason}")


def missing(volume_id: str) -> str:
    return f"Volume {volume_id} could not be found."


async def look_up(ctx: Context, volume_id: str) -> Item | None:
    """The volume as the caller sees it; of one that is broken also, as `reason`, what the volume service says of it."""
    auth = Auth(ctx.auth_token, ctx.token.project_id)
    found = await ctx.services.volume.show(volume_id, auth)
    if found is not None and found["status"].startswith("error"):
        found["reason"] = await reasons.for_caller(ctx.services, volume_id, auth)
    return found


def check_free(ctx: Context, volume: Item) -> None:
    """Nobody has it, or it may be shared."""
    if volume["multiattach"] and not ctx.behaves(MULTIATTACH):
        raise BadRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    status = volume["status"]
    if status != "available" and not (volume["multiattach"] and status in SHARED):
        why = volume.get("reason", "")
        raise invalid(f"volume '{volume['id']}' status must be 'available'. Currently in '{status}' status.{why}")


def check_server(row: Row, volume: Item, tag: str | None) -> None:
    """What cannot be kept for a server that is on no host."""
    if row["vm_state"] != states.SHELVED_OFFLOADED:
        return
    if tag is not None:
        raise BadRequest("Attaching volumes with tags is not supported for shelved-offloaded instances.")
    if volume["multiattach"]:
        raise BadRequest("Attaching multiattach volumes is not supported for shelved-offloaded instances.")


async def check_nobody_else(tx: Transaction, server_id: str, volume: Item) -> None:
    """That no other server has it or is about to get it: what the volume service said of it may be a moment old."""
    await tx.hold(f"volume {volume['id']}")
    if not volume["multiattach"] and await tx.fetch_value(_TAKEN, volume["id"], server_id):
        raise invalid(f"volume '{volume['id']}' is attached to another instance, or about to be.")


_TAKEN = """
SELECT 1 FROM block_devices d WHERE d.volume_id = $1 AND d.server_id <> $2 AND (d.attachment_id IS NOT NULL OR EXISTS (
    SELECT 1 FROM operations o WHERE o.server_id = d.server_id AND o.finished_at IS NULL))
"""


def device_name(row: Row, found: list[Row], asked: str | None) -> str:
    """The name that was asked for if nothing has it, else the next one."""
    own = [device["device_name"] for device in found if device["device_name"]]
    local = any(device["destination_type"] == "local" for device in found)
    root = row["root_device_name"] or naming.ROOT
    taken = [*own, *([root] if local else naming.of_flavor(orjson.loads(row["flavor"]), root))]
    if asked is None:
        return naming.free(taken)
    if _letters(asked) in map(_letters, taken):
        raise Conflict(f"The supplied device path ({asked}) is in use.")
    return asked


def _letters(name: str) -> str:
    """What tells disks apart, whatever bus they are on."""
    found = _LETTERS.match(name)
    return found[1] if found else name
