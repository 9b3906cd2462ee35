"""Guests, commands, and a driver whose methods tests can block."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from socket import socket
from typing import Any, TypeVar

from kilonova import ids
from kilonova.hosts.drivers.base import MissingDisplay, MissingGuest
from kilonova.hosts.messages import (
    Command,
    Disk,
    Flavor,
    Guest,
    GuestState,
    HostFacts,
    Image,
    MigrationState,
    MoveTicket,
    NetworkPlan,
    Nic,
    Power,
    Share,
    Transfer,
)
from kilonova.hosts.messages.verbs import Change, Spawn

HOST = "sim-001"
T = TypeVar("T")


def guest(guest_id: str | None = None, **changes: Any) -> Guest:
    facts: dict[str, Any] = {
        "id": guest_id or ids.new_id(),
        "name": "web-1",
        "project_id": "project",
        "user_id": "user",
        "flavor": Flavor(name="m1.tiny", vcpus=1, ram_mb=512, disk_gb=1),
        "image": Image(id="image-1", name="cirros-sim"),
        "nics": [Nic(port_id="port-1", mac="fa:16:3e:00:00:01", addresses=["10.0.0.5"])],
    }
    return Guest(**facts | changes)


def disk(volume_id: str = "volume-1", **changes: Any) -> Disk:
    return Disk(volume_id=volume_id, **{"connection": {"data": {}}, "device": "/dev/vdb", **changes})


def command(verb: Change, *, operation: str = "op-1", step: str = "start guest", **more: Any) -> Command:
    facts: dict[str, Any] = {"host": HOST, "operation": operation, "step": step, "epoch": 1, "verb": verb}
    return Command(**facts | more)


def spawn(guest_id: str = "guest-1", **more: Any) -> Command:
    return command(Spawn(guest=guest(guest_id)), **more)


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds, for a minute at most."""
    async with asyncio.timeout(60):
        while not await reached():
            await asyncio.sleep(0.01)


