"""Move tickets: a secret for each move of a guest, which the control plane gives to the move's two hosts only.

A host keeps the ticket of a guest's last move in each role, so that moves survive restarts of agents. Only the role
decides what the other host may do with the ticket:

    parked     read the disks in the slot of a cold migration
    leaving    read what a live migration does not copy: config drive, base images, console log
    arriving   ask whether the destination of a live migration is prepared, and whether the guest has arrived
"""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from kilonova import clock, ids
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor, write_file

Role = Literal["parked", "leaving", "arriving"]

# A signed request is valid for this long, which is also how much the clocks of two hosts may differ.
SIGNATURE_SECONDS = 300.0
# Longer than any move. A guest that stays in its slot needs no ticket for it.
_KEEP_SECONDS = 31 * 24 * 3600.0
_DIRECTORY = "tickets"


class StoredTicket(msgspec.Struct, frozen=True):
    """`slot`: the id of the operation. `host` and `url`: the other host, and where its disk server is."""

    slot: str
    key: str
    host: str = ""
    url: str = ""
    stored_at: float = 0.0

    def __repr__(self) -> str:
        return f"StoredTicket(slot={self.slot!r})"


def store(hv: Hypervisor, guest_id: str, role: Role, ticket: StoredTicket) -> None:
    path = _path(hv, guest_id, role)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(path, msgspec.json.encode(msgspec.structs.replace(ticket, stored_at=clock.wall())))


def find(hv: Hypervisor, guest_id: str, role: Role, slot: str | None = None) -> StoredTicket | None:
    """The ticket of the guest's last move in this role, if that was the move of the slot."""
    try:
        ticket = msgspec.json.decode(_path(hv, guest_id, role).read_bytes(), type=StoredTicket)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return ticket if slot in (None, ticket.slot) else None


def key_of(ticket: StoredTicket | None) -> str:
    """The key of a ticket. Without a ticket a request is signed with an empty key, which every host refuses."""
    return ticket.key if ticket is not None else ""


def remove_old(hv: Hypervisor) -> None:
    """Remove the tickets of moves that are long over."""
    for path in (hv.config.data_dir / _DIRECTORY).glob("*"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < clock.wall() - _KEEP_SECONDS:
                path.unlink()


def _path(hv: Hypervisor, guest_id: str, role: Role) -> Path:
    # The layout checks the name. Not beside the disks: they may be on storage that other hosts read.
    return hv.config.data_dir / _DIRECTORY / f"{hv.layout.guest_directory(guest_id).name}.{role}"


# Signed requests


def new_stamp() -> str:
    """The time and a unique id: a server accepts every stamp once."""
    return f"{clock.wall():.3f} {ids.new_id()}"


def sign(key: str, target: str, stamp: str) -> str:
    return hmac.new(key.encode(), f"GET\n{target}\n{stamp}".encode(), hashlib.sha256).hexdigest()


class SignatureChecker:
    """Accepts each signed request once."""

    def __init__(self) -> None:
        # Accepted signatures, in order of their time.
        self._accepted: dict[str, float] = {}

    def refusal(self, ticket: StoredTicket | None, target: str, stamp: str, signature: str) -> str:
        """Why the request is refused; empty if it is accepted."""
        key, now = key_of(ticket), clock.wall()
        # Also computed without a ticket, so that the time does not tell whether there is one.
        is_signed = hmac.compare_digest(sign(key, target, stamp).encode(), signature.encode())
        if not key or not is_signed:
            return "the request has no valid ticket for this guest"
        try:
            age = abs(now - float(stamp.partition(" ")[0]))
        except ValueError:
            age = SIGNATURE_SECONDS + 1
        if not age <= SIGNATURE_SECONDS:
            return "the request is too old, or the clocks of the hosts differ"
        while self._accepted and next(iter(self._accepted.values())) < now - 2 * SIGNATURE_SECONDS:
            self._accepted.pop(next(iter(self._accepted)))
        if signature in self._accepted:
            return "the request was sent before"
        self._accepted[signature] = now
        return ""
