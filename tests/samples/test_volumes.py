"""Volume attachments, deprecated volume and snapshot APIs, and external events, compared with the published samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compute.volume_attachments.support import attach, detach, path, wait_until_idle
from tests.samples.shape import differences
from tests.samples.test_samples import SAMPLES
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import make_volume, wait_for_volume

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

ATTACHMENTS = SAMPLES / "os-volume_attachments"
ONE, ALL = "volume-attachment-detail-resp.json", "list-volume-attachments-resp.json"
ATTACH, ATTACHED = "attach-volume-to-server-req.json", "attach-volume-to-server-resp.json"
SWAP, FLAG = "update-volume-req.json", "update-volume-attachment-delete-flag-req.json"
VERSIONS = ("", "v2.49", "v2.70", "v2.79", "v2.85", "v2.89", "v2.101")


def sample(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


def assert_same_shape(directory: Path, name: str, answer: Any) -> None:
    """Compare the response with the sample, if there is one."""
    assert answer.status < 300, answer.body
    if (directory / name).exists():
        assert not list(differences(sample(directory, name), answer.json())), name


def with_existing_ids(body: Any, **values: str) -> Any:
    """The sample's body with existing ids."""
    ((key, inner),) = body.items()
    return {key: {**inner, **{name: value for name, value in values.items() if name in inner}}}


def test_attachments_at_each_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            volumes = [await make_volume(c) for _ in range(2)]
            for name in VERSIONS:
                await check_attachment_lifecycle(
                    c, server_id, volumes, ATTACHMENTS / name, name.removeprefix("v") or "2.1"
                )

    run(scenario())


async def check_attachment_lifecycle(
    c: FullCloud, server_id: str, volumes: list[str], directory: Path, version: str
) -> None:
    volume_id, other_id = volumes
    values = {"volumeId": volume_id, "serverId": server_id, "id": volume_id, "device": "/dev/vdb"}
    response = await c.post(path(server_id), with_existing_ids(sample(directory, ATTACH), **values), version=version)
    assert_same_shape(directory, ATTACHED, response)
    await wait_for_volume(c, volume_id, "in-use")
    await wait_until_idle(c, server_id)
    assert_same_shape(directory, ALL, await c.get(path(server_id), version=version))
    assert_same_shape(directory, ONE, await c.get(path(server_id, volume_id), version=version))
    if (directory / FLAG).exists():
        body = with_existing_ids(sample(directory, FLAG), **values)
        assert (await c.put(path(server_id, volume_id), body, version=version)).status == 202
    if (directory / SWAP).exists():
        body = with_existing_ids(sample(directory, SWAP), volumeId=other_id)
        response = await c.put(path(server_id, volume_id), body, as_="project-admin", version=version)
        assert response.status == 202, response.body
        await wait_until_idle(c, server_id)
        volume_id = other_id
    await detach(c, server_id, volume_id)


def test_old_volumes_and_snapshots(sqlite_url: str) -> None:
    volumes, snapshots = SAMPLES / "os-volumes", SAMPLES / "os-snapshots"

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            requested = with_existing_ids(sample(volumes, "os-volumes-post-req.json"), availability_zone="nova")
            created = await c.post("/os-volumes", {"volume": {**requested["volume"], "size": 1}})
            assert_same_shape(volumes, "os-volumes-post-resp.json", created)
            volume_id = created.json()["volume"]["id"]
            await wait_for_volume(c, volume_id, "available")
            await attach(c, (await c.boot_active())["id"], volume_id)
            assert_same_shape(volumes, "os-volumes-get-resp.json", await c.get(f"/os-volumes/{volume_id}"))
            assert_same_shape(volumes, "os-volumes-index-resp.json", await c.get("/os-volumes"))
            assert_same_shape(volumes, "os-volumes-detail-resp.json", await c.get("/os-volumes/detail"))
            requested = with_existing_ids(sample(snapshots, "snapshot-create-req.json"), volume_id=await make_volume(c))
            created = await c.post("/os-snapshots", requested)
            assert_same_shape(snapshots, "snapshot-create-resp.json", created)
            snapshot_id = created.json()["snapshot"]["id"]
            assert_same_shape(snapshots, "snapshots-show-resp.json", await c.get(f"/os-snapshots/{snapshot_id}"))
            assert_same_shape(snapshots, "snapshots-list-resp.json", await c.get("/os-snapshots"))
            assert_same_shape(snapshots, "snapshots-detail-resp.json", await c.get("/os-snapshots/detail"))

    run(scenario())


def test_external_events_and_snapshots(sqlite_url: str) -> None:
    events, assisted = SAMPLES / "os-server-external-events", SAMPLES / "os-assisted-volume-snapshots"

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            (event,) = sample(events, "event-create-resp.json")["events"]
            shown = {name: event[name] for name in ("name", "status", "tag")}
            body = {"events": [{**shown, "server_uuid": server_id}]}
            response = await c.post("/os-server-external-events", body, as_="service")
            assert_same_shape(events, "event-create-resp.json", response)
            body = with_existing_ids(sample(assisted, "snapshot-create-assisted-req.json"), volume_id=volume_id)
            response = await c.post("/os-assisted-volume-snapshots", body, as_="service")
            assert_same_shape(assisted, "snapshot-create-assisted-resp.json", response)
            await wait_until_idle(c, server_id)

    run(scenario())
