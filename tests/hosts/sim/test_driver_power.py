"""Pause, suspend and rescue of simulated guests."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError, MissingGuest
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Hardware
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore
from kilonova.hosts.messages import Image
from tests.hosts.support import disk, guest
from tests.support import run

HERE, THERE = "sim-001", "sim-002"


@pytest.fixture
def store(tmp_path: Path) -> SimStore:
    return SimStore(tmp_path / "sim.db")


@pytest.fixture
def here(store: SimStore) -> SimDriver:
    return SimDriver(HERE, {HERE: Hardware(), THERE: Hardware()}, store, Rules(store), {})


async def kind_of(refused: Awaitable[Any]) -> str:
    with pytest.raises(DriverError) as error:
        await refused
    return error.value.kind


def test_pause_and_suspend_continue_without_boot(here: SimDriver) -> None:
    async def scenario() -> None:
        began = await here.spawn(guest("g"))
        for halt, continue_guest, power in (
            (here.pause, here.unpause, "paused"),
            (here.suspend, here.resume, "suspended"),
            (here.pause, here.power_on, "paused"),
        ):
            for _ in range(2):
                assert (await halt("g")).power == power
            for _ in range(2):
                assert await continue_guest("g") == began
        await here.power_off("g")
        for verb in (here.pause, here.unpause, here.suspend, here.resume, here.crash_dump):
            assert await kind_of(verb("g")) == "not running"
            with pytest.raises(MissingGuest):
                await verb("missing")

    run(scenario())


def test_rescue_and_unrescue_are_idempotent(here: SimDriver, store: SimStore) -> None:
    async def scenario() -> None:
        began = await here.spawn(guest("g"))
        for _ in range(2):
            rescued = await here.rescue("g", Image(id="i"), None, "secret")
            assert (rescued.power, rescued.boots, store.rescue(HERE, "g")) == ("running", began.boots + 1, "i")
        await here.power_off("g")
        assert (await here.rescue("g", None, None)).power == "running"
        assert store.rescue(HERE, "g") == "i"
        for _ in range(2):
            assert (await here.unrescue("g")).power == "running"
            assert store.rescue(HERE, "g") is None
        await here.spawn(guest("v", image=None, disks=[disk(boot_index=0)]))
        assert await kind_of(here.rescue("v", None, None)) == "driver"
        assert (await here.rescue("v", Image(id="i"), None)).power == "running"

    run(scenario())


def test_paused_guest_keeps_its_volumes(here: SimDriver, store: SimStore) -> None:
    async def scenario() -> None:
        there = SimDriver(THERE, {HERE: Hardware(), THERE: Hardware()}, store, Rules(store), {})
        await here.spawn(guest("g", disks=[disk()]))
        await here.pause("g")
        assert await kind_of(there.spawn(guest("h", disks=[disk()]))) == "driver"
        await here.unpause("g")
        await here.suspend("g")
        await there.spawn(guest("h", disks=[disk()]))
        assert await kind_of(here.resume("g")) == "driver"

    run(scenario())
