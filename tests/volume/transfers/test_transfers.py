"""Transfers of volumes: create, accept, delete and list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.volume.support import VolumeCloud, put_snapshot, put_volume, volume_cloud

OLD, NEW = "/os-volume-transfer", "/volume-transfers"


async def offer(c: VolumeCloud, volume_id: str, *, path: str = NEW, **keys: Any) -> dict[str, Any]:
    response = await c.post(path, {"transfer": {"volume_id": volume_id, **keys}})
    assert response.status == 202, response.body
    created: dict[str, Any] = response.json()["transfer"]
    return created


async def accept(c: VolumeCloud, created: dict[str, Any], *, key: str | None = None, **options: Any) -> ClientResponse:
    body = {"accept": {"auth_key": key or created["auth_key"]}}
    return await c.post(f"{NEW}/{created['id']}/accept", body, **{"as_": "other", **options})


async def owner(c: VolumeCloud, table: str, ident: str) -> tuple[str, str, str]:
    row = await c.db.fetch_one(f"SELECT project_id, user_id, status FROM {table} WHERE id = $1", ident)
    assert row is not None
    return row["project_id"], row["user_id"], row["status"]


def test_new_transfer_replaces_earlier_one(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            first = await offer(c, volume_id)
            freed = {"os-reset_status": {"status": "available"}}
            assert (await c.post(f"/volumes/{volume_id}/action", freed, as_="admin")).status == 202
            second = await offer(c, volume_id)
            assert (await accept(c, first)).status == 404
            assert (await accept(c, second)).status == 202

    run(scenario())


@pytest.mark.parametrize("path, version", [(OLD, "3.0"), (NEW, "3.55"), (NEW, "3.71")])
def test_create_and_accept_transfer(database_url: str, path: str, version: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            body = {"transfer": {"volume_id": volume_id, "name": "gift"}}
            created = (await c.post(path, body, version=version)).json()["transfer"]
            key = created.pop("auth_key")
            assert await owner(c, "volumes", volume_id) == (DEMO, "member-id", "awaiting-transfer")
            assert await c.item(f"{path}/{created['id']}", version=version) == created
            brief = {name: created[name] for name in ("id", "volume_id", "name", "links")}
            assert (await c.get(path, version=version)).json() == {"transfers": [brief]}
            assert (await c.get(f"{path}/detail", version=version)).json() == {"transfers": [created]}

            taken = await c.post(
                f"{path}/{created['id']}/accept", {"accept": {"auth_key": key}}, as_="other", version=version
            )
            assert taken.status == 202, taken.body
            shown = taken.json()["transfer"]
            assert (shown["id"], shown["volume_id"], shown["name"]) == (created["id"], volume_id, "gift")
            assert await owner(c, "volumes", volume_id) == (OTHER, "other-id", "available")
            assert (await c.get(f"/volumes/{volume_id}")).status == 404
            assert (await c.get(f"{path}/{created['id']}", version=version)).status == 404

    run(scenario())


def test_transfer_fields_by_microversion(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await offer(c, await put_volume(c.db))
            assert (created["source_project_id"], created["destination_project_id"]) == (DEMO, None)
            assert (created["accepted"], created["no_snapshots"]) == (False, False)
            old = {"id", "volume_id", "name", "links", "created_at"}
            assert set(await c.item(f"{OLD}/{created['id']}", version="3.54")) == old
            assert set(await c.item(f"{NEW}/{created['id']}", version="3.56")) == old | {"no_snapshots"}
            assert (await c.get(NEW, version="3.54")).status == 404
            told = {"transfer": {"volume_id": created["volume_id"], "no_snapshots": True}}
            assert fault(await c.post(OLD, told))[0] == 400

    run(scenario())


def test_key_is_not_stored(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await offer(c, await put_volume(c.db))
            row = await c.db.fetch_one("SELECT * FROM volume_transfers")
            assert row is not None
            assert created["auth_key"] not in "".join(map(str, row.values()))
            for path in (NEW, f"{NEW}/detail", f"{NEW}/{created['id']}"):
                assert created["auth_key"].encode() not in (await c.get(path)).body
            wrong = await accept(c, created, key="0" * 32)
            message = f"Invalid auth key: Attempt to transfer {created['id']} with invalid auth key."
            assert fault(wrong) == (400, "badRequest", message)
            assert await owner(c, "volumes", created["volume_id"]) == (DEMO, "member-id", "awaiting-transfer")
            assert (await accept(c, created)).status == 202

    run(scenario())


def test_one_of_concurrent_accepts_succeeds(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await offer(c, await put_volume(c.db))
            callers = ("other", "member", "admin", "other", "member")
            responses = await asyncio.gather(
                *(accept(c, created, as_=caller) for caller in callers), c.delete(f"{NEW}/{created['id']}")
            )
            assert sorted(response.status for response in responses) == [202] + [404] * 5
            assert (await owner(c, "volumes", created["volume_id"]))[2] == "available"

    run(scenario())


def test_delete_transfer(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await offer(c, await put_volume(c.db))
            path = f"{NEW}/{created['id']}"
            assert fault(await c.delete(path, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="reader"))[0] == 403
            assert (await c.delete(path)).status == 202
            assert await owner(c, "volumes", created["volume_id"]) == (DEMO, "member-id", "available")
            assert fault(await accept(c, created))[2] == f"Transfer {created['id']} could not be found."

    run(scenario())


def test_snapshots_are_transferred_unless_no_snapshots(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            going, staying = await put_volume(c.db), await put_volume(c.db)
            gone, stayed = await put_snapshot(c.db, going), await put_snapshot(c.db, staying)
            assert (await accept(c, await offer(c, going))).status == 202
            assert (await accept(c, await offer(c, staying, no_snapshots=True))).status == 202
            assert await owner(c, "volume_snapshots", gone) == (OTHER, "other-id", "available")
            assert await owner(c, "volume_snapshots", stayed) == (DEMO, "member-id", "available")
            busy = await put_volume(c.db)
            await put_snapshot(c.db, busy, status="creating")
            assert fault(await c.post(NEW, {"transfer": {"volume_id": busy}}))[0] == 400

    run(scenario())


@pytest.mark.parametrize("limits", [{"volumes": 1}, {"gigabytes": 5}, {"snapshots": 0}, {"per_volume_gigabytes": 1}])
def test_accept_checks_quota(database_url: str, limits: dict[str, int]) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_volume(c.db, size=2, project_id=OTHER)
            volume_id = await put_volume(c.db, size=2)
            await put_snapshot(c.db, volume_id, size=2)
            created = await offer(c, volume_id)
            quota = f"/os-quota-sets/{OTHER}"
            await c.put(quota, {"quota_set": limits}, as_="admin")
            assert fault(await accept(c, created))[0] == 413
            assert await owner(c, "volumes", volume_id) == (DEMO, "member-id", "awaiting-transfer")
            await c.delete(quota, as_="admin")
            assert (await accept(c, created)).status == 202
            used = await c.item(f"{quota}?usage=true", as_="other")
            assert [used[name]["in_use"] for name in ("volumes", "gigabytes", "snapshots")] == [2, 6, 1]

    run(scenario())


def test_invalid_transfer_requests_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            busy = await put_volume(c.db, status="in-use")
            message = fault(await c.post(NEW, {"transfer": {"volume_id": busy}}))[2]
            assert message.startswith("Invalid volume: Volume")
            assert "must be available" in message
            others = await put_volume(c.db, project_id=OTHER)
            assert fault(await c.post(NEW, {"transfer": {"volume_id": others}}))[0] == 404
            assert fault(await c.post(NEW, {"transfer": {"volume_id": busy}}, as_="reader"))[0] == 403
            for body in ({"transfer": {}}, {"transfer": {"volume_id": "x"}}, {}):
                assert fault(await c.post(NEW, body))[0] == 400
            created = await offer(c, await put_volume(c.db))
            assert fault(await c.post(NEW, {"transfer": {"volume_id": created["volume_id"]}}))[0] == 400
            assert fault(await accept(c, {"id": new_id(), "auth_key": "x"}))[0] == 404
            assert fault(await accept(c, created, as_="system"))[0] == 403
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'error' WHERE id = $1", created["volume_id"])
            assert "must be awaiting-transfer" in fault(await accept(c, created))[2]
            assert (await c.get(f"{NEW}/{created['id']}")).status == 200

    run(scenario())


def test_accept_requires_access_to_type(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            hidden = {"name": "hidden", "os-volume-type-access:is_public": False}
            kind = (await c.post("/types", {"volume_type": hidden}, as_="admin")).json()["volume_type"]["id"]
            created = await offer(c, await put_volume(c.db, type_id=kind))
            assert "type hidden" in fault(await accept(c, created))[2]
            await c.post(f"/types/{kind}/action", {"addProjectAccess": {"project": OTHER}}, as_="admin")
            assert (await accept(c, created)).status == 202

    run(scenario())


def test_list_shows_transfers_of_project(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = [await offer(c, await put_volume(c.db), name=name) for name in ("b", "a", "c")]

            async def listed(query: str, **options: Any) -> list[str]:
                return [each["name"] for each in (await c.get(NEW + query, **options)).json()["transfers"]]

            assert await listed("", as_="other") == []
            assert await listed("?all_tenants=1", as_="other") == []
            assert sorted(await listed("?all_tenants=1", as_="admin")) == ["a", "b", "c"]
            assert await listed("", as_="admin") == []
            assert await listed("?sort=name:asc") == ["a", "b", "c"]
            assert await listed(f"?volume_id={created[0]['volume_id']}") == ["b"]
            assert await listed("?sort=name:asc&limit=1&offset=1") == ["b"]
            assert len(await listed("?limit=1", version="3.58")) == 3
            assert fault(await c.get(f"{NEW}/{created[0]['id']}", as_="other"))[0] == 404

    run(scenario())


def test_reader_cannot_accept_transfer(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await offer(c, await put_volume(c.db))
            assert (await accept(c, created, as_="reader")).status == 403
            assert await owner(c, "volumes", created["volume_id"]) == (DEMO, "member-id", "awaiting-transfer")

    run(scenario())
