"""The admin password that a guest posts to the metadata service, encrypted with the owner's public key.

Until the control plane has read the password it is a file beside the guest's spec. A guest that moves carries it in its
spec.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.libvirt import layout
from kilonova.hosts.messages import Guest

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

MAX_BYTES = 255


def read(hv: Hypervisor, guest: Guest) -> str:
    """Empty if the guest has posted none."""
    try:
        return hv.layout.file(guest.id, layout.ENCRYPTED_PASSWORD).read_text()
    except FileNotFoundError:
        return guest.sealed_password


def store(hv: Hypervisor, guest: Guest, password: str) -> bool:
    """Store the password unless the guest has one already. Returns whether it was stored."""
    if guest.sealed_password:
        return False
    path = hv.layout.file(guest.id, layout.ENCRYPTED_PASSWORD)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
    except FileExistsError:
        return False
    return True


def clear(hv: Hypervisor, guest: Guest) -> Guest:
    """Delete the stored password and return the guest without one."""
    hv.layout.file(guest.id, layout.ENCRYPTED_PASSWORD).unlink(missing_ok=True)
    return structs.replace(guest, sealed_password="")
