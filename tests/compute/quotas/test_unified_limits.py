"""Quotas with Keystone's unified limits, which the built-in identity service has too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock, unified_limits
from kilonova.compute.quotas.unified_limits import CACHE_SIZE, UnifiedLimits
from kilonova.config import load
from kilonova.http.client import ClientResponse, Unreachable
from kilonova.identity.client import IdentityClient
from kilonova.store import upgrade
from tests.identity.support import PASSWORDS
from tests.identity.support import Cloud as IdentityCloud
from tests.identity.support import cloud as identity_cloud
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault, insert_server
from tests.support.full_cloud import FullCloud, full_cloud

SET = f"/os-quota-sets/{DEMO}"
GENEROUS = dict.fromkeys(unified_limits.LIMIT_NAMES.values(), 100) | {"class:VCPU": -1, "class:MEMORY_MB": -1}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


class Keystone:
    """The identity service. `is_down` makes it unreachable, `requests` are the paths it was asked for."""

    def __init__(self, cloud: IdentityCloud) -> None:
        self.cloud = cloud
        self.is_down = False
        self.requests: list[str] = []
        self.client = IdentityClient(self, username="kilonova", password=PASSWORDS["kilonova"], region="RegionOne")
        self.service = self.admin = ""

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        self.requests.append(path)
        if self.is_down:
            raise Unreachable("down")
        return await self.cloud.caller.request(method, path, **options)

    def stream(self, *_: object, **options: Any) -> Any:
        raise NotImplementedError

    async def register(self, limits: Mapping[str, int], region_id: str | None = None) -> None:
        where = {"service_id": self.service, "region_id": region_id}
        many = [{**where, "resource_name": name, "default_limit": limit} for name, limit in limits.items()]
        await self.cloud.ok("POST", "/v3/registered_limits", self.admin, {"registered_limits": many})

    async def limit(self, limits: Mapping[str, int], project_id: str = DEMO) -> None:
        where = {"service_id": self.service, "project_id": project_id}
        many = [{**where, "resource_name": name, "resource_limit": limit} for name, limit in limits.items()]
        await self.cloud.ok("POST", "/v3/limits", self.admin, {"limits": many})

    def reads(self) -> int:
        return sum("limits" in path for path in self.requests)


@asynccontextmanager
async def keystone(directory: Path) -> AsyncIterator[Keystone]:
    url = f"sqlite://{directory}/identity.db"
    await upgrade(url)
    async with identity_cloud(url, directory) as cloud:
        async with cloud.services.db.transaction() as tx:
            await tx.execute_many(
                "INSERT INTO projects (id, domain_id, parent_id, name, description, enabled, tags, extra)"
                " VALUES ($1, 'default', NULL, $1, '', TRUE, '[]', '{}')",
                [(DEMO,), (OTHER,)],
            )
        found = Keystone(cloud)
        found.service = await found.client.service("compute")
        found.admin = await cloud.login("admin")
        yield found


@asynccontextmanager
async def clouds(database_url: str, directory: Path, **flags: Any) -> AsyncIterator[tuple[FullCloud, Keystone]]:
    flags = {"quota__driver": "unified", "quota__unified_limits_cache_seconds": 0, **flags}
    async with keystone(directory) as identity, full_cloud(database_url, hosts=1, **flags) as compute:
        compute.services.unified_limits = UnifiedLimits(identity.client, compute.services.config.quota)
        yield compute, identity


async def post_server(c: FullCloud, as_: str = "member", **keys: Any) -> ClientResponse:
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    return await c.post("/servers", {"server": server}, version="2.96", as_=as_)


def test_limits_of_projects_precede_registered_limits(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, "servers": 1})
            await k.limit({"servers": 2})
            first = await c.boot()
            await c.boot()
            refused = await post_server(c)
            assert fault(refused)[::2] == (
                403,
                "Quota exceeded for servers: Requested 1, but already used 2 of 2 servers",
            )
            # The image is public, and another project has the registered limit.
            assert (await post_server(c, "other")).status == 202
            assert (await post_server(c, "other")).status == 403
            shown = (await c.get(SET + "/detail", version="latest")).json()["quota_set"]
            assert shown["instances"] == {"limit": 2, "in_use": 2, "reserved": 0}
            assert (shown["cores"], shown["ram"]["limit"]) == ({"limit": -1, "in_use": 2, "reserved": 0}, -1)
            absolute = (await c.get("/limits")).json()["limits"]["absolute"]
            assert (absolute["maxTotalInstances"], absolute["totalInstancesUsed"]) == (2, 2)
            assert absolute["totalRAMUsed"] == 1024
            await c.wait_until_settled(first["id"])
            await c.delete(f"/servers/{first['id']}")
            await c.wait_until_deleted(first["id"])
            assert (await post_server(c)).status == 202

    run(scenario())


def test_resource_classes_are_counted_as_hosts_claim_them(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, "class:CUSTOM_GPU": 3, "class:PCPU": 2, "class:VCPU": 1, "class:DISK_GB": 9})

            async def new_flavor(name: str, vcpus: int = 1, disk: int = 1, **specs: str) -> str:
                flavor = {"name": name, "vcpus": vcpus, "ram": 64, "disk": disk}
                made = (await c.post("/flavors", {"flavor": flavor}, as_="admin")).json()["flavor"]["id"]
                if specs:
                    path = f"/flavors/{made}/os-extra_specs"
                    await c.post(
                        path, {"extra_specs": {key.replace("__", ":"): specs[key] for key in specs}}, as_="admin"
                    )
                return str(made)

            async def message(flavor: str, **keys: Any) -> str:
                answer = await post_server(c, flavorRef=flavor, **keys)
                return "" if answer.status == 202 else fault(answer)[2]

            gpus = await new_flavor("gpus", resources__CUSTOM_GPU="2", resources__VCPU="0")
            dedicated = await new_flavor("dedicated", 2, hw__cpu_policy="dedicated")
            large = await new_flavor("large", disk=8, resources__VCPU="0")
            assert await message(gpus) == ""
            assert "for class:CUSTOM_GPU: Requested 2, but already used 2 of 3" in await message(gpus)
            # Dedicated CPUs do not count as shared ones.
            assert await message(dedicated) == ""
            assert "for class:PCPU: Requested 2, but already used 2 of 2" in await message(dedicated)
            assert await message("1") == ""
            assert "for class:VCPU: Requested 1, but already used 1 of 1" in await message("1")
            assert "for class:DISK_GB: Requested 8, but already used 3 of 9" in await message(large)

    run(scenario())


def test_larger_flavor_counts_during_resize(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path, compute__resize_on_same_host=True) as (c, k):
            await k.register({**GENEROUS, "class:MEMORY_MB": 3000})
            servers = [await c.boot_active() for _ in range(2)]
            resize = {"resize": {"flavorRef": "2"}}  # 2048 MB instead of 512 MB
            answers = [await c.post(f"/servers/{server['id']}/action", resize) for server in servers]
            assert [answer.status for answer in answers] == [202, 403]
            assert "class:MEMORY_MB: Requested 1536, but already used 2560 of 3000" in fault(answers[1])[2]
            await c.wait_until_settled(servers[0]["id"])
            # The flavor of the first server has changed, and a revert needs less.
            assert (await c.post(f"/servers/{servers[0]['id']}/action", {"revertResize": None})).status == 202
            shown = await c.wait_until_settled(servers[0]["id"])
            assert shown["status"] == "ACTIVE"
            assert (await c.post(f"/servers/{servers[1]['id']}/action", resize)).status == 202

    run(scenario())


def test_missing_registered_limits(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(sqlite_url, tmp_path) as (c, k):
            # Only the listed resource, `servers`, needs a registered limit.
            assert "already used 0 of 0 servers" in fault(await post_server(c))[2]
            await k.register({"servers": 5})
            assert (await post_server(c, metadata={"a": "b"})).status == 202
            shown = (await c.get(SET, version="latest")).json()["quota_set"]
            assert (shown["instances"], shown["cores"], shown["key_pairs"]) == (5, -1, -1)
            c.services.config.quota.unified_limits_resource_strategy = "ignore"
            assert "class:VCPU" in fault(await post_server(c))[2]

    run(scenario())


def test_limits_of_the_region_precede_general_limits(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keystone(tmp_path) as k:
            limits = UnifiedLimits(k.client, load(environ={}).quota)
            await k.register({"servers": 1, "server_groups": 2})
            await k.register({"servers": 3}, "RegionOne")
            region = {"region": {"id": "other"}}
            await k.cloud.ok("POST", "/v3/regions", k.admin, region)
            await k.register({"servers": 4}, "other")
            found = await limits.of(DEMO)
            assert [found.limit(name) for name in ("servers", "server_groups", "class:VGPU")] == [3, 2, -1]

    run(scenario())


@pytest.mark.parametrize("resource", ["metadata_items", "key_pairs", "server_groups", "server_group_members"])
def test_other_resources_are_limited(database_url: str, tmp_path: Path, resource: str) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, unified_limits.LIMIT_NAMES[resource]: 1})
            group = {"server_group": {"name": "g", "policy": "affinity"}}
            made = (await c.post("/os-server-groups", group, version="2.64")).json()["server_group"]["id"]
            key = {"keypair": {"name": "k", "public_key": KEY}}
            assert (await c.post("/os-keypairs", key)).status == 200
            if resource == "server_groups":
                answer = await c.post("/os-server-groups", group, version="2.64")
            elif resource == "key_pairs":
                key["keypair"]["name"] = "other"
                answer = await c.post("/os-keypairs", key)
            elif resource == "metadata_items":
                answer = await post_server(c, metadata={"a": "1", "b": "2"})
            else:
                server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", "min_count": 2}
                body = {"server": server, "os:scheduler_hints": {"group": made}}
                answer = await c.post("/servers", body, version="2.96")
            assert answer.status == 403
            server_id = (await c.boot_active())["id"]
            answer = await c.put(f"/servers/{server_id}/metadata", {"metadata": {"a": "1", "b": "2"}})
            assert answer.status == (403 if resource == "metadata_items" else 200)

    run(scenario())


def test_changes_of_quotas_are_ignored(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, "servers": 7})
            body = {"instances": 1, "key_pairs": 1}
            changed = await c.put(f"{SET}?user_id=u", {"quota_set": body}, as_="admin", version="latest")
            assert (changed.status, changed.json()["quota_set"]["instances"]) == (200, 7)
            assert (await c.delete(SET, as_="admin")).status == 202
            name = "/os-quota-class-sets/default"
            changed = await c.put(name, {"quota_class_set": body}, as_="admin", version="latest")
            assert (changed.status, changed.json()["quota_class_set"]["instances"]) == (200, 7)
            await k.limit({"servers": 3})
            shown = [
                (await c.get(path, as_="admin", version="latest")).json() for path in (SET, SET + "/defaults", name)
            ]
            assert [next(iter(one.values()))["instances"] for one in shown] == [3, 7, 7]
            for table in ("quotas", "user_quotas", "quota_classes"):
                assert await c.db.fetch_value(f"SELECT COUNT(*) FROM {table}") == 0

    run(scenario())


def test_known_limits_go_on_while_keystone_is_down(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(sqlite_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, "servers": 2})
            assert (await post_server(c)).status == 202
            k.is_down = True
            assert (await post_server(c)).status == 202
            assert (await post_server(c)).status == 403
            unknown = await post_server(c, "other")
            assert (unknown.status, unknown.headers["retry-after"]) == (503, "5")
            k.is_down = False
            assert (await post_server(c, "other")).status == 202

    run(scenario())


def test_limits_are_cached_for_some_seconds(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with keystone(tmp_path) as k:
            limits = UnifiedLimits(k.client, load(environ={}).quota)
            await k.register({"servers": 2})
            await asyncio.gather(*(limits.of(DEMO) for _ in range(20)))
            assert k.reads() == 2
            await limits.of(OTHER)
            assert k.reads() == 3
            now = clock.now()
            with monkeypatch.context() as later:
                later.setattr(clock, "now", lambda: now + 11)
                await limits.of(DEMO)
                assert k.reads() == 5
                # While Keystone is down, it is not asked at each request.
                later.setattr(clock, "now", lambda: now + 22)
                k.is_down = True
                for _ in range(3):
                    assert (await limits.of(DEMO)).limit("servers") == 2
                assert k.reads() == 7
                k.is_down = False
                for number in range(CACHE_SIZE + 5):
                    await limits.of(f"p{number}")
                assert len(limits._of_projects._known) == CACHE_SIZE

    run(scenario())


def test_concurrent_requests_stay_within_unified_limits(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clouds(database_url, tmp_path) as (c, k):
            await k.register({**GENEROUS, "class:DISK_GB": 4})
            async with c.db.transaction() as tx:
                await insert_server(tx, "deleted", deleted=True)
                await insert_server(tx, "soft-deleted", vm_state="soft-deleted")
            answers = await asyncio.gather(*(post_server(c) for _ in range(8)))
            assert sorted(answer.status for answer in answers) == [202] * 4 + [403] * 4

    run(scenario())


def test_default_limits_are_those_of_the_settings() -> None:
    config = load(environ={}, flags={"quota.instances": 3})
    limits = unified_limits.default_limits(config)
    assert (limits["servers"], limits["class:VCPU"], limits["server_key_pairs"]) == (3, 20, 100)
    assert len(limits) == 10
