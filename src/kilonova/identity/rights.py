"""The roles and access rules of a token: those of its user in the scope, of a trust or of an application credential.

They are read again at each validation. So a token ends with its trust or application credential.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import orjson

from kilonova import clock
from kilonova.identity.assigned_roles import effective_roles
from kilonova.identity.token import UNSCOPED, Claims, Scope, TokenApplicationCredential, TokenTrust
from kilonova.policy.credentials import AccessRule
from kilonova.store import Reader, Row

# Ids and names.
Roles = tuple[tuple[str, str], ...]

_SELECT_TRUST = """
SELECT t.*, o.token_epoch AS trustor_epoch, e.token_epoch AS trustee_epoch,
       o.enabled AND od.enabled AS trustor_enabled, e.enabled AND ed.enabled AS trustee_enabled
FROM trusts t
JOIN users o ON o.id = t.trustor_user_id
JOIN domains od ON od.id = o.domain_id
JOIN users e ON e.id = t.trustee_user_id
JOIN domains ed ON ed.id = e.domain_id
WHERE t.id = $1 AND (t.expires_at IS NULL OR t.expires_at > $2)
"""
_SELECT_APPLICATION_CREDENTIAL = """
SELECT * FROM application_credentials
WHERE id = $1 AND user_id = $2 AND project_id = $3 AND (expires_at IS NULL OR expires_at > $4)
"""
_SELECT_ACCESS_RULES = """
SELECT c.application_credential_id, r.*
FROM application_credential_rules c JOIN access_rules r ON r.id = c.access_rule_id
WHERE c.application_credential_id = ANY($1) ORDER BY r.service, r.path, r.method
"""
_SELECT_IMPLIED = """
WITH RECURSIVE held(role_id) AS (
    SELECT id FROM roles WHERE id = ANY($1)
    UNION
    SELECT i.implied_id FROM implied_roles i JOIN held ON held.role_id = i.prior_id
)
SELECT role_id FROM held
"""


class Rights(NamedTuple):
    """What a token may do. A token is valid only if it was issued with this `token_epoch`."""

    roles: Roles
    token_epoch: int
    trust: TokenTrust | None = None
    application_credential: TokenApplicationCredential | None = None
    access_rules: tuple[AccessRule, ...] | None = None


async def find_rights(db: Reader, claims: Claims, user_epoch: int) -> Rights | None:
    """The rights of a token with these claims; None if the token has ended. `user_epoch` is `users.token_epoch` now."""
    if claims.trust_id:
        return await _of_trust(db, claims)
    if claims.application_credential_id:
        return await _of_application_credential(db, claims, user_epoch)
    return Rights(await _roles(db, claims.user_id, claims.scope), user_epoch)


async def _roles(db: Reader, user_id: str, scope: Scope) -> Roles:
    return () if scope == UNSCOPED else await effective_roles(db, user_id, scope)


async def _of_trust(db: Reader, claims: Claims) -> Rights | None:
    """All roles of the trust; None unless the trustor has all of them and both users are enabled.

    The epoch is the sum of both users' epochs. Epochs only increase, so the sum changes whenever one of them changes.
    """
    row = await find_trust(db, claims.trust_id)
    if row is None or not (row["trustor_enabled"] and row["trustee_enabled"]):
        return None
    held = await _roles(db, row["trustor_user_id"], claims.scope)
    role_ids = orjson.loads(row["role_ids"])
    if not {item_id for item_id, _ in held}.issuperset(role_ids):
        return None
    trust = TokenTrust(row["id"], row["impersonation"], row["trustor_user_id"], row["trustee_user_id"])
    return Rights(await _select(db, held, role_ids), row["trustor_epoch"] + row["trustee_epoch"], trust)


async def _of_application_credential(db: Reader, claims: Claims, user_epoch: int) -> Rights | None:
    """Those roles of the application credential that the user still has."""
    user_id, scope = claims.user_id, claims.scope
    item_id = claims.application_credential_id
    row = await db.fetch_one(_SELECT_APPLICATION_CREDENTIAL, item_id, user_id, scope.id, clock.now())
    if row is None:
        return None
    roles = await _select(db, await _roles(db, user_id, scope), orjson.loads(row["role_ids"]))
    rules = (await find_access_rules(db, [item_id])).get(item_id, ()) if row["has_access_rules"] else None
    shown = TokenApplicationCredential(item_id, row["name"], not row["unrestricted"])
    return Rights(roles, user_epoch, application_credential=shown, access_rules=rules)


async def find_access_rules(db: Reader, application_credential_ids: list[str]) -> dict[str, tuple[AccessRule, ...]]:
    """The access rules of application credentials that have some, by the id of the credential."""
    found: dict[str, tuple[AccessRule, ...]] = {}
    for row in await db.fetch(_SELECT_ACCESS_RULES, application_credential_ids):
        item_id = row["application_credential_id"]
        rule = AccessRule(row["id"], row["service"], row["method"], row["path"])
        found[item_id] = (*found.get(item_id, ()), rule)
    return found


async def find_trust(db: Reader, trust_id: str) -> Row | None:
    """The trust, with `token_epoch` and `enabled` of trustor and trustee; None if the trust has expired."""
    return await db.fetch_one(_SELECT_TRUST, trust_id, clock.now())


async def _select(db: Reader, held: Roles, role_ids: Collection[str]) -> Roles:
    selected = await with_implied(db, role_ids)
    return tuple((item_id, name) for item_id, name in held if item_id in selected)


async def with_implied(db: Reader, role_ids: Collection[str]) -> set[str]:
    """The roles and those that they imply."""
    return {row["role_id"] for row in await db.fetch(_SELECT_IMPLIED, list(role_ids))}
