"""What an agent asks of a hypervisor.

A command may reach a driver twice: the agent may die after the work and before its journal says so. So every
method says what the guest shall be, not what to do to it, and finds its own earlier work:

    spawn      an identical guest that is there is a success (started if it stands still); one that was built
               half is completed or replaced; another guest under the same id is refused as "guest differs"
    destroy    a guest that is not there is a success; what half a spawn left behind goes as well
    power_on   a running guest is a success
    power_off  a guest that is shut down is a success
    reboot     the one that cannot tell: a repeat boots once more; a guest that stands still is started

The agent lets one method at a time work on a guest. Only a destroy does not wait: the running method's task is
cancelled, and the destroy starts once that task has ended. A driver whose work goes on in a thread or in the
hypervisor must therefore not let CancelledError out before that work has stopped touching the guest.
"""

from __future__ import annotations

from typing import Protocol

from kilonova.hosts.messages import ErrorKind, Guest, GuestState, HostFacts


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


class NoAnswer(Exception):
    """The host falls silent and its agent answers nothing at all. Raised by simulations of it only."""


class Driver(Protocol):
    async def spawn(self, guest: Guest) -> GuestState: ...

    async def destroy(self, guest_id: str) -> None: ...

    async def power_on(self, guest_id: str) -> GuestState: ...

    async def power_off(self, guest_id: str) -> GuestState: ...

    async def reboot(self, guest_id: str, hard: bool) -> GuestState: ...

    async def guests(self) -> list[GuestState]: ...

    async def describe(self) -> HostFacts: ...
