"""Every route of every API responds on both databases, with existing resources. Most other tests run on one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import compute, share, volume
from kilonova.http.api import Route
from kilonova.http.client import ClientResponse, InProcess
from kilonova.identity import build as build_identity
from kilonova.identity import passwords
from kilonova.identity.resources import new_id
from kilonova.image import build as build_image
from kilonova.network import build as build_network
from kilonova.placement.build import build as build_placement
from kilonova.services import Services
from kilonova.store.insert import insert_row
from kilonova.volume.operations import content
from tests.fuzz.audited import check_events
from tests.fuzz.resources import (
    SHARE_BODIES,
    ApiCaller,
    create_resources,
    create_share_resources,
    status_of,
    wait_until_available,
)
from tests.fuzz.routes import REMOVED, RouteWalker
from tests.identity.support import cloud as identity_cloud
from tests.identity.support import password_auth, project_scope
from tests.identity.test_ec2_tokens import new_keys, signed
from tests.identity.test_limits import create as create_limits
from tests.support import run
from tests.support.audit import from_client, recorded_events
from tests.support.cloud import ADMIN, DEMO
from tests.support.databases import DIALECTS
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud

CONSUMER = "33333333-3333-4333-8333-333333333333"
BODIES: dict[str, Any] = {
    "GET /kilonova-fit": {"flavor": "1"},
    "PUT /os-quota-sets/{project_id}": {"quota_set": {"key_pairs": 100}},
    "PUT /os-quota-class-sets/{name}": {"quota_class_set": {"key_pairs": 100}},
    "POST /servers/{server_id}/action#addSecurityGroup": {"addSecurityGroup": {"name": "g"}},
    "POST /servers/{server_id}/action#removeSecurityGroup": {"removeSecurityGroup": {"name": "g"}},
    "POST /servers/{server_id}/action#os-migrateLive": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
    "POST /servers/{server_id}/action#migrate": {"migrate": None},
    "POST /servers/{server_id}/os-interface": {"interfaceAttachment": {}},
    "PUT /flavors/{flavor_id}/os-extra_specs/{key}": {"key": "y"},
    "PUT /servers/{server_id}/metadata/{key}": {"meta": {"key": "y"}},
    "PUT /images/{image_id}/metadata/{key}": {"meta": {"key": "y"}},
}
# Actions that are required before other actions.
REQUIRED_ACTIONS: dict[str, Any] = {
    "os-start": {"os-stop": None},
    "unpause": {"pause": None},
    "resume": {"suspend": None},
    "unrescue": {"rescue": None},
    "confirmResize": {"migrate": None},
    "revertResize": {"migrate": None},
    "shelveOffload": {"shelve": None},
    "unshelve": {"shelve": None},
}
PRIVATE: dict[str, Any] = {"extra_specs": {"key": "x"}, "os-volume-type-access:is_public": False}
# Not of the project's default type, which one of the routes changes.
VOLUME = {"size": 1, "volume_type": "__DEFAULT__"}
VOLUME_BODIES: dict[str, Any] = {
    "PUT /volumes/{volume_id}/metadata/{key}": {"meta": {"key": "y"}},
    "PUT /snapshots/{snapshot_id}/metadata/{key}": {"meta": {"key": "y"}},
    "PUT /types/{type_id}/extra_specs/{key}": {"key": "y"},
    "POST /types/{type_id}/extra_specs": {"extra_specs": {"key": "y"}},
    "POST /volumes/{volume_id}/action#os-extend": {"os-extend": {"new_size": 2}},
    "POST /types": {"volume_type": {"name": "new"}},
}
# Resources of these kinds cannot be created in this process.
MISSING_CONSOLES = {"GET /os-console-auth-tokens/{token}", "GET /servers/{server_id}/migrations/{migration_id}"}
MISSING_RESOURCES = {
    *("GET /os-hypervisors/{hypervisor_id}/search", "GET /os-hypervisors/{hypervisor_id}/servers"),
    *("GET /os-snapshots/{snapshot_id}", "GET /os-floating-ips/{id}"),
    # A server with shares refuses most actions.
    "GET /servers/{server_id}/shares/{share_id}",
}
Before = Callable[[Route], Awaitable[None]]
UNLIMITED = {f"quota__{name}": -1 for name in ("instances", "cores", "ram")}


@pytest.fixture(params=DIALECTS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def visit(
    walk: RouteWalker, services: Services, before: Before | None = None, absent: Collection[str] = ()
) -> None:
    """Call every route. Reads must succeed except for `absent`, and so must most others.

    Each write is recorded in the audit log once. A read is recorded only if it is refused.
    """
    with recorded_events(services) as events:
        for route in walk.routes():
            if before is not None:
                await before(route)
            events.clear()
            answer = await walk.call_route(route)
            if route.method in ("GET", "HEAD"):
                assert {event["reason"]["code"] for event in events} <= {403}, route.key
            else:
                check_events(events, walk, route, answer)
    assert walk.statuses.keys() == {*walk.api.routes, *walk.api.document_routes}
    assert walk.refused("GET", "HEAD").keys() == set(absent)
    written = [key for key, status in walk.statuses.items() if not key.startswith("GET ") and status not in REMOVED]
    assert len(walk.refused("PUT", "PATCH", "POST", "DELETE")) < len(written) / 2
    assert walk.filters[200] >= sum(walk.filters.values()) / 3


async def wait_until_idle(c: FullCloud, server_id: str) -> str:
    """The server's status, once it has no task state."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (state := await state_of(c, server_id)) == "busy":
            await asyncio.sleep(0.01)
    return state


