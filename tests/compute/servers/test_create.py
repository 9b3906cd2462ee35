"""POST /servers: fields of the server and its guest, refused requests, multiple create, and quotas."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from tests.compute.servers.support import PUBLIC_KEY, act, count_resources, create_refusal, guest_on, make_flavor
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


@proves("POST /servers", "GET /servers/{server_id}")
def test_create_sets_all_requested_fields_of_server_and_guest(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            await c.post("/os-keypairs", {"keypair": {"name": "my key", "public_key": PUBLIC_KEY}})
            requested = {
                "name": "Web Server 1",
                "imageRef": c.image_id,
                "flavorRef": "http://localhost/compute/v2.1/flavors/1",
                "networks": [{"uuid": c.network_id, "tag": "front"}],
                "key_name": "my key",
                "metadata": {"role": "web", "a:b c": ""},
                "user_data": base64.b64encode(b"#!/bin/sh\n").decode(),
                "availability_zone": "nova",
                "config_drive": True,
                "description": "Serves pages",
                "hostname": "www.example.org",
                "adminPass": "secret",
                "accessIPv4": "192.0.2.7",
                "accessIPv6": "2001:db8::7",
                "OS-DCF:diskConfig": "AUTO",
                "security_groups": [{"name": "default"}],
            }
            body = {"server": requested, "os:scheduler_hints": {"hue": "green"}}
            answer = await c.post("/servers", body, version="latest")
            assert answer.status == 202, answer.body
            made = answer.json()["server"]
            assert set(made) == {"id", "links", "OS-DCF:diskConfig", "security_groups", "adminPass"}
            assert made["adminPass"] == "secret"
            assert made["security_groups"] == [{"name": "default"}]
            assert [link["rel"] for link in made["links"]] == ["self", "bookmark"]
            assert answer.headers["location"] == made["links"][0]["href"]
            assert answer.headers["location"].endswith(f"/compute/v2.1/servers/{made['id']}")

            await c.wait_until_settled(made["id"])
            shown = await c.show(made["id"], version="latest")
            for key in ("name", "key_name", "metadata", "description", "accessIPv4", "accessIPv6", "OS-DCF:diskConfig"):
                assert shown[key] == requested[key], key
            assert shown["status"] == "ACTIVE"
            assert shown["tenant_id"] == DEMO
            assert shown["user_id"] == "member-id"
            assert shown["config_drive"] == "True"
            assert shown["OS-EXT-SRV-ATTR:hostname"] == "www.example.org"
            assert shown["OS-EXT-SRV-ATTR:user_data"] == requested["user_data"]
            assert shown["OS-EXT-STS:power_state"] == 1
            assert shown["pinned_availability_zone"] == shown["OS-EXT-AZ:availability_zone"] == "nova"
            assert shown["scheduler_hints"] == {"hue": ["green"]}
            assert shown["image"]["id"] == c.image_id
            assert shown["image"]["properties"]["hw_rng_model"] == "virtio"
            assert shown["flavor"]["original_name"] == "m1.tiny"
            assert shown["security_groups"] == [{"name": "default"}]
            assert shown["OS-SRV-USG:launched_at"] is not None

            (address,) = shown["addresses"]["private"]
            guest = guest_on(c, shown["OS-EXT-SRV-ATTR:host"], made["id"])
            assert (guest.name, guest.hostname) == ("Web Server 1", "www.example.org")
            assert guest.user_data == b"#!/bin/sh\n"
            assert guest.config_drive
            assert guest.metadata == {"role": "web", "a:b c": ""}
            assert guest.key is not None
            assert guest.key.public_key == PUBLIC_KEY
            assert (guest.flavor.vcpus, guest.flavor.ram_mb, guest.flavor.disk_gb) == (1, 512, 1)
            assert guest.image is not None
            assert guest.image.id == c.image_id
            assert [(nic.addresses, nic.mac) for nic in guest.nics] == [
                ([address["addr"]], address["OS-EXT-IPS-MAC:mac_addr"])
            ]

    run(scenario())


def test_create_defaults(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            body = {"server": {"name": "a_b c.d", "flavorRef": 1, "imageRef": c.image_id}}
            answer = await c.post("/servers", body)
            assert answer.status == 202, answer.body
            made = answer.json()["server"]
            assert len(made["adminPass"]) == 12
            await c.wait_until_settled(made["id"])
            shown = await c.show(made["id"], version="latest")
            assert shown["key_name"] is None
            assert shown["metadata"] == {}
            assert shown["config_drive"] == ""
            assert shown["accessIPv4"] == shown["accessIPv6"] == ""
            assert shown["pinned_availability_zone"] is None
            assert shown["OS-EXT-AZ:availability_zone"] == "nova"
            assert shown["OS-EXT-SRV-ATTR:hostname"] == "a-b-c-d"
            # Before 2.19 the name was the description.
            assert shown["description"] == "a_b c.d"
            made = await c.boot(name="未来", version="2.19", networks=[])
            shown = await c.show(made["id"], version="latest")
            assert shown["description"] is None
            assert shown["OS-EXT-SRV-ATTR:hostname"] == f"server-{made['id']}"

    run(scenario())


def test_block_device_mapping_repeats_the_image_of_image_ref(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            device = {"source_type": "image", "destination_type": "local", "uuid": c.image_id, "boot_index": 0}
            shown = await c.boot_active(
                imageRef=c.image_id, block_device_mapping_v2=[{**device, "delete_on_termination": True}]
            )
            assert shown["image"]["id"] == c.image_id
            for image_ref in (UNKNOWN_ID, ""):
                status, message = await create_refusal(c, imageRef=image_ref, block_device_mapping_v2=[device])
                assert (status, "Block Device Mapping" in message) == (400, True)

    run(scenario())


def test_wrapped_user_data_reaches_the_guest(sqlite_url: str) -> None:
    """The program `base64` wraps lines, and ends the last one."""

    async def scenario() -> None:
        script = b"#!/bin/sh\n" + b"echo a long line\n" * 20
        async with full_cloud(sqlite_url, hosts=1) as c:
            for wrapped in (base64.encodebytes(script).decode(), f" {base64.b64encode(script).decode()}\r\n"):
                made = await c.boot_active(user_data=wrapped)
                shown = await c.show(made["id"])
                assert shown["OS-EXT-SRV-ATTR:user_data"] == wrapped
                assert guest_on(c, shown["OS-EXT-SRV-ATTR:host"], made["id"]).user_data == script
                body = {"imageRef": c.image_id, "user_data": base64.encodebytes(b"again").decode()}
                assert (await act(c, made["id"], "rebuild", body, version="2.57")).status == 202
                await c.wait_until_settled(made["id"])
                assert guest_on(c, shown["OS-EXT-SRV-ATTR:host"], made["id"]).user_data == b"again"

    run(scenario())


def test_progress_is_0_until_the_server_is_built(sqlite_url: str) -> None:
    """Clients print each number in between into the output of `--wait`."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot())["id"]
            seen = set()
            while (shown := await c.show(server_id))["status"] == "BUILD":
                seen.add(shown["progress"])
            assert (seen, shown["status"], shown["progress"]) == ({0}, "ACTIVE", 100)
            await c.delete(f"/servers/{server_id}")
            deleting = await c.get(f"/servers/{server_id}")
            assert deleting.status == 404 or deleting.json()["server"]["progress"] == 0

    run(scenario())


