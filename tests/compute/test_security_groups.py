"""Proxy for security groups and their rules, before 2.36."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.servers.support import NETWORK
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

OLD = "2.35"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
GROUPS, RULES = "/os-security-groups", "/os-security-group-rules"


async def create(c: FullCloud, name: str = "g", as_: str = "member") -> Any:
    body = {"security_group": {"name": name, "description": "d"}}
    return await c.post(GROUPS, body, as_=as_, version=OLD)


async def created(c: FullCloud, name: str = "g") -> dict[str, Any]:
    answer = await create(c, name)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()["security_group"]
    return found


async def rule(c: FullCloud, parent_id: str, **keys: Any) -> Any:
    return await c.post(RULES, {"security_group_rule": {"parent_group_id": parent_id, **keys}}, version=OLD)


@proves(
    "GET /os-security-groups",
    "POST /os-security-groups",
    "GET /os-security-groups/{id}",
    "PUT /os-security-groups/{id}",
    "DELETE /os-security-groups/{id}",
)
def test_create_update_delete_groups(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            group = await created(c)
            assert group == {"id": group["id"], "name": "g", "description": "d", "tenant_id": DEMO, "rules": []}
            path = f"{GROUPS}/{group['id']}"
            assert (await c.get(path, as_="reader", version=OLD)).json()["security_group"] == group
            listed = (await c.get(GROUPS, as_="reader", version=OLD)).json()["security_groups"]
            assert [each["name"] for each in listed] == ["default", "g"]
            assert [each["group"]["name"] for each in listed[0]["rules"]] == ["default", "default"]
            page = (await c.get(f"{GROUPS}?limit=1&offset=1&unknown=x", version=OLD)).json()["security_groups"]
            assert page == [group]

            renamed = {"security_group": {"name": "h", "description": ""}}
            answer = await c.put(path, renamed, version=OLD)
            assert (answer.status, answer.json()["security_group"]) == (200, {**group, "name": "h", "description": ""})
            gone = await c.delete(path, version=OLD)
            assert (gone.status, gone.body) == (202, b"")
            assert (await c.get(path, version=OLD)).status == 404

    run(scenario())


def test_all_tenants(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            await created(c)

            async def names(as_: str) -> set[str]:
                found = (await c.get(f"{GROUPS}?all_tenants=1", as_=as_, version=OLD)).json()["security_groups"]
                return {group["name"] for group in found if group["tenant_id"] == DEMO}

            assert await names("admin") == {"default", "g"}
            assert await names("other") == set()
            own = (await c.get(GROUPS, as_="admin", version=OLD)).json()["security_groups"]
            assert [group["name"] for group in own] == ["default"]

    run(scenario())


@proves("POST /os-security-group-rules", "DELETE /os-security-group-rules/{id}")
def test_create_and_delete_rules(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            group, other = await created(c), await created(c, "other")
            answer = await rule(c, group["id"], ip_protocol="TCP", from_port="22", to_port=22, cidr="10.0.0.0/24")
            assert answer.status == 200, answer.body
            first = answer.json()["security_group_rule"]
            assert first == {
                "id": first["id"],
                "parent_group_id": group["id"],
                "ip_protocol": "tcp",
                "from_port": 22,
                "to_port": 22,
                "group": {},
                "ip_range": {"cidr": "10.0.0.0/24"},
            }
            second = (await rule(c, group["id"], ip_protocol="icmp", from_port=-1, to_port=-1)).json()
            icmp = second["security_group_rule"]
            assert (icmp["from_port"], icmp["to_port"], icmp["ip_range"]) == (-1, -1, {"cidr": "0.0.0.0/0"})
            third = (await rule(c, group["id"], group_id=other["id"], cidr=None)).json()["security_group_rule"]
            assert third["group"] == {"name": "other", "tenant_id": DEMO}
            assert (third["ip_protocol"], third["ip_range"]) == (None, {})
            six = (await rule(c, group["id"], ip_protocol="udp", from_port=1, to_port=2, cidr="2001:db8::/32")).json()
            assert six["security_group_rule"]["ip_range"] == {"cidr": "2001:db8::/32"}

            shown = (await c.get(f"{GROUPS}/{group['id']}", version=OLD)).json()["security_group"]["rules"]
            expected = [first, icmp, third, six["security_group_rule"]]
            assert sorted(shown, key=str) == sorted(expected, key=str)
            gone = await c.delete(f"{RULES}/{first['id']}", version=OLD)
            assert (gone.status, gone.body) == (202, b"")
            assert (await c.delete(f"{RULES}/{first['id']}", version=OLD)).status == 404
            left = (await c.get(f"/security-groups/{group['id']}", root=NETWORK)).json()["security_group"]
            assert first["id"] not in [each["id"] for each in left["security_group_rules"]]

    run(scenario())


SSH = {"ip_protocol": "tcp", "from_port": 22, "to_port": 22}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"ip_protocol": "tcp"},
        {**SSH, "ip_protocol": "999-x"},
        {**SSH, "from_port": 65536},
        {**SSH, "to_port": 21},
        {**SSH, "from_port": -1, "to_port": -1},
        {**SSH, "cidr": "10.0.0.0/99"},
        {**SSH, "parent_group_id": "no-id"},
        {**SSH, "group_id": "no-id"},
    ],
)
def test_invalid_rules_are_refused(sqlite_url: str, wrong: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            body = {"parent_group_id": (await created(c))["id"], **wrong}
            answer = await c.post(RULES, {"security_group_rule": body}, version=OLD)
            assert fault(answer)[:2] == (400, "badRequest")

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            group = await created(c)
            path = f"{GROUPS}/{group['id']}"
            assert (await rule(c, group["id"], **SSH)).status == 200
            assert fault(await rule(c, group["id"], **SSH))[:2] == (400, "badRequest")  # exists already
            assert (await rule(c, UNKNOWN_ID, **SSH)).status == 404
            assert (await rule(c, group["id"], group_id=UNKNOWN_ID)).status == 404
            assert (await create(c, as_="reader")).status == 403
            assert (await create(c, "default")).status == 400
            for body in ({"name": "n"}, {"description": "d"}, {"name": "n" * 256, "description": "d"}):
                assert (await c.post(GROUPS, {"security_group": body}, version=OLD)).status == 400
            await c.boot_active(security_groups=[{"name": "g"}])
            assert fault(await c.delete(path, version=OLD))[:2] == (400, "badRequest")  # in use by a server
            default = (await c.get(GROUPS, version=OLD)).json()["security_groups"][0]
            assert (await c.delete(f"{GROUPS}/{default['id']}", version=OLD)).status == 400

            changes = {"security_group": {"name": "n", "description": "d"}}
            for missing, status in ((UNKNOWN_ID, 404), ("no-id", 400)):
                assert (await c.get(f"{GROUPS}/{missing}", version=OLD)).status == status
                assert (await c.put(f"{GROUPS}/{missing}", changes, version=OLD)).status == status
                assert (await c.delete(f"{GROUPS}/{missing}", version=OLD)).status == status
                assert (await c.delete(f"{RULES}/{missing}", version=OLD)).status == status
            assert (await c.get(path, as_="other", version=OLD)).status == 404
            assert (await c.delete(path, as_="other", version=OLD)).status == 404
            full = {"quota": {"security_group": 0, "security_group_rule": 0}}
            assert (await c.put(f"/quotas/{DEMO}", full, root=NETWORK, as_="admin")).status == 200
            assert fault(await create(c, "more"))[:2] == (403, "forbidden")
            assert (await rule(c, group["id"], **{**SSH, "to_port": 23})).status == 403
            for ended in (GROUPS, path):
                assert (await c.get(ended, version="2.36")).status == 404
            assert (await c.post(RULES, {"security_group_rule": {}}, version="2.36")).status == 404

    run(scenario())
