"""What callers see of a host: its answers, its refusals, its silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.messages import Command, Destroy, GuestState, PowerOn
from kilonova.hosts.transport import (
    HostFailed,
    HostUnreachable,
    StaleEpoch,
    describe,
    list_all_guests,
    list_guests,
    read_reply,
)
from tests.hosts.support import HOST, command, spawn
from tests.support import run


def hosts(directory: Path, **more: object) -> EmbeddedHosts:
    return EmbeddedHosts(EmbeddedConfig(**{"directory": directory, "hosts": 3} | more))  # type: ignore[arg-type]


def test_answers_have_the_verbs_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        reach = hosts(tmp_path)
        state = await reach.call(HOST, spawn())
        assert isinstance(state, GuestState)
        assert (state.power, state.boots) == ("running", 1)
        assert await list_guests(reach, HOST) == [state]
        assert (await describe(reach, HOST)).hypervisor_hostname == HOST
        assert await reach.call(HOST, command(Destroy(guest_id="guest-1"))) is None
        assert await list_guests(reach, HOST) == []

    run(scenario())


def test_a_refusal_is_raised_with_its_kind(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(HostFailed, match="no guest guest-9") as failed:
            await hosts(tmp_path).call(HOST, command(PowerOn(guest_id="guest-9")))
        assert (failed.value.kind, failed.value.passing) == ("missing guest", False)

    run(scenario())


def test_a_stale_epoch_has_an_error_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        reach = hosts(tmp_path)
        await reach.call(HOST, spawn(epoch=2))
        with pytest.raises(StaleEpoch):
            await reach.call(HOST, spawn(epoch=1))

    run(scenario())


def test_a_host_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(HostUnreachable) as unreachable:
            await list_guests(hosts(tmp_path), "sim-004")
        assert unreachable.value.passing

    run(scenario())


def test_a_repeat_after_a_timeout_joins_the_work_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        reach = hosts(tmp_path, latency={"spawn": 0.2})
        with pytest.raises(HostUnreachable, match=r"no answer within 0\.02 s"):
            await reach.call(HOST, spawn(), timeout=0.02)
        state = await reach.call(HOST, spawn())
        assert state.boots == 1

    run(scenario())


def test_an_unreadable_reply_is_the_hosts_failure() -> None:
    with pytest.raises(HostFailed, match="unreadable reply"):
        read_reply(HOST, Command(host=HOST, verb=Destroy(guest_id="g")), b"\xc1")


def test_one_silent_host_does_not_hide_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        reach = hosts(tmp_path)
        await reach.call(HOST, spawn())
        found = await list_all_guests(reach, [*reach.names, "nobody"])
        assert isinstance(found.pop("nobody"), HostUnreachable)
        counts = {host: len(guests) for host, guests in found.items() if isinstance(guests, list)}
        assert counts == {"sim-001": 1, "sim-002": 0, "sim-003": 0}

    run(scenario())
