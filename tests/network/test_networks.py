"""Networks: lifecycle, visibility, lists and tags."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.http.client import InProcess
from kilonova.network import listing
from kilonova.network.client import NetworkClient
from tests.network.support import net
from tests.support.cloud import DEMO, OTHER


def test_network_is_created_updated_and_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            created = await cloud.create("network", name="blue", description="the blue one")
            assert created["project_id"] == created["tenant_id"] == DEMO
            assert (created["status"], created["admin_state_up"], created["shared"], created["mtu"]) == (
                "ACTIVE",
                True,
                False,
                1450,
            )
            assert created["subnets"] == []
            assert "provider:network_type" not in created
            assert await cloud.show("network", created["id"]) == created
            changed = await cloud.update("network", created, name="green", admin_state_up=False)
            assert (changed["name"], changed["admin_state_up"]) == ("green", False)
            assert changed["revision_number"] == created["revision_number"] + 1
            await cloud.ok("DELETE", f"/networks/{created['id']}")
            assert await cloud.refused("GET", f"/networks/{created['id']}") == (404, "NetworkNotFound")
            assert await cloud.refused("DELETE", f"/networks/{created['id']}") == (404, "NetworkNotFound")

    asyncio.run(scenario())


def test_projects_see_own_shared_and_external_networks(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            mine = await cloud.create("network", name="mine")
            theirs = await cloud.create("network", "other", name="theirs")
            shared = await cloud.create("network", "admin", name="shared", shared=True)
            await cloud.create("network", "admin", name="external", **{"router:external": True})
            await cloud.create("network", "admin", name="hidden")
            assert sorted(await cloud.names("network")) == ["external", "mine", "shared"]
            assert sorted(await cloud.names("network", as_="reader")) == ["external", "mine", "shared"]
            assert len(await cloud.list_all("network", as_="admin")) == 5
            assert len(await cloud.list_all("network", as_="service")) == 5
            assert await cloud.names("network", {"shared": "True"}) == ["shared"]
            assert await cloud.names("network", {"router:external": "true"}) == ["external"]
            for method, json in (("GET", None), ("PUT", {"network": {"name": "x"}}), ("DELETE", None)):
                assert (await cloud.refused(method, f"/networks/{theirs['id']}", json))[0] == 404
                if method != "GET":
                    assert (await cloud.refused(method, f"/networks/{shared['id']}", json))[0] == 403
                    assert (await cloud.refused(method, f"/networks/{mine['id']}", json, as_="reader"))[0] == 403

    asyncio.run(scenario())


def test_only_administrators_share_networks_and_choose_segments(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            for attributes in (
                {"shared": True},
                {"router:external": True},
                {"provider:network_type": "vlan"},
                {"project_id": OTHER},
            ):
                response = await cloud.refused("POST", "/networks", {"network": attributes})
                assert response == (403, "PolicyNotAuthorized"), attributes
            await cloud.create("network", shared=False)
            vlan = {"provider:network_type": "vlan", "provider:physical_network": "p", "provider:segmentation_id": 7}
            created = await cloud.create("network", "admin", project_id=OTHER, **vlan)
            assert created["project_id"] == OTHER
            assert (created["provider:network_type"], created["provider:segmentation_id"]) == ("vlan", 7)
            assert await cloud.refused("POST", "/networks", {"network": vlan}, "admin") == (409, "VlanIdInUse")
            several = {"networks": [vlan, {"name": "overlay"}]}
            assert await cloud.refused("POST", "/networks", several, "admin") == (409, "VlanIdInUse")
            segments = {(await cloud.create("network", "admin"))["provider:segmentation_id"] for _ in range(5)}
            assert len(segments) == 5
            # Heat sends a text.
            vlan["provider:segmentation_id"] = "77"
            assert (await cloud.create("network", "admin", **vlan))["provider:segmentation_id"] == 77
            for kind, segment in (("vlan", 0), ("vlan", "4095"), ("vlan", "x"), ("vxlan", "0"), ("vxlan", 2**24)):
                attributes = {"provider:network_type": kind, "provider:segmentation_id": segment}
                if kind == "vlan":
                    attributes["provider:physical_network"] = "p"
                refused = await cloud.refused("POST", "/networks", {"network": attributes}, "admin")
                assert refused == (400, "HTTPBadRequest" if segment == "x" else "InvalidInput"), attributes

    asyncio.run(scenario())


def test_invalid_network_requests_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            for body in (
                {},
                {"network": None},
                {"network": {"name": 7}},
                {"network": {"name": "x" * 256}},
                {"network": {"nmae": "slip"}},
                {"network": {"mtu": -1}},
                {"network": {"admin_state_up": "maybe"}},
                {"network": {"name": "\u0000"}},
                {"network": {"project_id": "a", "tenant_id": "b"}},
                {"networks": []},
                {"network": {}, "networks": [{}]},
            ):
                assert (await cloud.refused("POST", "/networks", body))[0] == 400, body
            for query in ("nmae=x", "limit=-1", "limit=x", "marker=gone&limit=1", "sort_key=nothing", "shared=perhaps"):
                assert (await cloud.refused("GET", f"/networks?{query}"))[0] == 400, query
            assert (await cloud.refused("POST", "/networks", {"network": {}}, as_=None))[0] == 401
            assert (await cloud.refused("POST", "/networks", {"network": {}}, as_="system"))[0] == 400
            assert await cloud.list_all("network") == []

    asyncio.run(scenario())


def test_lists_are_filtered_sorted_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            body: dict[str, Any] = {"networks": [{"name": name} for name in ("c", "a", "d", "b", "a")]}
            assert len((await cloud.ok("POST", "/networks", body))["networks"]) == 5
            assert await cloud.names("network", {"sort_key": "name", "sort_dir": "desc"}) == ["d", "c", "b", "a", "a"]
            assert sorted(await cloud.names("network", [("name", "a"), ("name", "d")])) == ["a", "a", "d"]
            assert await cloud.list_all("network", {"name": "d", "fields": "name"}) == [{"name": "d"}]
            names, path = [], "/networks?sort_key=name&limit=2"
            while path:
                page = await cloud.ok("GET", path)
                names += [network["name"] for network in page["networks"]]
                links = {link["rel"]: link["href"] for link in page.get("networks_links", [])}
                path = links.get("next", "").partition("/v2.0")[2]
            assert names == ["a", "a", "b", "c", "d"]
            everything = await cloud.list_all("network", {"sort_key": "name"})
            before = await cloud.list_all(
                "network", {"sort_key": "name", "limit": 2, "marker": everything[3]["id"], "page_reverse": "True"}
            )
            assert [network["id"] for network in before] == [network["id"] for network in everything[1:3]]

    asyncio.run(scenario())


def test_client_follows_pages_of_long_lists(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await cloud.ok("POST", "/networks", {"networks": [{"name": str(number)} for number in range(7)]})
            page = await cloud.ok("GET", "/networks")
            assert [len(page["networks"]), page["networks_links"][0]["rel"]] == [3, "next"]
            assert len((await cloud.ok("GET", "/networks?limit=5"))["networks"]) == 3
            client = NetworkClient(InProcess(cloud.app, "/network"))
            assert len(await client.available_networks(DEMO, "member")) == 7

    monkeypatch.setattr(listing, "MAX_PAGE_SIZE", 3)
    asyncio.run(scenario())


def test_networks_are_filtered_by_tags(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            one = await cloud.create("network", name="one")
            two = await cloud.create("network", name="two")
            assert (await cloud.ok("PUT", f"/networks/{one['id']}/tags", {"tags": ["red", "hot"]})) == {
                "tags": ["hot", "red"]
            }
            assert (await cloud.call("PUT", f"/networks/{two['id']}/tags/red")).status == 201
            assert await cloud.names("network", {"tags": "red,hot"}) == ["one"]
            assert await cloud.names("network", {"tags": "re"}) == []
            assert sorted(await cloud.names("network", {"tags-any": "hot,red"})) == ["one", "two"]
            assert await cloud.names("network", {"not-tags": "hot"}) == ["two"]
            assert (await cloud.call("GET", f"/networks/{one['id']}/tags/hot")).status == 204
            assert (await cloud.call("DELETE", f"/networks/{one['id']}/tags/hot")).status == 204
            assert await cloud.refused("GET", f"/networks/{one['id']}/tags/hot") == (404, "TagNotFound")
            assert (await cloud.show("network", one["id"]))["tags"] == ["red"]
            assert (await cloud.refused("PUT", f"/networks/{one['id']}/tags", {"tags": ["a,b"]}))[0] == 400
            assert (await cloud.refused("PUT", f"/networks/{one['id']}/tags/x", as_="other"))[0] == 404

    asyncio.run(scenario())


def test_network_in_use_cannot_be_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet()
            port = await cloud.create("port", network_id=network["id"])
            assert await cloud.refused("DELETE", f"/networks/{network['id']}") == (409, "NetworkInUse")
            assert await cloud.refused("DELETE", f"/subnets/{subnet['id']}") == (409, "SubnetInUse")
            assert (await cloud.show("network", network["id"]))["subnets"] == [subnet["id"]]
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            await cloud.ok("DELETE", f"/networks/{network['id']}")
            assert await cloud.refused("GET", f"/subnets/{subnet['id']}") == (404, "SubnetNotFound")

    asyncio.run(scenario())


def test_marker_of_another_project_is_not_found(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            theirs = await cloud.create("network", "other", name="theirs")
            unknown = await cloud.refused("GET", "/networks?marker=gone&limit=1")
            assert await cloud.refused("GET", f"/networks?marker={theirs['id']}&limit=1") == unknown
            assert await cloud.names("network", {"marker": theirs["id"]}, as_="other") == []

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["tags", "tags-any", "not-tags", "not-tags-any"])
def test_long_list_of_tags_is_refused(database_url: str, name: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            assert (await cloud.refused("GET", f"/networks?{name}={','.join(['t'] * 3000)}"))[0] == 400
            await cloud.ok("GET", f"/networks?{name}={','.join(['t'] * 100)}")

    asyncio.run(scenario())
