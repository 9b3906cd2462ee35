"""Proxy for floating IPs and their pools, before 2.36."""

from __future__ import annotations

from typing import Any

from tests.compute.interfaces.test_ip_actions import add_router, server_on_network
from tests.compute.servers.support import NETWORK, act
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

OLD = "2.35"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
POOLS, ADDRESSES = "/os-floating-ip-pools", "/os-floating-ips"


async def allocate(c: FullCloud, body: Any, as_: str = "member") -> Any:
    return await c.post(ADDRESSES, body, as_=as_, version=OLD)


async def create_external_network(c: FullCloud) -> str:
    found = (await c.get("/networks?router:external=true", root=NETWORK)).json()["networks"]
    return str(found[0]["id"])


@proves(
    "GET /os-floating-ip-pools",
    "GET /os-floating-ips",
    "POST /os-floating-ips",
    "GET /os-floating-ips/{id}",
    "DELETE /os-floating-ips/{id}",
)
def test_allocate_associate_release(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            pools = (await c.get(POOLS, as_="other", version=OLD)).json()
            assert pools == {"floating_ip_pools": [{"name": "public"}]}
            answer = await allocate(c, {"pool": "public"})
            assert answer.status == 200, answer.body
            made = answer.json()["floating_ip"]
            assert made == {**made, "pool": "public", "instance_id": None, "fixed_ip": None}
            assert (await c.get(f"{ADDRESSES}/{made['id']}", as_="reader", version=OLD)).json()["floating_ip"] == made

            server_id, network_id = await server_on_network(c)
            await add_router(c, network_id, {"floating_network_id": await create_external_network(c)})
            assert (await act(c, server_id, "addFloatingIp", {"address": made["ip"]}, version=OLD)).status == 202
            fixed = (await c.show(server_id))["addresses"]["own"][0]["addr"]
            led = {**made, "instance_id": server_id, "fixed_ip": fixed}
            assert (await c.get(f"{ADDRESSES}/{made['id']}", version=OLD)).json()["floating_ip"] == led
            for as_, expected in (("member", [led]), ("other", []), ("admin", [])):
                assert (await c.get(ADDRESSES, as_=as_, version=OLD)).json() == {"floating_ips": expected}, as_

            given = await c.delete(f"{ADDRESSES}/{made['id']}", version=OLD)
            assert (given.status, given.body) == (202, b"")
            assert (await c.get(f"{ADDRESSES}/{made['id']}", version=OLD)).status == 404
            assert (await c.get(ADDRESSES, version=OLD)).json() == {"floating_ips": []}
            assert len((await c.show(server_id))["addresses"]["own"]) == 1

    run(scenario())


def test_choice_of_pool(sqlite_url: str) -> None:
    """The pool is found by name or id; without one the default pool is used."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            second = {"name": "second", "router:external": True}
            made = await c.post("/networks", {"network": second}, root=NETWORK, as_="admin")
            second_id = made.json()["network"]["id"]
            assert (await allocate(c, {"pool": "second"})).status == 404  # no addresses there
            subnet = {"network_id": second_id, "ip_version": 4, "cidr": "203.0.113.0/29"}
            assert (await c.post("/subnets", {"subnet": subnet}, root=NETWORK, as_="admin")).status == 201
            for body, pool in (
                ({"pool": "second"}, "second"),
                ({"pool": second_id}, "second"),
                ({"pool": None}, "public"),
                ({}, "public"),
            ):
                answer = await allocate(c, body)
                assert (answer.status, answer.json()["floating_ip"]["pool"]) == (200, pool), answer.body
            names = [pool["name"] for pool in (await c.get(POOLS, version=OLD)).json()["floating_ip_pools"]]
            assert sorted(names) == ["public", "second"]
            same = {"network": {"name": "public"}}
            assert (await c.put(f"/networks/{second_id}", same, root=NETWORK, as_="admin")).status == 200
            assert fault(await allocate(c, {"pool": "public"}))[0] == 400

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            assert fault(await allocate(c, {"pool": "nowhere"}))[:2] == (404, "itemNotFound")
            assert (await allocate(c, {"pool": "private"})).status == 404
            assert (await allocate(c, {"pool": 1})).status == 400
            assert (await allocate(c, {"pool": "public"}, as_="reader")).status == 403
            made = (await allocate(c, {"pool": "public"})).json()["floating_ip"]
            limit = {"quota": {"floatingip": 1}}
            assert (await c.put(f"/quotas/{DEMO}", limit, root=NETWORK, as_="admin")).status == 200
            assert fault(await allocate(c, {"pool": "public"}))[:2] == (403, "forbidden")
            for path in (f"{ADDRESSES}/{UNKNOWN_ID}", f"{ADDRESSES}/no-id"):
                assert fault(await c.get(path, version=OLD))[:2] == (404, "itemNotFound")
                assert fault(await c.delete(path, version=OLD))[:2] == (404, "itemNotFound")
            assert (await c.get(f"{ADDRESSES}/{made['id']}", as_="other", version=OLD)).status == 404
            assert (await c.delete(f"{ADDRESSES}/{made['id']}", as_="other", version=OLD)).status == 404
            assert (await c.delete(f"{ADDRESSES}/{made['id']}", as_="reader", version=OLD)).status == 403
            for path in (POOLS, ADDRESSES, f"{ADDRESSES}/{made['id']}"):
                assert (await c.get(path, version="2.36")).status == 404

    run(scenario())
