"""The caller's credentials, which policy rules are checked against. The identity client fills them from a token."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class AccessRule(NamedTuple):
    """A request that a token with access rules may send. The path is a pattern."""

    id: str
    service: str
    method: str
    path: str


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """User, scope and roles. `roles` includes implied roles, in lower case: role names compare without case."""

    user_id: str
    user_name: str
    user_domain_id: str
    user_domain_name: str
    project_id: str | None = None
    project_name: str | None = None
    project_domain_id: str | None = None
    project_domain_name: str | None = None
    domain_id: str | None = None
    domain_name: str | None = None
    system: bool = False
    roles: frozenset[str] = frozenset()
    is_admin_project: bool = True
    # None: any request is allowed.
    access_rules: tuple[AccessRule, ...] | None = None

    @property
    def is_scoped(self) -> bool:
        return self.project_id is not None or self.domain_id is not None or self.system
