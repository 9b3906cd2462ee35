"""Credentials of personas, and targets, for policy tests."""

from __future__ import annotations

from typing import Any

from kilonova.policy.credentials import Credentials

IMPLIED = {
    "admin": {"admin", "manager", "member", "reader"},
    "manager": {"manager", "member", "reader"},
    "member": {"member", "reader"},
    "reader": {"reader"},
    "service": {"service"},
    "none": set(),
}


def token(role: str = "member", project: str | None = "p1", user: str = "u1", **more: Any) -> Credentials:
    return Credentials(
        user_id=user,
        user_name=user,
        user_domain_id="default",
        user_domain_name="Default",
        project_id=project,
        project_domain_id="default" if project else None,
        roles=frozenset(IMPLIED.get(role, {role})),
        **more,
    )


def target(project: str = "p1", user: str = "u1", **more: Any) -> dict[str, Any]:
    return {"project_id": project, "user_id": user, **more}
