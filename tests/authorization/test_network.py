"""Who may call the routes of the Networking API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.network import build
from kilonova.policy.network import RULES
from tests.authorization.support import Comparison, Part, caller_of, check_readers_write_nothing, check_rules
from tests.fuzz.resources import ApiCaller
from tests.support import run
from tests.support.cloud import DEMO, OTHER
from tests.support.full_cloud import FullCloud, full_cloud


async def create_objects(c: FullCloud, project_id: str, outside: str, subnet_octet: int) -> dict[str, Any]:
    call = ApiCaller(c, build(), f"admin@{project_id}")

    async def make(noun: str, **values: Any) -> str:
        made = await call.make(f"/v2.0/{noun.replace('_', '-')}s", noun, **values)
        path = f"/v2.0/{noun.replace('_', '-')}s/{made['id']}/tags/tag"
        assert (await call("PUT", path, None, None)).status < 300 or noun == "security_group_rule"
        return str(made["id"])

    network = await make("network", name="n")
    subnet = await make("subnet", network_id=network, cidr=f"10.{subnet_octet}.0.0/24", ip_version=4)
    port = await make("port", network_id=network)
    await call("POST", f"/v2.0/ports/{port}/bindings", None, {"binding": {"host": "host"}})
    group = await make("security_group", name="g")
    subport = await make("port", network_id=network)
    subports = [{"port_id": subport, "segmentation_id": 7}]
    trunk = await make("trunk", port_id=await make("port", network_id=network), sub_ports=subports)
    return {
        "network_id": network,
        "floating_network_id": outside,
        "subnet_id": subnet,
        "port_id": port,
        "router_id": await make("router", name="r"),
        "security_group_id": group,
        "security_group_rule_id": await make("security_group_rule", security_group_id=group, direction="ingress"),
        "floatingip_id": await make("floatingip", floating_network_id=outside),
        "trunk_id": trunk,
        "subport_id": subport,
        "project_id": project_id,
        "host": "host",
        "alias": "quotas",
        "tag": "tag",
        "cidr": "10.97.0.0/24",
    }


ATTRIBUTES: dict[str, Any] = {
    "shared": True,
    "router:external": True,
    "is_default": True,
    "port_security_enabled": False,
    "provider:network_type": "local",
    "provider:physical_network": "physnet",
    "provider:segmentation_id": 7,
    "device_id": "d",
    "device_owner": "me",
    "mac_address": "fa:16:3e:00:00:01",
    "binding:host_id": "host",
    "binding:profile": {"a": "b"},
    "binding:vnic_type": "direct",
    "allowed_address_pairs": [{"ip_address": "10.0.0.9"}],
}
_PROVIDER = ("network_type", "physical_network", "segmentation_id")
NOT_CALLED = {
    **dict.fromkeys(("create_network:segments", "get_network:segments"), "networks have one segment"),
    **dict.fromkeys((f"update_network:provider:{name}" for name in _PROVIDER), "these attributes cannot be changed"),
    **dict.fromkeys(("create_router:distributed", "create_router:ha"), "only the defaults are accepted"),
    **dict.fromkeys(("get_router:distributed", "get_router:ha"), "these attributes are not shown"),
    "get_port:resource_request": "ports request no resources",
    "get_agent": "there are no agents to hide",
}
ROUTE_OF_VERB = {"create": "POST /v2.0/{}s", "update": "PUT /v2.0/{}s/{{{}_id}}"}


def parts(names: Mapping[str, Any]) -> list[Part]:
    """One request for each rule about an attribute."""
    found = []
    for rule in RULES:
        verb, _, rest = rule.name.partition("_")
        noun, _, attribute = rest.partition(":")
        if verb in ROUTE_OF_VERB and attribute in ATTRIBUTES and rule.name not in NOT_CALLED:
            required = {"project_id": DEMO} if verb == "create" else {}
            if (verb, noun) == ("create", "port"):
                required["network_id"] = names["network_id"]
            body = {noun: {**required, attribute: ATTRIBUTES[attribute]}}
            found.append(Part(rule.name, ROUTE_OF_VERB[verb].format(noun, noun), body))
    fixed_ips = {"ip_address": [{"ip_address": names["free"]}], "subnet_id": [{"subnet_id": names["subnet_id"]}]}
    for verb, required in (("create", {"project_id": DEMO}), ("update", {})):
        on_network = {**required, "network_id": names["network_id"]} if required else {}
        key = ROUTE_OF_VERB[verb].format("port", "port")
        for name, asked in fixed_ips.items():
            rule_name = f"{verb}_port:fixed_ips"
            found.append(Part(rule_name, key, {"port": {**on_network, "fixed_ips": asked}}))
            found.append(Part(f"{rule_name}:{name}", key, {"port": {**on_network, "fixed_ips": asked}}))
        outside = {"network_id": names["floating_network_id"]}
        rule_name, key = f"{verb}_router:external_gateway_info", ROUTE_OF_VERB[verb].format("router", "router")
        for name, info in (
            ("", outside),
            (":network_id", outside),
            (":enable_snat", {**outside, "enable_snat": True}),
            (":external_fixed_ips", {**outside, "external_fixed_ips": [{"subnet_id": names["outside"]}]}),
        ):
            found.append(Part(rule_name + name, key, {"router": {**required, "external_gateway_info": info}}))
    floating = {
        "project_id": DEMO,
        "floating_network_id": names["floating_network_id"],
        "floating_ip_address": "10.98.0.77",
    }
    found.append(Part("create_floatingip:floating_ip_address", "POST /v2.0/floatingips", {"floatingip": floating}))
    for attribute in ("physical_network", "segmentation_id"):
        rule_name = f"get_network:provider:{attribute}"
        found.append(Part(rule_name, "GET /v2.0/networks", query=f"?provider:{attribute}=7"))
    return found


MISSING = {
    "DELETE /v2.0/auto-allocated-topology/{project_id}",
    "DELETE /v2.0/quotas/{project_id}",
    # The network has no router.
    "PUT /v2.0/routers/{router_id}/remove_router_interface",
    "PUT /v2.0/floatingips/{floatingip_id}",
}


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    interface = {"subnet_id": names["subnet_id"]}
    router = "PUT /v2.0/routers/{router_id}/"
    trunk = "PUT /v2.0/trunks/{trunk_id}/"
    return {
        f"{router}add_router_interface": interface,
        f"{router}remove_router_interface": interface,
        f"{trunk}add_subports": {"sub_ports": [{"port_id": names["port_id"], "segmentation_id": 8}]},
        f"{trunk}remove_subports": {"sub_ports": [{"port_id": names["subport_id"]}]},
    }


def test_answers_match_the_page(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            admin = ApiCaller(c, build())
            outside = (await admin.make("/v2.0/networks", "network", name="outside", **{"router:external": True}))["id"]
            subnet = await admin.make("/v2.0/subnets", "subnet", network_id=outside, cidr="10.98.0.0/24", ip_version=4)
            own, other = await create_objects(c, DEMO, outside, 90), await create_objects(c, OTHER, outside, 91)
            own |= {"outside": subnet["id"], "free": "10.90.0.99"}
            compared = Comparison(
                build(), c.services, caller_of(c, build()), own, other, bodies, parts=parts(own), missing=MISSING
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, NOT_CALLED)

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(build(), {})