class HeldDriver:
    """Records its calls, and blocks in the methods that a test holds.."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: list[Exception] = []
        self.states: dict[str, GuestState] = {}
        self.unwinding = 0.0
        self.busy: set[str] = set()

    def hold(self, step: str) -> asyncio.Event:
        gate = self.gates[step] = asyncio.Event()
        return gate

    async def spawn(
        self, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
    ) -> GuestState:
        power: Power = "running" if start else "shutdown"
        return await self._step("spawn", guest.id, lambda: self._set(guest.id, power))

    async def destroy(self, guest_id: str) -> None:
        await self._step("destroy", guest_id, lambda: self.states.pop(guest_id, None))

    async def power_on(self, guest_id: str) -> GuestState:
        return await self._step("power_on", guest_id, lambda: self._set(guest_id, "running"))

    async def power_off(self, guest_id: str, grace: float = 0.0) -> GuestState:
        return await self._step("power_off", guest_id, lambda: self._set(guest_id, "shutdown"))

    async def reboot(self, guest_id: str, hard: bool) -> GuestState:
        return await self._step("reboot", guest_id, lambda: self._state(guest_id))

    async def pause(self, guest_id: str) -> GuestState:
        return await self._step("pause", guest_id, lambda: self._set(guest_id, "paused"))

    async def unpause(self, guest_id: str) -> GuestState:
        return await self._step("unpause", guest_id, lambda: self._set(guest_id, "running"))

    async def suspend(self, guest_id: str) -> GuestState:
        return await self._step("suspend", guest_id, lambda: self._set(guest_id, "suspended"))

    async def resume(self, guest_id: str) -> GuestState:
        return await self._step("resume", guest_id, lambda: self._set(guest_id, "running"))

    async def rescue(self, guest_id: str, image: Image | None, data: Transfer | None, password: str = "") -> GuestState:
        return await self._step("rescue", guest_id, lambda: self._state(guest_id))

    async def unrescue(self, guest_id: str) -> GuestState:
        return await self._step("unrescue", guest_id, lambda: self._state(guest_id))

    async def set_password(self, guest_id: str, user: str, password: str) -> None:
        await self._step("set_password", guest_id, lambda: None)

    async def crash_dump(self, guest_id: str) -> None:
        await self._step("crash_dump", guest_id, lambda: None)

    async def attach_nic(self, guest_id: str, nic: Nic) -> GuestState:
        return await self._step("attach_nic", guest_id, lambda: self._state(guest_id))

    async def detach_nic(self, guest_id: str, port_id: str) -> GuestState | None:
        return await self._step("detach_nic", guest_id, lambda: self._state(guest_id))

    async def set_shares(self, guest_id: str, shares: list[Share]) -> GuestState:
        return await self._step("set_shares", guest_id, lambda: self._state(guest_id))

    async def set_metadata(self, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False) -> None:
        await self._step("set_metadata", guest_id, lambda: None)

    async def park(self, guest_id: str, slot: str, ticket: MoveTicket | None = None) -> GuestState:
        return await self._step("park", guest_id, lambda: self._set(guest_id, "shutdown"))

    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState:
        return await self._step("unpark", guest_id, lambda: self._set(guest_id, "running"))

    async def discard(self, guest_id: str, slot: str) -> None:
        await self._step("discard", guest_id, lambda: None)

    async def receive(
        self,
        guest: Guest,
        source: str,
        slot: str,
        start: bool,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> GuestState:
        return await self._step("receive", guest.id, lambda: self._set(guest.id, "running"))

    async def check_migration_source(
        self,
        guest_id: str,
        destination: str,
        slot: str,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> dict[str, Any]:
        return await self._step("offer", guest_id, dict)

    async def prepare_migration(
        self,
        guest: Guest,
        source: str,
        slot: str,
        block: bool | None,
        offer: dict[str, Any] | None = None,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> None:
        await self._step("expect", guest.id, lambda: None)

    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None:
        await self._step("migrate_live", guest_id, lambda: self.states.pop(guest_id, None))

    async def stop_migration(self, guest_id: str) -> None:
        await self._step("stop_migration", guest_id, lambda: None)

    async def force_complete_migration(self, guest_id: str) -> None:
        self.calls.append("hurry_migration")
        self.gates["migrate_live"].set()

    async def snapshot(self, guest_id: str, data: Transfer) -> None:
        await self._step("snapshot", guest_id, lambda: None)

    async def attach_disk(self, guest_id: str, disk: Disk) -> GuestState:
        return await self._step("attach_disk", guest_id, lambda: self._state(guest_id))

    async def detach_disk(self, guest_id: str, volume_id: str) -> GuestState | None:
        return await self._step("detach_disk", guest_id, lambda: self._state(guest_id))

    async def swap_disk(self, guest_id: str, volume_id: str, disk: Disk) -> GuestState:
        return await self._step("swap_disk", guest_id, lambda: self._state(guest_id))

    async def grow_disk(self, guest_id: str, volume_id: str, size_gb: int) -> GuestState:
        return await self._step("grow_disk", guest_id, lambda: self._state(guest_id))

    async def get_console_log(self, guest_id: str, lines: int | None) -> bytes:
        return b""

    async def check_display(self, guest_id: str, kind: str) -> None:
        pass

    async def open_display(self, guest_id: str, kind: str) -> socket:
        raise MissingDisplay("no display")

    async def get_diagnostics(self, guest_id: str) -> dict[str, Any]:
        return {}

    async def apply_network(self, plan: NetworkPlan) -> None:
        pass

    async def get_connector(self) -> dict[str, Any]:
        return {"host": HOST}

    async def get_migration(self, guest_id: str) -> MigrationState | None:
        return MigrationState(memory_total=512) if guest_id in self.busy else None

    async def list_guests(self) -> list[GuestState]:
        return list(self.states.values())

    async def describe(self) -> HostFacts:
        raise RuntimeError("the password is hunter2")

    async def _step(self, step: str, guest_id: str, work: Callable[[], T]) -> T:
        assert guest_id not in self.busy, "two methods at the same time on one guest"
        self.busy.add(guest_id)
        self.calls.append(step)
        try:
            if step in self.gates:
                await self.gates[step].wait()
            if self.errors:
                raise self.errors.pop(0)
            return work()
        except asyncio.CancelledError:
            await asyncio.sleep(self.unwinding)
            raise
        finally:
            self.busy.remove(guest_id)

    def _set(self, guest_id: str, power: Power) -> GuestState:
        self.states[guest_id] = GuestState(id=guest_id, name="web-1", power=power, vcpus=1, ram_mb=512, disk_gb=1)
        return self.states[guest_id]

    def _state(self, guest_id: str) -> GuestState:
        if guest_id not in self.states:
            raise MissingGuest(guest_id)
        return self.states[guest_id]
