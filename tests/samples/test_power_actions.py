"""Actions of a running server, compared with the published samples at the version of each sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples.test_samples import SAMPLES
from tests.samples.test_servers import check_shape, role_of, version
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

# Requests in a permitted order, with the expected status and the role.
REQUESTS = (
    ("os-pause-server/pause-server.json", 202, "member"),
    ("os-pause-server/unpause-server.json", 202, "member"),
    ("os-suspend-server/server-suspend.json", 202, "member"),
    ("os-suspend-server/server-resume.json", 202, "member"),
    ("os-rescue/server-rescue-req-with-image-ref.json", 200, "member"),
    ("os-rescue/server-unrescue-req.json", 202, "member"),
    ("os-rescue/v2.87/server-rescue-req.json", 200, "member"),
    ("os-rescue/v2.87/server-unrescue-req.json", 202, "member"),
    ("os-lock-server/lock-server.json", 202, "member"),
    ("os-lock-server/unlock-server.json", 202, "member"),
    ("os-lock-server/v2.73/lock-server-with-reason.json", 202, "member"),
    ("os-lock-server/v2.73/unlock-server.json", 202, "member"),
    ("os-admin-password/admin-password-change-password.json", 202, "member"),
    ("os-create-backup/create-backup-req.json", 202, "member"),
    ("os-create-backup/v2.45/create-backup-req.json", 202, "member"),
    ("os-admin-actions/admin-actions-inject-network-info.json", 202, "admin"),
    ("os-admin-actions/admin-actions-reset-network.json", 410, "admin"),
    ("os-admin-actions/admin-actions-reset-server-state.json", 202, "admin"),
    ("servers/v2.17/server-action-trigger-crash-dump.json", 202, "member"),
    ("os-deferred-delete/restore-post-req.json", 409, "member"),
    ("os-deferred-delete/force-delete-post-req.json", 202, "member"),
)
ANSWERS = {
    "server-rescue-req-with-image-ref.json": "os-rescue/server-rescue.json",
    "v2.87/server-rescue-req.json": "os-rescue/v2.87/server-rescue.json",
    "v2.45/create-backup-req.json": "os-create-backup/v2.45/create-backup-resp.json",
}
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


async def sample_of(c: FullCloud, server_id: str, name: str) -> None:
    file = SAMPLES / name
    sample = json.loads(file.read_text())
    response = await c.get(f"/servers/{server_id}", as_=role_of(sample), version=version(file))
    shown: dict[str, Any] = response.json()
    # Only samples of some versions have `progress` for a server in rescue.
    for body in (sample, shown):
        body["server"].pop("progress", None)
    check_shape(file, sample, shown)


def test_server_actions(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(name="new-server-test", metadata={"My Server Name": "Apache1"}))["id"]
            for name, status, who in REQUESTS:
                file = SAMPLES / name
                body = json.loads(file.read_text().replace(IMAGE, c.image_id))
                response = await c.post(f"/servers/{server_id}/action", body, as_=who, version=version(file))
                assert response.status == status, (name, response.body)
                expected = next((SAMPLES / found for end, found in ANSWERS.items() if name.endswith(end)), None)
                if expected is not None:
                    check_shape(expected, json.loads(expected.read_text()), response.json())
                elif status == 202:
                    assert response.body == b""
                if "forceDelete" not in body:
                    await c.wait_until_settled(server_id)
                if name == "os-rescue/v2.87/server-rescue-req.json":
                    await sample_of(c, server_id, "os-rescue/v2.87/server-get-resp-rescue.json")
                if name == "os-rescue/v2.87/server-unrescue-req.json":
                    await sample_of(c, server_id, "os-rescue/v2.87/server-get-resp-unrescue.json")
            await c.wait_until_deleted(server_id)

    run(scenario())


def test_usage(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            await c.boot_active()
            project_id = (await c.boot_active())["tenant_id"]
            folder = SAMPLES / "os-simple-tenant-usage"
            for file in sorted(folder.rglob("*.json")):
                query = "?detailed=1" if "detail" in file.name or file.name.endswith("all.json") else "?detailed=0"
                if "v2.40" in str(file):
                    query += "&limit=2"
                path = f"/{project_id}" if "specific" in file.name else ""
                response = await c.get(f"/os-simple-tenant-usage{path}{query}", as_="admin", version=version(file))
                sample, shown = json.loads(file.read_text()), response.json()
                for links in ("tenant_usages_links", "tenant_usage_links"):
                    if links not in sample:
                        shown.pop(links, None)
                check_shape(file, sample, shown)

    run(scenario())


def test_samples_exist() -> None:
    assert all(Path(SAMPLES / name).exists() for name, _, _ in REQUESTS)
