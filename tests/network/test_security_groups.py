"""Security groups and their rules."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.network.support import net
from tests.support.cloud import OTHER


def test_default_group_is_created_on_first_list(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            found = await asyncio.gather(*(cloud.list_all("security_group") for _ in range(8)))
            assert {len(groups) for groups in found} == {1}
            (group,) = found[0]
            assert group["name"] == "default"
            attributes = sorted((rule["direction"], rule["ethertype"]) for rule in group["security_group_rules"])
            assert attributes == [("egress", "IPv4"), ("egress", "IPv6"), ("ingress", "IPv4"), ("ingress", "IPv6")]
            inward = [rule for rule in group["security_group_rules"] if rule["direction"] == "ingress"]
            assert {rule["remote_group_id"] for rule in inward} == {group["id"]}
            path = f"/security-groups/{group['id']}"
            assert await cloud.refused("DELETE", path) == (409, "SecurityGroupCannotRemoveDefault")
            renamed = await cloud.refused("PUT", path, {"security_group": {"name": "x"}})
            assert renamed == (409, "SecurityGroupCannotUpdateDefault")
            again = await cloud.refused("POST", "/security-groups", {"security_group": {"name": "default"}})
            assert again == (409, "SecurityGroupDefaultAlreadyExists")
            assert (await cloud.refused("GET", path, as_="other"))[0] == 404
            await cloud.ok("DELETE", path, as_="admin")

    asyncio.run(scenario())


def test_group_is_created_updated_and_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            group = await cloud.create("security_group", name="web", description="80")
            assert [rule["direction"] for rule in group["security_group_rules"]] == ["egress", "egress"]
            others = [await cloud.create("security_group") for _ in range(8)]
            assert all([each == await cloud.show("security_group", each["id"]) for each in others])
            for other in others:
                await cloud.ok("DELETE", f"/security-groups/{other['id']}")
            assert await cloud.names("security_group", {"name": "web"}) == ["web"]
            changed = await cloud.update("security_group", group, name="www", stateful=False)
            assert (changed["name"], changed["stateful"]) == ("www", False)
            rule = await cloud.create(
                "security_group_rule",
                security_group_id=group["id"],
                direction="ingress",
                protocol="TCP",
                port_range_min="80",
                port_range_max=80,
                remote_ip_prefix="10.0.0.7/8",
            )
            assert (rule["protocol"], rule["port_range_min"], rule["ethertype"]) == ("tcp", 80, "IPv4")
            assert (rule["remote_ip_prefix"], rule["normalized_cidr"]) == ("10.0.0.7/8", "10.0.0.0/8")
            assert await cloud.show("security_group_rule", rule["id"]) == rule
            shown = await cloud.show("security_group", group["id"])
            assert rule in shown["security_group_rules"]
            assert len(await cloud.list_all("security_group_rule", {"security_group_id": group["id"]})) == 3
            assert len(await cloud.list_all("security_group_rule", {"protocol": "tcp"})) == 1
            await cloud.ok("DELETE", f"/security-group-rules/{rule['id']}")
            gone = await cloud.refused("GET", f"/security-group-rules/{rule['id']}")
            assert gone == (404, "SecurityGroupRuleNotFound")
            await cloud.ok("DELETE", f"/security-groups/{group['id']}")
            assert len(await cloud.list_all("security_group_rule", {"security_group_id": group["id"]})) == 0

    asyncio.run(scenario())


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"protocol": "nonsense"}, 400, "SecurityGroupRuleInvalidProtocol"),
    ({"protocol": "256"}, 400, "SecurityGroupRuleInvalidProtocol"),
    ({"protocol": "²"}, 400, "SecurityGroupRuleInvalidProtocol"),
    ({"port_range_min": 80, "port_range_max": 80}, 400, "SecurityGroupProtocolRequiredWithPorts"),
    ({"protocol": "tcp", "port_range_min": 81, "port_range_max": 80}, 400, "SecurityGroupInvalidPortRange"),
    ({"protocol": "tcp", "port_range_min": 80}, 400, "SecurityGroupInvalidPortRange"),
    ({"protocol": "tcp", "port_range_max": "99999"}, 400, "SecurityGroupInvalidPortValue"),
    ({"protocol": "tcp", "port_range_min": -16, "port_range_max": 80}, 400, "SecurityGroupInvalidPortValue"),
    ({"protocol": "tcp", "port_range_min": 0, "port_range_max": 80}, 400, "SecurityGroupInvalidPortValue"),
    ({"protocol": "tcp", "port_range_min": 700000}, 400, "HTTPBadRequest"),
    ({"protocol": "icmp", "port_range_min": -1, "port_range_max": 25}, 400, "SecurityGroupInvalidIcmpValue"),
    ({"remote_group_id": "no-id"}, 404, "SecurityGroupNotFound"),
    ({"protocol": "icmp", "port_range_min": 256}, 400, "SecurityGroupInvalidIcmpValue"),
    ({"protocol": "icmp", "port_range_max": 1}, 400, "SecurityGroupMissingIcmpType"),
    ({"protocol": "gre", "port_range_min": 1, "port_range_max": 2}, 400, "SecurityGroupInvalidProtocolForPort"),
    ({"protocol": "icmpv6"}, 400, "SecurityGroupEthertypeConflictWithProtocol"),
    ({"remote_ip_prefix": "fd00::/64"}, 400, "SecurityGroupRuleParameterConflict"),
    ({"remote_ip_prefix": "nonsense"}, 400, "HTTPBadRequest"),
    ({"direction": "sideways"}, 400, "HTTPBadRequest"),
    ({"remote_group_id": OTHER}, 404, "SecurityGroupNotFound"),
]


def test_invalid_rules_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            group = await cloud.create("security_group", name="g")
            for wrong, status, kind in REFUSED:
                body = {"security_group_id": group["id"], "direction": "ingress", **wrong}
                response = await cloud.refused("POST", "/security-group-rules", {"security_group_rule": body})
                assert response == (status, kind), wrong
            both = {"remote_ip_prefix": "10.0.0.0/8", "remote_group_id": group["id"]}
            body = {"security_group_id": group["id"], "direction": "ingress", **both}
            response = await cloud.refused("POST", "/security-group-rules", {"security_group_rule": body})
            assert response == (400, "SecurityGroupRemoteGroupAndRemoteIpPrefix")
            body = {"security_group_id": group["id"], "direction": "ingress", "protocol": "icmp", "port_range_min": 8}
            await cloud.create("security_group_rule", **body)
            twice = await cloud.refused("POST", "/security-group-rules", {"security_group_rule": body})
            assert twice == (409, "SecurityGroupRuleExists")
            body["security_group_id"] = OTHER
            missing = await cloud.refused("POST", "/security-group-rules", {"security_group_rule": body})
            assert missing == (404, "SecurityGroupNotFound")

    asyncio.run(scenario())
