"""The first start, and that later ones change nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.identity.bootstrap import bootstrap, users
from tests.identity.support import PASSWORDS, SYSTEM, cloud, project_scope
from tests.support import run
from tests.support.databases import opened

ROLES = {
    ("admin", "admin"): {"admin", "manager", "member", "reader"},
    ("admin", "system"): {"admin", "manager", "member", "reader"},
    ("demo", "demo"): {"member", "reader"},
    ("demo-admin", "demo"): {"admin", "manager", "member", "reader"},
    ("demo-manager", "demo"): {"manager", "member", "reader"},
    ("demo-reader", "demo"): {"reader"},
    ("kilonova", "service"): {"admin", "manager", "member", "reader", "service"},
}


def test_everybody_has_the_roles_promised(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            assert set(users()) == {user for user, _ in ROLES}
            for (user, place), roles in ROLES.items():
                token = await c.login(user, SYSTEM if place == "system" else project_scope(place))
                found = await c.tokens.validate(token)
                assert found is not None
                assert found.roles == roles, user
                assert found.system == (place == "system")
                assert found.project_name == (None if place == "system" else place)

    run(scenario())


def test_a_second_start_leaves_changes_alone(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            demo_id = await c.ident("user", "demo")
            await c.ok("PATCH", f"/v3/users/{demo_id}", admin, {"user": {"password": "changed"}})
            await c.ok("DELETE", f"/v3/users/{await c.ident('user', 'demo-reader')}", admin)
            await bootstrap(c.services.db, dict.fromkeys(users(), "other"))
            await c.login("demo", password="changed")
            await c.login("admin", password=PASSWORDS["admin"])
            assert await c.ident("user", "demo-reader") is None

    run(scenario())


def test_two_first_starts_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as one, opened(database_url) as two:
            await asyncio.gather(bootstrap(one, PASSWORDS), bootstrap(two, PASSWORDS))
            assert await one.fetch_value("SELECT count(*) FROM users") == len(users())
            assert await one.fetch_value("SELECT count(*) FROM role_assignments") == 9

    run(scenario())


def test_the_service_user_of_an_older_cloud_gets_its_role_in_all_projects(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await bootstrap(db, PASSWORDS)
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM role_assignments WHERE target_kind = 'inherited'")
                await tx.execute(
                    "INSERT INTO domains (id, name, description, enabled, extra) VALUES ('far', 'far', '', TRUE, '{}')"
                )
            for _ in range(2):
                await bootstrap(db, PASSWORDS)
                rows = await db.fetch("SELECT target_id FROM role_assignments WHERE target_kind = 'inherited'")
                assert {row["target_id"] for row in rows} == {"default", "far"}

    run(scenario())


def test_a_missing_password_leaves_nothing_half_done(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            with pytest.raises(KeyError):
                await bootstrap(db, {"admin": "x"})
            assert await db.fetch_value("SELECT count(*) FROM domains") == 0

    run(scenario())
