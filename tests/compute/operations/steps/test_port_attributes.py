"""What compute sets at ports of a real Neutron, and what remains of it when they are released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute.operations.steps.port_attributes import changes_to_release, dns_label, profile_changes
from kilonova.network.client import Port
from tests.compute.operations.support import wait_until_finished
from tests.compute.servers.support import make_port
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.neutron import Neutron, use_neutron

HOST = "OS-EXT-SRV-ATTR:host"


@asynccontextmanager
async def neutron_cloud(database_url: str, hosts: int = 2, **flags: Any) -> AsyncIterator[tuple[FullCloud, Neutron]]:
    async with full_cloud(database_url, hosts=hosts, **flags) as c:
        yield c, use_neutron(c.services, c.app)


async def port_of(c: FullCloud, server_id: str) -> dict[str, Any]:
    (row,) = await c.db.fetch("SELECT * FROM ports WHERE device_id = $1", server_id)
    return row


async def act(c: FullCloud, server_id: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await c.post(f"/servers/{server_id}/action", body, as_="admin", version="2.96")
    assert answer.status == 202, answer.body
    return await c.wait_until_settled(server_id)


def test_owner_is_the_zone_of_the_host(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, zones=("east", "west")) as (c, _):
            server = await c.boot_active()
            zone = server["OS-EXT-AZ:availability_zone"]
            assert zone in ("east", "west")
            assert (await port_of(c, server["id"]))["device_owner"] == f"compute:{zone}"
            moved = await act(c, server["id"], {"migrate": None})
            other = moved["OS-EXT-AZ:availability_zone"]
            assert other != zone
            assert (await port_of(c, server["id"]))["device_owner"] == f"compute:{other}"

    run(scenario())


def test_live_migration_changes_the_owner(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, zones=("east", "west")) as (c, _):
            server = await c.boot_active()
            live = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
            moved = await act(c, server["id"], live)
            assert moved[HOST] != server[HOST]
            zone = moved["OS-EXT-AZ:availability_zone"]
            assert (await port_of(c, server["id"]))["device_owner"] == f"compute:{zone}"

    run(scenario())


def test_ports_get_the_name_of_their_server(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            own = (await make_port(c, c.network_id))["id"]
            named = (await make_port(c, c.network_id))["id"]
            neutron.dns_names[named] = "mine"
            server = await c.boot_active(name="web", networks=[{"port": own}, {"port": named}, {"uuid": c.network_id}])
            (created,) = neutron.dns_names.keys() - {own, named}
            assert neutron.dns_names == {own: "web", named: "mine", created: "web"}
            body = {"server": {"hostname": "renamed.example.org"}}
            assert (await c.put(f"/servers/{server['id']}", body, version="2.96")).status == 200
            await wait_until_finished(c.db)
            assert neutron.dns_names == {own: "renamed", named: "mine", created: "renamed"}
            await c.delete(f"/servers/{server['id']}")
            await c.wait_until_deleted(server["id"])
            assert (neutron.dns_names[own], neutron.dns_names[named]) == ("", "mine")

    run(scenario())


def test_boot_tries_the_next_host_if_its_ports_cannot_be_bound(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url, hosts=3) as (c, neutron):
            neutron.unbound |= {"sim-001", "sim-002"}
            assert (await c.boot_active())[HOST] == "sim-003"

    run(scenario())


def test_boot_fails_if_no_host_can_bind_its_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            neutron.unbound |= {"sim-001", "sim-002"}
            shown = await c.wait_until_settled((await c.boot())["id"])
            assert shown["status"] == "ERROR"
            assert "2 its network could not be bound" in shown["fault"]["message"]
            assert "sim-" not in shown["fault"]["message"]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_owner LIKE 'compute:%'") == 0

    run(scenario())


@pytest.mark.parametrize("action", ["migrate", "os-migrateLive"])
def test_failed_move_leaves_the_ports_at_their_host(database_url: str, action: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            server = await c.boot_active()
            (other,) = {"sim-001", "sim-002"} - {server[HOST]}
            neutron.unbound.add(other)
            body = {"migrate": {"host": other}, "os-migrateLive": {"host": other, "block_migration": "auto"}}
            shown = await act(c, server["id"], {action: body[action]})
            assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
            assert "its network could not be bound" in shown["fault"]["message"]
            assert (await port_of(c, server["id"]))["host_id"] == server[HOST]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM standby_bindings") == 0

    run(scenario())


def test_undo_ends_even_if_the_source_cannot_bind_any_more(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            server = await c.boot_active()
            neutron.unbound |= {"sim-001", "sim-002"}
            async with asyncio.timeout(30):
                shown = await act(c, server["id"], {"migrate": None})
            assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])

    run(scenario())


def test_profile_keeps_the_keys_of_the_user() -> None:
    port = Port("p", "n", "m", binding_profile={"user": "key"})
    assert profile_changes(port, None) == {}
    assert profile_changes(port, {"g": "rp"}) == {"binding:profile": {"user": "key", "allocation": {"g": "rp"}}}
    bound = Port("p", "n", "m", binding_profile={"user": "key", "allocation": "rp"}, dns_name="web")
    unbound = {"device_id": "", "device_owner": "", "binding:host_id": ""}
    released = {**unbound, "binding:profile": {"user": "key"}, "dns_name": ""}
    assert changes_to_release(bound, "web.example.org") == released
    assert changes_to_release(port, "web") == unbound
    assert dns_label("web.example.org") == "web"
