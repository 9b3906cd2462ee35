"""Show and update one server: fields by version and role."""

from __future__ import annotations

import json
from typing import Any

from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"

# Fields in the published samples of each version; each version adds to the earlier ones.
UPDATE_FIELDS = {
    *("id", "name", "status", "tenant_id", "user_id", "metadata", "hostId", "image", "flavor", "created", "updated"),
    *("addresses", "accessIPv4", "accessIPv6", "links", "OS-DCF:diskConfig", "progress"),
}
SHOWN_FIELDS = UPDATE_FIELDS | {
    *("OS-EXT-AZ:availability_zone", "OS-EXT-STS:power_state", "OS-EXT-STS:task_state", "OS-EXT-STS:vm_state"),
    *("OS-SRV-USG:launched_at", "OS-SRV-USG:terminated_at", "config_drive", "key_name"),
    *("os-extended-volumes:volumes_attached", "security_groups"),
}
HOST_FIELDS = {"OS-EXT-SRV-ATTR:host", "OS-EXT-SRV-ATTR:hypervisor_hostname", "OS-EXT-SRV-ATTR:instance_name"}
REQUEST_FIELDS = {
    f"OS-EXT-SRV-ATTR:{name}"
    for name in ("kernel_id", "launch_index", "ramdisk_id", "reservation_id", "root_device_name", "user_data")
}
HOSTNAME = "OS-EXT-SRV-ATTR:hostname"
ADDRESS_FIELDS = {"addr", "version", "OS-EXT-IPS:type", "OS-EXT-IPS-MAC:mac_addr"}
ADDED_FIELDS = {
    "2.1": set[str](),
    "2.3": set[str](),
    "2.8": set[str](),
    "2.9": {"locked"},
    "2.16": set[str](),
    "2.19": {"description"},
    "2.25": set[str](),
    "2.26": {"tags"},
    "2.47": set[str](),
    "2.63": {"trusted_image_certificates"},
    "2.71": {"server_groups"},
    "2.73": {"locked_reason"},
    "2.75": set[str](),
    "2.90": {HOSTNAME},
    "2.95": set[str](),
    "2.96": {"pinned_availability_zone"},
    "2.98": set[str](),
    "2.100": {"scheduler_hints"},
    "2.106": set[str](),
}


def at_least(version: str, other: str) -> bool:
    return int(version.split(".")[1]) >= int(other.split(".")[1])


def admin_fields(version: str) -> set[str]:
    return (
        HOST_FIELDS
        | (REQUEST_FIELDS | {HOSTNAME} if at_least(version, "2.3") else set())
        | ({"host_status"} if at_least(version, "2.16") else set())
    )


@proves("GET /servers/{server_id}", "GET /servers/detail", "GET /servers", "PUT /servers/{server_id}")
def test_fields_by_version_and_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            added: set[str] = set()
            for version, fields in ADDED_FIELDS.items():
                added |= fields
                hidden = admin_fields(version)
                path = f"/servers/{server_id}"
                assert set(await c.show(server_id, as_="member", version=version)) == SHOWN_FIELDS | added, version
                assert set(await c.show(server_id, as_="admin", version=version)) == SHOWN_FIELDS | added | hidden, (
                    version
                )

                (listed,) = (await c.get("/servers/detail", version=version)).json()["servers"]
                assert set(listed["addresses"]["private"][0]) == ADDRESS_FIELDS, version
                assert set(listed) == (SHOWN_FIELDS | added) - {"server_groups"}, version
                (listed,) = (await c.get("/servers/detail?all_tenants=1", as_="admin", version=version)).json()[
                    "servers"
                ]
                assert set(listed) == (SHOWN_FIELDS | added | hidden) - {"server_groups"}, version
                (listed,) = (await c.get("/servers", version=version)).json()["servers"]
                assert set(listed) == {"id", "name", "links"}, version

                base = SHOWN_FIELDS if at_least(version, "2.75") else UPDATE_FIELDS
                addresses = ADDRESS_FIELDS if at_least(version, "2.75") else {"addr", "version"}
                body = {"server": {"name": f"at {version}"}}
                answer = await c.put(path, body, version=version)
                assert set(answer.json()["server"]) == base | added, version
                assert set(answer.json()["server"]["addresses"]["private"][0]) == addresses, version
                answer = await c.put(path, body, version=version, as_="admin")
                assert set(answer.json()["server"]) == base | added | (hidden if base is SHOWN_FIELDS else set()), (
                    version
                )

    run(scenario())


