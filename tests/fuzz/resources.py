"""Creates one resource of each kind that routes refer to, for tests that call every route."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import compute, volume
from kilonova.http import Api, App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.image import build as build_image
from kilonova.network import build as build_network
from kilonova.share.types import DEFAULT_ID
from tests.support.audit import from_client
from tests.support.cloud import DEMO, OTHER
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

FLAVOR = {"name": "f", "id": "f", "ram": 64, "vcpus": 1, "disk": 1, "os-flavor-access:is_public": False}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


class ApiCaller:
    """Calls an API as one of the tokens of `tests.support.cloud`."""

    def __init__(self, c: FullCloud, api: Api, as_: str = "admin") -> None:
        app = App(c.services, [api]) if api.name == "placement" else c.app
        self.caller = InProcess(from_client(app), api.prefix)
        self.header, self.name, self.as_ = api.version_header, api.name, as_

    async def __call__(self, method: str, path: str, version: str | None, body: Any) -> ClientResponse:
        headers = {"X-Auth-Token": self.as_}
        if version is not None:
            headers[self.header] = f"{self.name} {version}"
        content = body if isinstance(body, bytes) else None
        if content is not None:
            headers["Content-Type"] = "application/octet-stream"
        return await self.caller.request(
            method, path, headers=headers, json=None if content is not None else body, content=content
        )

    async def make(self, path: str, noun: str, version: str | None = None, **values: Any) -> Any:
        answer = await self("POST", path, version, {noun: values})
        assert answer.status < 300, answer.body
        return answer.json()[noun]


async def create_resources(c: FullCloud) -> dict[str, Any]:
    """Create one resource of each kind that compute's paths and bodies refer to."""
    return {**await create_project_resources(c, "admin"), **await create_cloud_resources(c)}


async def create_project_resources(c: FullCloud, as_: str) -> dict[str, Any]:
    """The resources that belong to a project or a user."""
    call, network, volumes = (
        ApiCaller(c, compute.build(), as_),
        ApiCaller(c, build_network(), as_),
        ApiCaller(c, volume.build(), as_),
    )
    server = await c.boot_active(as_=as_, metadata={"key": "x"}, tags=["tag"])
    await call("POST", "/v2.1/os-keypairs", None, {"keypair": {"name": "key", "public_key": KEY}})
    group = await call.make("/v2.1/os-server-groups", "server_group", name="g", policies=["affinity"])
    taken = (await call("GET", f"/v2.1/servers/{server['id']}/os-instance-actions", "2.96", None)).json()
    ports = (await network("GET", f"/v2.0/ports?device_id={server['id']}", None, None)).json()["ports"]
    image = (await ApiCaller(c, build_image(), as_)("POST", "/v2/images", None, {"name": "i", "key": "x"})).json()
    volume_ = await volumes.make("/v3/volumes", "volume", "3.71", name="v", size=1)
    security_group = await network.make("/v2.0/security-groups", "security_group", name="g")
    await wait_until_available(volumes, f"/v3/volumes/{volume_['id']}", "volume")
    attachments = f"/v2.1/servers/{server['id']}/os-volume_attachments"
    await call.make(attachments, "volumeAttachment", volumeId=volume_["id"])
    return {
        "server_id": server["id"],
        "os-keypairs/name": "key",
        "public_key": KEY,
        "key": "key",
        "tag": "tag",
        "group_id": group["id"],
        "request_id": taken["instanceActions"][0]["request_id"],
        "network": next(iter(server["addresses"])),
        "port_id": ports[0]["id"],
        "image_id": image["id"],
        "volume_id": volume_["id"],
        "volumeId": volume_["id"],
        "project_id": server["tenant_id"],
        "parent_group_id": security_group["id"],
        "os-security-groups/id": security_group["id"],
    }


SHARE_BODIES: dict[str, Any] = {
    "POST /shares": {"share": {"share_proto": "NFS", "size": 1}},
    "PUT /shares/{share_id}/metadata/{key}": {"meta": {"key": "y"}},
    "POST /shares/{share_id}/action#extend": {"extend": {"new_size": 3}},
    "POST /shares/{share_id}/action#shrink": {"shrink": {"new_size": 1}},
}


async def create_share_resources(c: FullCloud, call: ApiCaller) -> dict[str, Any]:
    """A share with an access rule, and a lock of another share: the first can be deleted."""

    async def make() -> str:
        made = await call.make("/v2/shares", "share", share_proto="NFS", size=2, metadata={"key": "x"})
        path = f"/v2/shares/{made['id']}"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await call("GET", path, None, None)).json()["share"]["status"] != "available":
                await asyncio.sleep(0.01)
        return str(made["id"])

    share_id, locked = await make(), await make()
    rule = {"access_type": "ip", "access_to": "10.99.0.1", "metadata": {"key": "x"}}
    allowed = await call("POST", f"/v2/shares/{share_id}/action", None, {"allow_access": rule})
    lock = await call.make("/v2/resource-locks", "resource_lock", "2.82", resource_id=locked)
    return {
        "share_id": share_id,
        "location_id": share_id,
        "resource_id": share_id,
        "access_id": allowed.json()["access"]["id"],
        "rule_id": allowed.json()["access"]["id"],
        "lock_id": lock["id"],
        "type_id": DEFAULT_ID,
        "project_id": OTHER if call.as_ == "other" else DEMO,
        "key": "key",
        "size": 2,
        "share_proto": "NFS",
        "access_type": "ip",
        "access_to": "10.99.0.7",
    }


async def create_cloud_resources(c: FullCloud) -> dict[str, Any]:
    """The resources that belong to no project, and values that suit every project."""
    call = ApiCaller(c, compute.build())
    flavor = await call.make("/v2.1/flavors", "flavor", **FLAVOR)
    await call("POST", "/v2.1/flavors/f/os-extra_specs", None, {"extra_specs": {"key": "x"}})
    aggregate = await call.make("/v2.1/os-aggregates", "aggregate", name="a")
    hypervisor = (await call("GET", "/v2.1/os-hypervisors", "2.96", None)).json()["hypervisors"][0]
    service = (await call("GET", "/v2.1/os-services?binary=nova-compute", "2.96", None)).json()["services"][-1]
    return {
        "version_id": "v2.1",
        "alias": "os-keypairs",
        "flavor_id": flavor["id"],
        "flavorRef": "2",
        "imageRef": c.image_id,
        "os-quota-class-sets/name": "default",
        "aggregate_id": aggregate["id"],
        "os-hosts/host": service["host"],
        "hypervisor_id": hypervisor["id"],
        "service_id": service["id"],
        "tenant": DEMO,
        "before": "2020-01-01 00:00:00",
        "os-networks/id": c.network_id,
        "os-tenant-networks/id": c.network_id,
        "networks": "auto",
    }


async def wait_until_available(call: ApiCaller, path: str, noun: str) -> None:
    """Wait until a volume or a snapshot is available."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await status_of(call, path, noun) != "available":
            await asyncio.sleep(0.01)


async def status_of(call: ApiCaller, path: str, noun: str) -> str:
    answer = await call("GET", path, "3.71", None)
    return str(answer.json()[noun]["status"]) if answer.status == 200 else "gone"
