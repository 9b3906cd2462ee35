"""Published request bodies of evacuations and live migrations, each at its version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, force_down
from tests.compute.servers.support import act
from tests.samples.test_samples import SAMPLES
from tests.support import run
from tests.support.full_cloud import full_cloud

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

FILES = [
    path.relative_to(SAMPLES)
    for pattern in ("os-evacuate/**/*-req.json", "os-migrate-server/**/live-migrate-server.json")
    for path in sorted(SAMPLES.glob(pattern))
]


def version(parts: tuple[str, ...]) -> str:
    return parts[1].removeprefix("v") if len(parts) == 3 else "2.1"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_sample_body_is_accepted_at_its_version(sqlite_url: str, file: Any) -> None:
    ((action, body),) = json.loads((SAMPLES / file).read_text()).items()

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await c.boot_active()
            if "host" in body:
                body["host"] = ({"sim-001", "sim-002"} - {server[HOST]}).pop()
            if action == "evacuate":
                await force_down(c, server[HOST])
            requested = {"as_": "admin", "version": version(file.parts)}
            tried = await act(c, server["id"], action, body, headers=DRY, **requested)
            assert (tried.status, tried.json()["plan"]["placed"]) == (200, 1), tried.body
            done = await act(c, server["id"], action, body, **requested)
            response = SAMPLES / str(file).replace("-req.json", "-resp.json")
            expected = json.loads(response.read_text()) if action == "evacuate" and response.exists() else None
            assert (json.loads(done.body) if done.body else None) == expected
            assert done.status == (200 if action == "evacuate" else 202)
            # Hosts without shared storage cannot migrate without copying disks.
            stays = body.get("block_migration") is False
            assert ((await c.wait_until_settled(server["id"]))[HOST] == server[HOST]) == stays

    run(scenario())


def test_samples_exist() -> None:
    assert len(FILES) == 14
