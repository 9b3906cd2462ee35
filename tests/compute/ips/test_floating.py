"""Floating addresses of servers, beside the fixed ones that they lead to."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.client import Unreachable
from kilonova.network.client import NetworkClient
from tests.compute.interfaces.test_addresses import floating, on_network, routed
from tests.compute.servers.support import NETWORK, make_network
from tests.support import run
from tests.support.whole import Whole, whole


async def lead(c: Whole, made: dict[str, Any], server_id: str | None, fixed: str | None = None) -> None:
    """Have the floating address lead to the server, or nowhere."""
    where: dict[str, Any] = {"port_id": None}
    if server_id:
        (port,) = (await c.get(f"/ports?device_id={server_id}", root=NETWORK)).json()["ports"]
        where = {"port_id": port["id"], "fixed_ip_address": fixed}
    answer = await c.put(f"/floatingips/{made['id']}", {"floatingip": where}, root=NETWORK)
    assert answer.status == 200, answer.body


async def seen(c: Whole, server_id: str, network: str = "own") -> list[tuple[str, str]]:
    """Kind and address of each, which must be the same wherever it is shown."""
    shown = (await c.show(server_id, as_="reader"))["addresses"][network]
    listed = (await c.get("/servers/detail", version="2.96")).json()["servers"]
    assert [server["addresses"][network] for server in listed if server["id"] == server_id] == [shown]
    bare = [{"version": entry["version"], "addr": entry["addr"]} for entry in shown]
    assert (await c.get(f"/servers/{server_id}/ips")).json()["addresses"][network] == bare
    assert (await c.get(f"/servers/{server_id}/ips/{network}")).json() == {network: bare}
    return [(entry["OS-EXT-IPS:type"], entry["addr"]) for entry in shown]


def test_they_come_and_go_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            first, second = await floating(c), await floating(c)
            await routed(c, network_id, first)
            ((_, fixed),) = before = await seen(c, server_id)
            assert before == [("fixed", fixed)]

            await lead(c, first, server_id, fixed)
            assert await seen(c, server_id) == [("fixed", fixed), ("floating", first["floating_ip_address"])]
            shown = (await c.show(server_id, version="2.1"))["addresses"]["own"]
            assert shown[1] == {**shown[0], "addr": first["floating_ip_address"], "OS-EXT-IPS:type": "floating"}
            renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "n"}}, version="2.75")
            assert renamed.json()["server"]["addresses"]["own"] == shown
            renamed = await c.put(f"/servers/{server_id}", {"server": {"name": "n"}}, version="2.1")
            assert [entry["addr"] for entry in renamed.json()["server"]["addresses"]["own"]] == [
                fixed,
                first["floating_ip_address"],
            ]

            await lead(c, first, None)
            assert await seen(c, server_id) == before
            await lead(c, second, server_id)
            assert (await seen(c, server_id))[1:] == [("floating", second["floating_ip_address"])]
            assert (await c.delete(f"/floatingips/{second['id']}", root=NETWORK)).status == 204
            assert await seen(c, server_id) == before

    run(scenario())


def test_fixed_ones_of_all_interfaces_come_first(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            network_id = await make_network(c, "own")
            shown = await c.active(networks=[{"uuid": network_id}, {"uuid": network_id}])
            fixed = [entry["addr"] for entry in shown["addresses"]["own"]]
            made = await floating(c)
            await routed(c, network_id, made)
            ports = (await c.get(f"/ports?device_id={shown['id']}", root=NETWORK)).json()["ports"]
            port_id = next(port["id"] for port in ports if port["fixed_ips"][0]["ip_address"] == fixed[0])
            body = {"floatingip": {"port_id": port_id}}
            assert (await c.put(f"/floatingips/{made['id']}", body, root=NETWORK)).status == 200
            kinds = [kind for kind, _ in await seen(c, shown["id"])]
            assert kinds == ["fixed", "fixed", "floating"]
            entries = (await c.show(shown["id"]))["addresses"]["own"]
            assert entries[2]["OS-EXT-IPS-MAC:mac_addr"] == entries[0]["OS-EXT-IPS-MAC:mac_addr"]

    run(scenario())


class Counting(NetworkClient):
    """Counts how often floating addresses are asked for, or is not there."""

    asked = 0
    there = True

    async def floating_to(self, port_ids: Any, token: str) -> list[dict[str, Any]]:
        self.asked += 1
        if not self.there:
            raise Unreachable("gone")
        return await super().floating_to(port_ids, token)


def test_a_page_asks_once_and_does_without(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            other_id = (await c.active(networks=[{"uuid": network_id}]))["id"]
            await c.active(networks="none")
            made = await floating(c)
            await routed(c, network_id, made)
            await lead(c, made, other_id)
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


def test_more_ports_than_fit_into_one_address(sqlite_url: str) -> None:
    """The parts of a long question are put together again, each answer once."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            made = await floating(c)
            await routed(c, network_id, made)
            await lead(c, made, server_id)
            (port,) = (await c.get(f"/ports?device_id={server_id}", root=NETWORK)).json()["ports"]
            others = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(250)]
            found = await c.services.network.floating_to([*others, port["id"]], "kilonova")
            assert [each["id"] for each in found] == [made["id"]]
            assert await c.services.network.floating_to([], "kilonova") == []

    run(scenario())


def test_filters_look_at_fixed_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id, network_id = await on_network(c)
            made = await floating(c)
            await routed(c, network_id, made)
            await lead(c, made, server_id)
            ((_, fixed), (_, outer)) = await seen(c, server_id)
            for key, value, expected in (
                ("ip", f"^{fixed}$", [server_id]),
                ("ip", fixed[:4], [server_id]),
                ("ip", f"^{outer}$", []),
                ("ip6", fixed, []),
            ):
                listed = (await c.get(f"/servers?{key}={value}", version="2.96")).json()["servers"]
                assert [server["id"] for server in listed] == expected, value

    run(scenario())
