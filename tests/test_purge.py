"""Purging old rows: what goes, what stays, and that the database stops growing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kilonova import clock, purge
from kilonova.cli.db import db as db_command
from kilonova.compute.periodic import purge_rows
from kilonova.config import Retention
from kilonova.doctor import examine
from kilonova.identity.seed import seed, user_names
from kilonova.identity.token_provider import EXPIRED_WINDOW_SECONDS, revoke
from kilonova.store import Database
from kilonova.store.insert import insert_row
from kilonova.store.schema import metadata
from tests.support.cloud import put_server
from tests.support.databases import opened
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.history import UNFINISHED, put_move, put_operation

# Ids of deleted images, which must never be used again: a row of about 100 bytes each.
KEPT_FOR_EVER = "deleted_images"
ROUNDS = 3
DAY = 86400.0
# Tables that no purge touches, by what bounds them.
BOUNDED = {
    "rows of objects that users or operators create and delete": {
        "access_rules", "aggregate_hosts", "aggregate_metadata", "aggregates", "auto_topologies", "catalog_endpoints",
        "catalog_services", "credentials", "domains", "endpoint_group_projects", "endpoint_groups", "endpoint_projects",
        "flavor_access", "flavors", "floating_ips", "group_members", "group_role_assignments", "groups",
        "image_members", "image_properties", "image_tags", "images", "implied_roles", "keypairs", "networks",
        "policies", "port_addresses", "port_security_groups", "ports", "projects", "regions", "role_assignments",
        "roles", "routers", "security_group_rules", "security_groups", "server_groups", "server_shares",
        "share_access_rules", "share_locks", "shares", "standby_bindings", "subnets", "trunk_subports", "trunks",
        "users", "volume_attachments", "volume_metadata", "volume_snapshot_metadata", "volume_snapshots",
        "volume_transfers", "volume_type_access", "volume_types", "volumes",
    },
    "limits and defaults of projects": {
        "limits", "network_quotas", "quota_classes", "quotas", "registered_limits", "share_quotas",
        "user_quotas", "volume_default_types", "volume_quota_classes", "volume_quotas", "volume_services",
    },
    "one row": {"incarnation"},
    "never purged": {KEPT_FOR_EVER},
    "placement: hosts, and consumers with allocations": {
        "allocations", "consumers", "hypervisors", "inventories", "provider_aggregates", "provider_traits",
        "resource_classes", "resource_providers", "traits",
    },
}  # fmt: skip


_TOKEN = """
INSERT INTO console_tokens (hash, server_id, user_id, type, created_at, expires_at) VALUES ($1, $2, '', 'novnc', $3, $3)
"""


async def row_counts(db: Database) -> dict[str, int]:
    counted = sorted({*metadata.tables} - {KEPT_FOR_EVER})
    return {name: await db.fetch_value(f"SELECT COUNT(*) FROM {name}") for name in counted}


async def wait_until_idle(cloud: FullCloud) -> None:
    async with asyncio.timeout(60):
        while await cloud.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.02)


async def act(cloud: FullCloud, server_id: str, body: dict[str, Any], expected: str) -> None:
    answer = await cloud.post(f"/servers/{server_id}/action", body, as_="admin", version="2.96")
    assert answer.status in (200, 202, 204), answer.body
    await wait_until_idle(cloud)
    assert (await cloud.show(server_id))["status"] == expected


async def live_a_day(cloud: FullCloud, number: int) -> None:
    """Boot servers, use and move them, let a boot fail, and delete everything again."""
    group = await cloud.post("/os-server-groups", {"server_group": {"name": "g", "policy": "affinity"}}, version="2.96")
    group_id = group.json()["server_group"]["id"]
    first = await cloud.boot(name=f"web-{number}", tags=["a", "b"], metadata={"k": "v"})
    body = {"name": "grouped", "flavorRef": "1", "imageRef": cloud.image_id, "networks": "none"}
    hints = {"group": group_id}
    answer = await cloud.post("/servers", {"server": body, "os:scheduler_hints": hints}, version="2.96")
    assert answer.status == 202, answer.body
    grouped = answer.json()["server"]
    from_volume = await cloud.boot(
        imageRef="",
        block_device_mapping_v2=[
            {
                "boot_index": 0,
                "source_type": "image",
                "uuid": cloud.image_id,
                "destination_type": "volume",
                "volume_size": 1,
                "delete_on_termination": True,
            }
        ],
    )
    servers = [server["id"] for server in (first, grouped, from_volume)]
    for server_id in servers:
        assert (await cloud.wait_until_settled(server_id))["status"] == "ACTIVE"
    await act(cloud, servers[0], {"resize": {"flavorRef": "2"}}, "VERIFY_RESIZE")
    await act(cloud, servers[0], {"confirmResize": None}, "ACTIVE")
    await act(cloud, servers[0], {"migrate": {"host": None}}, "VERIFY_RESIZE")
    await act(cloud, servers[0], {"revertResize": None}, "ACTIVE")
    await act(cloud, servers[0], {"os-migrateLive": {"host": None, "block_migration": "auto"}}, "ACTIVE")
    await act(cloud, servers[0], {"shelve": None}, "SHELVED_OFFLOADED")
    await act(cloud, servers[0], {"unshelve": None}, "ACTIVE")
    await act(cloud, servers[0], {"rebuild": {"imageRef": cloud.image_id}}, "ACTIVE")
    async with cloud.db.transaction() as tx:
        await tx.execute(_TOKEN, f"console {number}", servers[0], clock.now())
        await revoke(tx, f"user {number}", clock.now(), 60 - EXPIRED_WINDOW_SECONDS)
    # No host has room for it: the boot fails and leaves an attempt.
    big = await cloud.boot(name="too-big", flavorRef="5")
    await cloud.wait_until_settled(big["id"])
    for server_id in (*servers, big["id"]):
        assert (await cloud.delete(f"/servers/{server_id}")).status == 204
    for server_id in (*servers, big["id"]):
        await cloud.wait_until_deleted(server_id)
    assert (await cloud.delete(f"/os-server-groups/{group_id}")).status == 204
    await wait_until_idle(cloud)


def test_database_stops_growing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as cloud:
            counts, pages = [], []
            for number in range(ROUNDS):
                await live_a_day(cloud, number)
                grown = await row_counts(cloud.db)
                assert all(grown[table] for table in ("operations", "moves", "attempts", "servers"))
                with monkeypatch.context() as later:
                    now = clock.now() + 2 * 3600
                    later.setattr(clock, "now", lambda now=now: now)
                    await purge.purge(cloud.db, Retention(), older_than_days=0)
                counts.append(await row_counts(cloud.db))
                if cloud.db.dialect == "sqlite":
                    pages.append(await cloud.db.fetch_value("SELECT page_count FROM pragma_page_count"))
            assert counts[1:] == counts[:-1]
            assert counts[-1]["operations"] == counts[-1]["servers"] == counts[-1]["attempts"] == 0
            assert pages[1:] == pages[:1] * (len(pages) - 1)

    asyncio.run(scenario())


def test_purge_during_work_takes_nothing_that_is_needed(database_url: str) -> None:
    async def purge_always(cloud: FullCloud) -> None:
        while True:
            await purge.purge(cloud.db, Retention(), older_than_days=0)
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        async with full_cloud(database_url) as cloud:
            kept = await cloud.boot_active(name="kept")
            purging = asyncio.create_task(purge_always(cloud))
            await live_a_day(cloud, 0)
            assert not purging.done()
            purging.cancel()
            await asyncio.gather(purging, return_exceptions=True)
            assert (await cloud.show(kept["id"]))["status"] == "ACTIVE"
            guests = await cloud.list_guests_and_slots()
            assert await examine(cloud.db, guests, down_seconds=600) == []

    asyncio.run(scenario())


DELETED = {"deleted": True, "vm_state": "deleted", "terminated_at": 1.0}


async def put_history(db: Database) -> None:
    """Servers and operations by name: those that begin with `old` are due, all others are needed or too young."""
    now = clock.now()
    await put_server(db, "old server", **DELETED)
    await put_operation(db, "old operation of deleted", server_id="old server")
    await put_operation(db, "old cleanup of deleted", guest_id="old server", kind="clean_up_guest")
    await put_server(db, "deleted a moment ago", **DELETED | {"terminated_at": now - DAY})
    await put_operation(db, "recent operation", server_id="deleted a moment ago", finished_at=now - DAY)
    await put_server(db, "deleted with cleanup", **DELETED)
    await put_operation(db, "cleanup", guest_id="deleted with cleanup", kind="clean_up_guest", **UNFINISHED)
    await put_operation(db, "origin of the cleanup", server_id="deleted with cleanup")
    await put_server(db, "live")
    await put_operation(db, "old operation of live", server_id="live")
    await put_operation(db, "old confirmed resize", server_id="live", kind="resize")
    await put_move(db, "old confirmed resize", "live", outcome="confirmed")
    await put_server(db, "resized", vm_state="resized")
    await put_operation(db, "unconfirmed resize", server_id="resized", kind="resize")
    await put_move(db, "unconfirmed resize", "resized")
    await put_server(db, "soft-deleted", vm_state="soft-delete")
    await put_operation(db, "soft delete", server_id="soft-deleted", kind="soft_delete")
    await put_server(db, "shelved", vm_state="shelved", shelved_at=5.0)
    for kind in ("shelve_offload", "delete"):
        await put_operation(db, f"failed {kind}", server_id="shelved", kind=kind, created_at=5.0)
        await put_operation(db, f"old {kind} of an earlier shelving", server_id="shelved", kind=kind, created_at=4.0)
    await put_server(db, "busy")
    await put_operation(db, "earlier operation of busy", server_id="busy")
    await put_operation(db, "running", server_id="busy", **UNFINISHED)
    await put_operation(db, "old volume operation", kind="create_volume")
    await put_server(db, "deleted with allocation", **DELETED)
    async with db.transaction() as tx:
        for number, (server_id, operation_id) in enumerate(
            (("old server", None), ("live", "old operation of live"), ("busy", "running"))
        ):
            await tx.execute(
                "INSERT INTO attempts (server_id, operation_id, kind, diagnosis, created_at) VALUES ($1, $2, 'boot',"
                " $3, 1)",
                server_id,
                operation_id,
                f'{{"number": {number}}}',
            )
        await tx.execute(
            "INSERT INTO consumers (uuid, project_id, user_id, generation, created_at, updated_at)"
            " VALUES ('deleted with allocation', 'p', 'u', 1, 1, 1)"
        )


async def names(db: Database, table: str, column: str = "id") -> set[str]:
    return {row["name"] for row in await db.fetch(f"SELECT {column} AS name FROM {table}")}


def test_due_rows_go_and_needed_ones_stay(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "WINDOW_ROWS", 3)

    async def scenario() -> None:
        async with opened(database_url) as db:
            await put_history(db)
            before = {table: await names(db, table) for table in ("servers", "operations")}
            counted = await purge.purge(db, Retention(), dry_run=True)
            assert {table: await names(db, table) for table in before} == before
            assert await purge.purge(db, Retention()) == counted
            for table, present in before.items():
                assert await names(db, table) == {name for name in present if not name.startswith("old")}
            assert await names(db, "moves", "operation_id") == {"unconfirmed resize"}
            assert await names(db, "attempts", "server_id") == {"busy"}
            assert not any((await purge.purge(db, Retention())).values())

    asyncio.run(scenario())


def test_expired_trusts_and_application_credentials_go(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await seed(db, dict.fromkeys(user_names(), "secret"))
            user = await db.fetch_value("SELECT id FROM users WHERE name = 'demo'")
            project = await db.fetch_value("SELECT id FROM projects WHERE name = 'demo'")
            now = clock.now()
            users = {"trustor_user_id": user, "trustee_user_id": user, "impersonation": True, "role_ids": "[]"}
            trust = {**users, "redelegation_count": 0, "extra": "{}"}
            owner = {"user_id": user, "project_id": project, "secret_hash": "", "role_ids": "[]"}
            credential = {**owner, "unrestricted": False, "has_access_rules": True}
            rule = {"id": "rule", "user_id": user, "service": "compute", "method": "GET", "path": "/"}
            async with db.transaction() as tx:
                await insert_row(tx, "access_rules", rule)
                for name, expires_at in (("endless", None), ("valid", now + DAY), ("old", now - DAY)):
                    await insert_row(tx, "trusts", {**trust, "id": name, "expires_at": expires_at})
                passed_on = {**trust, "id": "old, passed on", "redelegated_trust_id": "old", "expires_at": now - DAY}
                await insert_row(tx, "trusts", passed_on)
                for name, expires_at in (("endless", None), ("expired", now - DAY), ("old", now - 31 * DAY)):
                    row = {**credential, "id": name, "name": name, "expires_at": expires_at}
                    await insert_row(tx, "application_credentials", row)
                    used = {"application_credential_id": name, "access_rule_id": "rule"}
                    await insert_row(tx, "application_credential_rules", used)
            counts = await purge.purge(db, Retention())
            assert counts["application_credentials"] == counts["application_credential_rules"] == 1
            assert await names(db, "trusts") == {"endless", "valid"}
            assert await names(db, "application_credentials") == {"endless", "expired"}
            assert await names(db, "access_rules") == {"rule"}

    asyncio.run(scenario())


def test_chosen_table_alone_is_purged(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await put_history(db)
            await purge.purge(db, Retention(), tables=["servers"])
            left = await names(db, "operations")
            assert "old operation of live" in left
            assert not {name for name in left if name.endswith("of deleted")}
            assert "old server" not in await names(db, "servers")
            await purge.purge(db, Retention(operation_days=-1.0))
            assert "old operation of live" in await names(db, "operations")

    asyncio.run(scenario())


def test_purged_server_is_not_found_listed_or_counted(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as cloud:
            server = await cloud.boot_active(name="short")
            await cloud.delete(f"/servers/{server['id']}")
            await cloud.wait_until_deleted(server["id"])
            await wait_until_idle(cloud)
            shown = []
            for days in (1.0, 0.0):
                await purge.purge(cloud.db, Retention(), older_than_days=days)
                listed = await cloud.get("/servers?deleted=true&all_tenants=1", as_="admin", version="2.96")
                usage = await cloud.get("/os-simple-tenant-usage?detailed=1", as_="admin", version="2.96")
                actions = await cloud.get(f"/servers/{server['id']}/os-instance-actions", version="2.96")
                assert (await cloud.get(f"/servers/{server['id']}", version="2.96")).status == 404
                shown.append((len(listed.json()["servers"]), len(usage.json()["tenant_usages"]), actions.status))
            assert shown == [(1, 1, 200), (0, 0, 404)]

    asyncio.run(scenario())


def test_workers_purge_only_if_told_to(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=0) as cloud:
            await put_server(cloud.db, "old", **DELETED)
            await purge_rows.run(cloud.services)
            assert await names(cloud.db, "servers") == {"old"}
            cloud.services.config.retention.purge = True
            await purge_rows.run(cloud.services)
            assert await names(cloud.db, "servers") == set()

    asyncio.run(scenario())


def test_command_counts_and_deletes(tmp_path: Path) -> None:
    def kilonova_db(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(db_command, [*arguments, "--data", str(tmp_path)])
        return result.exit_code, result.output

    code, output = kilonova_db("purge")
    assert (code, output) == (1, f"Error: --data: no database in {tmp_path}\n")
    kilonova_db("upgrade")

    async def put() -> None:
        async with opened(f"sqlite:///{tmp_path}/kilonova.db") as db:
            await put_history(db)

    asyncio.run(put())
    code, output = kilonova_db("purge", "--table", "flavors")
    assert (code, "'flavors' is not one of attempts, operations, servers" in output) == (2, True)
    code, counted = kilonova_db("purge", "--dry-run")
    assert (code, counted.splitlines()[-1]) == (0, "11 rows would be deleted")
    code, output = kilonova_db("purge", "--older-than", "100000000")
    assert (code, output.splitlines()[-1]) == (0, "0 rows deleted")
    code, output = kilonova_db("purge")
    assert (code, output) == (0, counted.replace("would be deleted", "deleted"))
    code, output = kilonova_db("purge")
    assert output.splitlines()[-1] == "0 rows deleted"


def test_every_table_is_bounded_or_purged() -> None:
    """A new table must be purged, or be listed here with what bounds it."""
    purged = {rule.table for rule in purge.RULES} | {table for rule in purge.RULES for table, _ in rule.children}
    assert set(metadata.tables) - purged == set().union(*BOUNDED.values())
