"""Networks of a new server: automatic and requested networks, ports, addresses, tags and security groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations.boot import Boot
from kilonova.http.client import Unreachable
from kilonova.ids import new_id
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import put_building_server
from tests.compute.servers.support import (
    NETWORK,
    NO_RESOURCES,
    count_server_resources,
    create_refusal,
    make_network,
    make_port,
    show_port,
)
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


def addresses(shown: dict[str, Any]) -> dict[str, list[str]]:
    return {label: [entry["addr"] for entry in entries] for label, entries in shown["addresses"].items()}


async def delete_all_networks(c: FullCloud) -> None:
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE routers SET gateway_port_id = NULL")
        for table in ("ports", "subnets", "networks"):
            await tx.execute(f"DELETE FROM {table}")


class TestAutomaticNetworks:
    def test_server_gets_the_only_network(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                for version, keys in (("2.36", {"networks": ...}), ("2.1", {"networks": []}), ("2.37", {})):
                    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
                    body = {"server": {key: value for key, value in server.items() if value is not ...}}
                    answer = await c.post("/servers", body, version=version)
                    assert answer.status == 202, answer.body
                    assert set(addresses(await c.wait_until_settled(answer.json()["server"]["id"]))) == {"private"}
                status, message = await create_refusal(c, "2.37", networks=...)
                assert (status, "'networks' is a required property" in message) == (400, True)
                status, message = await create_refusal(c, "2.36", networks="auto")
                assert (status, "attribute networks" in message) == (400, True)

        run(scenario())

    def test_several_networks_are_ambiguous(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                network_id = await make_network(c, "mine")
                await make_network(c, "theirs", as_="other")
                for version, networks in (("2.1", ...), ("2.1", []), ("2.37", "auto")):
                    status, message = await create_refusal(c, version, networks=networks)
                    assert (status, "Multiple possible networks" in message) == (409, True)
                assert set(addresses(await c.boot_active(networks=[{"uuid": network_id}]))) == {"mine"}

        run(scenario())

    def test_networks_none_gives_no_port(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                shown = await c.boot_active(networks="none")
                assert shown["addresses"] == {}
                assert "security_groups" not in shown
                assert await count_server_resources(c, shown["id"]) == {"allocations": 3, "ports": 0, "guests": 1}

        run(scenario())

    def test_auto_allocates_a_network_if_there_is_none(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__instances=2) as c:
                await delete_all_networks(c)
                shown = await c.boot_active(networks=[], version="2.1")
                assert shown["addresses"] == {}
                shown = await c.boot_active(networks="auto")
                assert set(addresses(shown)) == {"auto_allocated_network"}
                owner = await c.db.fetch_value("SELECT project_id FROM networks")
                assert owner == DEMO

        run(scenario())

    def test_refused_create_allocates_no_network(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__instances=0) as c:
                await delete_all_networks(c)
                assert (await create_refusal(c, networks="auto"))[0] == 403

        run(scenario())

    def test_refusal_by_network_service_is_shown_in_fault(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                await delete_all_networks(c)
                quota = {"quota": {"network": 0}}
                answer = await c.put(f"/quotas/{DEMO}", quota, as_="admin", root=NETWORK)
                assert answer.status == 200, answer.body
                shown = await c.wait_until_settled((await c.boot(networks="auto"))["id"])
                assert shown["status"] == "ERROR"
                assert "uota exceeded" in shown["fault"]["message"]
                assert await count_server_resources(c, shown["id"]) == NO_RESOURCES

        run(scenario())


class TestRequestedNetworks:
    def test_networks_fixed_ips_and_ports(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                first, second = await make_network(c, "one", "10.8.0.0/24"), await make_network(c, "two")
                own_port = await make_port(c, second, name="mine")
                shown = await c.boot_active(
                    networks=[
                        {"uuid": first, "fixed_ip": "10.8.0.77"},
                        {"port": own_port["id"]},
                        {"uuid": first},
                        {"uuid": c.network_id, "port": None},
                    ]
                )
                found = addresses(shown)
                assert set(found) == {"one", "two", "private"}
                assert found["one"][0] == "10.8.0.77"
                assert len(found["one"]) == 2
                assert found["two"] == [own_port["fixed_ips"][0]["ip_address"]]
                bound = await show_port(c, own_port["id"])
                assert bound["device_id"] == shown["id"]
                assert bound["binding:host_id"] == shown["OS-EXT-SRV-ATTR:host"]
                assert bound["device_owner"].startswith("compute:")
                for entry in (await c.get(f"/ports?device_id={shown['id']}", root=NETWORK)).json()["ports"]:
                    assert entry["project_id"] == DEMO
                    assert entry["status"] == "ACTIVE"

        run(scenario())

    def test_ipv6_fixed_ip(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                network_id = await make_network(c, "six", "2001:db8:9::/64")
                shown = await c.boot_active(networks=[{"uuid": network_id, "fixed_ip": "2001:db8:9::5"}])
                (entry,) = shown["addresses"]["six"]
                assert (entry["version"], entry["addr"]) == (6, "2001:db8:9::5")
                assert entry["OS-EXT-IPS:type"] == "fixed"

        run(scenario())

    def test_impossible_networks_are_refused_by_the_api(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                used = await make_port(c, c.network_id, device_id="something")
                free = await make_port(c, c.network_id)
                bare = await make_port(c, c.network_id, fixed_ips=[])
                theirs = await make_port(c, c.network_id, as_="other")
                empty = await make_network(c, "empty", cidr=None)
                secret = await make_network(c, "secret", as_="other")
                public = (await c.get("/networks?name=public", root=NETWORK)).json()["networks"][0]["id"]
                cases: list[tuple[list[dict[str, Any]], int, str]] = [
                    ([{"uuid": UNKNOWN_ID}], 400, UNKNOWN_ID),
                    ([{"uuid": secret}], 400, secret),
                    ([{"uuid": empty}], 400, "requires a subnet"),
                    ([{"uuid": public}], 403, "external network"),
                    ([{"port": UNKNOWN_ID}], 400, UNKNOWN_ID),
                    ([{"port": theirs["id"]}], 400, theirs["id"]),
                    ([{"port": used["id"]}], 409, "still in use"),
                    ([{"port": bare["id"]}], 400, "FixedIP"),
                    ([{"port": free["id"]}, {"port": free["id"]}], 400, "twice"),
                    ([{"port": free["id"], "fixed_ip": "10.0.0.9"}], 400, "fixed_ip"),
                    ([{}], 400, "attribute networks[0]"),
                    ([{"uuid": c.network_id}, {"fixed_ip": "10.0.0.9"}], 400, "attribute networks[1]"),
                    ([{"uuid": "private"}], 400, "attribute networks[0].uuid"),
                    ([{"uuid": c.network_id, "fixed_ip": "10.0.0.999"}], 400, "attribute networks[0].fixed_ip"),
                    ([{"uuid": c.network_id, "color": "red"}], 400, "'color' was unexpected"),
                ]
                for networks, status, words in cases:
                    found = await create_refusal(c, networks=networks)
                    assert found[0] == status, (networks, found)
                    assert words in found[1], (networks, found)
                assert (await create_refusal(c, networks="any"))[0] == 400
                assert (await show_port(c, free["id"]))["device_id"] == ""
                assert set(addresses(await c.boot_active(networks=[{"uuid": public}], as_="admin"))) == {"public"}

        run(scenario())

    def test_used_address_is_named_in_the_fault(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                nic = {"uuid": await make_network(c, "own"), "fixed_ip": "10.9.0.50"}
                await c.boot_active(networks=[nic])
                for address, text in (("10.9.0.50", "10.9.0.50"), ("192.168.7.7", "192.168.7.7")):
                    shown = await c.wait_until_settled((await c.boot(networks=[{**nic, "fixed_ip": address}]))["id"])
                    assert shown["status"] == "ERROR"
                    assert text in shown["fault"]["message"]
                    assert await count_server_resources(c, shown["id"]) == NO_RESOURCES

        run(scenario())

    def test_fixed_ip_on_shared_network_is_forbidden_for_members(self, sqlite_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(sqlite_url, hosts=1) as c:
                nic = {"uuid": c.network_id, "fixed_ip": "10.0.0.50"}
                status, message = await create_refusal(c, networks=[nic])
                assert (status, c.network_id in message) == (403, True)
                server_id = (await c.boot_active())["id"]
                attachment = {
                    "interfaceAttachment": {"net_id": c.network_id, "fixed_ips": [{"ip_address": "10.0.0.50"}]}
                }
                assert (await c.post(f"/servers/{server_id}/os-interface", attachment)).status == 403
                shown = await c.boot_active(networks=[nic], as_="admin")
                assert shown["addresses"]["private"][0]["addr"] == "10.0.0.50"

        run(scenario())

    def test_concurrent_creates_with_one_port(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                for _ in range(3):
                    port_id = (await make_port(c, c.network_id))["id"]
                    body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": [{"port": port_id}]}
                    answers = await asyncio.gather(
                        *(c.post("/servers", {"server": body}, version="2.42") for _ in range(4))
                    )
                    made = [answer.json()["server"]["id"] for answer in answers if answer.status == 202]
                    assert {answer.status for answer in answers} <= {202, 409}
                    shown = [await c.wait_until_settled(server_id) for server_id in made]
                    active = [server["id"] for server in shown if server["status"] == "ACTIVE"]
                    assert (await show_port(c, port_id))["device_id"] == active[0]
                    assert len(active) == 1
                    for server in shown:
                        if server["status"] == "ERROR":
                            assert "in use" in server["fault"]["message"]
                            assert await count_server_resources(c, server["id"]) == NO_RESOURCES
                    for server_id in made:
                        await c.delete(f"/servers/{server_id}")
                        await c.wait_until_deleted(server_id)
                    assert (await show_port(c, port_id))["device_id"] == ""

        run(scenario())


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("2.31", False), ("2.32", True), ("2.36", True), ("2.37", False), ("2.41", False), ("2.42", True)],
)
def test_interface_tags_by_version(sqlite_url: str, version: str, allowed: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            nic = {"uuid": c.network_id, "tag": "front"}
            if not allowed:
                status, message = await create_refusal(c, version, networks=[nic])
                assert (status, "attribute networks" in message) == (400, True), message
                return
            shown = await c.boot_active(version=version, networks=[nic])
            nics = await c.db.fetch_value("SELECT nics FROM servers WHERE id = $1", shown["id"])
            assert '"tag":"front"' in nics
            for wrong in ("", "a,b", "a/b", "x" * 61):
                assert (await create_refusal(c, version, networks=[{**nic, "tag": wrong}]))[0] == 400

    run(scenario())


class TestSecurityGroups:
    def test_security_groups_are_set_on_ports(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                group = await self.group(c, "web")
                for names in (["web"], [group], ["web", "web"], ["web", "default"]):
                    shown = await c.boot_active(security_groups=[{"name": name} for name in names])
                    (made,) = (await c.get(f"/ports?device_id={shown['id']}", root=NETWORK)).json()["ports"]
                    assert (group in made["security_groups"], len(made["security_groups"])) == (True, len(set(names)))
                    assert {each["name"] for each in shown["security_groups"]} == {"web", *names} - {group}

        run(scenario())

    def test_port_keeps_its_groups(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                group = await self.group(c, "web")
                body = {"port": {"network_id": c.network_id, "security_groups": [group]}}
                port_id = (await c.post("/ports", body, root=NETWORK)).json()["port"]["id"]
                shown = await c.boot_active(networks=[{"port": port_id}])
                assert shown["security_groups"] == [{"name": "web"}]

        run(scenario())

    def test_unknown_or_ambiguous_security_group_is_refused(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                await self.group(c, "theirs", as_="other")
                await self.group(c, "twin")
                await self.group(c, "twin")
                for name, status in (("unknown", 400), ("theirs", 400), ("twin", 409)):
                    found = await create_refusal(c, security_groups=[{"name": name}])
                    assert found[0] == status
                    assert name in found[1]

        run(scenario())

    def test_deleted_security_group_is_named_in_the_fault(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                server_id = new_id()
                await put_building_server(c.db, server_id)
                nic = {"network_id": c.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
                params = {"networks": [nic], "security_groups": ["gone"], "destination": None}
                async with c.db.transaction() as tx:
                    await begin_stored(tx, Boot, params, server_id=server_id, project_id=DEMO)
                shown = await c.wait_until_settled(server_id)
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"] == f"Security group gone not found for project {DEMO}."
                assert shown["fault"]["code"] == 500
                assert await count_server_resources(c, server_id) == NO_RESOURCES

        run(scenario())

    async def group(self, c: FullCloud, name: str, as_: str = "member") -> str:
        answer = await c.post("/security-groups", {"security_group": {"name": name}}, as_=as_, root=NETWORK)
        assert answer.status == 201, answer.body
        return str(answer.json()["security_group"]["id"])


def test_unreachable_services_give_503(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*args: Any, **options: Any) -> Any:
        raise Unreachable("the service answered 503")

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            body = {"server": {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}}
            for service, method in ((c.services.image, "show"), (c.services.network, "available_networks")):
                with monkeypatch.context() as patch:
                    patch.setattr(service, method, unreachable)
                    answer = await c.post("/servers", body, version="2.37")
                    assert fault(answer)[:2] == (503, "serviceUnavailable")
            assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == 0

    run(scenario())