def test_flavor_and_image_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            await make_flavor(c, "specified")
            specs = {"extra_specs": {"hw:numa_nodes": "1"}}
            await c.post("/flavors/specified/os-extra_specs", specs, as_="admin")
            server_id = (await c.boot_active(flavorRef="specified"))["id"]
            old = await c.show(server_id, version="2.46")
            assert old["flavor"]["id"] == "specified"
            assert old["flavor"]["links"][0]["href"].endswith("/flavors/specified")
            sizes = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
            new = {"original_name": "specified", **sizes, **specs}
            assert (await c.show(server_id, version="2.47"))["flavor"] == new
            assert set(old["image"]) == {"id", "links"}
            assert set((await c.show(server_id, version="2.97"))["image"]) == {"id", "links"}
            assert (await c.show(server_id, version="2.98"))["image"]["properties"]["hw_rng_model"] == "virtio"

    run(scenario())


def test_image_properties_are_those_of_compute(database_url: str) -> None:
    """Neither attributes of the image nor properties that others invented."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            known = {
                "hw_vif_model": "virtio",
                "hw_numa_mem.1": "512",
                "os_distro": "debian",
                "img_config_drive": "optional",
                "architecture": "x86_64",
                "vm_mode": "hvm",
            }
            others = {"team": "blue", "my_hw_note": "x", "base_image_ref": "y", "image_type": "z", "kernel_id": "k"}
            changes = [{"op": "add", "path": f"/{name}", "value": value} for name, value in {**known, **others}.items()]
            kind = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
            changed = await c.request(
                *("PATCH", f"/images/{c.image_id}"),
                root="/image/v2",
                as_="admin",
                headers=kind,
                content=json.dumps(changes).encode(),
            )
            assert changed.status == 200, changed.body
            server_id = (await c.boot_active())["id"]
            expected = {**known, "hw_rng_model": "virtio"}
            for path in (f"/servers/{server_id}", "/servers/detail"):
                body = (await c.get(path, version="2.98")).json()
                (shown,) = [body["server"]] if "server" in body else body["servers"]
                assert shown["image"]["properties"].items() >= expected.items()
                assert not set(others) & set(shown["image"]["properties"])
                assert not {"disk_format", "container_format", "min_disk", "min_ram"} & set(
                    shown["image"]["properties"]
                )

    run(scenario())


def test_host_fields_for_administrators(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            shown = await c.show(server_id)
            assert shown["OS-EXT-SRV-ATTR:host"] == "sim-001"
            assert shown["OS-EXT-SRV-ATTR:hypervisor_hostname"] == "sim-001"
            assert shown["OS-EXT-SRV-ATTR:root_device_name"] == "/dev/vda"
            assert shown["OS-EXT-SRV-ATTR:launch_index"] == 0
            assert shown["host_status"] == "UP"
            seen = await c.show(server_id, as_="member")
            assert len(seen["hostId"]) == 56
            assert seen["hostId"] == shown["hostId"]
            # hostId differs between projects.
            theirs = await c.wait_until_settled((await c.boot(as_="other"))["id"])
            assert theirs["OS-EXT-SRV-ATTR:host"] == "sim-001"
            assert theirs["hostId"] != shown["hostId"]
            body = {"host": "sim-001", "binary": "nova-compute", "forced_down": True}
            await c.put("/os-services/force-down", body, as_="admin", version="2.11")
            assert (await c.show(server_id))["host_status"] == "DOWN"
            body["forced_down"] = False
            await c.put("/os-services/force-down", body, as_="admin", version="2.11")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = last_seen_at - 1000")
            assert (await c.show(server_id))["host_status"] == "UNKNOWN"
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = last_seen_at + 1000")
            assert (await c.show(server_id))["host_status"] == "UP"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)
            query = "/servers/detail?all_tenants=1&deleted=true"
            (deleted,) = (await c.get(query, as_="admin", version="2.16")).json()["servers"]
            assert (deleted["status"], deleted["host_status"]) == ("DELETED", "")

    run(scenario())


def test_server_of_another_project_is_not_found(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            path = f"/servers/{server_id}"
            for caller in ("other", "service"):
                assert fault(await c.get(path, as_=caller)) == (
                    404,
                    "itemNotFound",
                    f"Instance {server_id} could not be found.",
                )
                assert (await c.put(path, {"server": {"name": "x"}}, as_=caller)).status == 404
                assert (await c.delete(path, as_=caller)).status == 404
                assert (await c.post(f"{path}/action", {"os-stop": None}, as_=caller)).status == 404
            for caller in ("reader", "member", "manager", "project-admin", "admin", "system"):
                assert (await c.get(path, as_=caller)).status == 200, caller
            assert (await c.get(path, as_=None)).status == 401
            assert (await c.get(f"/servers/{UNKNOWN_ID}")).status == 404
            assert (await c.get("/servers/x%00y")).status == 404
            assert (await c.get(f"{path}?unknown=x", version="2.101")).status == 200
            assert (await c.get(f"{path}?unknown=x", version="2.102")).status == 400

    run(scenario())


def test_links_contain_version_and_project_of_the_request(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            shown = (await c.get(f"/{DEMO}/servers/{server_id}")).json()["server"]
            assert shown["links"] == [
                {"rel": "self", "href": f"http://localhost/compute/v2.1/{DEMO}/servers/{server_id}"},
                {"rel": "bookmark", "href": f"http://localhost/compute/{DEMO}/servers/{server_id}"},
            ]
            assert (await c.get(f"/{UNKNOWN_ID}/servers/{server_id}")).status == 400

    run(scenario())


class TestUpdate:
    async def server(self, c: FullCloud, **keys: Any) -> str:
        return str((await c.boot_active(networks="none", **keys))["id"])

    @proves("PUT /servers/{server_id}")
    def test_update_changes_each_field(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                path = f"/servers/{await self.server(c, description='old')}"
                before = (await c.get(path, version="2.96")).json()["server"]
                change = {
                    "name": "new name",
                    "description": "new",
                    "hostname": "new.example.org",
                    "accessIPv4": "192.0.2.9",
                    "accessIPv6": "2001:DB8:0::9",
                    "OS-DCF:diskConfig": "AUTO",
                }
                answer = await c.put(path, {"server": change}, version="2.96")
                assert answer.status == 200, answer.body
                expected = {**change, "accessIPv6": "2001:db8::9", "OS-EXT-SRV-ATTR:hostname": change.pop("hostname")}
                del expected["hostname"]
                after = (await c.get(path, version="2.96")).json()["server"]
                assert answer.json()["server"] == after
                assert {key: after[key] for key in expected} == expected
                same = set(before) - set(expected) - {"updated"}
                assert {key: after[key] for key in same} == {key: before[key] for key in same}
                # Single keys, and values that clear a field.
                for one, shown in (
                    ({"description": None}, {"description": None, "name": "new name"}),
                    ({"accessIPv4": ""}, {"accessIPv4": "", "accessIPv6": "2001:db8::9"}),
                    ({"accessIPv6": ""}, {"accessIPv6": ""}),
                    ({}, {"name": "new name"}),
                ):
                    answer = await c.put(path, {"server": one}, version="2.96")
                    assert answer.status == 200, answer.body
                    assert {key: answer.json()["server"][key] for key in shown} == shown

        run(scenario())

    def test_bad_update_changes_nothing(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                path = f"/servers/{await self.server(c)}"
                before = (await c.get(path, version="2.96")).json()
                for version, change, words in (
                    ("2.96", {"name": ""}, "field/attribute name"),
                    ("2.96", {"name": " x"}, "field/attribute name"),
                    ("2.96", {"name": None}, "field/attribute name"),
                    ("2.96", {"name": "x" * 256}, "field/attribute name"),
                    ("2.96", {"name": "fine", "description": "x" * 256}, "field/attribute description"),
                    ("2.96", {"name": "fine", "accessIPv4": "1.2.3"}, "field/attribute accessIPv4"),
                    ("2.96", {"name": "fine", "accessIPv6": "1.2.3.4"}, "field/attribute accessIPv6"),
                    ("2.96", {"name": "fine", "OS-DCF:diskConfig": "A"}, "field/attribute OS-DCF:diskConfig"),
                    ("2.96", {"name": "fine", "status": "ERROR"}, "'status' was unexpected"),
                    ("2.18", {"name": "fine", "description": "x"}, "'description' was unexpected"),
                    ("2.89", {"name": "fine", "hostname": "x"}, "'hostname' was unexpected"),
                    ("2.93", {"name": "fine", "hostname": "a.b"}, "field/attribute hostname"),
                ):
                    status, kind, message = fault(await c.put(path, {"server": change}, version=version))
                    assert (status, kind) == (400, "badRequest")
                    assert words in message, (change, message)
                bodies: list[Any] = [{}, {"server": None}, {"server": {"name": "fine"}, "more": 1}, []]
                for body in bodies:
                    assert (await c.put(path, body, version="2.96")).status == 400
                assert (await c.put(path, {"server": {"name": "fine"}}, as_="reader")).status == 403
                assert (await c.put(path, {"server": {"name": "fine"}}, as_="other")).status == 404
                assert (await c.put(f"/servers/{UNKNOWN_ID}", {"server": {"name": "fine"}})).status == 404
                assert (await c.get(path, version="2.96")).json() == before

        run(scenario())

    def test_update_is_shown_in_lists(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                server_id = await self.server(c, name="old")
                await c.put(f"/servers/{server_id}", {"server": {"name": "new"}})
                assert (await c.get("/servers?name=old")).json()["servers"] == []
                assert [s["id"] for s in (await c.get("/servers?name=^new$")).json()["servers"]] == [server_id]

        run(scenario())