def test_hint_same_host_without_uuid_is_accepted(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none"}
            for hints, status in (({"same_host": "web-1"}, 202), ({"same_host": ["web-1"]}, 400)):
                answer = await c.post("/servers", {"server": server, "os:scheduler_hints": hints}, version="2.96")
                assert answer.status == status, answer.body

    run(scenario())


BAD_KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("2.96", {"name": ...}, "'name' is a required property"),
    ("2.96", {"name": ""}, "field/attribute name"),
    ("2.96", {"name": "x" * 256}, "field/attribute name"),
    ("2.96", {"name": " led by a space"}, "field/attribute name"),
    ("2.96", {"name": "trailed "}, "field/attribute name"),
    ("2.96", {"name": "a\nb"}, "field/attribute name"),
    ("2.96", {"name": 7}, "field/attribute name"),
    ("2.96", {"name": None}, "field/attribute name"),
    ("2.96", {"flavorRef": ...}, "'flavorRef' is a required property"),
    ("2.96", {"flavorRef": ""}, "field/attribute flavorRef"),
    ("2.96", {"flavorRef": {"id": "1"}}, "field/attribute flavorRef"),
    ("2.96", {"imageRef": 7}, "field/attribute imageRef"),
    ("2.96", {"key_name": ""}, "field/attribute key_name"),
    ("2.96", {"metadata": {"": "empty"}}, "field/attribute metadata"),
    ("2.96", {"metadata": {"k" * 256: "long"}}, "field/attribute metadata"),
    ("2.96", {"metadata": {"key": "v" * 256}}, "field/attribute metadata.key"),
    ("2.96", {"metadata": {"key": 1}}, "field/attribute metadata.key"),
    ("2.96", {"metadata": ["a"]}, "field/attribute metadata"),
    ("2.96", {"user_data": "not base64!"}, "field/attribute user_data"),
    ("2.96", {"user_data": "QQ"}, "field/attribute user_data"),
    ("2.96", {"user_data": "QUFB" * 16384}, "field/attribute user_data"),
    ("2.96", {"config_drive": "perhaps"}, "field/attribute config_drive"),
    ("2.96", {"accessIPv4": "2001:db8::1"}, "field/attribute accessIPv4"),
    ("2.96", {"accessIPv4": "1.2.3"}, "field/attribute accessIPv4"),
    ("2.96", {"accessIPv6": "1.2.3.4"}, "field/attribute accessIPv6"),
    ("2.96", {"OS-DCF:diskConfig": "auto"}, "field/attribute OS-DCF:diskConfig"),
    ("2.96", {"security_groups": [{"name": ""}]}, "field/attribute security_groups[0].name"),
    ("2.96", {"security_groups": [{"id": "x"}]}, "field/attribute security_groups[0]"),
    ("2.96", {"min_count": 0}, "field/attribute min_count"),
    ("2.96", {"max_count": "0"}, "field/attribute max_count"),
    ("2.96", {"max_count": "many"}, "field/attribute max_count"),
    ("2.96", {"min_count": True}, "field/attribute min_count"),
    ("2.96", {"min_count": 3, "max_count": 2}, "min_count must be <= max_count"),
    ("2.96", {"return_reservation_id": "maybe"}, "field/attribute return_reservation_id"),
    ("2.96", {"unknown": "x"}, "'unknown' was unexpected"),
    ("2.18", {"networks": [], "description": "too early"}, "'description' was unexpected"),
    ("2.19", {"networks": [], "description": "x" * 256}, "field/attribute description"),
    ("2.89", {"hostname": "early"}, "'hostname' was unexpected"),
    ("2.90", {"hostname": "fully.qualified"}, "field/attribute hostname"),
    ("2.90", {"hostname": "x" * 64}, "field/attribute hostname"),
    ("2.90", {"hostname": "-dash"}, "field/attribute hostname"),
    ("2.94", {"hostname": "under score"}, "field/attribute hostname"),
    ("2.94", {"hostname": "x." * 128}, "field/attribute hostname"),
    ("2.94", {"hostname": "one", "max_count": 2}, "hostname"),
]


