"""Reads from the host of a server: their timeout, and the error for each failure of the host."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute import host_calls
from kilonova.compute.servers import host_query
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import GetConsoleLog
from kilonova.hosts.transport import (
    GuestMissing,
    GuestNotRunning,
    HostUnreachable,
    NoDisplay,
    RefusedByHypervisor,
    VersionTooOld,
)
from kilonova.http.errors import Conflict, HttpError, NotSupported, Unavailable
from kilonova.services import Services
from tests.compute.servers.support import make_context, make_server
from tests.support import run
from tests.support.cloud import Cloud

SERVER = make_server(host="h")
VERB = GetConsoleLog(guest_id="s", lines=3)


class FakeHosts:
    """Answers or fails, and records the call."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Command, float | None]] = []

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        self.calls.append((host, command, timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def query(hosts: FakeHosts | None, server: Server = SERVER) -> Any:
    services = Services()
    if hosts is not None:
        services.hosts = hosts
    return run(host_query.query_host(make_context(Cloud(services, [])), server, VERB))


def test_host_gets_read_with_short_timeout() -> None:
    hosts = FakeHosts(b"console")
    assert query(hosts) == b"console"
    ((host, command, timeout),) = hosts.calls
    assert (host, command.host, command.verb) == ("h", "h", VERB)
    assert timeout == host_calls.QUERY_TIMEOUT_SECONDS, "a user waits for the response"


def test_server_without_host_is_not_ready() -> None:
    hosts = FakeHosts()
    with pytest.raises(Conflict, match=r"^Instance s is not ready: it has no host$"):
        query(hosts, make_server())
    assert hosts.calls == []


def test_process_without_transport_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"configure its section \[messaging\]"):
        query(None)


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (HostUnreachable("h", "no answer within 10 s"), Conflict, "not ready: its host does not respond"),
        (VersionTooOld("h", "unknown verb"), NotSupported, "does not support this; upgrade it."),
        (GuestMissing("h", "/var/x"), Conflict, "not ready: the guest is missing"),
        (GuestNotRunning("h", "/var/x"), Conflict, "not ready: the guest does not run"),
        (RefusedByHypervisor("h", "busy in /var/x", passing=True), Conflict, "not ready: refused by the hypervisor"),
    ],
)
def test_error_for_each_failure_of_host(failure: Exception, error: type[HttpError], message: str) -> None:
    with pytest.raises(error, match=rf"{message}$") as raised:
        query(FakeHosts(failure))
    assert "/var/x" not in raised.value.message


def test_other_failures_are_for_the_route() -> None:
    failure = NoDisplay("h", "no VNC")
    with pytest.raises(NoDisplay) as raised:
        query(FakeHosts(failure))
    assert raised.value is failure
