"""Volumes at older microversions: fields and bodies."""

from __future__ import annotations

from kilonova.ids import new_id
from kilonova.volume import build
from tests.support import run
from tests.volume.support import put_volume, volume_cloud

# The first version that shows the field, and the one before it.
SHOWN = {
    "group_id": 13,
    "provider_id": 21,
    "service_uuid": 48,
    "shared_targets": 48,
    "cluster_name": 61,
    "volume_type_id": 63,
    "consumes_quota": 65,
}


def test_fields_by_microversion(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            path = f"/volumes/{await put_volume(c.db)}"
            for field, minor in SHOWN.items():
                for number, there in ((minor - 1, False), (minor, True)):
                    assert (field in await c.item(path, as_="admin", version=f"3.{number}")) is there, field
            oldest = await c.item(path, version="3.0")
            assert not oldest.keys() & SHOWN.keys()

    run(scenario())


def test_old_versions_ignore_unknown_keys(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for version, key, below, from_there in (
                ("3.13", "group_id", 202, 404),
                ("3.47", "backup_id", 202, 404),
                ("3.53", "colour", 202, 400),
            ):
                before = f"3.{int(version[2:]) - 1}"
                body = {"volume": {"size": 1, key: new_id()}}
                assert (await c.post("/volumes", body, version=before)).status == below, key
                assert (await c.post("/volumes", body, version=version)).status == from_there, key
            path = f"/volumes/{await put_volume(c.db)}"
            body = {"volume": {"name": "n", "colour": "blue"}}
            assert (await c.put(path, body, version="3.52")).status == 200
            assert (await c.put(path, body, version="3.53")).status == 400
            # Known keys are validated in every version.
            assert (await c.post("/volumes", {"volume": {"size": "x"}}, version="3.0")).status == 400

    run(scenario())


def test_history_has_every_version() -> None:
    for version in build().microversions:
        assert version.history, version.number
        assert version.changes, version.number
