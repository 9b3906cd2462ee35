"""Proxy for networks, before 2.36."""

from __future__ import annotations

from tests.compute.servers.support import make_network
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

OLD = "2.35"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
NETWORKS, OF_PROJECT = "/os-networks", "/os-tenant-networks"


@proves("GET /os-networks", "GET /os-networks/{id}", "GET /os-tenant-networks", "GET /os-tenant-networks/{id}")
def test_list_and_show(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            own_id = await make_network(c, "own")
            shown = (await c.get(f"{NETWORKS}/{own_id}", version=OLD)).json()["network"]
            assert (shown["id"], shown["label"]) == (own_id, "own")
            assert len(shown) == 32
            assert {value for name, value in shown.items() if name not in ("id", "label")} == {None}
            listed = (await c.get(NETWORKS, as_="reader", version=OLD)).json()["networks"]
            assert shown in listed
            assert sorted(network["label"] for network in listed) == ["own", "private", "public"]

            mine = (await c.get(f"{OF_PROJECT}/{own_id}", version=OLD)).json()["network"]
            assert mine == {"id": own_id, "label": "own", "cidr": "None"}
            labels = {"member": ["own", "private", "public"], "other": ["private", "public"]}
            for as_, expected in {**labels, "admin": labels["other"]}.items():
                found = (await c.get(OF_PROJECT, as_=as_, version=OLD)).json()["networks"]
                assert sorted(network["label"] for network in found) == expected, as_

    run(scenario())


def test_unknown_networks(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            own_id = await make_network(c, "own")
            for path in (NETWORKS, OF_PROJECT):
                for missing in (UNKNOWN_ID, "no-id"):
                    assert fault(await c.get(f"{path}/{missing}", version=OLD))[:2] == (404, "itemNotFound")
                assert (await c.get(f"{path}/{own_id}", as_="other", version=OLD)).status == 404
                for ended in (path, f"{path}/{own_id}"):
                    assert (await c.get(ended, version="2.36")).status == 404
            assert (await c.get(f"{NETWORKS}/{own_id}", as_="admin", version=OLD)).status == 200
            assert (await c.get(f"{OF_PROJECT}/{own_id}", as_="admin", version=OLD)).status == 404

    run(scenario())
