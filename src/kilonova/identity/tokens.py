"""Tokens: issued, validated (from a short-lived cache where possible) and revoked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.identity.token import SYSTEM, UNSCOPED, Claims, Scope, Token, new_audit_id, pack, unpack

if TYPE_CHECKING:
    from kilonova.identity.keys import KeyRing
    from kilonova.store import Database, Row, Transaction

CHANNEL = "identity"
CACHE_SECONDS = 10.0
CACHE_SIZE = 20_000
MAX_LENGTH = 1024
# How long after its end a token is still good where a service finishes work it began with it.
EXPIRED_WINDOW = 2 * 86400.0


class TokenCache:
    """Remembers validated tokens for some seconds; `forget` drops all, also those being looked up meanwhile."""

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[Token | None]],
        seconds: float = CACHE_SECONDS,
        size: int = CACHE_SIZE,
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._size = size
        self._known: dict[str, tuple[Token, float]] = {}
        self._generation = 0

    async def validate(self, token: str) -> Token | None:
        now = clock.now()
        known = self._known.get(token)
        if known is not None and known[1] > now:
            return known[0]
        generation = self._generation
        found = await self._look_up(token)
        self._known.pop(token, None)
        if found is not None and generation == self._generation:
            if len(self._known) >= self._size:
                # Every entry in use is put in anew after some seconds, so the oldest entry is the one longest unused.
                del self._known[next(iter(self._known))]
            self._known[token] = found, min(now + self._seconds, found.expires_at)
        return found

    def forget(self) -> None:
        self._generation += 1
        self._known.clear()


class Validator(TokenCache):
    """The built-in service's tokens. Other processes' changes count at once on PostgreSQL, else within seconds."""

    def __init__(self, db: Database, keys: KeyRing, *, token_seconds: float = 3600.0) -> None:
        super().__init__(self.look_up)
        self.db = db
        self.keys = keys
        self.token_seconds = token_seconds
        db.listen(CHANNEL, self.forget)

    async def look_up(self, token: str, *, allow_expired: bool = False) -> Token | None:
        """Validate past the cache."""
        claims = self._claims(token)
        if claims is None:
            return None
        end = claims.expires_at + (EXPIRED_WINDOW if allow_expired else 0.0)
        return await self.describe(claims) if end > clock.now() else None

    def _claims(self, token: str) -> Claims | None:
        if len(token) > MAX_LENGTH or not token.isascii():
            return None
        raw = self.keys.decrypt(token)
        if raw is None:
            return None
        try:
            return unpack(raw)
        except (ValueError, IndexError):
            return None

    async def issue(
        self,
        user_id: str,
        scope: Scope,
        methods: Iterable[str],
        *,
        issued_at: float,
        parent: Token | None = None,
    ) -> tuple[str, Token] | None:
        """None where the user may not have that scope. A token made from a token does not outlive it.

        `issued_at` is when the credentials were read, so that a revocation meanwhile counts for this token too.
        """
        expires_at = min(issued_at + self.token_seconds, parent.expires_at if parent else float("inf"))
        audit_ids = (new_audit_id(), *(parent.audit_ids[-1:] if parent else ()))
        methods = dict.fromkeys((*methods, *(parent.methods if parent else ())))
        claims = Claims(user_id, scope, tuple(methods), issued_at, expires_at, audit_ids)
        token = await self.describe(claims)
        return (self.keys.encrypt(pack(claims)), token) if token is not None else None

    async def describe(self, claims: Claims) -> Token | None:
        """What the claims come to now: nothing if anything they stand on is gone, disabled or revoked."""
        row = await self.db.fetch_one(_STANDING, *_arguments(claims))
        if row is None or not row["user_enabled"]:
            return None
        scope = claims.scope
        if scope.kind in ("project", "domain") and not row["scope_enabled"]:
            return None
        roles = () if scope == UNSCOPED else await held_roles(self.db, claims.user_id, scope)
        if scope != UNSCOPED and not roles:
            return None
        return _token(claims, row, roles)


async def held_roles(db: Database, user_id: str, scope: Scope) -> tuple[tuple[str, str], ...]:
    """Id and name of every role, given or implied."""
    rows = await db.fetch(_ROLES, user_id, scope.kind, scope.id)
    return tuple((row["id"], row["name"]) for row in rows)


_STANDING = """
SELECT u.name AS user_name, u.domain_id AS user_domain_id, ud.name AS user_domain_name,
       u.enabled AND ud.enabled AS user_enabled,
       p.name AS project_name, p.domain_id AS project_domain_id, pd.name AS project_domain_name,
       d.name AS domain_name, CASE WHEN d.id IS NULL THEN p.enabled AND pd.enabled ELSE d.enabled END AS scope_enabled
