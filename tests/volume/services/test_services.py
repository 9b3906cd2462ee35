"""Services, hosts, pools, zones and extensions."""

from __future__ import annotations

from typing import Any

from kilonova.compute.zones.model import create_zone
from kilonova.hosts.registry import register
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault, host
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

SCHEDULER = {"host": "kilonova", "binary": "cinder-scheduler"}
VOLUME = {"host": "kilonova@files", "binary": "cinder-volume"}


async def services(c: VolumeCloud, query: str = "", **options: Any) -> list[dict[str, Any]]:
    response = await c.get(f"/os-services{query}", as_="admin", **options)
    assert response.status == 200, response.body
    found: list[dict[str, Any]] = response.json()["services"]
    return found


def test_services_are_up_while_a_worker_is_up(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False, hosts__down_seconds=60) as c:
            assert [service["state"] for service in await services(c)] == ["down", "down"]
            await register(c.db, [], process_host="box")
            scheduler, volume = await services(c)
            common = {"zone": "nova", "status": "enabled", "state": "up", "disabled_reason": None, "cluster": None}
            assert scheduler == {**SCHEDULER, **common, "updated_at": scheduler["updated_at"]}
            assert volume == {
                **VOLUME,
                **common,
                "updated_at": scheduler["updated_at"],
                "replication_status": "disabled",
                "active_backend_id": None,
                "frozen": False,
                "backend_state": "up",
            }
            assert [service["binary"] for service in await services(c, "?host=kilonova")] == [
                "cinder-scheduler",
                "cinder-volume",
            ]
            assert await services(c, "?host=kilonova@files&binary=cinder-volume") == [volume]
            assert await services(c, "?binary=cinder-backup") == []
            assert "cluster" not in (await services(c, version="3.6"))[0]
            assert "backend_state" not in (await services(c, version="3.48"))[1]
            assert fault(await c.get("/os-services"))[0] == 403

    run(scenario())


def test_disabled_service_refuses_new_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:

            async def change(verb: str, **body: Any) -> Any:
                return await c.put(f"/os-services/{verb}", body, as_="admin")

            known = {**VOLUME, "service": "cinder-volume"}
            off = await change("disable", **VOLUME)
            assert off.json() == {**known, "disabled": True, "status": "disabled"}
            off = await change("disable-log-reason", **VOLUME, disabled_reason=" new disks ")
            assert off.json() == {**known, "disabled": True, "status": "disabled", "disabled_reason": "new disks"}
            assert [service["disabled_reason"] for service in await services(c)] == [None, "new disks"]
            refused = await c.post("/volumes", {"volume": {"size": 1}})
            message = "No volume can be created while cinder-volume is disabled: new disks"
            assert fault(refused) == (409, "conflictingRequest", message)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 0

            on = await change("enable", **VOLUME)
            assert on.json() == {**known, "disabled": False, "status": "enabled", "disabled_reason": None}
            assert [service["disabled_reason"] for service in await services(c)] == [None, None]
            assert (await c.post("/volumes", {"volume": {"size": 1}})).status == 202

            assert fault(await change("enable", host="nowhere", binary="cinder-volume"))[0] == 404
            assert fault(await change("disable", host="kilonova@files", binary="nothing"))[0] == 404
            assert fault(await change("disable-log-reason", **VOLUME, disabled_reason=None))[0] == 400
            assert fault(await change("disable-log-reason", **VOLUME))[0] == 400
            assert fault(await change("disable", host="kilonova"))[0] == 400
            for verb in ("freeze", "thaw", "failover_host"):
                assert "not replicated" in fault(await change(verb, host="kilonova@files"))[2]
            assert fault(await c.put("/os-services/disable", VOLUME))[0] == 403

    run(scenario())


def test_hosts_and_their_usage(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_volume(c.db, size=2)
            await put_volume(c.db, size=3)
            await put_volume(c.db, size=4, project_id=OTHER)
            hosts = (await c.get("/os-hosts", as_="admin")).json()["hosts"]
            assert [(host["host_name"], host["service"]) for host in hosts] == [
                ("kilonova", "cinder-scheduler"),
                ("kilonova@files", "cinder-volume"),
            ]
            assert hosts[1]["service-status"] == "unavailable"
            assert hosts[1]["service-state"] == "enabled"
            shown = (await c.get("/os-hosts/kilonova@files", as_="admin")).json()["host"]
            amounts = [
                (each["resource"]["project"], each["resource"]["volume_count"], each["resource"]["total_volume_gb"])
                for each in shown
            ]
            assert amounts == [("(total)", "3", "9"), (OTHER, "1", "4"), (DEMO, "2", "5")]
            assert fault(await c.get("/os-hosts/nowhere", as_="admin"))[0] == 404
            assert fault(await c.get("/os-hosts"))[0] == 403

    run(scenario())


def test_pool_and_capabilities(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_volume(c.db, size=2)
            path = "/scheduler-stats/get_pools"
            assert (await c.get(path, as_="admin")).json() == {"pools": [{"name": "kilonova@files#files"}]}
            (pool,) = (await c.get(f"{path}?detail=True", as_="admin")).json()["pools"]
            shown = pool["capabilities"]
            assert 0 < shown["free_capacity_gb"] <= shown["total_capacity_gb"]
            assert (shown["allocated_capacity_gb"], shown["total_volumes"]) == (2, 1)
            assert (await c.get(f"{path}?name=other", as_="admin")).json() == {"pools": []}
            able = (await c.get("/capabilities/kilonova@files", as_="admin")).json()
            for key in ("vendor_name", "volume_backend_name", "storage_protocol"):
                assert able[key] == shown[key]
            assert fault(await c.get("/capabilities/other", as_="admin"))[0] == 404
            assert fault(await c.get(path))[0] == fault(await c.get("/capabilities/kilonova@files"))[0] == 403

    run(scenario())


def test_zones_and_extensions(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await register(c.db, [host("host1")])
            async with c.db.transaction() as tx:
                await create_zone(tx, "east", ["host1"])
            zones = (await c.get("/os-availability-zone")).json()["availabilityZoneInfo"]
            assert zones == [{"zoneName": name, "zoneState": {"available": True}} for name in ("east", "nova")]
            for requested, zone in (("east", "east"), (None, "nova"), ("nova", "nova")):
                created = (await c.post("/volumes", {"volume": {"size": 1, "availability_zone": requested}})).json()
                assert created["volume"]["availability_zone"] == zone
            refused = await c.post("/volumes", {"volume": {"size": 1, "availability_zone": "west"}})
            assert "'west'" in fault(refused)[2]
            extensions = (await c.get("/extensions")).json()["extensions"]
            assert {"os-hosts", "os-volume-transfer"} <= {each["alias"] for each in extensions}

    run(scenario())
