"""The seeded objects of a new cloud."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.identity.seed import seed, user_names
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


def test_seeded_users_have_their_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            assert set(user_names()) == {user for user, _ in ROLES}
            for (user, place), roles in ROLES.items():
                token = await c.login(user, SYSTEM if place == "system" else project_scope(place))
                found = await c.tokens.validate(token)
                assert found is not None
                assert found.roles == roles, user
                assert found.system == (place == "system")
                assert found.project_name == (None if place == "system" else place)

    run(scenario())


def test_second_seed_keeps_changes(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            demo_id = await c.ident("user", "demo")
            await c.ok("PATCH", f"/v3/users/{demo_id}", admin, {"user": {"password": "changed"}})
            await c.ok("DELETE", f"/v3/users/{await c.ident('user', 'demo-reader')}", admin)
            await seed(c.services.db, dict.fromkeys(user_names(), "other"))
            await c.login("demo", password="changed")
            await c.login("admin", password=PASSWORDS["admin"])
            assert await c.ident("user", "demo-reader") is None

    run(scenario())


def test_concurrent_seeds(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as one, opened(database_url) as two:
            await asyncio.gather(seed(one, PASSWORDS), seed(two, PASSWORDS))
            assert await one.fetch_value("SELECT count(*) FROM users") == len(user_names())
            assert await one.fetch_value("SELECT count(*) FROM role_assignments") == 9

    run(scenario())


def test_seed_adds_missing_service_roles(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await seed(db, PASSWORDS)
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM role_assignments WHERE target_kind = 'inherited'")
                await tx.execute(
                    "INSERT INTO domains (id, name, description, enabled, extra) VALUES ('far', 'far', '', TRUE, '{}')"
                )
            for _ in range(2):
                await seed(db, PASSWORDS)
                rows = await db.fetch("SELECT target_id FROM role_assignments WHERE target_kind = 'inherited'")
                assert {row["target_id"] for row in rows} == {"default", "far"}

    run(scenario())


def test_missing_password_creates_nothing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            with pytest.raises(KeyError):
                await seed(db, {"admin": "x"})
            assert await db.fetch_value("SELECT count(*) FROM domains") == 0

    run(scenario())
