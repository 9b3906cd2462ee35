"""Guests' displays. No display listens: libvirt hands a connected socket to QEMU for each console."""

from __future__ import annotations

import socket
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import MissingDisplay, NotRunning
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

if TYPE_CHECKING:
    import libvirt

_VNC = "vnc"
# The guest's only graphics device.
_FIRST = 0


async def check(hv: Hypervisor, guest_id: str, kind: str) -> None:
    """Raises MissingDisplay, or NotRunning."""
    hv.spec(guest_id)
    if kind != _VNC:
        raise MissingDisplay(f"guests of this host have no {kind} console, only VNC")
    if await hv.power(guest_id) not in ("running", "paused"):
        raise NotRunning(guest_id)
    if not await hv.connection.call(_has_vnc, guest_id):
        raise MissingDisplay(f"guest {guest_id} has no graphics device")


async def connect(hv: Hypervisor, guest_id: str, kind: str) -> socket.socket:
    """Return a socket that is connected to the display."""
    await check(hv, guest_id, kind)
    return socket.socket(fileno=await hv.connection.call(_open, guest_id))


def _has_vnc(connection: libvirt.virConnect, guest_id: str) -> bool:
    document = ET.fromstring(connection.lookupByUUIDString(guest_id).XMLDesc())
    return document.find(f"devices/graphics[@type='{_VNC}']") is not None


def _open(connection: libvirt.virConnect, guest_id: str) -> int:
    return int(connection.lookupByUUIDString(guest_id).openGraphicsFD(_FIRST))
