"""Port bindings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.network.support import Net, net
from tests.support.cloud import DEMO


async def bound_port(cloud: Net, host: str = "h1", **attributes: Any) -> dict[str, Any]:
    network, _ = await cloud.network_with_subnet()
    wanted = {"network_id": network["id"], "project_id": DEMO, "binding:host_id": host, **attributes}
    return await cloud.create("port", "service", **wanted)


async def bindings(cloud: Net, port: dict[str, Any], query: str = "") -> list[tuple[str, str]]:
    found = await cloud.ok("GET", f"/ports/{port['id']}/bindings{query}", as_="service")
    return [(binding["host"], binding["status"]) for binding in found["bindings"]]


async def create_binding(cloud: Net, port: dict[str, Any], host: str, **attributes: Any) -> dict[str, Any]:
    body = {"binding": {"host": host, **attributes}}
    created: dict[str, Any] = (await cloud.ok("POST", f"/ports/{port['id']}/bindings", body, "service"))["binding"]
    return created


async def current_binding(cloud: Net, port: dict[str, Any]) -> tuple[str, str, str]:
    shown = await cloud.show("port", port["id"], "admin")
    return shown["binding:host_id"], shown["binding:vif_type"], shown["status"]


def test_binding_is_created_activated_and_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            port = await bound_port(cloud, "h1", **{"binding:profile": {"a": 1}})
            path = f"/ports/{port['id']}/bindings"
            active = {
                "host": "h1",
                "status": "ACTIVE",
                "vif_type": "bridge",
                "vif_details": port["binding:vif_details"],
                "vnic_type": "normal",
                "profile": {"a": 1},
            }
            assert await cloud.ok("GET", path, as_="service") == {"bindings": [active]}
            created = await create_binding(cloud, port, "h2.example.org", profile={"b": 2})
            assert created == {**active, "host": "h2.example.org", "status": "INACTIVE", "profile": {"b": 2}}
            assert await cloud.ok("GET", f"{path}/h2.example.org", as_="service") == {"binding": created}
            assert await current_binding(cloud, port) == ("h1", "bridge", "ACTIVE")

            response = await cloud.ok("PUT", f"{path}/h2.example.org/activate", as_="service")
            assert response == {"binding": {**created, "status": "ACTIVE"}}
            assert await current_binding(cloud, port) == ("h2.example.org", "bridge", "ACTIVE")
            shown = await cloud.show("port", port["id"], "admin")
            assert shown["binding:profile"] == {"b": 2}
            assert shown["revision_number"] > port["revision_number"]
            listed = await cloud.ok("GET", path, as_="service")
            assert listed == {"bindings": [response["binding"], {**active, "status": "INACTIVE"}]}

            await cloud.ok("DELETE", f"{path}/h1", as_="service")
            assert await bindings(cloud, port) == [("h2.example.org", "ACTIVE")]

    asyncio.run(scenario())


def test_bindings_are_updated_filtered_and_reduced_to_fields(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            port = await bound_port(cloud)
            path = f"/ports/{port['id']}/bindings"
            await create_binding(cloud, port, "h2")
            await create_binding(cloud, port, "h3", vnic_type="direct")
            assert await bindings(cloud, port, "?status=INACTIVE") == [("h2", "INACTIVE"), ("h3", "INACTIVE")]
            assert await bindings(cloud, port, "?host=h1&host=h2") == [("h1", "ACTIVE"), ("h2", "INACTIVE")]
            assert await bindings(cloud, port, "?vif_type=binding_failed") == [("h3", "INACTIVE")]
            assert await bindings(cloud, port, "?vnic_type=normal&status=INACTIVE") == [("h2", "INACTIVE")]
            fields = await cloud.ok("GET", f"{path}?fields=host&status=ACTIVE", as_="service")
            assert fields == {"bindings": [{"host": "h1"}]}

            changed = await cloud.ok("PUT", f"{path}/h3", {"binding": {"vnic_type": "normal"}}, "service")
            assert (changed["binding"]["vif_type"], changed["binding"]["status"]) == ("bridge", "INACTIVE")
            await cloud.ok("PUT", f"{path}/h1", {"binding": {"profile": {"a": 1}}}, "service")
            assert (await cloud.show("port", port["id"], "admin"))["binding:profile"] == {"a": 1}
            await cloud.ok("PUT", f"{path}/h1", {"binding": {"profile": None}}, "service")
            assert (await cloud.show("port", port["id"], "admin"))["binding:profile"] == {}
            assert len(await bindings(cloud, port)) == 3

    asyncio.run(scenario())


def test_invalid_binding_requests_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            port = await bound_port(cloud)
            path = f"/ports/{port['id']}/bindings"
            await create_binding(cloud, port, "h2")
            exists, active = (409, "PortBindingAlreadyExists"), (409, "PortBindingAlreadyActive")
            for host in ("h1", "h2"):
                assert await cloud.refused("POST", path, {"binding": {"host": host}}, "service") == exists
            assert await cloud.refused("PUT", f"{path}/h1/activate", as_="service") == active
            missing = (404, "PortBindingNotFound")
            assert await cloud.refused("GET", f"{path}/h9", as_="service") == missing
            assert await cloud.refused("PUT", f"{path}/h9", {"binding": {}}, "service") == missing
            assert await cloud.refused("PUT", f"{path}/h9/activate", as_="service") == missing
            assert await cloud.refused("DELETE", f"{path}/h9", as_="service") == missing
            nowhere = "/ports/00000000-0000-4000-8000-000000000000/bindings"
            assert await cloud.refused("GET", nowhere, as_="service") == (404, "PortNotFound")
            body = {"binding": {"host": "h3"}}
            assert await cloud.refused("POST", nowhere, body, "service") == (404, "PortNotFound")
            for wrong in ({}, {"host": ""}, {"host": "h3", "vnic_type": "x"}, {"host": "h3", "status": "ACTIVE"}):
                assert (await cloud.refused("POST", path, {"binding": wrong}, "service"))[0] == 400, wrong
            for caller in ("member", "manager", "reader", "other"):
                for method, below, sent in (
                    ("GET", "", None),
                    ("POST", "", body),
                    ("PUT", "/h2", {"binding": {}}),
                    ("PUT", "/h2/activate", None),
                    ("DELETE", "/h2", None),
                ):
                    status, _ = await cloud.refused(method, path + below, sent, caller)
                    assert status == 403, (caller, method, below)
            assert await bindings(cloud, port) == [("h1", "ACTIVE"), ("h2", "INACTIVE")]

    asyncio.run(scenario())


def test_bindings_follow_changes_of_the_port(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            port = await bound_port(cloud)
            path = f"/ports/{port['id']}/bindings"
            await create_binding(cloud, port, "h2")
            await create_binding(cloud, port, "h3")
            # Binding the port to the host of an inactive binding removes that one: one binding per host.
            await cloud.update("port", port, "service", **{"binding:host_id": "h2"})
            assert await bindings(cloud, port) == [("h2", "ACTIVE"), ("h3", "INACTIVE")]
            await cloud.ok("DELETE", f"{path}/h2", as_="service")
            assert await bindings(cloud, port) == []
            assert await current_binding(cloud, port) == ("", "unbound", "DOWN")
            # An unbound port can have inactive bindings.
            await create_binding(cloud, port, "h4")
            await cloud.ok("PUT", f"{path}/h4/activate", as_="service")
            assert await bindings(cloud, port) == [("h4", "ACTIVE")]
            await create_binding(cloud, port, "h5")
            await cloud.update("port", port, "service", name="other")
            assert len(await bindings(cloud, port)) == 2
            await cloud.update("port", port, "service", **{"binding:host_id": ""})
            assert await bindings(cloud, port) == []
            await create_binding(cloud, port, "h6")
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            assert await cloud.db.fetch_value("SELECT COUNT(*) FROM standby_bindings") == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["h2", "h3"])
def test_concurrent_changes_leave_one_active_binding(database_url: str, host: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            port = await bound_port(cloud)
            path = f"/ports/{port['id']}/bindings"
            created = await asyncio.gather(
                *(cloud.call("POST", path, {"binding": {"host": "h2"}}, "service") for _ in range(4))
            )
            assert sorted(response.status for response in created) == [201, 409, 409, 409]
            await create_binding(cloud, port, "h3")
            responses = await asyncio.gather(
                *(cloud.call("PUT", f"{path}/{name}/activate", as_="service") for name in ("h2", "h3")),
                cloud.call("DELETE", f"{path}/{host}", as_="service"),
            )
            assert {response.status for response in responses} <= {200, 204, 404}
            left = await bindings(cloud, port)
            active = [name for name, status in left if status == "ACTIVE"]
            assert len(active) <= 1
            assert (await current_binding(cloud, port))[0] == (active[0] if active else "")
            assert active or not left

    asyncio.run(scenario())
