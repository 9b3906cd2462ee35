"""The first objects of a new cloud: a domain, three projects, five roles and six users."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kilonova.identity.passwords import hash_passwords, verify_password
from kilonova.identity.resources import new_id
from kilonova.identity.token import INHERITED
from kilonova.identity.token_provider import CHANGES_CHANNEL
from kilonova.store.insert import insert_row

if TYPE_CHECKING:
    from kilonova.store import Database, Reader, Transaction

DOMAIN_ID = "default"
SERVICE_USER = "kilonova"
PROJECTS = {
    "admin": "Administrators of the cloud.",
    "demo": "A project to try things in.",
    "service": "Services of the cloud.",
}
# Each role, and the role that it implies.
ROLES = {"admin": "manager", "manager": "member", "member": "reader", "reader": None, "service": None}
# The roles of each user on projects, on the system, or on all projects of the domain.
USERS: dict[str, tuple[tuple[str, str], ...]] = {
    "admin": (("admin", "admin"), ("system", "admin")),
    "demo": (("demo", "member"),),
    "demo-admin": (("demo", "admin"),),
    "demo-manager": (("demo", "manager"),),
    "demo-reader": (("demo", "reader"),),
    SERVICE_USER: (("service", "admin"), ("service", "service"), (INHERITED, "admin")),
}


def user_names() -> tuple[str, ...]:
    """The users that `seed` needs passwords for."""
    return tuple(USERS)


async def seed(db: Database, passwords: Mapping[str, str]) -> None:
    """Does nothing once the default domain exists, so that changes and deletions by administrators last.

    The exception is the service user: clouds of older releases lack its role in the projects of domains.
    """
    if await _is_seeded(db):
        await _grant_missing_service_roles(db)
        return
    hashes = dict(zip(USERS, await hash_passwords([passwords[name] for name in USERS]), strict=True))
    async with db.transaction() as tx:
        # Two processes may start on an empty database at the same time.
        await tx.lock("identity.bootstrap")
        if await _is_seeded(tx):
            return
        await insert_row(
            tx,
            "domains",
            {
                "id": DOMAIN_ID,
                "name": "Default",
                "description": "The default domain",
                "enabled": True,
                "extra": "{}",
            },
        )
        projects = await _create_projects(tx)
        roles = await _create_roles(tx)
        await _create_users(tx, hashes, projects, roles)
        tx.notify(CHANGES_CHANNEL)


async def users_with_other_passwords(db: Reader, passwords: Mapping[str, str]) -> set[str]:
    """The users of `seed` whose password has been changed and is not the given one any more."""
    changed = await db.fetch(
        "SELECT name, password_hash FROM users WHERE domain_id = $1 AND password_changed_at IS NOT NULL", DOMAIN_ID
    )
    rows = [row for row in changed if row["name"] in passwords]
    valid = await asyncio.gather(*(verify_password(passwords[row["name"]], row["password_hash"]) for row in rows))
    return {row["name"] for row, is_valid in zip(rows, valid, strict=True) if not is_valid}


async def _is_seeded(db: Reader) -> bool:
    return await db.fetch_value("SELECT 1 FROM domains WHERE id = $1", DOMAIN_ID) is not None


async def grant_service_role(tx: Transaction, domain_id: str) -> None:
    """Give the service user the role admin in all projects of the domain, where it creates resources for them."""
    await tx.execute(
        "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id)"
        " SELECT u.id, 'inherited', d.id, r.id FROM users u, roles r, domains d"
        " WHERE u.name = $1 AND u.domain_id = $2 AND r.name = 'admin' AND d.id = $3 ON CONFLICT DO NOTHING",
        SERVICE_USER,
        DOMAIN_ID,
        domain_id,
    )


async def _grant_missing_service_roles(db: Database) -> None:
    granted = "SELECT 1 FROM role_assignments a WHERE a.target_kind = 'inherited' AND a.target_id = d.id"
    missing = await db.fetch(f"SELECT d.id FROM domains d WHERE NOT EXISTS ({granted})")
    if missing:
        async with db.transaction() as tx:
            for row in missing:
                await grant_service_role(tx, row["id"])
            tx.notify(CHANGES_CHANNEL)


async def _create_projects(tx: Transaction) -> dict[str, str]:
    ids = {name: new_id() for name in PROJECTS}
    await tx.execute_many(
        "INSERT INTO projects (id, domain_id, parent_id, name, description, enabled, tags, extra) "
        "VALUES ($1, $2, NULL, $3, $4, TRUE, '[]', '{}')",
        [(item_id, DOMAIN_ID, name, PROJECTS[name]) for name, item_id in ids.items()],
    )
    return ids


async def _create_roles(tx: Transaction) -> dict[str, str]:
    ids = {name: new_id() for name in ROLES}
    await tx.execute_many(
        "INSERT INTO roles (id, name, description, extra) VALUES ($1, $2, NULL, '{}')",
        [(item_id, name) for name, item_id in ids.items()],
    )
    await tx.execute_many(
        "INSERT INTO implied_roles (prior_id, implied_id) VALUES ($1, $2)",
        [(ids[prior], ids[implied]) for prior, implied in ROLES.items() if implied],
    )
    return ids


async def _create_users(
    tx: Transaction, hashes: Mapping[str, str], projects: Mapping[str, str], roles: Mapping[str, str]
) -> None:
    ids = {name: new_id() for name in USERS}
    await tx.execute_many(
        "INSERT INTO users (id, domain_id, name, enabled, default_project_id, password_hash, extra) "
        "VALUES ($1, $2, $3, TRUE, NULL, $4, '{}')",
        [(item_id, DOMAIN_ID, name, hashes[name]) for name, item_id in ids.items()],
    )
    await tx.execute_many(
        "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id) VALUES ($1, $2, $3, $4)",
        [
            (ids[name], *_assignment_target(where, projects), roles[role])
            for name, held in USERS.items()
            for where, role in held
        ],
    )


def _assignment_target(where: str, projects: Mapping[str, str]) -> tuple[str, str]:
    if where == INHERITED:
        return INHERITED, DOMAIN_ID
    return ("system", "all") if where == "system" else ("project", projects[where])
