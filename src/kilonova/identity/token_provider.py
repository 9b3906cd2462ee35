"""Issues, validates and revokes tokens. Validated tokens are cached for some seconds."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.identity.rights import Rights, find_rights
from kilonova.identity.token import SYSTEM, UNSCOPED, Claims, Scope, Token, new_audit_id, pack, unpack

if TYPE_CHECKING:
    from kilonova.identity.token_keys import KeyRing
    from kilonova.store import Database, Row, Transaction

CHANGES_CHANNEL = "identity"
CACHE_SECONDS = 10.0
CACHE_SIZE = 20_000
MAX_TOKEN_LENGTH = 1024
# How long an expired token is still accepted from services that finish work which began with it.
EXPIRED_WINDOW_SECONDS = 2 * 86400.0


class TokenCache:
    """Caches validated tokens. `forget` drops all of them, including those that are being looked up."""

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[Token | None]],
        seconds: float = CACHE_SECONDS,
        size: int = CACHE_SIZE,
    ) -> None:
        self._look_up = look_up
        self._seconds = seconds
        self._size = size
        self._cache: dict[str, tuple[Token, float]] = {}
        self._generation = 0

    async def validate(self, token: str) -> Token | None:
        now = clock.now()
        cached = self._cache.get(token)
        if cached is not None and cached[1] > now:
            return cached[0]
        generation = self._generation
        found = await self._look_up(token)
        self._cache.pop(token, None)
        if found is not None and generation == self._generation:
            if len(self._cache) >= self._size:
                # An entry in use is replaced after some seconds, so the oldest entry is the least recently used.
                del self._cache[next(iter(self._cache))]
            self._cache[token] = found, min(now + self._seconds, found.expires_at)
        return found

    def forget(self) -> None:
        self._generation += 1
        self._cache.clear()


class TokenProvider(TokenCache):
    """Tokens of the built-in service. Changes by other processes apply at once on PostgreSQL, else within seconds."""

    def __init__(self, db: Database, keys: KeyRing, *, token_seconds: float = 3600.0) -> None:
        super().__init__(self.look_up)
        self.db = db
        self.keys = keys
        self.token_seconds = token_seconds
        db.listen(CHANGES_CHANNEL, self.forget)
        keys.listen(self.forget)

    async def validate_expired(self, token: str) -> Token | None:
        return await self.look_up(token, allow_expired=True)

    async def look_up(self, token: str, *, allow_expired: bool = False) -> Token | None:
        """Validate without the cache."""
        claims = self._claims(token)
        if claims is None:
            return None
        end = claims.expires_at + (EXPIRED_WINDOW_SECONDS if allow_expired else 0.0)
        return await self.resolve(claims) if end > clock.now() else None

    def _claims(self, token: str) -> Claims | None:
        if len(token) > MAX_TOKEN_LENGTH or not token.isascii():
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
        token_epoch: int | None = None,
        parent: Token | None = None,
        until: float = math.inf,
        trust_id: str = "",
        application_credential_id: str = "",
    ) -> tuple[str, Token] | None:
        """A new token, or None if the user has no role in the scope. It outlives neither its parent token nor `until`.

        `token_epoch` is `users.token_epoch` when the credentials were read, by default now. A password that is changed
        after the credentials were read increases the column, so no token is issued.
        """
        if token_epoch is None:
            token_epoch = await self.db.fetch_value("SELECT token_epoch FROM users WHERE id = $1", user_id) or 0
        issued_at = clock.now()
        expires_at = min(issued_at + self.token_seconds, until, parent.expires_at if parent else math.inf)
        audit_ids = (new_audit_id(), *(parent.audit_ids[-1:] if parent else ()))
        methods = tuple(dict.fromkeys((*methods, *(parent.methods if parent else ()))))
        limits = (trust_id, application_credential_id)
        claims = Claims(user_id, scope, methods, issued_at, expires_at, audit_ids, token_epoch, *limits)
        token = await self.resolve(claims)
        return (self.keys.encrypt(pack(claims)), token) if token is not None else None

    async def resolve(self, claims: Claims) -> Token | None:
        """The token of the claims, or None if its user or scope is deleted or disabled, or the token is revoked."""
        row = await self.db.fetch_one(_SELECT_SUBJECT, *_subject_arguments(claims))
        if row is None or not row["user_enabled"]:
            return None
        scope = claims.scope
        if scope.kind in ("project", "domain") and not row["scope_enabled"]:
            return None
        rights = await find_rights(self.db, claims, row["token_epoch"])
        if rights is None or rights.token_epoch != claims.token_epoch or (scope != UNSCOPED and not rights.roles):
            return None
        return _token(claims, row, rights)


_SELECT_SUBJECT = """
SELECT u.name AS user_name, u.domain_id AS user_domain_id, ud.name AS user_domain_name,
       u.enabled AND ud.enabled AS user_enabled, u.token_epoch,
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


def _subject_arguments(claims: Claims) -> tuple[str, str | None, str | None, list[str], float]:
    scope = claims.scope
    return (
        claims.user_id,
        scope.id if scope.kind == "project" else None,
        scope.id if scope.kind == "domain" else None,
        [
            f"token {claims.audit_ids[0]}",
            f"{scope.kind} {scope.id}",
            # Earlier releases revoked the tokens of users by time.
            f"user {claims.user_id}",
        ],
        claims.issued_at,
    )


def _token(claims: Claims, row: Row, rights: Rights) -> Token:
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
        roles=frozenset(name.lower() for _, name in rights.roles),
        role_ids=rights.roles,
        methods=claims.methods,
        issued_at=claims.issued_at,
        expires_at=claims.expires_at,
        audit_ids=claims.audit_ids,
        token_epoch=claims.token_epoch,
        trust=rights.trust,
        application_credential=rights.application_credential,
        access_rules=rights.access_rules,
    )


async def revoke(tx: Transaction, subject: str, issued_until: float, token_seconds: float) -> None:
    """Revoke the subject's tokens that were issued until then. Subjects: `token AUDIT`, `project ID`, `domain ID`."""
    now = clock.now()
    await tx.execute("DELETE FROM revocations WHERE expires_at < $1", now)
    await tx.execute(
        "INSERT INTO revocations (subject, issued_until, expires_at) VALUES ($1, $2, $3) "
        "ON CONFLICT (subject) DO UPDATE SET issued_until = excluded.issued_until, expires_at = excluded.expires_at",
        subject,
        issued_until,
        now + token_seconds + EXPIRED_WINDOW_SECONDS,
    )


async def revoke_all_of_user(tx: Transaction, user_id: str) -> None:
    """Revoke the tokens that the user got with the credentials so far, and those of logins that are under way."""
    await tx.execute("UPDATE users SET token_epoch = token_epoch + 1 WHERE id = $1", user_id)
