"""Servers and their actions compared with the published samples, at the version of each sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.compute.servers.support import PUBLIC_KEY
from tests.samples.shape import differences
from tests.samples.test_samples import SAMPLES, version_of
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

# Samples of servers in a cell that is down; Kilonova has no cells.
LEFT_OUT = {"v2.69/server-get-resp.json", "v2.69/servers-details-resp.json", "v2.69/servers-list-resp.json"}
# From this microversion on `personality` is refused, but samples of newer requests still have it.
NO_PERSONALITY = 57
DEVICES = {"source_type": "image", "destination_type": "local", "boot_index": 0}

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")


def samples(folder: str, *names: str) -> list[Path]:
    found = [file for name in names for file in sorted((SAMPLES / folder).rglob(name))]
    return [file for file in found if str(file.relative_to(SAMPLES / folder)) not in LEFT_OUT]


def version(file: Path) -> str:
    return version_of(str(file.relative_to(SAMPLES)))


def role_of(sample: dict[str, Any]) -> str:
    """The role of a sample: some show what only an administrator sees."""
    return "admin" if '"OS-EXT-SRV-ATTR:host"' in json.dumps(sample) else "member"


def check_shape(file: Path, sample: Any, answer: Any) -> None:
    # The keys below image properties are arbitrary.
    found = [each for each in differences(sample, answer) if ".image.properties." not in each]
    assert found == [], file.relative_to(SAMPLES)


async def create_server(c: FullCloud) -> str:
    """Create the server of the samples: booted, stopped and started."""
    flavor = {"flavor": {"name": "m1.tiny.specs", "id": "specified", "ram": 512, "vcpus": 1, "disk": 1}}
    await c.post("/flavors", flavor, as_="admin")
    await c.post("/flavors/specified/os-extra_specs", {"extra_specs": {"hw:numa_nodes": "1"}}, as_="admin")
    keys = {"metadata": {"My Server Name": "Apache1"}, "user_data": "QUFB", "availability_zone": "nova"}
    server_id = (await c.boot_active(name="new-server-test", flavorRef="specified", **keys))["id"]
    await c.boot_active(name="another")
    for action in ("os-stop", "os-start"):
        await c.post(f"/servers/{server_id}/action", {action: None})
        await c.wait_until_settled(server_id)
    return str(server_id)


@proves("GET /servers", "GET /servers/detail", "GET /servers/{server_id}", "PUT /servers/{server_id}")
def test_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = await create_server(c)
            for file in samples("servers", "server-get-resp.json"):
                sample = json.loads(file.read_text())
                response = await c.get(f"/servers/{server_id}", version=version(file), as_=role_of(sample))
                check_shape(file, sample, response.json())
            for file in samples("servers", "servers-details*.json", "servers-list*.json"):
                sample = json.loads(file.read_text())
                query = {
                    "limit": "1" if "servers_links" in sample else "1000",
                    **({"changes-before": "2100-01-01T00:00:00Z"} if "changes-before" in file.name else {}),
                    **({"all_tenants": "1"} if role_of(sample) == "admin" else {}),
                }
                path = "/servers/detail" if "details" in file.name else "/servers"
                response = await c.get(f"{path}?{urlencode(query)}", version=version(file), as_=role_of(sample))
                check_shape(file, sample, response.json())
            for file in samples("servers", "server-update-resp.json", "server-put-resp.json"):
                sample = json.loads(file.read_text())
                body = json.loads(file.with_name(file.name.replace("-resp", "-req")).read_text())
                response = await c.put(f"/servers/{server_id}", body, version=version(file), as_=role_of(sample))
                assert response.status == 200, response.body
                check_shape(file, sample, response.json())

    run(scenario())


@proves("POST /servers/{server_id}/action#rebuild")
def test_rebuild(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = await create_server(c)
            await c.post("/os-keypairs", {"keypair": {"name": "new-key", "public_key": PUBLIC_KEY}})
            files = samples("servers", "server-action-rebuild-resp.json")
            assert len(files) == 15
            for file in files:
                sample = json.loads(file.read_text())
                body = json.loads(file.with_name("server-action-rebuild.json").read_text())
                body["rebuild"]["imageRef"] = c.image_id
                path = f"/servers/{server_id}/action"
                response = await c.post(path, body, version=version(file), as_=role_of(sample))
                assert response.status == 202, response.body
                check_shape(file, sample, response.json())
                await c.wait_until_settled(server_id)

    run(scenario())


@proves("POST /servers")
def test_create_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, zones=("us-west",), quota__instances=100, quota__cores=100) as c:
            group = {"server_group": {"name": "g", "policies": ["affinity"]}}
            group_id = (await c.post("/os-server-groups", group)).json()["server_group"]["id"]
            there = {"same_host": (await c.boot_active())["id"], "group": group_id}
            for file in samples("servers", "server-create-resp.json"):
                requested = file.with_name("server-create-req.json")
                if not requested.exists():
                    continue
                body = json.loads(requested.read_text())
                for hints in (body[key] for key in body if key.endswith("scheduler_hints")):
                    hints.update({name: there[name] for name in hints})
                server = body["server"]
                minor = int(version(file).split(".")[1])
                if minor >= NO_PERSONALITY:
                    server.pop("personality", None)
                server["flavorRef"] = "1"
                server["availability_zone"] = "us-west"
                if "imageRef" in server or "block_device_mapping_v2" in server:
                    server["imageRef"] = c.image_id
                if "block_device_mapping_v2" in server:
                    server["block_device_mapping_v2"] = [{**DEVICES, "uuid": c.image_id}]
                if "uuid" in str(server.get("networks")):
                    server["networks"][0]["uuid"] = c.network_id
                if minor >= 37:
                    server.setdefault("networks", "auto")
                response = await c.post("/servers", body, version=version(file))
                assert response.status == 202, (file, response.body)
                check_shape(file, json.loads(file.read_text()), response.json())
                await c.wait_until_settled(response.json()["server"]["id"])

    run(scenario())


@proves("GET /servers/{server_id}/os-instance-actions", "GET /servers/{server_id}/os-instance-actions/{request_id}")
def test_instance_actions(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            path = f"/servers/{await create_server(c)}/os-instance-actions"
            listed = (await c.get(path)).json()["instanceActions"]
            request_id = next(each["request_id"] for each in listed if each["action"] == "stop")
            for file in samples("os-instance-actions", "*.json"):
                query = ""
                for word, part in (
                    ("limit", "limit=1"),
                    ("marker", f"marker={request_id}"),
                    ("changes-since", "changes-since=2000-01-01T00:00:00Z"),
                    ("changes-before", "changes-before=2100-01-01T00:00:00Z"),
                ):
                    if word in file.name:
                        query = f"?{part}"
                url = f"{path}/{request_id}" if "-get-" in file.name else path + query
                who = "member" if "non-admin" in file.name else "admin"
                response = await c.get(url, version=version(file), as_=who)
                assert response.status == 200, response.body
                shown = response.json()
                if "non-admin" in file.name:
                    # Kilonova shows event details to users too.
                    for event in shown["instanceAction"]["events"]:
                        event.pop("details", None)
                check_shape(file, json.loads(file.read_text()), shown)

    run(scenario())
