"""Metadata, tags, interfaces, consoles and other server data, compared with the published samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compute.consoles.support import fake_displays
from tests.compute.consoles.test_consoles import token_of
from tests.compute.interfaces.support import path as interface
from tests.compute.interfaces.support import wait_until_idle
from tests.compute.servers.support import NETWORK, act, make_network, make_port
from tests.samples.shape import differences
from tests.samples.test_samples import SAMPLES
from tests.samples.test_servers import version
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

CREATE, RESPONSE = "attach-interfaces-create", "attach-interfaces-create-resp.json"


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def assert_same_shape(file: Path, answer: Any) -> None:
    assert answer.status < 300, (file, answer.body)
    assert list(differences(read(file), answer.json())) == [], file


def find_sample(pattern: str) -> list[Path]:
    files = sorted(SAMPLES.glob(pattern))
    assert files, pattern
    return files


def test_interfaces(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            network_id = await make_network(c, "second", "192.168.1.0/24")
            for file in find_sample(f"os-attach-interfaces/**/{CREATE}*-req.json"):
                await interfaces(c, server_id, network_id, file)

    run(scenario())


async def interfaces(c: FullCloud, server_id: str, network_id: str, file: Path) -> None:
    body, requested = read(file), {"version": version(file)}
    keys = body["interfaceAttachment"]
    if "net_id" in keys:
        keys["net_id"] = network_id
    else:
        keys["port_id"] = (await make_port(c, network_id))["id"]
    created = await c.post(interface(server_id), body, **requested)
    assert_same_shape(file.with_name(RESPONSE), created)
    port_id = created.json()["interfaceAttachment"]["port_id"]
    shown = {"list": interface(server_id), "show": interface(server_id, port_id)}
    for word, path in shown.items():
        response = file.with_name(f"attach-interfaces-{word}-resp.json")
        if response.exists():
            assert_same_shape(response, await c.get(path, **requested))
    assert (await c.delete(interface(server_id, port_id), **requested)).status == 202
    await wait_until_idle(c)
    if "port_id" in keys:
        await c.delete(f"/ports/{port_id}", root=NETWORK)


def test_metadata_and_tags(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active(metadata={"foo": "Foo Value"}))["id"]
            path, folder = f"/servers/{server_id}/metadata", SAMPLES / "server-metadata"
            every, one = folder / "server-metadata-all-resp.json", folder / "server-metadata-resp.json"
            for response in (
                await c.get(path),
                await c.post(path, read(folder / "server-metadata-all-req.json")),
                await c.put(path, read(folder / "server-metadata-all-req.json")),
            ):
                assert_same_shape(every, response)
            assert_same_shape(one, await c.put(f"{path}/foo", read(folder / "server-metadata-req.json")))
            assert_same_shape(one, await c.get(f"{path}/foo"))
            tags, requested = SAMPLES / "os-server-tags/v2.26", {"version": "2.26"}
            put = await c.put(f"/servers/{server_id}/tags", read(tags / "server-tags-put-all-req.json"), **requested)
            assert_same_shape(tags / "server-tags-put-all-resp.json", put)
            listed = await c.get(f"/servers/{server_id}/tags", **requested)
            assert listed.json() == read(tags / "server-tags-index-resp.json")
            shown = await c.get(f"/servers/{server_id}", as_="admin", **requested)
            assert shown.json()["server"]["tags"] == read(tags / "server-tags-show-details-resp.json")["server"]["tags"]

    run(scenario())


def test_consoles(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            file = SAMPLES / "os-console-output/console-output-post-resp.json"
            body = read(file.with_name("console-output-post-req.json"))
            assert_same_shape(file, await c.post(f"/servers/{server_id}/action", body))
            with fake_displays(vnc=5900, serial=5900):
                for name in ("vnc", "serial"):
                    file = SAMPLES / f"os-remote-consoles/get-{name}-console-post-resp.json"
                    body = read(file.with_name(f"get-{name}-console-post-req.json"))
                    assert_same_shape(file, await c.post(f"/servers/{server_id}/action", body))
                file = SAMPLES / "os-remote-consoles/v2.6/create-vnc-console-resp.json"
                body = read(file.with_name("create-vnc-console-req.json"))
                created = await c.post(f"/servers/{server_id}/remote-consoles", body, version="2.6")
                assert_same_shape(file, created)
                token = token_of(created.json()["remote_console"]["url"])
                for file in find_sample("os-console-auth-tokens/**/get-console-connect-info-get-resp.json"):
                    path = f"/os-console-auth-tokens/{token}"
                    assert_same_shape(file, await c.get(path, as_="admin", version=version(file)))

    run(scenario())


def test_other_server_data(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            path = f"/servers/{server_id}"
            file = SAMPLES / "os-server-diagnostics/v2.48/server-diagnostics-get-resp.json"
            assert_same_shape(file, await c.get(f"{path}/diagnostics", as_="admin", version="2.48"))
            file = SAMPLES / "os-server-password/get-password-resp.json"
            assert_same_shape(file, await c.get(f"{path}/os-server-password"))
            for file in find_sample("os-server-topology/v2.78/*.json"):
                assert_same_shape(file, await c.get(f"{path}/topology", version="2.78"))
            file = SAMPLES / "os-security-groups/server-security-groups-list-resp.json"
            assert_same_shape(file, await c.get(f"{path}/os-security-groups"))
            await c.post("/security-groups", {"security_group": {"name": "test"}}, root=NETWORK)
            for word in ("add", "remove"):
                ((action, body),) = read(SAMPLES / f"os-security-groups/security-group-{word}-post-req.json").items()
                assert (await act(c, server_id, action, body)).status == 202

    run(scenario())
