"""Volume attachments, old volumes and snapshots, and external events as the public API reference prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compute.volume_attachments.support import attach, detach, idle, path
from tests.samples.shape import differences
from tests.samples.test_samples import SAMPLES
from tests.support import run
from tests.support.volumes import make_volume, volume_until
from tests.support.whole import Whole, whole

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

ATTACHMENTS = SAMPLES / "os-volume_attachments"
ONE, ALL = "volume-attachment-detail-resp.json", "list-volume-attachments-resp.json"
ATTACH, ATTACHED = "attach-volume-to-server-req.json", "attach-volume-to-server-resp.json"
SWAP, FLAG = "update-volume-req.json", "update-volume-attachment-delete-flag-req.json"
VERSIONS = ("", "v2.49", "v2.70", "v2.79", "v2.85", "v2.89", "v2.101")


def sample(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


def same(directory: Path, name: str, answer: Any) -> None:
    """The answer is shaped as the sample, where there is one."""
    assert answer.status < 300, answer.body
    if (directory / name).exists():
        assert not list(differences(sample(directory, name), answer.json())), name


def of(body: Any, **values: str) -> Any:
    """The sample's body with things that there are."""
    ((key, inner),) = body.items()
    return {key: {**inner, **{name: value for name, value in values.items() if name in inner}}}


def test_attachments_at_each_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            volumes = [await make_volume(c) for _ in range(2)]
            for name in VERSIONS:
                await live(c, server_id, volumes, ATTACHMENTS / name, name.removeprefix("v") or "2.1")

    run(scenario())


async def live(c: Whole, server_id: str, volumes: list[str], directory: Path, version: str) -> None:
    volume_id, other_id = volumes
    values = {"volumeId": volume_id, "serverId": server_id, "id": volume_id, "device": "/dev/vdb"}
    answer = await c.post(path(server_id), of(sample(directory, ATTACH), **values), version=version)
    same(directory, ATTACHED, answer)
    await volume_until(c, volume_id, "in-use")
    await idle(c, server_id)
    same(directory, ALL, await c.get(path(server_id), version=version))
    same(directory, ONE, await c.get(path(server_id, volume_id), version=version))
    if (directory / FLAG).exists():
        body = of(sample(directory, FLAG), **values)
        assert (await c.put(path(server_id, volume_id), body, version=version)).status == 202
    if (directory / SWAP).exists():
        body = of(sample(directory, SWAP), volumeId=other_id)
        answer = await c.put(path(server_id, volume_id), body, as_="project-admin", version=version)
        assert answer.status == 202, answer.body
        await idle(c, server_id)
        volume_id = other_id
    await detach(c, server_id, volume_id)


def test_old_volumes_and_snapshots(sqlite_url: str) -> None:
    volumes, snapshots = SAMPLES / "os-volumes", SAMPLES / "os-snapshots"

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            asked = of(sample(volumes, "os-volumes-post-req.json"), availability_zone="nova")
            made = await c.post("/os-volumes", {"volume": {**asked["volume"], "size": 1}})
            same(volumes, "os-volumes-post-resp.json", made)
            volume_id = made.json()["volume"]["id"]
            await volume_until(c, volume_id, "available")
            await attach(c, (await c.active())["id"], volume_id)
            same(volumes, "os-volumes-get-resp.json", await c.get(f"/os-volumes/{volume_id}"))
            same(volumes, "os-volumes-index-resp.json", await c.get("/os-volumes"))
            same(volumes, "os-volumes-detail-resp.json", await c.get("/os-volumes/detail"))
            asked = of(sample(snapshots, "snapshot-create-req.json"), volume_id=await make_volume(c))
            made = await c.post("/os-snapshots", asked)
            same(snapshots, "snapshot-create-resp.json", made)
            snapshot_id = made.json()["snapshot"]["id"]
            same(snapshots, "snapshots-show-resp.json", await c.get(f"/os-snapshots/{snapshot_id}"))
            same(snapshots, "snapshots-list-resp.json", await c.get("/os-snapshots"))
            same(snapshots, "snapshots-detail-resp.json", await c.get("/os-snapshots/detail"))

    run(scenario())


def test_what_other_services_ask(sqlite_url: str) -> None:
    events, assisted = SAMPLES / "os-server-external-events", SAMPLES / "os-assisted-volume-snapshots"

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            (event,) = sample(events, "event-create-resp.json")["events"]
            told = {name: event[name] for name in ("name", "status", "tag")}
            body = {"events": [{**told, "server_uuid": server_id}]}
            answer = await c.post("/os-server-external-events", body, as_="service")
            same(events, "event-create-resp.json", answer)
            body = of(sample(assisted, "snapshot-create-assisted-req.json"), volume_id=volume_id)
            answer = await c.post("/os-assisted-volume-snapshots", body, as_="service")
            same(assisted, "snapshot-create-assisted-resp.json", answer)
            await idle(c, server_id)

    run(scenario())
