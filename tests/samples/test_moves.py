"""Bodies of evacuations and live migrations as the public API reference prints them, each at its version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, force_down
from tests.compute.servers.support import act
from tests.samples.test_samples import SAMPLES
from tests.support import run
from tests.support.whole import whole

pytestmark = pytest.mark.skipif(not SAMPLES.exists(), reason="needs the published samples in ../shared")

FILES = [
    path.relative_to(SAMPLES)
    for pattern in ("os-evacuate/**/*-req.json", "os-migrate-server/**/live-migrate-server.json")
    for path in sorted(SAMPLES.glob(pattern))
]


def version(parts: tuple[str, ...]) -> str:
    return parts[1].removeprefix("v") if len(parts) == 3 else "2.1"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_each_is_understood_at_its_version(sqlite_url: str, file: Any) -> None:
    ((action, body),) = json.loads((SAMPLES / file).read_text()).items()

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await c.active()
            if "host" in body:
                body["host"] = ({"sim-001", "sim-002"} - {server[HOST]}).pop()
            if action == "evacuate":
                await force_down(c, server[HOST])
            asked = {"as_": "admin", "version": version(file.parts)}
            tried = await act(c, server["id"], action, body, headers=DRY, **asked)
            assert (tried.status, tried.json()["plan"]["placed"]) == (200, 1), tried.body
            done = await act(c, server["id"], action, body, **asked)
            answer = SAMPLES / str(file).replace("-req.json", "-resp.json")
            expected = json.loads(answer.read_text()) if action == "evacuate" and answer.exists() else None
            assert (json.loads(done.body) if done.body else None) == expected
            assert done.status == (200 if action == "evacuate" else 202)
            # Hosts without a shared store cannot leave the disks where they are.
            stays = body.get("block_migration") is False
            assert ((await c.settled(server["id"]))[HOST] == server[HOST]) == stays

    run(scenario())


def test_there_are_some() -> None:
    assert len(FILES) == 14
