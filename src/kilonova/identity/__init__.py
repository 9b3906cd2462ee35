"""The built-in identity service (Identity API v3), and the client to it or to a real Keystone."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api

# Modules that declare routes.
NOUNS = (
    "access_rules",
    "application_credentials",
    "auth",
    "catalog",
    "credentials",
    "domains",
    "ec2_credentials",
    "ec2_tokens",
    "endpoint_groups",
    "endpoints",
    "grants",
    "groups",
    "limits",
    "policies",
    "projects",
    "project_tags",
    "regions",
    "registered_limits",
    "role_assignments",
    "roles",
    "implied_roles",
    "services",
    "trusts",
    "unsupported",
    "users",
    "discovery",
)


@cache
def build() -> Api:
    from kilonova.identity.api import api

    for noun in NOUNS:
        importlib.import_module(f"kilonova.identity.{noun}")
    api.compile([])
    return api