FROM users u
JOIN domains ud ON ud.id = u.domain_id
LEFT JOIN projects p ON p.id = $2
LEFT JOIN domains pd ON pd.id = p.domain_id
LEFT JOIN domains d ON d.id = $3
WHERE u.id = $1 AND NOT EXISTS (
    SELECT 1 FROM revocations r
    WHERE (r.subject = ANY($4) OR r.subject = 'domain ' || u.domain_id OR r.subject = 'domain ' || p.domain_id)
      AND r.issued_until >= $5
)
"""

_ROLES = """
WITH RECURSIVE held(role_id) AS (
    SELECT role_id FROM role_assignments WHERE user_id = $1 AND target_kind = $2 AND target_id = $3
    UNION
    SELECT a.role_id FROM role_assignments a JOIN projects p ON p.domain_id = a.target_id
    WHERE a.user_id = $1 AND a.target_kind = 'inherited' AND $2 = 'project' AND p.id = $3
    UNION
    SELECT i.implied_id FROM implied_roles i JOIN held ON held.role_id = i.prior_id
)
SELECT r.id, r.name FROM held JOIN roles r ON r.id = held.role_id ORDER BY r.name
"""


def _arguments(claims: Claims) -> tuple[str, str | None, str | None, list[str], float]:
    scope = claims.scope
    return (
        claims.user_id,
        scope.id if scope.kind == "project" else None,
        scope.id if scope.kind == "domain" else None,
        [
            f"token {claims.audit_ids[0]}",
            f"user {claims.user_id}",
            f"{scope.kind} {scope.id}",
            f"user {claims.user_id} {scope.kind} {scope.id}",
        ],
        claims.issued_at,
    )


def _token(claims: Claims, row: Row, roles: tuple[tuple[str, str], ...]) -> Token:
    scope = claims.scope
    return Token(
        user_id=claims.user_id,
        user_name=row["user_name"],
        user_domain_id=row["user_domain_id"],
        user_domain_name=row["user_domain_name"],
        project_id=scope.id if scope.kind == "project" else None,
        project_name=row["project_name"],
        project_domain_id=row["project_domain_id"],
        project_domain_name=row["project_domain_name"],
        domain_id=scope.id if scope.kind == "domain" else None,
        domain_name=row["domain_name"],
        system=scope == SYSTEM,
        roles=frozenset(name.lower() for _, name in roles),
        role_ids=roles,
        methods=claims.methods,
        issued_at=claims.issued_at,
        expires_at=claims.expires_at,
        audit_ids=claims.audit_ids,
    )


async def revoke(tx: Transaction, subject: str, issued_until: float, token_seconds: float) -> None:
    """End a subject's tokens of up to then.

    Subjects are `token AUDIT`, `user ID`, `project ID`, `domain ID`, and `user ID project ID` for one scope of a user.
    """
    now = clock.now()
    await tx.execute("DELETE FROM revocations WHERE expires_at < $1", now)
    await tx.execute(
        "INSERT INTO revocations (subject, issued_until, expires_at) VALUES ($1, $2, $3) "
        "ON CONFLICT (subject) DO UPDATE SET issued_until = excluded.issued_until, expires_at = excluded.expires_at",
        subject,
        issued_until,
        now + token_seconds + EXPIRED_WINDOW,
    )
