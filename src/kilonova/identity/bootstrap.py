"""What a new cloud begins with: a domain, three projects, five roles and six users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kilonova.identity.core import insert_row, new_ident
from kilonova.identity.passwords import hash_passwords
from kilonova.identity.token import INHERITED
from kilonova.identity.tokens import CHANNEL

if TYPE_CHECKING:
    from kilonova.store import Database, Reader, Transaction

DOMAIN_ID = "default"
SERVICE_USER = "kilonova"
PROJECTS = {
    "admin": "Administrators of the cloud.",
    "demo": "A project to try things in.",
    "service": "Services of the cloud.",
}
# Each role and the one it implies.
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


def users() -> tuple[str, ...]:
    """The users that `bootstrap` needs passwords for."""
    return tuple(USERS)


async def bootstrap(db: Database, passwords: Mapping[str, str]) -> None:
    """Once the default domain is there, what was changed or deleted since stays so.

    But for the service user: clouds of older releases lack its role in the projects of domains.
    """
    if await _is_done(db):
        await _serve_all(db)
        return
    hashes = dict(zip(USERS, await hash_passwords([passwords[name] for name in USERS]), strict=True))
    async with db.transaction() as tx:
        # Two processes may start on an empty database at once.
        await tx.hold("identity.bootstrap")
        if await _is_done(tx):
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
        projects = await _make_projects(tx)
        roles = await _make_roles(tx)
        await _make_users(tx, hashes, projects, roles)
        tx.wake(CHANNEL)


async def _is_done(db: Reader) -> bool:
    return await db.fetch_value("SELECT 1 FROM domains WHERE id = $1", DOMAIN_ID) is not None


async def serve(tx: Transaction, domain_id: str) -> None:
    """The service user acts in the projects of the domain, where it makes what shall belong to them."""
    await tx.execute(
        "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id)"
        " SELECT u.id, 'inherited', d.id, r.id FROM users u, roles r, domains d"
        " WHERE u.name = $1 AND u.domain_id = $2 AND r.name = 'admin' AND d.id = $3 ON CONFLICT DO NOTHING",
        SERVICE_USER,
        DOMAIN_ID,
        domain_id,
    )


async def _serve_all(db: Database) -> None:
    served = "SELECT 1 FROM role_assignments a WHERE a.target_kind = 'inherited' AND a.target_id = d.id"
    lacking = await db.fetch(f"SELECT d.id FROM domains d WHERE NOT EXISTS ({served})")
    if lacking:
        async with db.transaction() as tx:
            for row in lacking:
                await serve(tx, row["id"])
            tx.wake(CHANNEL)


async def _make_projects(tx: Transaction) -> dict[str, str]:
    idents = {name: new_ident() for name in PROJECTS}
    await tx.execute_many(
        "INSERT INTO projects (id, domain_id, parent_id, name, description, enabled, tags, extra) "
        "VALUES ($1, $2, NULL, $3, $4, TRUE, '[]', '{}')",
        [(ident, DOMAIN_ID, name, PROJECTS[name]) for name, ident in idents.items()],
    )
    return idents


async def _make_roles(tx: Transaction) -> dict[str, str]:
    idents = {name: new_ident() for name in ROLES}
    await tx.execute_many(
        "INSERT INTO roles (id, name, description, extra) VALUES ($1, $2, NULL, '{}')",
        [(ident, name) for name, ident in idents.items()],
    )
    await tx.execute_many(
        "INSERT INTO implied_roles (prior_id, implied_id) VALUES ($1, $2)",
        [(idents[prior], idents[implied]) for prior, implied in ROLES.items() if implied],
    )
    return idents


async def _make_users(
    tx: Transaction, hashes: Mapping[str, str], projects: Mapping[str, str], roles: Mapping[str, str]
) -> None:
    idents = {name: new_ident() for name in USERS}
    await tx.execute_many(
        "INSERT INTO users (id, domain_id, name, enabled, default_project_id, password_hash, extra) "
        "VALUES ($1, $2, $3, TRUE, NULL, $4, '{}')",
        [(ident, DOMAIN_ID, name, hashes[name]) for name, ident in idents.items()],
    )
    await tx.execute_many(
        "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id) VALUES ($1, $2, $3, $4)",
        [(idents[name], *_place(where, projects), roles[role]) for name, held in USERS.items() for where, role in held],
    )


def _place(where: str, projects: Mapping[str, str]) -> tuple[str, str]:
    if where == INHERITED:
        return INHERITED, DOMAIN_ID
    return ("system", "all") if where == "system" else ("project", projects[where])
