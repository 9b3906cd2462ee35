"""The identity API, complete: importing this declares every route."""

from __future__ import annotations

from kilonova.identity import assignments, auth, catalog, domains, groups, projects, roles, users, versions
from kilonova.identity.core import api

__all__ = ["api", "assignments", "auth", "catalog", "domains", "groups", "projects", "roles", "users", "versions"]

api.compile([])
