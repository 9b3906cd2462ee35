"""Operations wait until a real Neutron has plugged the ports of their server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute.operations.steps import plugged
from kilonova.network.client import Port
from tests.compute.servers.support import guest_on
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.neutron import Neutron, use_neutron

HOSTS = {"sim-001", "sim-002"}
EVENTS = "/os-server-external-events"


@asynccontextmanager
async def neutron_cloud(database_url: str, **flags: Any) -> AsyncIterator[tuple[FullCloud, Neutron]]:
    async with full_cloud(database_url, hosts=2, **flags) as c:
        yield c, use_neutron(c.services, c.app)


async def wait_until_waiting(c: FullCloud, server_id: str) -> None:
    """Wait until an operation of the server waits for its ports, after the first poll."""
    sql = """SELECT 1 FROM operations o JOIN operation_waits w ON w.operation_id = o.id
             WHERE o.server_id = $1 AND o.state = 'waiting' AND w.name = $2 AND w.poll_at > w.created_at"""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await c.db.fetch_value(sql, server_id, plugged.WAIT):
            await asyncio.sleep(0.005)


async def send_plugged(c: FullCloud, server_id: str, port_id: str = "p") -> int:
    event = {"name": "network-vif-plugged", "server_uuid": server_id, "tag": port_id, "status": "completed"}
    answer = await c.post(EVENTS, {"events": [event, event]}, as_="service", version="2.1")
    return answer.status


def test_boot_waits_for_its_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            neutron.unplugged |= HOSTS
            server_id = (await c.boot())["id"]
            await wait_until_waiting(c, server_id)
            assert await send_plugged(c, server_id) == 200
            await wait_until_waiting(c, server_id)
            shown = await c.show(server_id)
            assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("BUILD", "spawning")
            assert len(await c.guests()) == 1
            neutron.unplugged.clear()
            await send_plugged(c, server_id)
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"

    run(scenario())


def test_plugged_port_needs_no_event(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            await c.boot_active()

    run(scenario())


def test_port_that_is_plugged_on_another_host_does_not_count() -> None:
    port = Port("p", "n", "m", status="ACTIVE", binding_host_id="a", binding_vif_type="ovs")
    assert plugged._is_plugged(port, "a")
    assert not plugged._is_plugged(port, "b")


def test_reported_port_counts_after_some_time_even_if_it_is_down(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            neutron.unplugged |= HOSTS
            server_id = (await c.boot())["id"]
            await wait_until_waiting(c, server_id)
            port_id = await c.db.fetch_value("SELECT id FROM ports WHERE device_id = $1", server_id)
            await send_plugged(c, server_id, port_id)
            await wait_until_waiting(c, server_id)
            assert (await c.show(server_id))["status"] == "BUILD"
            monkeypatch.setattr(plugged, "TRUST_SECONDS", 0.0)
            await send_plugged(c, server_id, port_id)
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"

    run(scenario())


def test_late_ports_fail_the_boot(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, network__vif_plugging_timeout_seconds=0.2) as (c, neutron):
            neutron.unplugged |= HOSTS
            shown = await c.wait_until_settled((await c.boot())["id"])
            assert shown["status"] == "ERROR"
            assert shown["fault"]["message"] == "The network ports were not plugged within 0.2 s"
            assert "sim-00" in shown["fault"]["details"]
            assert await c.guests() == {}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_owner LIKE 'compute:%'") == 0

    run(scenario())


def test_late_ports_are_no_failure_if_the_setting_says_so(database_url: str) -> None:
    async def scenario() -> None:
        flags = {"network__vif_plugging_timeout_seconds": 0.2, "network__vif_plugging_is_fatal": False}
        async with neutron_cloud(database_url, **flags) as (c, neutron):
            neutron.unplugged |= HOSTS
            await c.boot_active()

    run(scenario())


@pytest.mark.parametrize("is_neutron", [True, False])
def test_nothing_is_waited_for_without_a_timeout_or_a_neutron(database_url: str, is_neutron: bool) -> None:
    async def scenario() -> None:
        seconds = 0 if is_neutron else 300
        async with full_cloud(database_url, hosts=2, network__vif_plugging_timeout_seconds=seconds) as c:
            if is_neutron:
                use_neutron(c.services, c.app).unplugged |= HOSTS
            server = await c.boot_active()
            plan = await c.db.fetch_value("SELECT plan FROM operations WHERE server_id = $1", server["id"])
            assert plugged.WAIT not in plan

    run(scenario())


def test_late_ports_undo_a_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, network__vif_plugging_timeout_seconds=0.2) as (c, neutron):
            server = await c.boot_active()
            source = server["OS-EXT-SRV-ATTR:host"]
            neutron.unplugged |= HOSTS - {source}
            answer = await c.post(f"/servers/{server['id']}/action", {"migrate": None}, as_="admin")
            assert answer.status == 202
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", source)
            assert "were not plugged" in shown["fault"]["message"]

    run(scenario())


def test_stopped_server_waits_for_no_port_when_it_moves(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            server_id = (await c.boot_active())["id"]
            await c.post(f"/servers/{server_id}/action", {"os-stop": None})
            await c.wait_until_settled(server_id)
            neutron.unplugged |= HOSTS
            await c.post(f"/servers/{server_id}/action", {"migrate": None}, as_="admin")
            assert (await c.wait_until_settled(server_id))["status"] == "VERIFY_RESIZE"

    run(scenario())


def test_attached_interface_waits_for_its_port(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, network__vif_plugging_timeout_seconds=0.2) as (c, neutron):
            server_id = (await c.boot_active())["id"]
            neutron.unplugged |= HOSTS
            body = {"interfaceAttachment": {"net_id": c.network_id}}
            answer = await c.post(f"/servers/{server_id}/os-interface", body)
            assert answer.status == 500
            assert b"were not plugged" in answer.body
            assert await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_id = $1", server_id) == 1

    run(scenario())


def test_hosts_learn_how_ports_are_bound(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            server = await c.boot_active()
            (nic,) = guest_on(c, server["OS-EXT-SRV-ATTR:host"], server["id"]).nics
            assert (nic.vif_type, nic.vnic_type) == ("bridge", "normal")
            assert nic.vif_details["bound_drivers"] == {"0": "kilonova"}
            assert nic.mtu > 0

    run(scenario())
