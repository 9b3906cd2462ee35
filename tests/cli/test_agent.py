"""`kilonova agent`: hosts in processes of their own, reached by a real NATS server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.rules import Rule, Rules
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore
from tests.support.nats_server import AgentProcess, NatsServer
from tests.support.nats_server import nats as nats
from tests.support.process import Client, Cloud, NotStarted, kilonova


@contextmanager
def cloud_with(nats: NatsServer, tmp_path: Path, *options: str, **environ: str) -> Iterator[Cloud]:
    with Cloud(tmp_path / "data", "--hosts", "0", *options, environ={**nats.environ, **environ}) as cloud:
        yield cloud


@contextmanager
def sim_of(agent: AgentProcess) -> Iterator[SimStore]:
    store = SimStore(agent.data / FILE_NAME)
    try:
        yield store
    finally:
        store.close()


def until(reached: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)
    return found


def state_of(client: Client, host: str) -> str | None:
    services = client.get("compute", "/os-services?binary=nova-compute").json()["services"]
    return next((service["state"] for service in services if service["host"] == host), None)


def up(cloud: Cloud, *hosts: str) -> Client:
    client = cloud.client("kilonova")
    for host in hosts:
        until(lambda host=host: state_of(client, host) == "up")  # type: ignore[misc]
    return client


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_servers_are_built_and_deleted_on_hosts_elsewhere(nats: NatsServer, tmp_path: Path, empty_url: str) -> None:
    database = () if empty_url.startswith("sqlite") else ("--database", empty_url)
    with (
        cloud_with(nats, tmp_path, *database) as cloud,
        nats.agent(cloud, "rack-1.example.org") as one,
        nats.agent(cloud, "rack 2") as two,
    ):
        client = up(cloud, one.host, two.host)
        servers = [client.wait(client.boot(f"web-{number}"), status="ACTIVE") for number in range(4)]
        assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {one.host, two.host}
        with sim_of(one) as first, sim_of(two) as second:
            guests = [*first.all_guests(), *second.all_guests()]
            assert {guest.id for _, guest in guests} == {server["id"] for server in servers}
            for server in servers:
                client.delete("compute", f"/servers/{server['id']}")
            until(lambda: not [*first.all_guests(), *second.all_guests()])
