"""Requests of members that name objects of another project: the answers are those for objects that do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kilonova.compute import build as build_compute
from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from kilonova.image import build as build_image
from kilonova.network import build as build_network
from kilonova.volume import build as build_volume
from tests.authorization.support import RolledBackDatabase
from tests.fuzz.resources import ApiCaller, create_project_resources, wait_until_available
from tests.fuzz.routes import RouteWalker
from tests.support import run
from tests.support.cloud import DEMO, OTHER
from tests.support.full_cloud import FullCloud, full_cloud

Names = dict[str, str]
COMPUTE, NETWORK, VOLUME = "/compute/v2.1", "/network/v2.0", "/volume/v3"
VERSIONS = {COMPUTE: "compute 2.96", NETWORK: "network 2.0", VOLUME: "volume 3.71"}


class Attempt(NamedTuple):
    """A request of a member. `path` and `body` take the own ids, and those of the other project or missing ones."""

    method: str
    root: str
    path: Callable[[Names, Names], str]
    body: Callable[[Names, Names], Any] = lambda own, other: None
    version: str = ""


def server(**values: Any) -> dict[str, Any]:
    return {"server": {"name": "s", "flavorRef": "1", "networks": "none", **values}}


def booted_from(kind: str, ident: str) -> dict[str, Any]:
    device = {"boot_index": 0, "source_type": kind, "destination_type": "volume", "uuid": ident, "volume_size": 1}
    return server(block_device_mapping_v2=[device])


def action(verb: str, noun: str, version: str = "", /, **values: Callable[[Names, Names], Any]) -> Attempt:
    return Attempt(
        "POST",
        COMPUTE if noun == "server" else VOLUME,
        lambda own, other: f"/{noun}s/{own[noun]}/action",
        lambda own, other: {verb: {key: value(own, other) for key, value in values.items()}},
        version,
    )


def at(path: str) -> Callable[[Names, Names], str]:
    """`path` with the own id of `{own:noun}` and the other id of `{noun}`."""

    def fill(own: Names, other: Names) -> str:
        found = re.sub(r"\{own:(\w+)\}", lambda match: own[match[1]], path)
        return re.sub(r"\{(\w+)\}", lambda match: other[match[1]], found)

    return fill


def post(root: str, path: str, body: Callable[[Names, Names], Any], method: str = "POST") -> Attempt:
    return Attempt(method, root, at(path), body)


INTERFACES, DISKS = "/servers/{own:server}/os-interface", "/servers/{own:server}/os-volume_attachments"
ROUTER = "/routers/{own:router}"
ATTEMPTS = [
    # Subresources below an own server.
    *(Attempt(method, COMPUTE, at(f"{INTERFACES}/{{attached_port}}")) for method in ("GET", "DELETE")),
    *(Attempt(method, COMPUTE, at(f"{DISKS}/{{attached_volume}}")) for method in ("GET", "DELETE")),
    post(COMPUTE, INTERFACES, lambda own, other: {"interfaceAttachment": {"port_id": other["port"]}}),
    post(COMPUTE, INTERFACES, lambda own, other: {"interfaceAttachment": {"net_id": other["network"]}}),
    post(COMPUTE, DISKS, lambda own, other: {"volumeAttachment": {"volumeId": other["volume"]}}),
    # New servers.
    post(COMPUTE, "/servers", lambda own, other: server(imageRef=other["image"])),
    post(COMPUTE, "/servers", lambda own, other: server(imageRef=own["boot"], networks=[{"port": other["port"]}])),
    post(COMPUTE, "/servers", lambda own, other: server(imageRef=own["boot"], networks=[{"uuid": other["network"]}])),
    post(
        COMPUTE, "/servers", lambda own, other: server(imageRef=own["boot"], security_groups=[{"name": other["group"]}])
    ),
    post(
        COMPUTE,
        "/servers",
        lambda own, other: server(imageRef=own["boot"]) | {"os:scheduler_hints": {"group": other["server_group"]}},
    ),
    *(
        post(COMPUTE, "/servers", lambda own, other, kind=kind: booted_from(kind, other[kind]))  # type: ignore[misc]
        for kind in ("volume", "snapshot", "image")
    ),
    # Actions on an own server.
    action("rebuild", "server", imageRef=lambda own, other: other["image"]),
    action("rescue", "server", rescue_image_ref=lambda own, other: other["image"]),
    action("addSecurityGroup", "server", name=lambda own, other: other["group"]),
    # Networks.
    post(
        NETWORK,
        "/subnets",
        lambda own, other: {"subnet": {"network_id": other["network"], "cidr": "10.7.0.0/24", "ip_version": 4}},
    ),
    post(NETWORK, "/ports", lambda own, other: {"port": {"network_id": other["network"]}}),
    post(
        NETWORK,
        "/ports",
        lambda own, other: {"port": {"network_id": own["network"], "security_groups": [other["group"]]}},
    ),
    post(
        NETWORK,
        "/ports/{own:port}",
        lambda own, other: {"port": {"fixed_ips": [{"subnet_id": other["subnet"]}]}},
        "PUT",
    ),
    post(NETWORK, f"{ROUTER}/add_router_interface", lambda own, other: {"subnet_id": other["subnet"]}, "PUT"),
    post(NETWORK, f"{ROUTER}/add_router_interface", lambda own, other: {"port_id": other["port"]}, "PUT"),
    post(
        NETWORK,
        ROUTER,
        lambda own, other: {"router": {"external_gateway_info": {"network_id": other["network"]}}},
        "PUT",
    ),
    post(
        NETWORK,
        "/floatingips",
        lambda own, other: {"floatingip": {"floating_network_id": own["outside"], "port_id": other["port"]}},
    ),
    post(
        NETWORK,
        "/floatingips/{own:floatingip}",
        lambda own, other: {"floatingip": {"port_id": other["port"]}},
        "PUT",
    ),
    *(
        post(
            NETWORK,
            "/security-group-rules",
            lambda own, other, groups=groups: {  # type: ignore[misc]
                "security_group_rule": {"direction": "ingress", **groups(own, other)}
            },
        )
        for groups in (
            lambda own, other: {"security_group_id": other["group"]},
            lambda own, other: {"security_group_id": own["group"], "remote_group_id": other["group"]},
        )
    ),
    # Volumes.
    post(VOLUME, "/snapshots", lambda own, other: {"snapshot": {"volume_id": other["volume"]}}),
    *(
        post(VOLUME, "/volumes", lambda own, other, key=key, noun=noun: {"volume": {"size": 1, key: other[noun]}})  # type: ignore[misc]
        for key, noun in (("snapshot_id", "snapshot"), ("source_volid", "volume"), ("imageRef", "image"))
    ),
    post(VOLUME, "/volume-transfers", lambda own, other: {"transfer": {"volume_id": other["volume"]}}),
    post(
        VOLUME,
        "/attachments",
        lambda own, other: {"attachment": {"volume_uuid": other["volume"], "instance_uuid": own["server"]}},
    ),
    post(
        VOLUME,
        "/attachments",
        lambda own, other: {"attachment": {"volume_uuid": own["volume"], "instance_uuid": other["server"]}},
    ),
    action(
        "os-attach",
        "volume",
        instance_uuid=lambda own, other: other["server"],
        mountpoint=lambda own, other: "/dev/vdb",
    ),
    action("os-reimage", "volume", image_id=lambda own, other: other["image"]),
    action("revert", "volume", snapshot_id=lambda own, other: other["snapshot"]),
]
# Requests about another project as a whole.
REFUSED = [
    *((COMPUTE, path) for path in ("/servers?all_tenants=1", "/servers/detail?all_tenants=1")),
    *((COMPUTE, path) for path in ("/os-keypairs?user_id=other-id", "/os-keypairs/key?user_id=other-id")),
    *((COMPUTE, f"/os-quota-sets/{OTHER}{path}") for path in ("", "/detail")),
    *((COMPUTE, path) for path in (f"/limits?tenant_id={OTHER}", f"/os-simple-tenant-usage/{OTHER}")),
    (COMPUTE, f"/os-migrations?project_id={OTHER}"),
    *((NETWORK, f"/quotas/{OTHER}{path}") for path in ("", "/details")),
    (VOLUME, f"/os-quota-sets/{OTHER}"),
]


async def make_transfer(volumes: ApiCaller) -> str:
    given = await volumes.make("/v3/volumes", "volume", "3.71", name="given", size=1)
    await wait_until_available(volumes, f"/v3/volumes/{given['id']}", "volume")
    return str((await volumes.make("/v3/volume-transfers", "transfer", "3.71", volume_id=given["id"]))["id"])


async def create_objects(c: FullCloud, project_id: str, outside: str, octet: int) -> Names:
    as_ = f"admin@{project_id}"
    found = await create_project_resources(c, as_)
    network, volumes = ApiCaller(c, build_network(), as_), ApiCaller(c, build_volume(), as_)

    async def make(noun: str, **values: Any) -> str:
        return str((await network.make(f"/v2.0/{noun}s", noun, **values))["id"])

    own_network = await make("network", name="n")
    subnet = await make("subnet", network_id=own_network, cidr=f"10.{octet}.0.0/24", ip_version=4)
    volume = await volumes.make("/v3/volumes", "volume", "3.71", name="spare", size=1)
    await wait_until_available(volumes, f"/v3/volumes/{volume['id']}", "volume")
    snapshot = await volumes.make("/v3/snapshots", "snapshot", "3.71", name="s", volume_id=volume["id"])
    await wait_until_available(volumes, f"/v3/snapshots/{snapshot['id']}", "snapshot")
    attachments = (await volumes("GET", "/v3/attachments", "3.71", None)).json()["attachments"]
    image = {"name": "i", "disk_format": "raw", "container_format": "bare", "visibility": "private"}
    images = ApiCaller(c, build_image(), as_)
    image_id = str((await images("POST", "/v2/images", None, image)).json()["id"])
    assert (await images("PUT", f"/v2/images/{image_id}/file", None, b"x")).status == 204
    return {
        "server": found["server_id"],
        "attached_port": found["port_id"],
        "attached_volume": found["volume_id"],
        "attachment": attachments[0]["id"],
        "transfer": await make_transfer(volumes),
        "server_group": found["group_id"],
        "group": found["parent_group_id"],
        "network": own_network,
        "subnet": subnet,
        "port": await make("port", network_id=own_network),
        "router": await make("router", name="r"),
        "floatingip": await make("floatingip", floating_network_id=outside),
        "volume": volume["id"],
        "snapshot": snapshot["id"],
        "image": image_id,
        "boot": c.image_id,
        "outside": outside,
    }


async def create_both(c: FullCloud) -> tuple[Names, Names]:
    admin = ApiCaller(c, build_network())
    outside = (await admin.make("/v2.0/networks", "network", name="o", **{"router:external": True}))["id"]
    await admin.make("/v2.0/subnets", "subnet", network_id=outside, cidr="10.98.0.0/24", ip_version=4)
    return await create_objects(c, DEMO, outside, 90), await create_objects(c, OTHER, outside, 91)


def masked(body: bytes) -> str:
    return re.sub(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", "ID", body.decode())


def test_objects_of_other_projects_answer_like_missing_ones(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            own, other = await create_both(c)
            missing = {noun: new_id() for noun in other}
            c.services.db = RolledBackDatabase(c.db)  # type: ignore[assignment]
            wrong = []
            for attempt in ATTEMPTS:
                answers = []
                for names in (other, missing, own):
                    headers = {"OpenStack-API-Version": attempt.version or VERSIONS[attempt.root]}
                    path, body = attempt.path(own, names), attempt.body(own, names)
                    answer = await c.request(attempt.method, path, root=attempt.root, headers=headers, json=body)
                    answers.append((answer.status, masked(answer.body)))
                if answers[0] != answers[1] or answers[0][0] not in (400, 403, 404) or answers[0] == answers[2]:
                    wrong.append(f"{attempt.method} {attempt.path(own, other)} {attempt.body(own, other)}: {answers}")
            for root, path in REFUSED:
                answer = await c.request("GET", path, root=root, headers={"OpenStack-API-Version": VERSIONS[root]})
                if answer.status not in (403, 404):
                    wrong.append(f"GET {root}{path}: {answer.status} {answer.body!r}")
            assert not wrong, "\n".join(wrong)

    run(scenario())


def test_markers_of_other_projects_answer_like_missing_ones(sqlite_url: str) -> None:
    """Every list, with every object of the other project as its marker."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            own, other = await create_both(c)
            names = {f"{noun}_id": ident for noun, ident in own.items()}
            shared = {c.image_id, own["outside"]}
            wrong, lists = [], 0
            for api in (build_compute(), build_volume(), build_network(), build_image()):
                call, walk = ApiCaller(c, api, "member"), RouteWalker(api, _unused, names, {})
                for route in api.routes.values():
                    version = route.versions[-1]
                    if route.method != "GET" or version is None or not version.accepts_query_key("marker"):
                        continue
                    lists += 1
                    _, path, number, _ = walk.request(route)
                    missing = await call("GET", f"{path}?marker={new_id()}", number, None)
                    for noun, ident in other.items():
                        answer = await call("GET", f"{path}?marker={ident}", number, None)
                        same = (answer.status, masked(answer.body)) == (missing.status, masked(missing.body))
                        if not same and ident not in shared:
                            wrong.append(f"{route.key} {noun}: {answer.status} {answer.body[:200]!r} {missing.body!r}")
            assert not wrong, "\n".join(wrong)
            assert lists > 20

    run(scenario())


async def _unused(method: str, path: str, version: str | None, body: Any) -> ClientResponse:
    raise NotImplementedError
