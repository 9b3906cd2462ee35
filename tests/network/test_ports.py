"""Ports: fixed IPs, bindings, security groups, lists and permissions."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.network.support import net
from tests.support.cloud import DEMO


def ips(port: dict[str, Any]) -> list[str]:
    return [fixed["ip_address"] for fixed in port["fixed_ips"]]


def test_new_port_has_address_mac_and_default_group(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet()
            port = await cloud.create("port", network_id=network["id"], name="eth0")
            assert port["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": "10.1.0.2"}]
            assert port["mac_address"].startswith("fa:16:3e:")
            assert (port["status"], port["device_id"], port["binding:vnic_type"]) == ("DOWN", "", "normal")
            assert "binding:host_id" not in port
            (group,) = await cloud.list_all("security_group")
            assert port["security_groups"] == [group["id"]]
            assert group["name"] == "default"
            assert await cloud.show("port", port["id"]) == port
            assert ips(await cloud.create("port", network_id=network["id"])) == ["10.1.0.3"]
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            assert await cloud.refused("GET", f"/ports/{port['id']}") == (404, "PortNotFound")

    asyncio.run(scenario())


def test_bound_port_is_active(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            wanted = {"network_id": network["id"], "project_id": DEMO, "device_id": "server", "binding:host_id": "h1"}
            port = await cloud.create("port", "service", device_owner="compute:nova", **wanted)
            assert (port["status"], port["binding:host_id"], port["binding:vif_type"]) == ("ACTIVE", "h1", "bridge")
            assert port["project_id"] == DEMO
            seen = await cloud.show("port", port["id"])
            assert seen["status"] == "ACTIVE"
            assert not [key for key in seen if key.startswith("binding:") and key != "binding:vnic_type"]
            free = await cloud.update("port", port, "service", device_id="", **{"binding:host_id": ""})
            assert (free["status"], free["binding:vif_type"]) == ("DOWN", "unbound")
            for body in ({"binding:host_id": "h2"}, {"binding:profile": {"a": 1}}, {"mac_address": "fa:16:3e:0:0:0"}):
                assert (await cloud.refused("PUT", f"/ports/{port['id']}", {"port": body}))[0] in (400, 403), body
            direct = await cloud.create(
                "port", "admin", network_id=network["id"], **{"binding:vnic_type": "direct", "binding:host_id": "h1"}
            )
            assert (direct["status"], direct["binding:vif_type"]) == ("DOWN", "binding_failed")

    asyncio.run(scenario())


def test_port_gets_requested_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet("10.1.0.0/24")
            other = await cloud.create("subnet", network_id=network["id"], cidr="10.2.0.0/24", ip_version=4)

            async def port(fixed_ips: Any) -> dict[str, Any]:
                return await cloud.create("port", network_id=network["id"], fixed_ips=fixed_ips)

            async def refused(fixed_ips: Any) -> tuple[int, str]:
                body = {"port": {"network_id": network["id"], "fixed_ips": fixed_ips}}
                return await cloud.refused("POST", "/ports", body)

            assert ips(await port([{"ip_address": "10.1.0.77"}])) == ["10.1.0.77"]
            assert ips(await port([{"subnet_id": other["id"]}])) == ["10.2.0.2"]
            both = [{"subnet_id": subnet["id"], "ip_address": "10.1.0.78"}, {"subnet_id": other["id"]}]
            assert ips(await port(both)) == ["10.1.0.78", "10.2.0.3"]
            assert ips(await port([])) == []
            assert ips(await port(None)) == ["10.1.0.79"]
            assert await refused([{"ip_address": "10.1.0.77"}]) == (409, "IpAddressAlreadyAllocated")
            assert await refused([{"ip_address": "10.9.0.1"}]) == (400, "InvalidIpForNetwork")
            assert await refused([{"ip_address": "10.1.0.255"}]) == (400, "InvalidIpForNetwork")
            wrong = [{"subnet_id": other["id"], "ip_address": "10.1.0.80"}]
            assert await refused(wrong) == (400, "InvalidIpForSubnet")
            assert await refused([{"subnet_id": network["id"]}]) == (400, "InvalidInput")
            assert (await refused([{}]))[0] == 400
            assert (await refused([{"ip_address": "10.1.0.300"}]))[0] == 400
            assert (await refused([{"ip_address": "10.2.0.100"}] * 6))[0] == 400
            found = await cloud.list_all("port", {"fixed_ips": "ip_address=10.1.0.78"})
            assert [ips(item) for item in found] == [["10.1.0.78", "10.2.0.3"]]
            assert len(await cloud.list_all("port", {"fixed_ips": f"subnet_id={other['id']}"})) == 2
            assert (await cloud.refused("GET", "/ports?fixed_ips=nonsense"))[0] == 400

    asyncio.run(scenario())


def test_changed_addresses_are_released(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet("10.1.0.0/29")
            port = await cloud.create("port", network_id=network["id"])
            assert ips(port) == ["10.1.0.2"]
            same = await cloud.update("port", port, fixed_ips=[{"subnet_id": subnet["id"]}])
            assert ips(same) == ["10.1.0.2"]
            more = await cloud.update("port", port, fixed_ips=[{"ip_address": "10.1.0.5"}, {"subnet_id": subnet["id"]}])
            assert sorted(ips(more)) == ["10.1.0.2", "10.1.0.5"]
            moved = await cloud.update("port", port, fixed_ips=[{"ip_address": "10.1.0.6"}])
            assert ips(moved) == ["10.1.0.6"]
            assert await cloud.show("port", port["id"]) == moved
            assert ips(await cloud.create("port", network_id=network["id"], fixed_ips=[{"ip_address": "10.1.0.2"}]))

    asyncio.run(scenario())


def test_exhausted_pool_is_refused_until_release(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("10.1.0.0/29")
            created = [await cloud.create("port", network_id=network["id"]) for _ in range(5)]
            assert sorted(ips(port)[0] for port in created) == [f"10.1.0.{n}" for n in range(2, 7)]
            body = {"port": {"network_id": network["id"]}}
            assert await cloud.refused("POST", "/ports", body) == (409, "IpAddressGenerationFailure")
            assert len(await cloud.list_all("port")) == 5
            await cloud.ok("DELETE", f"/ports/{created[2]['id']}")
            assert ips(await cloud.create("port", network_id=network["id"])) == ips(created[2])

    asyncio.run(scenario())


def test_bulk_creation_is_all_or_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("10.1.0.0/29")
            body = {"ports": [{"network_id": network["id"], "name": str(n)} for n in range(3)]}
            created = (await cloud.ok("POST", "/ports", body))["ports"]
            assert [port["name"] for port in created] == ["0", "1", "2"]
            assert await cloud.refused("POST", "/ports", body) == (409, "IpAddressGenerationFailure")
            assert len(await cloud.list_all("port")) == 3

    asyncio.run(scenario())


def test_mac_addresses_are_unique_in_network(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            one, _ = await cloud.network_with_subnet()
            two, _ = await cloud.network_with_subnet()
            mac = "fa:16:3e:01:02:03"
            port = await cloud.create("port", network_id=one["id"], mac_address=mac)
            body = {"port": {"network_id": one["id"], "mac_address": mac.upper()}}
            assert await cloud.refused("POST", "/ports", body) == (409, "MacAddressInUse")
            await cloud.create("port", network_id=two["id"], mac_address=mac)
            second = await cloud.create("port", network_id=one["id"])
            path = f"/ports/{second['id']}"
            assert await cloud.refused("PUT", path, {"port": {"mac_address": mac}}, "admin") == (409, "MacAddressInUse")
            free = await cloud.update("port", second, "admin", mac_address="fa:16:3e:01:02:04")
            assert free["mac_address"] == "fa:16:3e:01:02:04"
            await cloud.update("port", port, "admin", **{"binding:host_id": "h"})
            bound = await cloud.refused(
                "PUT", f"/ports/{port['id']}", {"port": {"mac_address": mac[:-1] + "9"}}, "admin"
            )
            assert bound == (409, "PortBound")

    asyncio.run(scenario())


def test_user_of_shared_network_cannot_disable_port_security_or_take_gateway(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            shared = await cloud.create("network", "admin", shared=True)
            port = await cloud.create("port", network_id=shared["id"], allowed_address_pairs=[])
            for changes in (
                {"port_security_enabled": False},
                {"allowed_address_pairs": [{"ip_address": "0.0.0.0/0"}]},
            ):
                body = {"port": {"network_id": shared["id"], **changes}}
                assert (await cloud.refused("POST", "/ports", body))[0] == 403
                assert (await cloud.refused("PUT", f"/ports/{port['id']}", {"port": changes}))[0] == 403
            await cloud.create("subnet", "admin", network_id=shared["id"], ip_version=4, cidr="10.5.0.0/24")
            gateway = {"fixed_ips": [{"ip_address": "10.5.0.1"}]}
            body = {"port": {"network_id": shared["id"], **gateway}}
            assert (await cloud.refused("POST", "/ports", body))[0] == 403
            assert (await cloud.refused("PUT", f"/ports/{port['id']}", {"port": gateway}))[0] == 403
            # A service cannot take the gateway's address for them either.
            body["port"]["project_id"] = DEMO
            assert await cloud.refused("POST", "/ports", body, "service") == (400, "InvalidIpForSubnet")
            await cloud.create("port", "admin", network_id=shared["id"], **gateway)
            # The gateway of one subnet may be an address of another.
            body["port"]["fixed_ips"] = [{"ip_address": "10.5.0.99"}]
            subnet = {"network_id": shared["id"], "ip_version": 4, "cidr": "10.6.0.0/24", "gateway_ip": "10.5.0.99"}
            await cloud.create("subnet", "admin", **subnet)
            assert await cloud.refused("POST", "/ports", body, "service") == (400, "InvalidIpForSubnet")

    asyncio.run(scenario())


def test_only_owner_chooses_addresses_on_shared_network(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            shared = await cloud.create("network", "admin", shared=True)
            wanted = {"network_id": shared["id"], "ip_version": 4}
            first = await cloud.create("subnet", "admin", cidr="10.5.0.0/24", **wanted)
            second = await cloud.create("subnet", "admin", cidr="10.6.0.0/24", **wanted)
            chosen = {"fixed_ips": [{"subnet_id": first["id"], "ip_address": "10.5.0.77"}]}
            for body in (chosen, {"fixed_ips": [{"ip_address": "10.5.0.77"}]}):
                request = {"port": {"network_id": shared["id"], **body}}
                for as_ in ("member", "manager"):
                    assert (await cloud.refused("POST", "/ports", request, as_))[0] == 403
            # Users may choose the subnet, and keep the addresses that they have.
            port = await cloud.create("port", network_id=shared["id"], fixed_ips=[{"subnet_id": second["id"]}])
            assert ips(port) == ["10.6.0.2"]
            kept = await cloud.update("port", port, fixed_ips=[*port["fixed_ips"], {"subnet_id": first["id"]}])
            assert sorted(ips(kept)) == ["10.5.0.2", "10.6.0.2"]
            path = f"/ports/{port['id']}"
            for as_ in ("member", "manager"):
                assert (await cloud.refused("PUT", path, {"port": chosen}, as_))[0] == 403
            assert ips(await cloud.update("port", port, "admin", **chosen)) == ["10.5.0.77"]
            served = await cloud.create(
                "port", "service", network_id=shared["id"], project_id=DEMO, fixed_ips=[{"ip_address": "10.5.0.78"}]
            )
            assert ips(served) == ["10.5.0.78"]
            own, subnet = await cloud.network_with_subnet()
            mine = await cloud.create("port", network_id=own["id"], fixed_ips=[{"ip_address": "10.1.0.9"}])
            assert mine["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": "10.1.0.9"}]

    asyncio.run(scenario())


def test_port_security_and_security_groups(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            web = await cloud.create("security_group", name="web")
            theirs = await cloud.create("security_group", "other", name="theirs")
            port = await cloud.create("port", network_id=network["id"], security_groups=[web["id"], web["id"]])
            assert port["security_groups"] == [web["id"]]
            assert await cloud.refused("DELETE", f"/security-groups/{web['id']}") == (409, "SecurityGroupInUse")
            for groups in ([theirs["id"]], ["6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"]):
                body = {"port": {"network_id": network["id"], "security_groups": groups}}
                assert await cloud.refused("POST", "/ports", body) == (404, "SecurityGroupNotFound")
            open_port = await cloud.create("port", network_id=network["id"], port_security_enabled=False)
            assert (open_port["security_groups"], open_port["port_security_enabled"]) == ([], False)
            path = f"/ports/{port['id']}"
            off = {"port": {"port_security_enabled": False}}
            assert await cloud.refused("PUT", path, off) == (409, "PortSecurityPortHasSecurityGroup")
            cleared = await cloud.update("port", port, port_security_enabled=False, security_groups=[])
            assert cleared["security_groups"] == []
            secured = {"port": {"security_groups": [web["id"]]}}
            response = await cloud.refused("PUT", path, secured)
            assert response == (400, "PortSecurityAndIPRequiredForSecurityGroups")
            await cloud.ok("DELETE", f"/security-groups/{web['id']}")

    asyncio.run(scenario())


def test_ports_are_filtered_by_device_host_and_group(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            for device in ("s1", "s1", "s2", "s3"):
                await cloud.create("port", "admin", network_id=network["id"], device_id=device, project_id=DEMO)
            assert len(await cloud.list_all("port", {"device_id": "s1"})) == 2
            assert len(await cloud.list_all("port", [("device_id", "s1"), ("device_id", "s2")])) == 3
            assert len(await cloud.list_all("port", {"network_id": network["id"], "status": "DOWN"})) == 4
            (group,) = await cloud.list_all("security_group")
            assert len(await cloud.list_all("port", {"security_groups": group["id"]})) == 4
            assert len(await cloud.list_all("port", {"binding:host_id": "h"}, as_="admin")) == 0
            assert len(await cloud.list_all("port", {"tenant_id": DEMO}, as_="admin")) == 4
            assert await cloud.list_all("port", as_="other") == []
            assert await cloud.list_all("port", {"device_id": "s3", "fields": "device_id"}) == [{"device_id": "s3"}]

    asyncio.run(scenario())


def test_filters_do_not_reveal_hidden_attributes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            for path in (
                "/ports?binding%3Ahost_id=h1",
                "/ports?sort_key=binding%3Ahost_id",
                "/networks?provider%3Asegmentation_id=7",
            ):
                assert (await cloud.refused("GET", path))[0] == 403, path
                await cloud.ok("GET", path, as_="admin")

    asyncio.run(scenario())


def test_port_creation_races_with_network_deletion(database_url: str) -> None:
    """Either the port or the deletion wins; the other request is refused."""

    async def scenario() -> None:
        async with net(database_url) as cloud:
            for _ in range(5):
                network, _ = await cloud.network_with_subnet()
                body = {"port": {"network_id": network["id"]}}
                responses = await asyncio.gather(
                    *(cloud.call("POST", "/ports", body) for _ in range(4)),
                    cloud.call("DELETE", f"/networks/{network['id']}"),
                    *(cloud.call("POST", "/ports", body) for _ in range(4)),
                )
                statuses = [response.status for response in responses]
                assert set(statuses) <= {201, 204, 404, 409}, statuses
                left = await cloud.list_all("port", {"network_id": network["id"]})
                assert len(left) == statuses.count(201)
                assert (204 in statuses) == (not left)

    asyncio.run(scenario())


def test_ports_of_other_projects_are_hidden(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            mine, _ = await cloud.network_with_subnet()
            assert await cloud.refused("POST", "/ports", {"port": {"network_id": mine["id"]}}, "other") == (
                404,
                "NetworkNotFound",
            )
            shared = await cloud.create("network", "admin", shared=True)
            await cloud.create("subnet", "admin", network_id=shared["id"], ip_version=4, cidr="10.5.0.0/24")
            port = await cloud.create("port", network_id=shared["id"])
            for method, json in (("GET", None), ("PUT", {"port": {"name": "x"}}), ("DELETE", None)):
                assert await cloud.refused(method, f"/ports/{port['id']}", json, "other") == (404, "PortNotFound")
            assert (await cloud.refused("DELETE", f"/ports/{port['id']}", as_="reader"))[0] == 403
            outside = await cloud.create("network", "admin", **{"router:external": True})
            assert (await cloud.refused("POST", "/ports", {"port": {"network_id": outside["id"]}}))[0] == 403

    asyncio.run(scenario())


def test_update_with_if_match_revision(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            port = await cloud.create("port", network_id=network["id"])
            path, as_it_is = f"/ports/{port['id']}", {"If-Match": f"revision_number={port['revision_number']}"}
            changes = [{"port": {"name": name}} for name in ("one", "two")]
            responses = await asyncio.gather(
                *(cloud.request("PUT", path, json=each, headers=as_it_is, root="/network/v2.0") for each in changes)
            )
            assert sorted(response.status for response in responses) == [200, 412]
            late = next(response for response in responses if response.status == 412)
            assert late.json()["NeutronError"]["type"] == "RevisionNumberConstraintFailed"
            assert (await cloud.show("port", port["id"]))["revision_number"] == port["revision_number"] + 1

    asyncio.run(scenario())


def test_ip_version_of_a_dhcp_option_may_be_a_whole_float(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            option = {"opt_name": "mtu", "opt_value": "1400", "ip_version": 4.0}
            port = await cloud.create("port", network_id=network["id"], extra_dhcp_opts=[option])
            assert (await cloud.show("port", port["id"]))["extra_dhcp_opts"] == [option]

    asyncio.run(scenario())