async def state_of(c: FullCloud, server_id: str) -> str:
    answer = await c.get(f"/servers/{server_id}", as_="admin")
    shown = answer.json()["server"] if answer.status == 200 else {"status": "gone", "OS-EXT-STS:task_state": None}
    return "busy" if shown["OS-EXT-STS:task_state"] or shown["status"] == "BUILD" else shown["status"]


def test_compute_routes(url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(url, hosts=4, **UNLIMITED) as c:
            api = compute.build()
            names = await create_resources(c)

            async def provide_active_server(route: Route) -> None:
                """Provide an active server for a route that changes one."""
                if "{server_id}" not in route.path or route.method == "GET":
                    return
                if await wait_until_idle(c, names["server_id"]) != "ACTIVE":
                    names["server_id"] = (await c.boot_active(as_="admin", metadata={"key": "x"}, tags=["tag"]))["id"]
                if route.action in REQUIRED_ACTIONS:
                    path = f"/servers/{names['server_id']}/action"
                    answer = await c.post(path, REQUIRED_ACTIONS[route.action], as_="admin", version="2.96")
                    assert answer.status < 300, answer.body
                    await wait_until_idle(c, names["server_id"])

            service = {"host": names["os-hosts/host"], "binary": "nova-compute"}
            actions = ("enable", "disable", "disable-log-reason", "force-down")
            services = {
                f"PUT /os-services/{action}": {**service, "forced_down": False, "disabled_reason": "x"}
                for action in actions
            }
            hosts = {
                f"POST /os-aggregates/{{aggregate_id}}/action#{action}": {action: {"host": service["host"]}}
                for action in ("add_host", "remove_host")
            }
            walk = RouteWalker(api, ApiCaller(c, api), names, {**BODIES, **services, **hosts})
            await visit(walk, c.services, provide_active_server, MISSING_CONSOLES | MISSING_RESOURCES)

    run(scenario())


MISSING_IN_IMAGE_SERVICE = {
    "GET /v2/info/stores",
    # These need a host's ticket.
    "GET /kilonova/v1/images/{image_id}",
    "GET /kilonova/v1/images/{image_id}/file",
}


def test_image_routes(url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(url, hosts=1) as c:
            call = ApiCaller(c, build_image())
            image = {"name": "i", "disk_format": "raw", "container_format": "bare", "tags": ["tag"]}
            made = (await call("POST", "/v2/images", None, {**image, "visibility": "shared"})).json()
            await call("PUT", f"/v2/images/{made['id']}/file", None, b"x")
            await call("POST", f"/v2/images/{made['id']}/members", None, {"member": DEMO})
            names = {"image_id": made["id"], "member_id": DEMO, "tag": "tag", "schemas/name": "image", "member": "m"}
            bodies = {
                "PUT /v2/images/{image_id}/file": b"x",
                "PUT /v2/images/{image_id}/stage": b"x",
                "POST /v2/images": image,
                "POST /v2/images/{image_id}/import": {"method": {"name": "glance-direct"}},
            }
            await visit(RouteWalker(build_image(), call, names, bodies), c.services, absent=MISSING_IN_IMAGE_SERVICE)

    run(scenario())


def test_network_routes(url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(url, hosts=1) as c:
            call = ApiCaller(c, build_network())

            async def make(noun: str, **values: Any) -> str:
                made = await call.make(f"/v2.0/{noun.replace('_', '-')}s", noun, **values)
                path = f"/v2.0/{noun.replace('_', '-')}s/{made['id']}/tags/tag"
                assert (await call("PUT", path, None, None)).status < 300 or noun == "security_group_rule"
                return str(made["id"])

            network = await make("network", name="n")
            outside = await make("network", name="outside", **{"router:external": True})
            await make("subnet", network_id=outside, cidr="10.98.0.0/24", ip_version=4)
            subnet = await make("subnet", network_id=network, cidr="10.99.0.0/24", ip_version=4)
            port = await make("port", network_id=network)
            group = await make("security_group", name="g")
            binding = {"binding": {"host": "host"}}
            await call("POST", f"/v2.0/ports/{port}/bindings", None, binding)
            names = {
                "network_id": network,
                "floating_network_id": outside,
                "subnet_id": subnet,
                "port_id": port,
                "router_id": await make("router", name="r"),
                "security_group_id": group,
                "security_group_rule_id": await make(
                    "security_group_rule", security_group_id=group, direction="ingress"
                ),
                "floatingip_id": await make("floatingip", floating_network_id=outside),
                "trunk_id": await make("trunk", port_id=await make("port", network_id=network)),
                "project_id": ADMIN,
                "host": "host",
                "alias": "quotas",
                "tag": "tag",
                "cidr": "10.97.0.0/24",
            }
            await visit(RouteWalker(build_network(), call, names, {}), c.services)

    run(scenario())


def test_volume_routes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "GIB", 2**20)  # one of the routes reads a whole volume

    async def scenario() -> None:
        async with full_cloud(url, hosts=1) as c:
            api = volume.build()
            call = ApiCaller(c, api)
            names: dict[str, Any] = {}

            async def make(path: str, noun: str, **values: Any) -> str:
                made = await call.make(path, noun, "3.71", name="v", metadata={"key": "x"}, **values)
                await wait_until_available(call, f"{path}/{made['id']}", noun)
                return str(made["id"])

            async def provide_available_volume(route: Route) -> None:
                """Provide an available volume for a route that changes one."""
                if "{volume_id}" not in route.path or route.method == "GET":
                    return
                if await status_of(call, f"/v3/volumes/{names['volume_id']}", "volume") != "available":
                    names["volume_id"] = await make("/v3/volumes", "volume", **VOLUME)

            names["volume_id"] = await make("/v3/volumes", "volume", **VOLUME)
            other = await make("/v3/volumes", "volume", **VOLUME)
            kind = await call.make("/v3/types", "volume_type", "3.71", name="t", **PRIVATE)
            connected = await make("/v3/volumes", "volume", **VOLUME)
            attachment = await call.make(
                "/v3/attachments", "attachment", "3.71", volume_uuid=connected, instance_uuid=c.network_id
            )
            transfer = await call.make("/v3/volume-transfers", "transfer", "3.71", volume_id=other)
            names |= {
                "snapshot_id": await make("/v3/snapshots", "snapshot", volume_id=names["volume_id"]),
                "type_id": kind["id"],
                "transfer_id": transfer["id"],
                "auth_key": transfer["auth_key"],
                "attachment_id": attachment["id"],
                "project": DEMO,
                "project_id": ADMIN,
                "key": "key",
                "size": 1,
                "os-quota-class-sets/name": "default",
            }
            absent = ("default-types/{project_id}", "messages/{message_id}", "os-hosts/{host}", "capabilities/{host}")
            await visit(
                RouteWalker(api, call, names, VOLUME_BODIES),
                c.services,
                provide_available_volume,
                [f"GET /{path}" for path in absent],
            )

    run(scenario())


def test_share_routes(url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(url, hosts=1) as c:
            call = ApiCaller(c, share.build())
            names = await create_share_resources(c, call)

            async def provide_available_share(route: Route) -> None:
                """Provide an available share for a route that changes one."""
                if "{share_id}" in route.path and route.method != "GET":
                    names.update(await create_share_resources(c, call))

            bodies = {**SHARE_BODIES, "GET /share-access-rules": names}
            await visit(RouteWalker(share.build(), call, names, bodies), c.services, provide_available_share)

    run(scenario())


def test_placement_routes(url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(url, hosts=2) as c:
            api = build_placement()
            call = ApiCaller(c, api)
            server = await c.boot_active(as_="admin")  # a consumer

            async def put(path: str, body: Any = None, method: str = "PUT") -> ClientResponse:
                answer = await call(method, path, "1.39", body)
                assert answer.status < 300, answer.body
                return answer

            for path in ("/traits/CUSTOM_A", "/resource_classes/CUSTOM_A"):
                await put(path)
            provider = (await put("/resource_providers", {"name": "a"}, "POST")).json()["uuid"]
            below = f"/resource_providers/{provider}"
            await put(
                f"{below}/inventories", {"inventories": {"VCPU": {"total": 8}}, "resource_provider_generation": 0}
            )
            claim = {
                "allocations": {provider: {"resources": {"VCPU": 1}}},
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
                "project_id": ADMIN,
                "user_id": "u",
            }
            await put(f"/allocations/{CONSUMER}", claim)
            names = {
                "uuid": provider,
                "resource_class": "VCPU",
                "name": "CUSTOM_A",
                "consumer_uuid": server["id"],
                "project_id": ADMIN,
                "in_tree": provider,
                "member_of": provider,
                "required": "CUSTOM_A",
                "resources": "VCPU:1",
            }

            async def generation() -> int:
                shown = (await call("GET", below, "1.39", None)).json()
                return int(shown["generation"])

            bodies: dict[str, Any] = {
                "GET /usages": {"project_id": ADMIN},
                "GET /allocation_candidates": {"resources": "VCPU:1"},
                "PUT /allocations/{consumer_uuid}": {**claim, "consumer_generation": 1},
                "POST /allocations": {CONSUMER: {**claim, "consumer_generation": 1}},
                "POST /resource_classes": {"name": "CUSTOM_B"},
                "PUT /traits/{name}": None,
                "PUT /resource_classes/{name}": None,
            }

            async def update_generation(route: Route) -> None:
                """Put the current generation into the bodies."""
                seen = {"resource_provider_generation": await generation()}
                inventory = {"total": 8}
                bodies["PUT /resource_providers/{uuid}/inventories"] = {"inventories": {"VCPU": inventory}, **seen}
                bodies["POST /resource_providers/{uuid}/inventories"] = {
                    "resource_class": "CUSTOM_A",
                    **inventory,
                    **seen,
                }
                bodies["PUT /resource_providers/{uuid}/inventories/{resource_class}"] = {**inventory, **seen}
                bodies["PUT /resource_providers/{uuid}/traits"] = {"traits": ["CUSTOM_A"], **seen}
                bodies["PUT /resource_providers/{uuid}/aggregates"] = {"aggregates": [provider], **seen}

            await visit(RouteWalker(api, call, names, bodies), c.services, update_generation)

    run(scenario())


def test_identity_routes(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "LOG_N", 4)

    async def scenario() -> None:
        async with identity_cloud(url, tmp_path) as c:
            c.caller = InProcess(from_client(c.app), "/identity")
            token = await c.login("admin")

            async def make(noun: str, **values: Any) -> str:
                made = await c.ok("POST", f"/v3/{noun}s", token, {noun: values})
                return str(made[noun]["id"])

            async def call(method: str, path: str, version: str | None, body: Any) -> ClientResponse:
                # DELETE with the own token would revoke it.
                own = token if method != "DELETE" else "none"
                return await c.call(method, path, token, body, X_Subject_Token=own)

            domain = await make("domain", name="d")
            user = await make("user", name="u", domain_id=domain, password="x")
            project = await make("project", name="p", domain_id=domain, tags=["tag"])
            role, implied = await make("role", name="r"), await make("role", name="implied")
            await c.ok("PUT", f"/v3/roles/{role}/implies/{implied}", token, status=201)
            group = await make("group", name="g", domain_id=domain)
            await c.ok("PUT", f"/v3/groups/{group}/users/{user}", token, status=204)
            for actor in (f"users/{user}", f"groups/{group}"):
                for scope in (f"projects/{project}", f"domains/{domain}", "system"):
                    await c.ok("PUT", f"/v3/{scope}/{actor}/roles/{role}", token, status=204)
                for scope in (f"projects/{project}", f"domains/{domain}"):
                    inherited = f"/v3/OS-INHERIT/{scope}/{actor}/roles/{role}/inherited_to_projects"
                    await c.ok("PUT", inherited, token, status=204)
            service, region = await make("service", type="t"), await make("region", id="West")
            values = {"service_id": service, "interface": "public", "url": "http://x"}
            keys = await new_keys(c, token, user, project)
            endpoint = await make("endpoint", **values)
            group_body = {"endpoint_group": {"name": "g", "filters": {}}}
            filters = "/v3/OS-EP-FILTER"
            made = await c.ok("POST", f"{filters}/endpoint_groups", token, group_body)
            endpoint_group = made["endpoint_group"]["id"]
            for path in (
                f"endpoint_groups/{endpoint_group}/projects/{project}",
                f"projects/{project}/endpoints/{endpoint}",
            ):
                await c.ok("PUT", f"{filters}/{path}", token, status=204)
            policy = await c.ok("POST", "/v3/policies", token, {"policy": {"type": "t", "blob": "b"}})
            of = {"service_id": service, "resource_name": "cores"}
            (registered,) = await create_limits(c, token, "registered_limit", {**of, "default_limit": 1})
            (limit,) = await create_limits(c, token, "limit", {**of, "project_id": project, "resource_limit": 2})
            admin = await c.ident("user", "admin")
            await c.grant(token, admin, "demo", "r")
            demo = await c.ident("project", "demo")
            trust = {"trustor_user_id": admin, "trustee_user_id": user, "project_id": demo, "impersonation": True}
            trusted = await c.ok("POST", "/v3/OS-TRUST/trusts", token, {"trust": {**trust, "roles": [{"id": role}]}})
            credential = {"id": new_id(), "user_id": user, "project_id": demo, "name": "a", "secret_hash": ""}
            rule = {"id": new_id(), "user_id": user, "service": "compute", "method": "GET", "path": "/"}
            async with c.services.db.transaction() as tx:
                off = {"unrestricted": False, "has_access_rules": False}
                await insert_row(tx, "application_credentials", {**credential, **off, "role_ids": "[]"})
                await insert_row(tx, "access_rules", rule)
            names = {
                "trust_id": trusted["trust"]["id"],
                "application_credential_id": credential["id"],
                "access_rule_id": rule["id"],
                "OS-EC2/credential_id": keys["access"],
                "credential_id": await make("credential", type="t", blob="b"),
                "limit_id": limit["id"],
                "registered_limit_id": registered["id"],
                "domain_id": domain,
                "group_id": group,
                "user_id": user,
                "project_id": project,
                "role_id": role,
                "implied_id": implied,
                "service_id": service,
                "endpoint_id": endpoint,
                "endpoint_group_id": endpoint_group,
                "policy_id": policy["policy"]["id"],
                "region_id": region,
                "tag": "tag",
            }
            bodies = {
                "POST /v3/auth/tokens": password_auth("admin", scope=project_scope("admin")),
                "POST /v3/users/{user_id}/password": {"user": {"password": "y", "original_password": "x"}},
                "POST /v3/ec2tokens": signed(keys, 4),
            }
            absent = [
                "GET /v3/domains/{domain_id}/config",
                *(
                    f"GET /v3/OS-FEDERATION/{kind}/{{item_id}}"
                    for kind in ("identity_providers", "mappings", "service_providers")
                ),
            ]
            await visit(RouteWalker(build_identity(), call, names, bodies), c.services, absent=absent)

    run(scenario())