def test_create_refuses_bad_bodies_and_names_the_field(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            for version, keys, words in BAD_KEYS:
                status, message = await create_refusal(c, version, **keys)
                assert status == 400, keys
                assert words in message, (keys, message)
            bodies: list[Any] = [{}, {"server": []}, {"server": None}, {"servers": {}}, [], "server", 1, None]
            for body in bodies:
                assert fault(await c.post("/servers", body, version="2.96"))[0] == 400, body
            for raw in (b"", b"{", b'{"server": {"name": "a", "name": "b"}}', b"\xff", b"[" * 5000):
                answer = await c.request("POST", "/servers", content=raw, headers={"Content-Type": "application/json"})
                assert fault(answer)[:2] == (400, "badRequest"), raw[:40]

    run(scenario())


def test_create_at_v2_root_trims_names_and_drops_unknown_keys(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = {"name": " spaced ", "flavorRef": "1", "imageRef": c.image_id, "unknown": "x"}
            answer = await c.post("/servers", {"server": server}, root="/compute/v2")
            assert answer.status == 202, answer.body
            made = answer.json()["server"]
            assert "/compute/v2/servers/" in made["links"][0]["href"]
            assert (await c.wait_until_settled(made["id"]))["name"] == "spaced"

    run(scenario())


def test_hostnames_allowed_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            for version, hostname in (("2.90", "one"), ("2.90", "x" * 63), ("2.94", "a.b.c"), ("2.94", "x" * 63)):
                made = await c.boot(version=version, hostname=hostname)
                assert (await c.show(made["id"]))["OS-EXT-SRV-ATTR:hostname"] == hostname

    run(scenario())


class TestFlavors:
    def test_unknown_private_and_diskless_flavors(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                assert await create_refusal(c, flavorRef="none") == (400, "Flavor none could not be found.")
                await make_flavor(c, "theirs", **{"os-flavor-access:is_public": False})
                assert await create_refusal(c, flavorRef="theirs") == (400, "Flavor theirs could not be found.")
                add = {"addTenantAccess": {"tenant": DEMO}}
                assert (await c.post("/flavors/theirs/action", add, as_="admin")).status == 200
                assert (await c.boot_active(flavorRef="theirs"))["flavor"]["original_name"] == "theirs"
                await make_flavor(c, "diskless", disk=0)
                assert (await create_refusal(c, flavorRef="diskless"))[0] == 403
                await c.boot_active(flavorRef="diskless", as_="admin")

        run(scenario())

    def test_server_keeps_its_flavor_after_the_flavor_is_deleted(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                await make_flavor(c, "brief", swap=100, **{"OS-FLV-EXT-DATA:ephemeral": 2})
                specs = {"extra_specs": {"hw:numa_nodes": "1"}}
                assert (await c.post("/flavors/brief/os-extra_specs", specs, as_="admin")).status == 200
                server_id = (await c.boot_active(flavorRef="brief"))["id"]
                assert (await c.delete("/flavors/brief", as_="admin")).status == 202
                assert (await c.show(server_id))["flavor"] == {
                    "original_name": "brief",
                    "vcpus": 1,
                    "ram": 512,
                    "disk": 1,
                    "ephemeral": 2,
                    "swap": 100,
                    **specs,
                }
                # Root and ephemeral disk, and swap in whole gigabytes.
                used = await c.db.fetch_value("SELECT used FROM allocations WHERE resource_class = 'DISK_GB'")
                assert used == 4

        run(scenario())


def test_keypair_of_another_user_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            await c.post("/os-keypairs", {"keypair": {"name": "mine", "public_key": PUBLIC_KEY}}, as_="manager")
            assert await create_refusal(c, key_name="mine") == (400, "Invalid key_name provided.")
            await c.boot_active(key_name="mine", as_="manager")

    run(scenario())


class TestZones:
    def test_server_is_placed_in_its_requested_zone(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=4, zones=("a", "b")) as c:
                for zone in ("a", "b"):
                    pinned = await asyncio.gather(*(c.boot_active(availability_zone=zone) for _ in range(3)))
                    assert {server["OS-EXT-AZ:availability_zone"] for server in pinned} == {zone}
                    assert {server["pinned_availability_zone"] for server in pinned} == {zone}
                free = await asyncio.gather(*(c.boot_active() for _ in range(4)))
                assert {server["OS-EXT-AZ:availability_zone"] for server in free} <= {"a", "b"}
                assert {server["pinned_availability_zone"] for server in free} == {None}
                for unknown in ("c", "internal", "nova"):
                    status, message = await create_refusal(c, availability_zone=unknown)
                    assert (status, message) == (400, "The requested availability zone is not available")

        run(scenario())

    def test_only_administrators_force_a_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=4, zones=("a", "b")) as c:
                details = (await c.get("/os-availability-zone/detail", as_="admin")).json()["availabilityZoneInfo"]
                host = sorted(next(zone for zone in details if zone["zoneName"] == "b")["hosts"])[0]
                for form in (f"b:{host}", f"b:{host}:{host}", f":{host}"):
                    shown = await c.boot_active(availability_zone=form, as_="admin")
                    assert shown["OS-EXT-SRV-ATTR:host"] == host
                    assert shown["OS-EXT-AZ:availability_zone"] == "b"
                    for other in ("member", "manager"):
                        assert (await create_refusal(c, availability_zone=form, as_=other))[0] == 403
                assert (await create_refusal(c, availability_zone="b:unknown", as_="admin"))[0] == 400
                assert (await create_refusal(c, availability_zone=f"c:{host}", as_="admin"))[0] == 400
                elsewhere = await c.boot(availability_zone=f"a:{host}", as_="admin")
                shown = await c.wait_until_settled(elsewhere["id"])
                assert shown["status"] == "ERROR"
                assert "not in zone a" in shown["fault"]["message"]

        run(scenario())


class TestMultipleCreate:
    @proves("POST /servers")
    def test_servers_are_numbered_and_share_a_reservation_id(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                body = {"name": "n", "flavorRef": "1", "imageRef": c.image_id, "networks": "none", "max_count": "3"}
                answer = await c.post("/servers", {"server": {**body, "return_reservation_id": True}}, version="2.37")
                assert answer.status == 202, answer.body
                reservation = answer.json()["reservation_id"]
                assert set(answer.json()) == {"reservation_id"}
                found = (await c.get(f"/servers/detail?reservation_id={reservation}", version="2.3")).json()["servers"]
                assert sorted(server["name"] for server in found) == ["n-1", "n-2", "n-3"]
                for server in found:
                    shown = await c.wait_until_settled(server["id"])
                    place = shown["OS-EXT-SRV-ATTR:launch_index"]
                    assert shown["name"] == shown["OS-EXT-SRV-ATTR:hostname"] == f"n-{place + 1}"
                    assert shown["OS-EXT-SRV-ATTR:reservation_id"] == reservation
                one = await c.boot_active(name="single", min_count=1, max_count=1, return_reservation_id=False)
                assert one["name"] == "single"
                # JSON Schema takes 2.0 for an integer.
                both = await c.boot(name="pair", min_count=2.0)
                assert (await c.show(both["id"]))["name"] == "pair-1"

        run(scenario())

    def test_creates_as_many_servers_as_the_quota_allows(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__instances=5, quota__cores=4) as c:
                assert (await create_refusal(c, min_count=5, max_count=2**31 - 1))[0] == 403
                await c.boot(name="some", min_count=2, max_count=2**31 - 1)
                found = (await c.get("/servers")).json()["servers"]
                assert sorted(server["name"] for server in found) == ["some-1", "some-2", "some-3", "some-4"]
                for server in found:
                    await c.wait_until_settled(server["id"])
                assert (await create_refusal(c))[0] == 403

        run(scenario())

    def test_huge_min_count_is_refused_without_quota(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1, quota__instances=-1, quota__cores=-1, quota__ram=-1) as c:
                status, message = await create_refusal(c, min_count=2**31 - 1)
                assert (status, "min_count" in message) == (400, True)

        run(scenario())

    def test_fixed_ip_is_refused_for_several_servers(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                nic = {"uuid": c.network_id, "fixed_ip": "10.0.0.99"}
                assert (await create_refusal(c, networks=[nic], max_count=2, as_="project-admin"))[0] == 400
                await c.boot(networks=[nic], max_count=1, as_="project-admin")

        run(scenario())


class TestQuotas:
    @pytest.mark.parametrize(
        ("limit", "flavor", "expected"), [({"instances": 10}, "1", 10), ({"cores": 7}, "3", 3), ({"ram": 2047}, "1", 3)]
    )
    def test_concurrent_creates_never_exceed_the_quota(
        self, database_url: str, limit: dict[str, int], flavor: str, expected: int
    ) -> None:
        async def scenario() -> None:
            limits: dict[str, Any] = {f"quota__{name}": limit.get(name, -1) for name in ("instances", "cores", "ram")}
            async with full_cloud(database_url, hosts=4, **limits) as c:
                body = {"server": {"name": "s", "flavorRef": flavor, "imageRef": c.image_id, "networks": "none"}}
                answers = await asyncio.gather(
                    *(c.post("/servers", body, version="2.37") for _ in range(30)),
                    *(c.post("/servers", body, version="2.37", as_="other") for _ in range(3)),
                )
                mine, theirs = answers[:30], answers[30:]
                assert [answer.status for answer in theirs] == [202] * 3
                assert sorted(answer.status for answer in mine) == [202] * expected + [403] * (30 - expected)
                message = fault(next(answer for answer in mine if answer.status == 403))[2]
                assert message.startswith(f"Quota exceeded for {next(iter(limit))}: Requested "), message
                rows = await c.db.fetch_value("SELECT COUNT(*) FROM servers WHERE project_id = $1", DEMO)
                assert rows == expected

        run(scenario())

    def test_deleted_server_frees_its_quota(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, quota__instances=1) as c:
                server_id = (await c.boot_active())["id"]
                assert (await create_refusal(c))[0] == 403
                await c.delete(f"/servers/{server_id}")
                await c.wait_until_deleted(server_id)
                await c.boot_active()

        run(scenario())

    def test_metadata_items_quota(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1, quota__metadata_items=2) as c:
                three = {"a": "1", "b": "2", "c": "3"}
                assert (await create_refusal(c, metadata=three))[0] == 403
                change = {"quota_set": {"metadata_items": 3}}
                assert (await c.put(f"/os-quota-sets/{DEMO}", change, as_="admin")).status == 200
                await c.boot(metadata=three)

        run(scenario())


def test_create_is_forbidden_without_project_or_member_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            assert (await create_refusal(c, as_="system"))[0] == 403
            assert (await create_refusal(c, as_="reader"))[0] == 403
            assert (await create_refusal(c, as_="service"))[0] == 403
            before = await count_resources(c)
            assert (await c.post("/servers", {}, as_=None)).status == 401
            assert await count_resources(c) == before

    run(scenario())
