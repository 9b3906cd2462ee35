"""Guests, commands and a driver that tests can hold still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kilonova import ids
from kilonova.hosts.drivers.base import MissingGuest
from kilonova.hosts.messages import (
    Change,
    Command,
    Flavor,
    Guest,
    GuestState,
    HostFacts,
    Image,
    Nic,
    Power,
    Spawn,
)

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


def command(verb: Change, *, operation: str = "op-1", step: str = "start guest", **more: Any) -> Command:
    facts: dict[str, Any] = {"host": HOST, "operation": operation, "step": step, "epoch": 1, "verb": verb}
    return Command(**facts | more)


def spawn(guest_id: str = "guest-1", **more: Any) -> Command:
    return command(Spawn(guest=guest(guest_id)), **more)


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Waits for something that happens in its own time, but not for ever."""
    async with asyncio.timeout(10):
        while not await reached():
            await asyncio.sleep(0.01)


class HeldDriver:
    """Counts what it is asked, and waits where a test holds it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: list[Exception] = []
        self.states: dict[str, GuestState] = {}
        self.unwinding = 0.0
        self.busy: set[str] = set()

    def hold(self, step: str) -> asyncio.Event:
        gate = self.gates[step] = asyncio.Event()
        return gate

    async def spawn(self, guest: Guest) -> GuestState:
        return await self._step("spawn", guest.id, lambda: self._set(guest.id, "running"))

    async def destroy(self, guest_id: str) -> None:
        await self._step("destroy", guest_id, lambda: self.states.pop(guest_id, None))

    async def power_on(self, guest_id: str) -> GuestState:
        return await self._step("power_on", guest_id, lambda: self._set(guest_id, "running"))

    async def power_off(self, guest_id: str) -> GuestState:
        return await self._step("power_off", guest_id, lambda: self._set(guest_id, "shutdown"))

    async def reboot(self, guest_id: str, hard: bool) -> GuestState:
        return await self._step("reboot", guest_id, lambda: self._state(guest_id))

    async def guests(self) -> list[GuestState]:
        return list(self.states.values())

    async def describe(self) -> HostFacts:
        raise RuntimeError("the password is hunter2")

    async def _step(self, step: str, guest_id: str, work: Callable[[], T]) -> T:
        assert guest_id not in self.busy, "two methods at once on one guest"
        self.busy.add(guest_id)
        self.asked.append(step)
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
