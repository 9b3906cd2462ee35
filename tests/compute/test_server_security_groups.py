"""Security groups of servers: list, add, remove."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.support import NETWORK, act
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

LIST = "/servers/{server_id}/os-security-groups"


async def groups(c: FullCloud, server_id: str) -> dict[str, Any]:
    answer = await c.get(f"/servers/{server_id}/os-security-groups", as_="reader", version="2.104")
    assert answer.status == 200, answer.body
    return {group["name"]: group for group in answer.json()["security_groups"]}


async def create_group(c: FullCloud, name: str, **rule: Any) -> str:
    made = await c.post("/security-groups", {"security_group": {"name": name}}, root=NETWORK)
    group_id: str = made.json()["security_group"]["id"]
    if rule:
        body = {"security_group_rule": {"security_group_id": group_id, "direction": "ingress", **rule}}
        assert (await c.post("/security-group-rules", body, root=NETWORK)).status == 201
    return group_id


@proves(f"GET {LIST}", *(f"POST /servers/{{server_id}}/action#{name}SecurityGroup" for name in ("add", "remove")))
def test_add_and_remove(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            assert set(await groups(c, server_id)) == {"default"}
            rule = {"protocol": "tcp", "port_range_min": 80, "port_range_max": 81, "remote_ip_prefix": "10.0.0.0/8"}
            group_id = await create_group(c, "web", **rule)
            assert (await act(c, server_id, "addSecurityGroup", {"name": "web"})).status == 202
            found = await groups(c, server_id)
            assert set(found) == {"default", "web"}
            (shown,) = found["web"].pop("rules")
            assert found["web"] == {"id": group_id, "name": "web", "description": "", "tenant_id": DEMO}
            assert shown.pop("id")
            assert shown == {
                "parent_group_id": group_id,
                "ip_protocol": "tcp",
                "from_port": 80,
                "to_port": 81,
                "ip_range": {"cidr": "10.0.0.0/8"},
                "group": {},
            }
            own = [each for each in found["default"]["rules"] if each["group"]]
            assert {each["group"]["name"] for each in own} == {"default"}
            names = [each["name"] for each in (await c.show(server_id))["security_groups"]]
            assert sorted(names) == ["default", "web"]
            assert (await act(c, server_id, "addSecurityGroup", {"name": group_id})).status == 202
            assert (await act(c, server_id, "removeSecurityGroup", {"name": "web"})).status == 202
            assert set(await groups(c, server_id)) == {"default"}
            assert (await c.show(server_id))["security_groups"] == [{"name": "default"}]

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            unknown = await act(c, server_id, "addSecurityGroup", {"name": "web"})
            words = f"Security group web not found for project {DEMO}."
            assert fault(unknown) == (404, "itemNotFound", words)
            await create_group(c, "web")
            assert (await act(c, server_id, "removeSecurityGroup", {"name": "web"})).status == 404
            assert (await act(c, server_id, "addSecurityGroup", {"name": "web"}, as_="reader")).status == 403
            assert (await act(c, server_id, "addSecurityGroup", {"name": "web"}, as_="other")).status == 404
            assert (await act(c, server_id, "addSecurityGroup", {"name": ""})).status == 400
            assert (await act(c, server_id, "addSecurityGroup", {})).status == 400
            await create_group(c, "web")
            assert (await act(c, server_id, "addSecurityGroup", {"name": "web"})).status == 409

    run(scenario())
