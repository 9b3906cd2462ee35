"""Quotas of volumes and snapshots, also with concurrent requests."""

from __future__ import annotations

import asyncio

import pytest

from kilonova.http.errors import TooLarge
from kilonova.ids import new_id
from kilonova.volume.quotas import model
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.volume.support import VolumeCloud, put_snapshot, put_type, put_volume, volume_cloud

SET = f"/os-quota-sets/{DEMO}"
CLASS = "/os-quota-class-sets/default"
DEFAULTS = {
    "volumes": 10,
    "snapshots": 10,
    "gigabytes": 1000,
    "per_volume_gigabytes": -1,
    "backups": 10,
    "backup_gigabytes": 1000,
    "groups": 10,
    "volumes___DEFAULT__": -1,
    "gigabytes___DEFAULT__": -1,
    "snapshots___DEFAULT__": -1,
}


async def limit(c: VolumeCloud, **limits: int) -> None:
    response = await c.put(SET, {"quota_set": limits}, as_="admin")
    assert response.status == 200, response.body


def test_update_and_reset_quota(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            assert await c.item(SET) == {"id": DEMO, **DEFAULTS}
            new = {"volumes": 3, "gigabytes": "-1", "volumes___DEFAULT__": 2, "tenant_id": DEMO}
            changed = await c.put(SET, {"quota_set": new}, as_="admin")
            assert changed.json()["quota_set"] == {**DEFAULTS, "volumes": 3, "gigabytes": -1, "volumes___DEFAULT__": 2}
            assert (await c.item(SET))["volumes"] == 3
            assert await c.item(f"{SET}/defaults") == {"id": DEMO, **DEFAULTS}
            assert (await c.item(f"/os-quota-sets/{OTHER}", as_="other"))["volumes"] == 10
            assert (await c.delete(SET, as_="admin")).status == 200
            assert await c.item(SET) == {"id": DEMO, **DEFAULTS}

    run(scenario())


def test_invalid_quota_requests_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            for values in ({"volumes": -2}, {"volumes": "x"}, {"volumes": None}, {"cores": 1}, {"volumes_none": 1}):
                assert fault(await c.put(SET, {"quota_set": values}, as_="admin"))[0] == 400, values
            assert fault(await c.put(SET, {"quota_set": {"volumes": 1}}))[0] == 403
            assert fault(await c.delete(SET))[0] == 403
            assert fault(await c.get(f"/os-quota-sets/{OTHER}"))[0] == 403
            assert fault(await c.get("/os-quota-sets/nobody", as_="admin"))[0] == 400
            assert fault(await c.get(CLASS))[0] == 403
            assert fault(await c.put(CLASS, {"quota_class_set": {"cores": 1}}, as_="admin"))[0] == 400
            await put_volume(c.db)
            await put_volume(c.db)
            low = {"quota_set": {"volumes": 1}}
            assert fault(await c.put(f"{SET}?skip_validation=false", low, as_="admin"))[0] == 400
            assert (await c.put(SET, low, as_="admin")).status == 200

    run(scenario())


def test_usage_is_counted(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            fast = new_id()
            await put_type(c.db, fast, "fast")
            volume = await put_volume(c.db, size=3, type_id=fast)
            await put_volume(c.db, size=4)
            await put_volume(c.db, size=9, project_id=OTHER)
            await put_snapshot(c.db, volume, size=3)
            used = await c.item(f"{SET}?usage=True")
            assert used["volumes"] == {"limit": 10, "in_use": 2, "reserved": 0}
            counted = {name: value["in_use"] for name, value in used.items() if name != "id" and value["in_use"]}
            assert counted == {
                "volumes": 2,
                "gigabytes": 10,
                "snapshots": 1,
                "volumes_fast": 1,
                "gigabytes_fast": 6,
                "snapshots_fast": 1,
                "volumes___DEFAULT__": 1,
                "gigabytes___DEFAULT__": 4,
            }
            assert await c.item("/limits") == {
                "rate": [],
                "absolute": {
                    "maxTotalVolumes": 10,
                    "maxTotalSnapshots": 10,
                    "maxTotalVolumeGigabytes": 1000,
                    "maxTotalBackups": 10,
                    "maxTotalBackupGigabytes": 1000,
                    "totalVolumesUsed": 2,
                    "totalSnapshotsUsed": 1,
                    "totalGigabytesUsed": 10,
                    "totalBackupsUsed": 0,
                    "totalBackupGigabytesUsed": 0,
                },
            }
            others = f"/limits?project_id={OTHER}"
            assert (await c.item(others, as_="admin", version="3.39"))["absolute"]["totalGigabytesUsed"] == 9
            assert (await c.item(others, as_="admin", version="3.38"))["absolute"]["totalGigabytesUsed"] == 0
            assert fault(await c.get(others))[0] == 403

    run(scenario())


@pytest.mark.parametrize(
    "limits, message",
    [
        ({"volumes": 1}, "Maximum number of volumes allowed (1) exceeded for quota 'volumes'."),
        (
            {"volumes___DEFAULT__": 1},
            "Maximum number of volumes allowed (1) exceeded for quota 'volumes___DEFAULT__'.",
        ),
        (
            {"gigabytes": 4},
            "Requested volume or snapshot exceeds allowed gigabytes quota. Requested 3G, quota is 4G and 2G has been"
            " consumed.",
        ),
        (
            {"gigabytes___DEFAULT__": 4},
            "Requested volume or snapshot exceeds allowed gigabytes___DEFAULT__ quota. Requested 3G, quota is 4G and 2G"
            " has been consumed.",
        ),
        ({"per_volume_gigabytes": 2}, "Requested volume size 3 is larger than maximum allowed limit 2."),
    ],
)
def test_volume_beyond_quota_is_refused(database_url: str, limits: dict[str, int], message: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_volume(c.db, size=2)
            await limit(c, **limits)
            refused = await c.post("/volumes", {"volume": {"size": 3}})
            assert fault(refused) == (413, "overLimit", message)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 1
            # Other projects have their own quota.
            assert (await c.post("/volumes", {"volume": {"size": 3}}, as_="other")).status == 202

    run(scenario())


def test_snapshot_beyond_quota_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume = await put_volume(c.db, size=2)
            await put_snapshot(c.db, volume, size=2)
            requested = {"snapshot": {"volume_id": volume}}
            await limit(c, snapshots=1)
            message = "Maximum number of snapshots allowed (1) exceeded for quota 'snapshots'."
            assert fault(await c.post("/snapshots", requested)) == (413, "overLimit", message)
            await limit(c, snapshots=2, gigabytes=5)
            assert "gigabytes" in fault(await c.post("/snapshots", requested))[2]
            await limit(c, gigabytes=6)
            assert (await c.post("/snapshots", requested)).status == 202

    run(scenario())


def test_concurrent_requests_stay_within_quota(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await limit(c, volumes=4)
            responses = await asyncio.gather(*(c.post("/volumes", {"volume": {"size": 1}}) for _ in range(9)))
            assert sorted(response.status for response in responses) == [202] * 4 + [413] * 5

    run(scenario())


def test_retype_checks_only_quota_of_new_type(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_type(c.db, new_id(), "fast")
            await put_volume(c.db, size=2)
            await limit(c, volumes=1, gigabytes=2, volumes_fast=1, gigabytes_fast=2)
            async with c.db.transaction() as tx:
                await model.check_retype(tx, DEMO, "fast", 2, config=c.services.config)
            await limit(c, gigabytes_fast=1)
            with pytest.raises(TooLarge, match="gigabytes_fast"):
                async with c.db.transaction() as tx:
                    await model.check_retype(tx, DEMO, "fast", 2, config=c.services.config)

    run(scenario())


def test_default_class_overrides_configuration(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False, volume_quota__snapshots=7) as c:
            assert await c.item(CLASS, as_="admin") == {"id": "default", **DEFAULTS, "snapshots": 7}
            new = {"volumes": 4, "gigabytes___DEFAULT__": 20}
            changed = await c.put(CLASS, {"quota_class_set": new}, as_="admin")
            assert changed.json()["quota_class_set"] == {**DEFAULTS, "snapshots": 7, **new}
            assert (await c.item(SET))["volumes"] == (await c.item(f"{SET}/defaults"))["volumes"] == 4
            await limit(c, volumes=5)
            assert ((await c.item(SET))["volumes"], (await c.item(f"{SET}/defaults"))["volumes"]) == (5, 4)

    run(scenario())


def test_type_limits_follow_rename_and_delete_of_type(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            fast = new_id()
            await put_type(c.db, fast, "fast")
            await limit(c, volumes_fast=3)
            await c.put(f"/types/{fast}", {"volume_type": {"name": "slow"}}, as_="admin")
            shown = await c.item(SET)
            assert (shown["volumes_slow"], "volumes_fast" in shown) == (3, False)
            await c.delete(f"/types/{fast}", as_="admin")
            assert await c.item(SET) == {"id": DEMO, **DEFAULTS}
            await put_type(c.db, new_id(), "slow")
            assert (await c.item(SET))["volumes_slow"] == -1

    run(scenario())
