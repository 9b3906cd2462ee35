"""The interface of hypervisor drivers.

A command may reach a driver twice, because the agent may die between the work and the entry in its journal. So methods
are idempotent: each describes the desired state of the guest and finds its own earlier work. On a repeat:

    spawn            an identical guest is a success (and started if it should run); a partly built guest is completed
                     or replaced; another guest with the same id is refused as "guest differs"
    destroy          a missing guest is a success; parts of an incomplete spawn are removed as well; slots stay
    power_on         a running guest is a success
    power_off        a guest that is shut down is a success
    reboot           not idempotent: a repeat boots once more; a stopped guest is started
    pause, suspend   a paused or suspended guest is a success; a stopped guest is refused as "not running"
    unpause, resume  a running guest is a success
    rescue           a guest in rescue is a success, and started if it is stopped
    unrescue         a guest that is not in rescue is a success; it always runs from its own disk afterwards
    set_password     sets the password again
    attach_nic       an attached port is a success
    detach_nic       a detached port is a success, and so is a missing guest
    set_metadata     replaces all metadata

    park             a slot in use is a success; a guest beside the slot stays
    unpark           an empty slot and an existing guest are a success (the guest is started or stopped); a guest beside
                     the slot is replaced by the slot's; if both are missing: "no such slot"
    discard          an empty slot is a success; the guest itself stays
    receive          an identical guest is a success (started as with spawn), even if the source's slot is empty;
                     another guest with the same id is refused as "guest differs"
    check_migration_source
                     checks again; its traces are removed with the slot or reused by the next check
    prepare_migration
                     a prepared slot is a success, and so is a guest that has arrived
    migrate_live     a guest that is only at the destination is a success; a guest at neither host is missing
    stop_migration   no migration is a success; a completed migration is not reverted, so check where the guest is
    force_complete_migration
                     no migration is a success
    snapshot         an image with data is a success

    attach_disk      an attached volume is a success
    detach_disk      a detached volume is a success, and so is a missing guest
    swap_disk        a guest with only the new volume is a success; a partial copy starts over; a guest with neither
                     volume is "missing disk"
    grow_disk        the current size is a success
    set_shares       replaces all shares; a running guest with other shares is refused

Only one guest may write to a volume that is not shared: drivers refuse to start a second one.

The agent runs one method at a time per guest, with these exceptions. A destroy cancels the running method's task and
starts when that task has ended; a stop_migration does the same to a migrate_live. A force_complete_migration runs
beside a migrate_live. A driver that works in a thread or in the hypervisor must therefore delay CancelledError until
that work no longer touches the guest. A cancelled migrate_live leaves the guest here, and the slot at the destination
unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from socket import socket
from typing import Any, ClassVar, Protocol

from kilonova.hosts.messages import (
    Disk,
    ErrorKind,
    Guest,
    GuestState,
    HostFacts,
    Image,
    MigrationState,
    MoveTicket,
    NetworkPlan,
    Nic,
    Share,
    Transfer,
)


class DriverError(Exception):
    """The hypervisor refused or failed. `passing`: the failure is transient, a repeat may succeed.

    `kind` is the error's name on the wire.
    """

    kind: ClassVar[ErrorKind] = "driver"

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing


class MissingGuest(DriverError):
    kind = "missing guest"

    def __init__(self, guest_id: str) -> None:
        super().__init__(f"no guest {guest_id} on this host")


class NoSuchSlot(DriverError):
    kind = "no such slot"

    def __init__(self, guest_id: str, slot: str, host: str) -> None:
        super().__init__(f"host {host} has no slot {slot} of guest {guest_id}")


class NotRunning(DriverError):
    kind = "not running"

    def __init__(self, guest_id: str) -> None:
        super().__init__(f"guest {guest_id} does not run")


class MissingDisk(DriverError):
    kind = "missing disk"

    def __init__(self, guest_id: str, volume_id: str) -> None:
        super().__init__(f"guest {guest_id} has no volume {volume_id}")


class DifferentGuest(DriverError):
    """There is a guest with the same id, but of other hardware or another host."""

    kind = "guest differs"


class StillRunning(DriverError):
    def __init__(self, guest_id: str) -> None:
        super().__init__(f"guest {guest_id} runs: stop it to change its shares")


class MissingGuestAgent(DriverError):
    kind = "no guest agent"


class MissingDisplay(DriverError):
    kind = "no display"


class ImageTooLarge(DriverError):
    """The image service refused data that exceeds a quota or limit."""

    kind = "image refused"


class ImageBusy(DriverError):
    """The image has no data, and another upload to it has not ended, or has ended just now."""

    kind = "image busy"


class ImageReplaced(DriverError):
    """The data of an image does not have the expected hash."""

    kind = "image replaced"


class NoAnswer(Exception):
    """The agent must not answer. Raised only by simulations of an unreachable host."""


class Images(Protocol):
    """Access to image data for drivers. All methods raise DriverError."""

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        """Upload the data. An image with data is left unchanged: an earlier attempt has written it."""

    def read(self, transfer: Transfer) -> AsyncIterator[bytes]: ...

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        """Return the image as the image service shows it."""


class Driver(Protocol):
    async def spawn(
        self, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
    ) -> GuestState: ...
    async def destroy(self, guest_id: str) -> None: ...
    async def power_on(self, guest_id: str) -> GuestState: ...
    async def power_off(self, guest_id: str, grace: float = 0.0) -> GuestState: ...
    async def reboot(self, guest_id: str, hard: bool) -> GuestState: ...
    async def pause(self, guest_id: str) -> GuestState: ...
    async def unpause(self, guest_id: str) -> GuestState: ...
    async def suspend(self, guest_id: str) -> GuestState: ...
    async def resume(self, guest_id: str) -> GuestState: ...
    async def rescue(
        self, guest_id: str, image: Image | None, data: Transfer | None, password: str = ""
    ) -> GuestState: ...
    async def unrescue(self, guest_id: str) -> GuestState: ...
    async def set_password(self, guest_id: str, user: str, password: str) -> None: ...
    async def crash_dump(self, guest_id: str) -> None: ...
    async def attach_nic(self, guest_id: str, nic: Nic) -> GuestState: ...
    async def detach_nic(self, guest_id: str, port_id: str) -> GuestState | None: ...
    async def set_metadata(
        self, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False
    ) -> None: ...

    async def park(self, guest_id: str, slot: str, ticket: MoveTicket | None = None) -> GuestState: ...
    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState: ...
    async def discard(self, guest_id: str, slot: str) -> None: ...
    async def receive(
        self,
        guest: Guest,
        source: str,
        slot: str,
        start: bool,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> GuestState: ...
    async def check_migration_source(
        self,
        guest_id: str,
        destination: str,
        slot: str,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> dict[str, Any]: ...
    async def prepare_migration(
        self,
        guest: Guest,
        source: str,
        slot: str,
        block: bool | None,
        offer: dict[str, Any] | None = None,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> None: ...
    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None: ...
    async def stop_migration(self, guest_id: str) -> None: ...
    async def force_complete_migration(self, guest_id: str) -> None: ...

    async def snapshot(self, guest_id: str, data: Transfer) -> None: ...
    async def attach_disk(self, guest_id: str, disk: Disk) -> GuestState: ...
    async def detach_disk(self, guest_id: str, volume_id: str) -> GuestState | None: ...
    async def swap_disk(self, guest_id: str, volume_id: str, disk: Disk) -> GuestState: ...
    async def grow_disk(self, guest_id: str, volume_id: str, size_gb: int) -> GuestState: ...

    async def set_shares(self, guest_id: str, shares: list[Share]) -> GuestState: ...

    async def get_console_log(self, guest_id: str, lines: int | None) -> bytes: ...
    async def check_display(self, guest_id: str, kind: str) -> None:
        """Raises MissingDisplay if the guest has no display of this kind."""

    async def open_display(self, guest_id: str, kind: str) -> socket:
        """Return a connected socket. Raises like `check_display`."""

    async def get_diagnostics(self, guest_id: str) -> dict[str, Any]: ...
    async def apply_network(self, plan: NetworkPlan) -> None: ...
    async def get_connector(self) -> dict[str, Any]: ...
    async def get_migration(self, guest_id: str) -> MigrationState | None: ...
    async def list_guests(self) -> list[GuestState]:
        """Return all guests, including those in slots."""

    async def describe(self) -> HostFacts: ...
