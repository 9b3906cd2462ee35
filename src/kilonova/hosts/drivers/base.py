"""What an agent asks of a hypervisor.

A command may reach a driver twice: the agent may die after the work and before its journal says so. So every
method says what the guest shall be, not what to do to it, and finds its own earlier work:

    spawn            an identical guest that is there is a success (started if it stands still and shall run); one that
                     was built half is completed or replaced; another guest under the same id is refused as "guest
                     differs"
    destroy          a guest that is not there is a success; what half a spawn left behind goes as well; slots stay
    power_on         a running guest is a success
    power_off        a guest that is shut down is a success
    reboot           the one that cannot tell: a repeat boots once more; a guest that stands still is started
    pause, suspend   a guest that is so already is a success, and one that stands still is refused as "not running"
    unpause, resume  a running guest is a success
    rescue           a guest that is in rescue already is a success, and is started if it stands still
    unrescue         a guest that is not in rescue is a success; in any case it runs from its own disk afterwards
    set_password     sets it again
    attach_nic       a port that the guest has already is a success
    detach_nic       a port that the guest has not is a success, and so is a guest that is not there
    set_metadata     says what the guest is told, not what changes

    park             what is in the slot already is a success, and a guest beside it is left alone
    unpark           an empty slot and a guest are a success (it is started or stopped as asked); a guest beside the
                     slot is replaced by what the slot holds; neither is "no such slot"
    discard          an empty slot is a success; the guest itself is left alone
    receive          an identical guest that is there is a success (started as with spawn), also when the source's slot
                     is empty by now; another one is refused as "guest differs"
    offer            looks again; what it leaves behind goes with the slot or is found by the next offer
    expect           a slot made ready is a success, and so is a guest that has come already
    migrate_live     a guest that is not here but at the destination is a success; one that is at neither is missing
    stop_migration   no migration is a success. One that ended before is not brought back: look where the guest is
    hurry_migration  no migration is a success
    snapshot         an image that has its data already is a success

    attach_disk      a volume that the guest has already is a success
    detach_disk      a volume that the guest has not is a success, and so is a guest that is not there
    swap_disk        a guest that has the new volume and not the old one is a success; it starts over where half is
                     copied; a guest that has neither is "missing disk"
    grow_disk        a size that the guest knows already is a success

A volume that is not shared is written by one guest at most: whatever would start a second one on it is refused.

The agent lets one method at a time work on a guest, but for two. A destroy does not wait: the running method's task
is cancelled, and the destroy starts once that task has ended; and so does a stop_migration with a migrate_live. A
hurry_migration runs beside it. A driver whose work goes on in a thread or in the hypervisor must therefore not let
CancelledError out before that work has stopped touching the guest. A migrate_live that is cancelled leaves the guest
here, and the slot at the destination as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from kilonova.hosts.messages import (
    Disk,
    Display,
    ErrorKind,
    Guest,
    GuestState,
    HostFacts,
    Image,
    MigrationState,
    NetworkPlan,
    Nic,
    Transfer,
)


class DriverError(Exception):
    """The hypervisor could not. `passing`: the same command may well succeed soon."""

    def __init__(self, message: str, *, kind: ErrorKind = "driver", passing: bool = False) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.passing = passing


class MissingGuest(DriverError):
    def __init__(self, guest_id: str) -> None:
        super().__init__(f"no guest {guest_id} on this host", kind="missing guest")


class NoSuchSlot(DriverError):
    def __init__(self, guest_id: str, slot: str, host: str) -> None:
        super().__init__(f"{host} keeps nothing of guest {guest_id} in slot {slot}", kind="no such slot")


class NotRunning(DriverError):
    def __init__(self, guest_id: str) -> None:
        super().__init__(f"guest {guest_id} does not run", kind="not running")


class MissingDisk(DriverError):
    def __init__(self, guest_id: str, volume_id: str) -> None:
        super().__init__(f"guest {guest_id} has no volume {volume_id}", kind="missing disk")


class NoAnswer(Exception):
    """The host falls silent and its agent answers nothing at all. Raised by simulations of it only."""


class Images(Protocol):
    """How a driver reads and writes the data of images. Both raise DriverError."""

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        """An image that has its data already is left as it is: an earlier try has written it."""

    def read(self, transfer: Transfer) -> AsyncIterator[bytes]: ...

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        """The image as its service shows it: size, checksum, formats, properties."""


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

    async def park(self, guest_id: str, slot: str) -> GuestState: ...

    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState: ...

    async def discard(self, guest_id: str, slot: str) -> None: ...

    async def receive(
        self, guest: Guest, source: str, slot: str, start: bool, reach: dict[str, str] | None = None
    ) -> GuestState: ...

    async def offer(
        self, guest_id: str, destination: str, slot: str, reach: dict[str, str] | None = None
    ) -> dict[str, Any]: ...

    async def expect(
        self,
        guest: Guest,
        source: str,
        slot: str,
        block: bool | None,
        offer: dict[str, Any] | None = None,
        reach: dict[str, str] | None = None,
    ) -> None: ...

    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None: ...

    async def stop_migration(self, guest_id: str) -> None: ...

    async def hurry_migration(self, guest_id: str) -> None: ...

    async def snapshot(self, guest_id: str, data: Transfer) -> None: ...

    async def attach_disk(self, guest_id: str, disk: Disk) -> GuestState: ...

    async def detach_disk(self, guest_id: str, volume_id: str) -> GuestState | None: ...

    async def swap_disk(self, guest_id: str, volume_id: str, disk: Disk) -> GuestState: ...

    async def grow_disk(self, guest_id: str, volume_id: str, size_gb: int) -> GuestState: ...

    async def look_console(self, guest_id: str, lines: int | None) -> bytes: ...

    async def look_display(self, guest_id: str, kind: str) -> Display: ...

    async def look_diagnostics(self, guest_id: str) -> dict[str, Any]: ...

    async def apply_network(self, plan: NetworkPlan) -> None: ...

    async def look_connector(self) -> dict[str, Any]: ...

    async def look_migration(self, guest_id: str) -> MigrationState | None: ...

    async def guests(self) -> list[GuestState]:
        """Those in slots too."""

    async def describe(self) -> HostFacts: ...
