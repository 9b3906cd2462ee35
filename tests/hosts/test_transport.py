"""The in-process transport: answers, errors and unreachable hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from kilonova.hosts import messages
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.messages import Command, ErrorKind, GuestState
from kilonova.hosts.messages.verbs import Destroy, PowerOn
from kilonova.hosts.transport import (
    GuestDiffers,
    GuestMissing,
    GuestNotRunning,
    HostCallError,
    HostRefused,
    HostUnreachable,
    ImageBusy,
    ImageRefused,
    ImageReplaced,
    Interrupted,
    MalformedMessage,
    NoDisplay,
    NoGuestAgent,
    RefusedByHypervisor,
    SlotMissing,
    StaleEpoch,
    VersionTooOld,
    describe,
    list_all_guests,
    list_guests,
    read_reply,
)
from tests.hosts.support import HOST, command, spawn
from tests.support import run


def hosts(directory: Path, **more: object) -> EmbeddedHosts:
    return EmbeddedHosts(EmbeddedConfig(**{"directory": directory, "hosts": 3} | more))  # type: ignore[arg-type]


def test_answers_have_the_type_of_their_verb(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = hosts(tmp_path)
        state = await transport.call(HOST, spawn())
        assert isinstance(state, GuestState)
        assert (state.power, state.boots) == ("running", 1)
        assert await list_guests(transport, HOST) == [state]
        assert (await describe(transport, HOST)).hypervisor_hostname == HOST
        assert await transport.call(HOST, command(Destroy(guest_id="guest-1"))) is None
        assert await list_guests(transport, HOST) == []

    run(scenario())


def test_host_error_is_raised_as_its_outcome(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(GuestMissing, match="no guest guest-9") as failed:
            await hosts(tmp_path).call(HOST, command(PowerOn(guest_id="guest-9")))
        assert not failed.value.passing

    run(scenario())


# By the kind on the wire: the outcome, and the words for users.
REFUSALS = {
    "driver": (RefusedByHypervisor, "refused by the hypervisor"),
    "missing guest": (GuestMissing, "the guest is missing"),
    "guest differs": (GuestDiffers, "another guest has the same id"),
    "interrupted": (Interrupted, "interrupted by a delete or an abort"),
    "no such slot": (SlotMissing, "the parked guest is missing"),
    "missing disk": (HostRefused, "failed inside the host"),
    "no guest agent": (NoGuestAgent, "the guest runs no guest agent"),
    "not running": (GuestNotRunning, "the guest does not run"),
    "image refused": (ImageRefused, "the image service does not store the data, because it exceeds a quota or limit"),
    "image busy": (ImageBusy, "another upload to the image has not ended"),
    "image replaced": (ImageReplaced, "the data of the image is damaged, or has changed since the server was created"),
    "no display": (NoDisplay, "the guest has no console of this type"),
    "stale epoch": (StaleEpoch, "failed inside the host"),
    "wrong host": (HostRefused, "failed inside the host"),
    "unsupported": (VersionTooOld, "the host's agent is of an older release"),
    "malformed": (MalformedMessage, "failed inside the host"),
    "internal": (HostRefused, "failed inside the host"),
    "of a newer release": (HostRefused, "failed inside the host"),
}


@pytest.mark.parametrize("kind", [*get_args(ErrorKind), "of a newer release"])
def test_outcome_of_each_error_of_a_host(kind: Any) -> None:
    reply = messages.encode(messages.failure(kind, "words of the host"))
    with pytest.raises(HostCallError) as refused:
        read_reply(HOST, Command(host=HOST, verb=Destroy(guest_id="g")), reply)
    assert (type(refused.value), refused.value.public) == REFUSALS[kind]
    assert str(refused.value) == f"{HOST}: words of the host"


def test_stale_epoch_raises_its_own_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = hosts(tmp_path)
        await transport.call(HOST, spawn(epoch=2))
        with pytest.raises(StaleEpoch):
            await transport.call(HOST, spawn(epoch=1))

    run(scenario())


def test_host_without_agent_is_unreachable(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(HostUnreachable) as unreachable:
            await list_guests(hosts(tmp_path), "sim-004")
        assert unreachable.value.passing

    run(scenario())


def test_repeat_after_timeout_joins_running_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = hosts(tmp_path, latency={"spawn": 0.2})
        with pytest.raises(HostUnreachable, match=r"no answer within 0\.02 s"):
            await transport.call(HOST, spawn(), timeout=0.02)
        state = await transport.call(HOST, spawn())
        assert state.boots == 1

    run(scenario())


def test_unreadable_reply_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="unreadable reply"):
        read_reply(HOST, Command(host=HOST, verb=Destroy(guest_id="g")), b"\xc1")


def test_unreachable_host_does_not_hide_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = hosts(tmp_path)
        await transport.call(HOST, spawn())
        found = await list_all_guests(transport, [*transport.names, "nobody"])
        assert isinstance(found.pop("nobody"), HostUnreachable)
        counts = {host: len(guests) for host, guests in found.items() if isinstance(guests, list)}
        assert counts == {"sim-001": 1, "sim-002": 0, "sim-003": 0}

    run(scenario())
