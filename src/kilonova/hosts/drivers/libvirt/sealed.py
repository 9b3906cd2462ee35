"""The password that a guest has made for its owner and encrypted for his key: given away once, and kept for him.

It is a file beside the guest's spec until the control plane knows it; a guest that moves has it in its spec.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.libvirt import layout
from kilonova.hosts.messages import Guest

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

MOST_BYTES = 255


def look(hv: Hypervisor, guest: Guest) -> str:
    """Empty if there is none."""
    try:
        return hv.layout.file(guest.id, layout.PASSWORD).read_text()
    except FileNotFoundError:
        return guest.sealed_password


def keep(hv: Hypervisor, guest: Guest, password: str) -> bool:
    """Whether it is kept: the first one is, and no other."""
    if guest.sealed_password:
        return False
    path = hv.layout.file(guest.id, layout.PASSWORD)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
    except FileExistsError:
        return False
    return True


def forget(hv: Hypervisor, guest: Guest) -> Guest:
    """The guest as its spec shall say."""
    hv.layout.file(guest.id, layout.PASSWORD).unlink(missing_ok=True)
    return structs.replace(guest, sealed_password="")
