"""Floating IPs in the addresses of servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.servers import floating_ips
from kilonova.http.client import Unreachable
from kilonova.network.client import FloatingIp, NetworkClient, NetworkError
from tests.compute.interfaces.test_ip_actions import add_router, create_floating_ip, server_on_network
from tests.compute.servers.support import NETWORK, make_context, make_interface, make_network, make_server
from tests.support import run
from tests.support.cloud import cloud
from tests.support.full_cloud import FullCloud, full_cloud


async def associate(c: FullCloud, made: dict[str, Any], server_id: str | None, fixed: str | None = None) -> None:
    """Associate the floating IP with the server, or disassociate it."""
    where: dict[str, Any] = {"port_id": None}
    if server_id:
        (port,) = (await c.get(f"/ports?device_id={server_id}", root=NETWORK)).json()["ports"]
        where = {"port_id": port["id"], "fixed_ip_address": fixed}
    answer = await c.put(f"/floatingips/{made['id']}", {"floatingip": where}, root=NETWORK)
    assert answer.status == 200, answer.body


async def shown_addresses(c: FullCloud, server_id: str, network: str = "own") -> list[tuple[str, str]]:
    """Type and address of each entry, which must be the same in all views."""
    shown = (await c.show(server_id, as_="reader"))["addresses"][network]
    listed = (await c.get("/servers/detail", version="2.96")).json()["servers"]
    assert [server["addresses"][network] for server in listed if server["id"] == server_id] == [shown]
    bare = [{"version": entry["version"], "addr": entry["addr"]} for entry in shown]
    assert (await c.get(f"/servers/{server_id}/ips")).json()["addresses"][network] == bare
    assert (await c.get(f"/servers/{server_id}/ips/{network}")).json() == {network: bare}
    return [(entry["OS-EXT-IPS:type"], entry["addr"]) for entry in shown]


def test_association_shows_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            first, second = await create_floating_ip(c), await create_floating_ip(c)
            await add_router(c, network_id, first)
            ((_, fixed),) = before = await shown_addresses(c, server_id)
            assert before == [("fixed", fixed)]

            await associate(c, first, server_id, fixed)
            assert await shown_addresses(c, server_id) == [("fixed", fixed), ("floating", first["floating_ip_address"])]
            shown = (await c.show(server_id, version="2.1"))["addresses"]["own"]
            assert shown[1] == {**shown[0], "addr": first["floating_ip_address"], "OS-EXT-IPS:type": "floating"}
            renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "n"}}, version="2.75")
            assert renamed.json()["server"]["addresses"]["own"] == shown
            renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "n"}}, version="2.1")
            assert [entry["addr"] for entry in renamed.json()["server"]["addresses"]["own"]] == [
                fixed,
                first["floating_ip_address"],
            ]

            await associate(c, first, None)
            assert await shown_addresses(c, server_id) == before
            await associate(c, second, server_id)
            assert (await shown_addresses(c, server_id))[1:] == [("floating", second["floating_ip_address"])]
            assert (await c.delete(f"/floatingips/{second['id']}", root=NETWORK)).status == 204
            assert await shown_addresses(c, server_id) == before

    run(scenario())


def test_fixed_addresses_come_first(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            network_id = await make_network(c, "own")
            shown = await c.boot_active(networks=[{"uuid": network_id}, {"uuid": network_id}])
            fixed = [entry["addr"] for entry in shown["addresses"]["own"]]
            made = await create_floating_ip(c)
            await add_router(c, network_id, made)
            ports = (await c.get(f"/ports?device_id={shown['id']}", root=NETWORK)).json()["ports"]
            port_id = next(port["id"] for port in ports if port["fixed_ips"][0]["ip_address"] == fixed[0])
            body = {"floatingip": {"port_id": port_id}}
            assert (await c.put(f"/floatingips/{made['id']}", body, root=NETWORK)).status == 200
            kinds = [kind for kind, _ in await shown_addresses(c, shown["id"])]
            assert kinds == ["fixed", "fixed", "floating"]
            entries = (await c.show(shown["id"]))["addresses"]["own"]
            assert entries[2]["OS-EXT-IPS-MAC:mac_addr"] == entries[0]["OS-EXT-IPS-MAC:mac_addr"]

    run(scenario())


class Counting(NetworkClient):
    """Counts requests for floating IPs, or is unreachable."""

    asked = 0
    there = True

    async def floating_ips_of_ports(self, port_ids: Any, token: str) -> list[FloatingIp]:
        self.asked += 1
        if not self.there:
            raise Unreachable("gone")
        return await super().floating_ips_of_ports(port_ids, token)


def test_list_needs_one_request_and_works_without_network_service(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            other_id = (await c.boot_active(networks=[{"uuid": network_id}]))["id"]
            await c.boot_active(networks="none")
            made = await create_floating_ip(c)
            await add_router(c, network_id, made)
            await associate(c, made, other_id)
            network = c.services.network = Counting(c.services.network._caller)
            listed = (await c.get("/servers/detail", version="2.96")).json()["servers"]
            assert network.asked == 1
            counts = {server["id"]: len(server["addresses"].get("own", ())) for server in listed}
            assert (counts[server_id], counts[other_id], len(counts)) == (1, 2, 3)
            assert (await c.get("/servers", version="2.96")).status == 200
            assert network.asked == 1

            network.there = False
            listed = (await c.get("/servers/detail", version="2.96")).json()["servers"]
            assert [len(server["addresses"].get("own", ())) for server in listed if server["id"] == other_id] == [1]
            assert "without floating addresses" in caplog.text

    run(scenario())


def test_more_ports_than_fit_into_one_url(sqlite_url: str) -> None:
    """The results of several requests are merged without duplicates."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            made = await create_floating_ip(c)
            await add_router(c, network_id, made)
            await associate(c, made, server_id)
            (port,) = (await c.get(f"/ports?device_id={server_id}", root=NETWORK)).json()["ports"]
            others = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(250)]
            found = await c.services.network.floating_ips_of_ports([*others, port["id"]], "kilonova")
            assert [each.id for each in found] == [made["id"]]
            assert await c.services.network.floating_ips_of_ports([], "kilonova") == []

    run(scenario())


def test_ip_filters_use_fixed_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id, network_id = await server_on_network(c)
            made = await create_floating_ip(c)
            await add_router(c, network_id, made)
            await associate(c, made, server_id)
            ((_, fixed), (_, outer)) = await shown_addresses(c, server_id)
            for key, value, expected in (
                ("ip", f"^{fixed}$", [server_id]),
                ("ip", fixed[:4], [server_id]),
                ("ip", f"^{outer}$", []),
                ("ip6", fixed, []),
            ):
                listed = (await c.get(f"/servers?{key}={value}", version="2.96")).json()["servers"]
                assert [server["id"] for server in listed] == expected, value

    run(scenario())


@pytest.mark.parametrize("failure", [Unreachable("down"), NetworkError(403, "Forbidden", "no"), None])
def test_failing_or_slow_network_service_hides_floating_ips(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception | None
) -> None:
    """Without a failure, the network service does not answer at all."""
    monkeypatch.setattr(floating_ips, "NETWORK_TIMEOUT_SECONDS", 0.02)

    async def fail(*args: Any) -> Any:
        if failure is not None:
            raise failure
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            monkeypatch.setattr(c.services.network, "floating_ips_of_ports", fail)
            servers = [make_server(nics=[make_interface("p")])]
            assert await floating_ips.addresses_by_port(make_context(c), servers) == {}
            assert (str(failure) if failure else "no answer in time") in caplog.text

    run(scenario())


def test_addresses_are_grouped_by_port_in_stable_order(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(number: int, port_id: str, fixed: str | None) -> FloatingIp:
        return FloatingIp(str(number), "n", f"192.0.2.{number}", fixed, port_id)

    async def answer(port_ids: list[str], token: str) -> list[FloatingIp]:
        assert (port_ids, token) == (["p", "q"], "kilonova")
        return [found(4, "q", "10.0.0.1"), found(3, "p", "10.0.0.2"), found(2, "p", "10.0.0.1"), found(1, "p", None)]

    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            monkeypatch.setattr(c.services.network, "floating_ips_of_ports", answer)
            assert await floating_ips.addresses_by_port(make_context(c), [make_server()]) == {}
            servers = [make_server(nics=[make_interface(port_id)]) for port_id in ("p", "q")]
            assert await floating_ips.addresses_by_port(make_context(c), servers) == {
                "p": ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
                "q": ["192.0.2.4"],
            }

    run(scenario())
